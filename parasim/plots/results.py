"""Pictures of what `parasim whatif --json` and `parasim search --json` print."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from ..errors import Malformed, Refused, Unparsable
from ..units import parse
from .cliff_plot import cliff
from .curves_plot import bucket_sweep
from .pareto_plot import pareto
from .scaling_plot import scaling

Document = Mapping[str, Any]


def picture(kind: str, path: Path) -> Figure:
    """scaling, cliff and buckets of a whatif, pareto of a search. Raises Malformed (no such file, another schema), Unparsable, Refused."""
    schema, draw = PICTURES[kind]
    found = _read(path)
    if found.get("schema") != schema:
        command = schema.removeprefix("parasim.").partition("/")[0]
        raise Malformed(f"{path}: {kind} is drawn from the output of `parasim {command} --json`, whose schema is {schema}, not {found.get('schema')!r}")
    return draw(found)


def _read(path: Path) -> Document:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as e:
        raise Malformed(f"{path}: cannot be read ({e.strerror or e})") from e
    except ValueError as e:
        raise Unparsable(f"{path}: is not JSON ({e})") from e
    if not isinstance(found, dict):
        raise Unparsable(f"{path}: is not a JSON object")
    return found


def _legal(found: Document) -> list[tuple[Mapping[str, str], Any]]:
    return [(v["set"], v["report"]) for v in found["variants"] if v["report"] is not None]


def _scaling(found: Document) -> Figure:
    by_devices = {row["world_size"]: row for row in [found["baseline"], *(report for _, report in _legal(found))]}
    return scaling(list(by_devices.values()))


def _cliff(found: Document) -> Figure:
    return cliff([(", ".join(f"{k.rpartition('.')[2]} {v}" for k, v in settings.items()), report) for settings, report in _legal(found)])


def _buckets(found: Document) -> Figure:
    rows = [(settings["dp.bucket"], report) for settings, report in _legal(found) if "dp.bucket" in settings]
    if not rows:
        raise Refused("no variant sets dp.bucket: ask parasim whatif for --sweep dp.bucket=1MiB..1024MiB:4x")
    return bucket_sweep(sorted((parse(size, "bytes"), report["time_s"]["exposed"]["dp"]) for size, report in rows))


def _pareto(found: Document) -> Figure:
    return pareto([(row["name"], row["step_time_s"], row["peak_memory_bytes"]) for row in {r["name"]: r for r in [*found["top"], *found["pareto"]]}.values()])


PICTURES: Mapping[str, tuple[str, Callable[[Document], Figure]]] = {
    "scaling": ("parasim.whatif/1", _scaling),
    "cliff": ("parasim.whatif/1", _cliff),
    "buckets": ("parasim.whatif/1", _buckets),
    "pareto": ("parasim.search/1", _pareto),
}
