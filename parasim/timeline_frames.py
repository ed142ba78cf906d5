"""A Timeline for notebooks: its tables with names in place of numbers, and the few facts that introduce it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .frames import data_frame
from .markup import table
from .program.ops import AXES, CATEGORIES
from .timeline import KINDS, Timeline
from .units import format_seconds
from .words import known

TABLES = ("ops", "flows", "memory", "edges")
UNITS = {"bytes": "bytes", "delta": "delta_bytes", "ready": "ready_s", "start": "start_s", "end": "end_s", "time": "time_s"}


def frame(timeline: Timeline, name: str) -> Any:
    """The table `name` (ops, flows, memory or edges) as a pandas DataFrame. Raises Malformed for another name, MissingExtra without pandas."""
    rows = getattr(timeline, known(name, TABLES, "table of a timeline"))
    words = {
        "kind": KINDS,
        "axis": (*AXES, ""),  # -1: none
        "stream": timeline.streams,
        "phase": timeline.phases,
        "buffer": timeline.buffers,
        "category": (*CATEGORIES, "host"),
        "link": [link[0] for link in timeline.links],
    }
    return data_frame({UNITS.get(column, column): _named(rows[column], words.get(column)) for column in rows.dtype.names})


def _named(values: NDArray[Any], words: Any) -> NDArray[Any]:
    return values if words is None else np.array(words, dtype=object)[values] if len(words) else values


def facts(timeline: Timeline) -> str:
    """A small HTML table."""
    kept, world = len(timeline.ranks), len(timeline.representative)
    rows = [
        ("from", timeline.meta.get("source", "simulated")),
        ("ranks", f"{world:,}" + (f", {kept:,} of them kept for all" if kept < world else "")),
        ("ops", f"{sum(len(p) for p in timeline.parts):,}"),
        ("ends after", format_seconds(timeline.makespan)),
        ("streams", f"{len(timeline.streams):,}"),
        ("links that carry something", f"{len(timeline.links):,}"),
    ]
    return table("Timeline", rows)
