"""What pictures of several runs are drawn from: reports, or the JSON objects that the commands print of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..errors import Refused
from ..program.ops import AXES
from ..report import Report
from . import style

Row = Mapping[str, Any]
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#6F6F6F")
BANDS = (
    ("compute", style.PHASE_COLOURS["F"]),
    *((f"exposed {axis}", style.AXIS_COLOURS[axis]) for axis in AXES),
    ("idle", style.IDLE_COLOUR),
)


def as_rows(reports: Iterable[Report | Row], least: int = 2) -> list[Row]:
    """The reports as `parasim.report/1` objects. Raises Refused where there are fewer than `least`."""
    rows = [r.to_json() if isinstance(r, Report) else r for r in reports]
    if len(rows) < least:
        raise Refused(f"there is nothing to draw: {len(rows)} reports, at least {least} are needed")
    return rows


def shares(row: Row) -> dict[str, float]:
    """Parts of the step as fractions of it, by the names of BANDS; they sum to 1."""
    time = row["time_s"]
    parts = {"compute": time["compute"], "idle": time["idle"], **{f"exposed {axis}": s for axis, s in time["exposed"].items()}}
    whole = sum(parts.values()) or 1.0
    return {name: parts.get(name, 0.0) / whole for name, _ in BANDS}


def used(rows: Sequence[Row]) -> list[tuple[str, str]]:
    """The bands that any row has."""
    return [(name, colour) for name, colour in BANDS if any(shares(row)[name] > 0 for row in rows)]
