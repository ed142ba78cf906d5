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


class Gaps(NamedTuple):
    """The pieces of all gaps of a rank as columns: of each gap the latest first."""

    start: Floats
    end: Floats
    cause: NDArray[np.int64]


@dataclass(frozen=True)
class RankTimes:
    """Seconds of one rank inside the window. `exposed` and `overlapped` are float[len(NAMES)]; compute + sum(exposed) + idle = the step.

    `optimizer` is the part of `compute` in phase S, `span` reaches from the first to the last op of the compute stream in the step, `last`
    is the end of that last op. `gaps` are the pieces that `exposed` (where blocked) and `idle` add up.
    """

    rank: int
    compute: float
    optimizer: float
    exposed: Floats
    idle: float
    overlapped: Floats
    span: float
    last: float
    gaps: Gaps

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
    return sorted(Gap(*row) for _, view in _views(timeline, kept) for row in zip(*(c.tolist() for c in _gaps(view, where)), strict=True))


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
    gaps = _gaps(view, window)
    blocked = np.bincount(gaps.cause, weights=gaps.end - gaps.start, minlength=IDLE + 1).astype(np.float64)  # int where there is none
    exposed = blocked[:IDLE]
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
        idle=float(blocked[IDLE]),
        overlapped=_overlapped(view, compute, window),
        span=span,
        last=float(step["end"].max()) if len(step) else window.start,
        gaps=gaps,
    )


def _gaps(view: _View, window: Window) -> Gaps:
    """Pieces of the gaps of the compute stream inside the window."""
    queue = view.queue
    ended = np.maximum.accumulate(np.concatenate(([window.start], queue["end"])))
    opens = np.clip(ended, window.start, window.end)
    closes = np.clip(np.append(queue["start"], window.end), window.start, window.end)
    which = np.flatnonzero(closes > opens)
    opens, closes = opens[which], closes[which]
    return _attributed(_awaited(view, which, opens, closes), opens, closes)


@dataclass(frozen=True)
class _Flights:
    """Transfers in flight in gaps, as columns: the gap, start and end (not clipped), axis as an index in NAMES; sorted by gap."""

    gap: NDArray[np.int64]
    start: Floats
    end: Floats
    cause: NDArray[np.int64]


def _awaited(view: _View, which: NDArray[np.int64], opens: Floats, closes: Floats) -> _Flights:
    """The transfers that the ops after some gaps have edges to and those queued before them on the same streams, where in flight in the gap.

    Gap `which[k]` lies before the op of that place in the queue; the one after the last op waits for every transfer of the rank.
    """
    low = np.searchsorted(view.edges["op"], view.position, "left")[which[which < len(view.queue)]]
    high = np.searchsorted(view.edges["op"], view.position, "right")[which[which < len(view.queue)]]
    gap = np.repeat(np.arange(len(low)), high - low)
    waits = view.edges["waits_for"][np.arange(len(gap)) - np.repeat(np.cumsum(high - low) - (high - low), high - low) + np.repeat(low, high - low)]
    stream = view.stream_of[waits]
    parts = []
    for s, (numbers, rows) in view.others.items():
        until = np.full(len(which), -1, dtype=np.int64)
        np.maximum.at(until, gap[stream == s], waits[stream == s])
        until[len(low) :] = numbers[-1] if len(numbers) else -1
        stop = np.minimum(np.searchsorted(numbers, until, "right"), np.searchsorted(rows["start"], closes, "left"))
        first = np.searchsorted(rows["end"], opens, "right")
        count = np.maximum(stop - first, 0)
        at = np.repeat(first - np.cumsum(count) + count, count) + np.arange(count.sum())
        parts.append((np.repeat(np.arange(len(which)), count), rows[at]))
    gaps = np.concatenate([g for g, _ in parts]) if parts else np.zeros(0, dtype=np.int64)
    rows = np.concatenate([r for _, r in parts]) if parts else view.queue[:0]
    order = np.argsort(gaps, kind="stable")
    rows = rows[order]
    return _Flights(gaps[order], rows["start"], rows["end"], rows["axis"].astype(np.int64) % len(NAMES))


def _attributed(flights: _Flights, opens: Floats, closes: Floats) -> Gaps:
    """Every gap cut by its flights; those with one, which are nearly all, at once."""
    count = np.bincount(flights.gap, minlength=len(opens))
    first = np.cumsum(count) - count
    none, one = np.flatnonzero(count == 0), np.flatnonzero(count == 1)
    alone = first[one]
    low, high = np.maximum(flights.start[alone], opens[one]), np.minimum(flights.end[alone], closes[one])
    low, high = np.where(high > low, low, closes[one]), np.where(high > low, high, closes[one])
    idle_one = np.full(len(one), IDLE)
    pieces = [
        (none, opens[none], closes[none], np.full(len(none), IDLE)),
        (one, high, closes[one], idle_one),
        (one, low, high, flights.cause[alone]),
        (one, opens[one], low, idle_one),
    ]
    for i in np.flatnonzero(count > 1).tolist():
        mine = slice(int(first[i]), int(first[i] + count[i]))
        several = [Gap(*row) for row in zip(flights.start[mine].tolist(), flights.end[mine].tolist(), flights.cause[mine].tolist(), strict=True)]
        found = list(_attribute(several, float(opens[i]), float(closes[i])))
        starts, ends, causes = (np.array(column) for column in zip(*found, strict=True))
        pieces.append((np.full(len(found), i), starts, ends, causes))
    gap, start, end, cause = (np.concatenate(column) for column in zip(*pieces, strict=True))
    kept = np.flatnonzero(end > start)
    kept = kept[np.argsort(gap[kept], kind="stable")]
    return Gaps(start[kept], end[kept], cause[kept].astype(np.int64))


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
