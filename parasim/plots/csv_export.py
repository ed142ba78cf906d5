"""A Timeline as a table: one line per op of every kept rank, for spreadsheets and scripts."""

from __future__ import annotations

import csv
from pathlib import Path

from ..files import whole
from ..program.ops import AXES
from ..report.labels import op_names
from ..timeline import KINDS, Timeline

COLUMNS = ("rank", "op", "name", "stream", "kind", "phase", "axis", "stage", "layer", "microbatch", "step", "bytes", "ready_s", "start_s", "end_s")


def write(timeline: Timeline, path: str | Path) -> int:
    """Write `timeline` to `path` (.csv), seconds and bytes as they are, -1 where a number does not apply; the number of rows. Raises Malformed."""
    ops, names = timeline.ops, op_names(timeline)
    with whole(Path(path)) as draft, open(draft, "w", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        table.writerow(COLUMNS)
        for name, op in zip(names, ops, strict=True):
            words = (timeline.streams[op["stream"]], KINDS[op["kind"]], timeline.phases[op["phase"]], AXES[op["axis"]] if op["axis"] >= 0 else "")
            numbers = (op[n].item() for n in ("stage", "layer", "microbatch", "step", "bytes", "ready", "start", "end"))
            table.writerow((op["rank"], op["op"], name, *words, *numbers))
    return len(ops)
