"""Where the time of a rank goes: compute, exposed communication per axis, idle; each summed from its own intervals of a Timeline.

Inside the window of one step the compute stream of a rank is always in one of these states, and `RankTimes` adds up each:

- *compute*: a compute op runs on it;
- *exposed[axis]*: a collective or message occupies it, or it is blocked while a transfer that it waits for is in flight. The transfers that it
  waits for are those to which its next op has an edge, and the earlier transfers on the same streams (they hold up the queue). In flight means
  from start to end, so a transfer that still waits for its partners does not count. After the last op of the compute stream the rank waits for
  every transfer of its own;
- *idle*: blocked while no such transfer is in flight.

Where several axes are in flight at one instant of a gap, the instant counts for the transfer that ends last: ending it sooner would help most.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import Refused
from ..program.ops import AXES
from ..program.ops import COMPUTE as COMPUTE_STREAM
from ..timeline import COMPUTE, Timeline

Floats = NDArray[np.float64]
NAMES: tuple[str, ...] = (*AXES, "other")  # transfers without an axis count as `other`: index -1
IDLE = len(NAMES)
OPTIMIZER = "S"


class Window(NamedTuple):
    """The seconds of a timeline that make up one step, and the step's number."""

    start: float
    end: float
    step: int

    @property
    def length(self) -> float:
        """Seconds."""
        return self.end - self.start


class Gap(NamedTuple):
    """A piece of a gap of the compute stream (seconds): `cause` indexes NAMES, or is IDLE."""

    start: float
    end: float
    cause: int


@dataclass(frozen=True)
class RankTimes:
    """Seconds of one rank inside the window. `exposed` and `overlapped` are float[len(NAMES)]; compute + sum(exposed) + idle = the step.

    `optimizer` is the part of `compute` in phase S, `span` reaches from the first to the last op of the compute stream in the step, `last`
    is the end of that last op.
    """

    rank: int
    compute: float
    optimizer: float
    exposed: Floats
    idle: float
    overlapped: Floats
    span: float
    last: float

    @property
    def total(self) -> float:
        """compute + exposed + idle."""
        return self.compute + float(self.exposed.sum()) + self.idle


def step_window(timeline: Timeline) -> Window:
    """From the end of the last step but one (zero where there is one step) to the end of the last.

    With several, a step ends with the last op of a compute stream: what is in flight then lies under the next step, and counts there.
    Raises Refused for a timeline without ops.
    """
    if not len(timeline.ops):
        raise Refused("the timeline holds no op: there is nothing to report; run a workload with at least one op per rank")
    steps = timeline.ops["step"]
    last = int(steps.max())
    ends = timeline.ops["end"]
    if last and COMPUTE_STREAM in timeline.streams:
        mine = timeline.ops["stream"] == timeline.streams.index(COMPUTE_STREAM)
        steps, ends = steps[mine], ends[mine]
    before = ends[steps < last]
    return Window(float(before.max()) if len(before) else 0.0, float(ends[steps == last].max()), last)


def rank_times(timeline: Timeline, window: Window | None = None) -> dict[int, RankTimes]:
    """The account of every kept rank over `window` (default: the step)."""
    where = window or step_window(timeline)
    return {rank: _account(rank, view, timeline.phases, where) for rank, view in _views(timeline)}


def rank_gaps(timeline: Timeline, rank: int, window: Window | None = None) -> list[Gap]:
    """The gaps of the compute stream of `rank`, cut into exposed and idle pieces (for pictures and explanations)."""
    kept = int(timeline.representative[rank])
    where = window or step_window(timeline)
    return sorted(gap for _, view in _views(timeline, kept) for gap in _gaps(view, where))


@dataclass(frozen=True)
class _View:
    """One rank's rows: the compute stream, the other streams (each in queue order), and the edges into the compute stream."""

    queue: NDArray[Any]  # rows of the compute stream
    position: NDArray[np.int64]  # their row numbers in the Timeline
    others: dict[int, tuple[NDArray[np.int64], NDArray[Any]]]  # stream -> (row numbers, rows), transfers only
    stream_of: NDArray[np.int16]  # of every row of the Timeline
    edges: NDArray[Any]  # sorted by op


def _views(timeline: Timeline, only: int | None = None) -> Iterator[tuple[int, _View]]:
    ops = timeline.ops
    compute = timeline.streams.index(COMPUTE_STREAM) if COMPUTE_STREAM in timeline.streams else -1
    edges = timeline.edges
    if (edges["op"][1:] < edges["op"][:-1]).any():
        edges = edges[np.argsort(edges["op"], kind="stable")]
    ranks = timeline.ranks if only is None else [only]
    bounds = np.searchsorted(ops["rank"], ranks, "left"), np.searchsorted(ops["rank"], ranks, "right")
    for rank, low, high in zip(ranks, *bounds, strict=True):
        rows = ops[low:high]
        on_compute = rows["stream"] == compute
        others = {}
        for stream in np.unique(rows["stream"][~on_compute]):
            where = np.flatnonzero((rows["stream"] == stream) & (rows["kind"] != COMPUTE))
            others[int(stream)] = (where + low, rows[where])
        position = np.flatnonzero(on_compute)
        yield rank, _View(rows[position], position + low, others, ops["stream"], edges)


