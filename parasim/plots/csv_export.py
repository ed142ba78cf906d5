"""A Timeline as a table: one line per op of every kept rank, for spreadsheets and scripts."""

from __future__ import annotations

import csv
import os
from pathlib import Path

from ..errors import Malformed
from ..program.ops import AXES
from ..report.labels import op_names
from ..timeline import KINDS, Timeline

COLUMNS = ("rank", "op", "name", "stream", "kind", "phase", "axis", "stage", "layer", "microbatch", "step", "bytes", "ready_s", "start_s", "end_s")


def write(timeline: Timeline, path: str | Path) -> int:
    """Write `timeline` to `path` (.csv), seconds and bytes as they are, -1 where a number does not apply; the number of rows. Raises Malformed."""
    target = Path(path)
    draft = target.with_name(f".{target.name}.part")
    ops, names = timeline.ops, op_names(timeline)
    try:
        with open(draft, "w", encoding="utf-8", newline="") as file:
            table = csv.writer(file)
            table.writerow(COLUMNS)
            for name, op in zip(names, ops, strict=True):
                words = (timeline.streams[op["stream"]], KINDS[op["kind"]], timeline.phases[op["phase"]], AXES[op["axis"]] if op["axis"] >= 0 else "")
                numbers = (op[n].item() for n in ("stage", "layer", "microbatch", "step", "bytes", "ready", "start", "end"))
                table.writerow((op["rank"], op["op"], name, *words, *numbers))
        os.replace(draft, target)
    except OSError as e:
        raise Malformed(f"{path}: cannot be written ({e.strerror or e})") from e
    finally:
        draft.unlink(missing_ok=True)
    return len(ops)
