"""The critical path of a Timeline: from the op that ends last back to the beginning, always to what ended last before it could start.

An op could start when the op before it on its stream and its edges had ended (`ready`), and a transfer when its last partner was ready, too
(`start`). So the op before on the path is: for a transfer that started after it was ready, the partner that came last; and then whatever ended
at `ready`, on the same stream or along an edge. What lies between the two, if anything, is a wait.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..program.ops import AXES
from ..report import step_window
from ..timeline import COMPUTE, P2P, Timeline

TRANSFER, WAIT = "transfer", "wait"
CLOSE = 1e-9  # of the step: times that are the same instant


class Segment(NamedTuple):
    """A piece of the path: what `kind` (compute, transfer, wait) of op (row of the Timeline) it is, where, and when (seconds)."""

    kind: str
    axis: str
    stage: int
    rank: int
    row: int
    start: float
    end: float

    @property
    def seconds(self) -> float:
        """Its length."""
        return self.end - self.start


@dataclass(frozen=True)
class Graph:
    """What each row of a Timeline waits for."""

    timeline: Timeline
    edges: NDArray[Any]  # sorted by op
    before: NDArray[np.int64]  # the row before on the same stream, -1: none
    transfers: NDArray[np.int64]  # rows of transfers by the time they were ready
    ready: NDArray[np.float64]  # those times
    slack: float  # seconds within which times are the same

    @staticmethod
    def of(timeline: Timeline) -> Graph:
        """The graph of `timeline`."""
        ops, edges = timeline.ops, timeline.edges
        edges = edges[np.argsort(edges["op"], kind="stable")]
        order = np.lexsort((ops["op"], ops["stream"], ops["rank"]))
        same = (ops["rank"][order][1:] == ops["rank"][order][:-1]) & (ops["stream"][order][1:] == ops["stream"][order][:-1])
        before = np.full(len(ops), -1, dtype=np.int64)
        before[order[1:]] = np.where(same, order[:-1], -1)
        transfers = np.flatnonzero(ops["kind"] != COMPUTE)
        transfers = transfers[np.argsort(ops["ready"][transfers], kind="stable")]
        return Graph(timeline, edges, before, transfers, ops["ready"][transfers], CLOSE * max(timeline.makespan, 1e-9))

    def waits_for(self, row: int) -> list[int]:
        """The rows that had to end before `row` was ready."""
        low, high = np.searchsorted(self.edges["op"], [row, row + 1])
        found: list[int] = self.edges["waits_for"][low:high].tolist()
        return found + ([int(self.before[row])] if self.before[row] >= 0 else [])

    def latest(self, row: int) -> int:
        """Of these the one that ended last, the one on the same stream where several did; -1: there is none."""
        waits, ends = self.waits_for(row), self.timeline.ops["end"]
        last = max(waits, key=lambda w: (ends[w], w), default=-1)
        before = int(self.before[row])
        return before if before >= 0 and ends[before] >= ends[last] - self.slack else last

    def partner(self, row: int) -> int:
        """The transfer that `row` met and that was ready last: itself where it was the last."""
        ops = self.timeline.ops
        me = ops[row]
        if me["kind"] == COMPUTE or me["start"] - me["ready"] <= self.slack:
            return row
        low, high = np.searchsorted(self.ready, [me["start"] - self.slack, me["start"] + self.slack])
        rows = self.transfers[low:high]
        them = ops[rows]
        fits = (them["kind"] == me["kind"]) & (them["axis"] == me["axis"]) & (them["rank"] != me["rank"]) & (abs(them["start"] - me["start"]) <= self.slack)
        if me["kind"] != P2P:
            fits &= abs(them["end"] - me["end"]) <= self.slack
        else:
            fits &= (them["start"] < me["end"] + self.slack) & (abs(them["end"] - me["end"]) <= self.slack) | (them["microbatch"] == me["microbatch"])
        candidates = rows[fits]
        if not len(candidates):
            return row
        far = abs(ops["stage"][candidates] - me["stage"]) + 2 * (ops["microbatch"][candidates] != me["microbatch"])
        return int(candidates[np.argmin(far)])


@dataclass(frozen=True)
class CriticalPath:
    """Segments in order of time; they cover the step without gaps, from `start` to `end`."""

    segments: tuple[Segment, ...]
    start: float
    end: float

    def by(self, key: Callable[[Segment], Any]) -> dict[Any, float]:
        """Seconds of the path by `key(segment)`, largest first."""
        return total(self.segments, key)


def total(segments: Sequence[Segment], key: Callable[[Segment], Any]) -> dict[Any, float]:
    """Seconds of some segments by `key(segment)`, largest first."""
    out: dict[Any, float] = {}
    for s in segments:
        out[key(s)] = out.get(key(s), 0.0) + s.seconds
    return dict(sorted(out.items(), key=lambda item: -item[1]))


def critical_path(timeline: Timeline) -> CriticalPath:
    """The path through the last step. Raises Refused for a timeline without ops."""
    window = step_window(timeline)
    graph = Graph.of(timeline)
    ends = timeline.ops["end"]
    inside = np.flatnonzero(ends <= window.end + graph.slack)
    row = int(inside[np.argmax(ends[inside])])
    segments: list[Segment] = []
    at = window.end
    for _ in range(4 * len(timeline.ops) + 4):
        at, row = _back(graph, segments, row, at, window.start)
        if row < 0 or at <= window.start + graph.slack:
            break
    if at > window.start + graph.slack and segments:
        first = segments[-1]
        segments.append(first._replace(kind=WAIT, start=window.start, end=at))
    return CriticalPath(tuple(reversed(segments)), window.start, window.end)


def _back(graph: Graph, segments: list[Segment], row: int, at: float, floor: float) -> tuple[float, int]:
    """Add what `row` did until `at`, and what it waited for; the time and the row to go on with."""
    ops = graph.timeline.ops
    op = ops[row]
    kind = "compute" if op["kind"] == COMPUTE else TRANSFER
    axis = AXES[op["axis"]] if op["axis"] >= 0 else ""
    here = Segment(kind, axis, int(op["stage"]), int(op["rank"]), row, float(op["start"]), float(op["end"]))
    if at > here.end + graph.slack:
        segments.append(here._replace(kind=WAIT, start=max(here.end, floor), end=at))
    begin = max(here.start, floor)
    if begin < min(at, here.end):
        segments.append(here._replace(start=begin, end=min(at, here.end)))
    last = graph.partner(row)
    return min(at, begin), graph.latest(last)


def blame(timeline: Timeline) -> dict[tuple[int, int, str], float]:
    """(stage that waits, stage it waits for, axis) -> seconds, summed over the kept ranks, in which compute waits for a late partner.

    Counted are gaps of the compute stream before the transfer that ends them has started; the stage waited for is that of the partner that
    was ready last.
    """
    ops, graph = timeline.ops, Graph.of(timeline)
    stream = timeline.streams.index("compute") if "compute" in timeline.streams else -1
    rows = np.flatnonzero(ops["stream"] == stream)
    began = np.where(graph.before[rows] >= 0, ops["end"][graph.before[rows]], 0.0)
    waiting = ops["start"][rows] > began + graph.slack
    out: dict[tuple[int, int, str], float] = {}
    for row, since in zip(rows[waiting].tolist(), began[waiting].tolist(), strict=True):
        cause = row if ops["start"][row] > ops["ready"][row] + graph.slack else graph.latest(row)
        if cause < 0 or ops["kind"][cause] == COMPUTE:
            continue
        last = graph.partner(cause)
        late = float(ops["start"][cause]) - since
        if last != cause and late > graph.slack:
            key = (int(ops["stage"][row]), int(ops["stage"][last]), AXES[ops["axis"][cause]] if ops["axis"][cause] >= 0 else "")
            out[key] = out.get(key, 0.0) + late
    return dict(sorted(out.items(), key=lambda item: -item[1]))


def steps_of(path: CriticalPath, timeline: Timeline) -> list[tuple[str, Sequence[Segment]]]:
    """The path cut into runs of one rank, stage, phase and microbatch: (words, the segments)."""
    runs: list[tuple[str, list[Segment]]] = []
    for s in path.segments:
        op = timeline.ops[s.row]
        phase, microbatch = timeline.phases[int(op["phase"])], int(op["microbatch"])
        words = f"rank {s.rank} {f'stage {s.stage}' if s.stage >= 0 else 'step'} {phase}" + (f" microbatch {microbatch}" if microbatch >= 0 else "")
        if runs and runs[-1][0] == words:
            runs[-1][1].append(s)
        else:
            runs.append((words, [s]))
    return [(words, mine) for words, mine in runs]
