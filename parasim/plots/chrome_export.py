"""A Timeline in the form of Chrome's trace viewer: JSON for chrome://tracing, ui.perfetto.dev and Speedscope.

A process per kept rank, a thread per stream, a complete event ("X") per op, flow events along the edges, a counter of the memory in use. Times are
numbers of microseconds from the start of the timeline (Trace Event Format, Google 2016).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ..files import whole
from ..memory import memory_curve, thinned
from ..program.ops import AXES
from ..report.labels import op_names
from ..timeline import COMPUTE, KINDS, Timeline
from ..timeline_columns import merged
from .perfetto_export import MOST, tracks

MICROSECONDS = 1e6
INSIDE = 1e-3  # microseconds before its end at which an arrow leaves an op
POINTS = 1000  # of a rank's memory


def write(timeline: Timeline, path: str | Path) -> int:
    """Write `timeline` to `path` (.json); the number of slices: one per op, or per call where there are very many. Raises Malformed."""
    shown = merged(timeline) if sum(map(len, timeline.parts)) > MOST else timeline
    with whole(Path(path)) as draft, open(draft, "w", encoding="utf-8") as file:
        file.write('{"displayTimeUnit": "ms", "traceEvents": [\n')
        for i, event in enumerate(_events(timeline, shown)):
            file.write((",\n" if i else "") + json.dumps(event, allow_nan=False))
        file.write("\n]}\n")
    return sum(map(len, shown.parts))


def _events(whole: Timeline, timeline: Timeline) -> Iterator[dict[str, Any]]:
    names, ops = op_names(timeline), timeline.ops
    place = np.zeros((len(ops), 2), dtype=np.int64)  # process and thread of each row
    for rank in timeline.ranks:
        low, high = np.searchsorted(ops["rank"], rank, "left"), np.searchsorted(ops["rank"], rank, "right")
        count = timeline.multiplicity.get(rank, 1)
        yield _named("process", rank, 0, f"rank {rank}" + (f" (stands for {count} ranks)" if count > 1 else ""))
        for thread, (stream, rows) in enumerate(tracks(timeline, int(low), int(high))):
            yield _named("thread", rank, thread, stream)
            place[rows] = rank, thread
            yield from (_slice(timeline, row, names[row], rank, thread) for row in rows.tolist())
        yield from _memory(whole, rank)
    for number, (op, source) in enumerate(timeline.edges.tolist(), 1):
        start, end = float(ops["start"][source]) * MICROSECONDS, float(ops["end"][source]) * MICROSECONDS
        yield _arrow("s", number, place[source].tolist(), max(start, end - INSIDE))
        yield _arrow("f", number, place[op].tolist(), float(ops["start"][op]) * MICROSECONDS) | {"bp": "e"}


def _named(what: str, rank: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": f"{what}_name", "pid": rank, "tid": thread, "args": {"name": name}}


def _slice(timeline: Timeline, row: int, name: str, rank: int, thread: int) -> dict[str, Any]:
    op = timeline.ops[row]
    start, end = float(op["start"]) * MICROSECONDS, float(op["end"]) * MICROSECONDS
    args: dict[str, Any] = {"stage": int(op["stage"])} if op["stage"] >= 0 else {}
    category = KINDS[op["kind"]]
    if op["kind"] != COMPUTE:
        args |= {"bytes": float(op["bytes"]), "waited_us": float(op["start"] - op["ready"]) * MICROSECONDS}
        category += f",{AXES[op['axis']]}" if op["axis"] >= 0 else ""
    return {"ph": "X", "name": name, "cat": category, "pid": rank, "tid": thread, "ts": start, "dur": end - start, "args": args}


def _arrow(phase: str, number: int, place: list[int], at: float) -> dict[str, Any]:
    return {"ph": phase, "name": "waits for", "cat": "edge", "id": number, "pid": place[0], "tid": place[1], "ts": at}


def _memory(timeline: Timeline, rank: int) -> Iterator[dict[str, Any]]:
    curve = memory_curve(timeline, rank)
    for i in thinned(curve.total, POINTS).tolist():
        yield {"ph": "C", "name": "memory", "pid": rank, "ts": max(float(curve.times[i]), 0.0) * MICROSECONDS, "args": {"bytes": float(curve.total[i])}}
