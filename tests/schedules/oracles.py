"""What other programs say of schedules: tables of torch.distributed.pipelining 2.13, makespans of two independent evaluators."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from parasim.schedules.table import Table, read_table

DATA = Path(__file__).parent.parent / "data" / "schedules"
TORCH = DATA / "torch"
INDEX: dict[str, Any] = json.loads((TORCH / "index.json").read_text())
TABLES: list[dict[str, Any]] = INDEX["tables"]
COMMS = sorted(path.name for path in TORCH.glob("*.comms*.csv"))
BAD = [t for t in TABLES if "known_bad_rows" in t]
CLASSES = {
    "GPipe": "gpipe",
    "1F1B": "1f1b",
    "Interleaved1F1B": "interleaved-1f1b",
    "LoopedBFS": "looped-bfs",
    "InterleavedZeroBubble": "zb1p-interleaved",
    "ZBVZeroBubble": "zb-v",
    "DualPipeV": "dualpipe-v",
}
OTHER_NAMES: dict[str, tuple[str, dict[str, Any]]] = {
    "interleaved_zb1p": ("zb1p-interleaved", {}),
    "looped_bfs_rev": ("looped-bfs", {}),
    "looped_bfs": ("looped-bfs", {"backward_order": "increasing"}),
    "gpipe_rev": ("gpipe", {"backward_order": "decreasing"}),
    "dualpipe_seq": ("dualpipe", {"pairs": "sequential"}),
    "dualpipe_v_seq": ("dualpipe-v", {"pairs": "sequential"}),
    "torch:Interleaved1F1B": ("interleaved-1f1b", {"group": 7}),  # where there is no table
}


def rows(name: str) -> list[dict[str, Any]]:
    """The rows of a file of results, without its first line (definitions)."""
    return [json.loads(line) for line in (DATA / name).read_text().splitlines()][1:]


def named(row: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The schedule of a row here, and its knobs."""
    return OTHER_NAMES.get(row["schedule"], (row["schedule"].replace("_", "-"), {}))


def torch_table(row: dict[str, Any]) -> str | None:
    """The table that a row was made from, if it is one of torch's and here."""
    kind, _, schedule = row["schedule"].rpartition(":")
    name = f"{schedule}_p{row['p']}_v{row['v']}_m{row['m']}.compute.csv"
    return name if kind and (TORCH / name).exists() else None


@cache
def table(name: str) -> Table:
    """A table of torch's."""
    return read_table(TORCH / name)


def label(row: dict[str, Any]) -> str:
    """A row in a test id."""
    times = ",".join(f"{row[t]:g}" for t in ("TF", "TB", "TW"))
    return f"{row.get('table', row['schedule'])}-p{row['p']}-v{row['v']}-m{row['m']}-{times}-c{row['Tcomm']:g}"