def _account(rank: int, view: _View, phases: tuple[str, ...], window: Window) -> RankTimes:
    queue = view.queue
    running = queue[queue["kind"] == COMPUTE]
    optimizer = np.isin(running["phase"], [i for i, name in enumerate(phases) if name == OPTIMIZER])
    compute = _union(running["start"], running["end"], window)
    exposed = np.zeros(len(NAMES))
    idle = 0.0
    for gap in _gaps(view, window):
        if gap.cause == IDLE:
            idle += gap.end - gap.start
        else:
            exposed[gap.cause] += gap.end - gap.start
    waiting = queue[queue["kind"] != COMPUTE]
    for axis in np.unique(waiting["axis"]):
        mine = waiting[waiting["axis"] == axis]
        exposed[axis] += _measure(_union(mine["start"], mine["end"], window))
    step = queue[queue["step"] == window.step]
    span = float(step["end"].max() - step["start"].min()) if len(step) else 0.0
    return RankTimes(
        rank=rank,
        compute=_measure(compute),
        optimizer=_measure(_union(running["start"][optimizer], running["end"][optimizer], window)),
        exposed=exposed,
        idle=idle,
        overlapped=_overlapped(view, compute, window),
        span=span,
        last=float(step["end"].max()) if len(step) else window.start,
    )


def _gaps(view: _View, window: Window) -> Iterator[Gap]:
    """Pieces of the gaps of the compute stream inside the window."""
    queue = view.queue
    ended = np.maximum.accumulate(np.concatenate(([window.start], queue["end"])))
    opens = np.clip(ended, window.start, window.end)
    closes = np.clip(np.append(queue["start"], window.end), window.start, window.end)
    low, high = np.searchsorted(view.edges["op"], view.position, "left"), np.searchsorted(view.edges["op"], view.position, "right")
    for i in np.flatnonzero(closes > opens):
        if i < len(queue):
            waits = view.edges["waits_for"][low[i] : high[i]]
            flights = _awaited(view, waits, opens[i], closes[i])
        else:
            flights = _in_flight(view, opens[i], closes[i])
        yield from _attribute(flights, float(opens[i]), float(closes[i]))


def _awaited(view: _View, waits: NDArray[np.int64], start: float, end: float) -> list[Gap]:
    """The transfers in `waits` and those queued before them on the same streams, where in flight between start and end."""
    until: dict[int, int] = {}
    for row in waits:
        stream = int(view.stream_of[row])
        until[stream] = max(until.get(stream, -1), int(row))
    out = []
    for stream, row in until.items():
        if stream in view.others:
            numbers, rows = view.others[stream]
            stop = int(np.searchsorted(numbers, row, "right"))
            out += _between(rows[:stop], start, end)
    return out


def _in_flight(view: _View, start: float, end: float) -> list[Gap]:
    """Every transfer of the rank in flight between start and end."""
    return [flight for _, rows in view.others.values() for flight in _between(rows, start, end)]


def _between(rows: NDArray[Any], start: float, end: float) -> list[Gap]:
    """Rows of one stream (in order, one at a time) that are in flight between start and end; `end` is not clipped."""
    first, stop = np.searchsorted(rows["end"], start, "right"), np.searchsorted(rows["start"], end, "left")
    return [Gap(float(r["start"]), float(r["end"]), int(r["axis"]) % len(NAMES)) for r in rows[first:stop]]


def _attribute(flights: list[Gap], start: float, end: float) -> Iterator[Gap]:
    """Cut [start, end] by the flights, the last to end first: what a flight covers is its own unless one that ends later covers it too."""
    frontier = end
    for flight in sorted(flights, key=lambda f: (-f.end, f.start, f.cause)):
        low, high = max(flight.start, start), min(flight.end, frontier)
        if high <= low:
            continue
        if high < frontier:
            yield Gap(high, frontier, IDLE)
        yield Gap(low, high, flight.cause)
        frontier = low
    if frontier > start:
        yield Gap(start, frontier, IDLE)


Intervals = tuple[Floats, Floats]


def _union(starts: Floats, ends: Floats, window: Window) -> Intervals:
    """Disjoint sorted intervals that cover the same seconds of the window."""
    order = np.argsort(starts, kind="stable")
    low, high = np.clip(starts[order], window.start, window.end), np.clip(ends[order], window.start, window.end)
    reach = np.maximum.accumulate(high) if len(high) else high
    before = np.concatenate(([window.start], reach[:-1])) if len(reach) else reach
    low = np.maximum(low, before)
    keep = high > low
    return low[keep], high[keep]


def _measure(intervals: Intervals) -> float:
    return float((intervals[1] - intervals[0]).sum())


def _overlapped(view: _View, compute: Intervals, window: Window) -> Floats:
    """Seconds per axis during which a transfer is in flight on another stream while the compute stream computes."""
    out = np.zeros(len(NAMES))
    edges = np.ravel(np.column_stack(compute))
    covered = np.concatenate(([0.0], np.cumsum(compute[1] - compute[0])))
    grid = np.concatenate(([window.start], edges, [window.end]))
    done = np.repeat(covered, 2)  # computed seconds up to each point of the grid
    if not view.others:
        return out
    rows = np.concatenate([rows for _, rows in view.others.values()])
    for axis in np.unique(rows["axis"]):
        mine = rows[rows["axis"] == axis]
        low, high = _union(mine["start"], mine["end"], window)
        out[axis] += float((np.interp(high, grid, done) - np.interp(low, grid, done)).sum())
    return out
