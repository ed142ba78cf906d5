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

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import Refused
from ..program.ops import AXES
from ..program.ops import COMPUTE as COMPUTE_STREAM
from ..timeline import COMPUTE, Part, Timeline

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
    parts = [p for p in timeline.parts if len(p)]
    if not parts:
        raise Refused("the timeline holds no op: there is nothing to report; run a workload with at least one op per rank")
    last = max(int(p["step"].max()) for p in parts)
    if not last:
        return Window(0.0, max(float(p.end.max()) for p in parts), 0)
    compute = timeline.streams.index(COMPUTE_STREAM) if COMPUTE_STREAM in timeline.streams else None
    mine = [np.ones(len(p), dtype=bool) if compute is None else p["stream"] == compute for p in parts]
    before = [p.end[on & (p["step"] < last)] for p, on in zip(parts, mine, strict=True)]
    within = [p.end[on & (p["step"] == last)] for p, on in zip(parts, mine, strict=True)]
    start = max((float(ends.max()) for ends in before if len(ends)), default=0.0)
    return Window(start, max(float(ends.max()) for ends in within if len(ends)), last)


def rank_times(timeline: Timeline, window: Window | None = None) -> dict[int, RankTimes]:
    """The account of every kept rank over `window` (default: the step)."""
    where = window or step_window(timeline)
    queues: dict[int, _Queues] = {}  # ranks of one Script have the same
    out: dict[int, RankTimes] = {}
    for part in timeline.parts:
        if id(part.script) not in queues:
            queues[id(part.script)] = _queues(part, timeline)
        out[part.rank] = _account(_view(part, queues[id(part.script)]), where)
    return out


def rank_gaps(timeline: Timeline, rank: int, window: Window | None = None) -> list[Gap]:
    """The gaps of the compute stream of `rank`, cut into exposed and idle pieces (for pictures and explanations)."""
    return sorted(Gap(*row) for row in zip(*(c.tolist() for c in gap_columns(timeline, rank, window)), strict=True))


def gap_columns(timeline: Timeline, rank: int, window: Window | None = None) -> Gaps:
    """The same as columns, of each gap the latest first."""
    part = timeline.part(rank)
    if part is None:
        return Gaps(np.zeros(0), np.zeros(0), np.zeros(0, dtype=np.int64))
    return _gaps(_view(part, _queues(part, timeline)), window or step_window(timeline))


@dataclass(frozen=True)
class _Queues:
    """Of a Script, each in queue order: `position` are the rows of the compute stream, `computes` and `optimizer` the entries of it that compute (in
    phase S), `transfers` those that do not, by axis, `step` the step of each; `others` the transfers of every other stream: rows and axes."""

    position: NDArray[np.int64]
    computes: NDArray[np.int64]
    optimizer: NDArray[np.int64]
    transfers: Mapping[int, NDArray[np.int64]]
    step: NDArray[np.int16]
    others: Mapping[int, tuple[NDArray[np.int64], NDArray[np.int8]]]


def _queues(part: Part, timeline: Timeline) -> _Queues:
    stream, kind, axes = part["stream"], part["kind"], part["axis"]
    on_compute = stream == (timeline.streams.index(COMPUTE_STREAM) if COMPUTE_STREAM in timeline.streams else -1)
    position, beside = np.flatnonzero(on_compute), np.flatnonzero(~on_compute & (kind != COMPUTE))
    beside = beside[np.argsort(stream[beside], kind="stable")]
    streams = np.split(beside, np.flatnonzero(np.diff(stream[beside])) + 1)
    computing, axis = kind[position] == COMPUTE, axes[position]
    stepping = computing & np.isin(part["phase"][position], [i for i, name in enumerate(timeline.phases) if name == OPTIMIZER])
    return _Queues(
        position,
        np.flatnonzero(computing),
        np.flatnonzero(stepping),
        {a: np.flatnonzero(~computing & (axis == a)) for a in _axes(axis[~computing])},
        part["step"][position],
        {int(stream[rows[0]]): (rows, axes[rows]) for rows in streams if len(rows)},
    )


@dataclass(frozen=True)
class _View:
    """One rank: its queues, the seconds of its compute stream, and of the transfers on each other stream the rows, axes and seconds."""

    part: Part
    queues: _Queues
    start: Floats
    end: Floats
    others: Mapping[int, tuple[NDArray[np.int64], NDArray[np.int8], Floats, Floats]]


def _view(part: Part, queues: _Queues) -> _View:
    others = {s: (rows, axes, part.start[rows], part.end[rows]) for s, (rows, axes) in queues.others.items()}
    return _View(part, queues, part.start[queues.position], part.end[queues.position], others)


def _account(view: _View, window: Window) -> RankTimes:
    queues, start, end = view.queues, view.start, view.end
    compute = _union(start[queues.computes], end[queues.computes], window)
    gaps = _gaps(view, window)
    blocked = np.bincount(gaps.cause, weights=gaps.end - gaps.start, minlength=IDLE + 1).astype(np.float64)  # int where there is none
    exposed = blocked[:IDLE]
    for axis, mine in queues.transfers.items():
        exposed[axis] += _measure(_union(start[mine], end[mine], window))
    step = queues.step == window.step
    last = float(end[step].max()) if step.any() else window.start
    span = last - float(start[step].min()) if step.any() else 0.0
    return RankTimes(
        rank=view.part.rank,
        compute=_measure(compute),
        optimizer=_measure(_union(start[queues.optimizer], end[queues.optimizer], window)),
        exposed=exposed,
        idle=float(blocked[IDLE]),
        overlapped=_overlapped(view, compute, window),
        span=span,
        last=last,
        gaps=gaps,
    )


def _gaps(view: _View, window: Window) -> Gaps:
    """Pieces of the gaps of the compute stream inside the window."""
    ended = np.maximum.accumulate(np.concatenate(([window.start], view.end)))
    opens = np.clip(ended, window.start, window.end)
    closes = np.clip(np.append(view.start, window.end), window.start, window.end)
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
    script, position = view.part.script, view.queues.position[which[which < len(view.start)]]
    low, high = np.searchsorted(script.waiting, position, "left"), np.searchsorted(script.waiting, position, "right")
    gap = np.repeat(np.arange(len(low)), high - low)
    waits = script.awaited[np.arange(len(gap)) - np.repeat(np.cumsum(high - low) - (high - low), high - low) + np.repeat(low, high - low)]
    stream = view.part["stream"][waits]
    parts = []
    for s, (numbers, axes, start, end) in view.others.items():
        until = np.full(len(which), -1, dtype=np.int64)
        np.maximum.at(until, gap[stream == s], waits[stream == s])
        until[len(low) :] = numbers[-1] if len(numbers) else -1
        stop = np.minimum(np.searchsorted(numbers, until, "right"), np.searchsorted(start, closes, "left"))
        first = np.searchsorted(end, opens, "right")
        count = np.maximum(stop - first, 0)
        at = np.repeat(first - np.cumsum(count) + count, count) + np.arange(count.sum())
        parts.append((np.repeat(np.arange(len(which)), count), start[at], end[at], axes[at]))
    if not parts:
        return _Flights(gap[:0], opens[:0], closes[:0], gap[:0])
    gaps, begun, ended, axis = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.argsort(gaps, kind="stable")
    return _Flights(gaps[order], begun[order], ended[order], axis[order].astype(np.int64) % len(NAMES))


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


def _axes(axes: NDArray[np.int8]) -> list[int]:
    """The axes that occur, ascending; -1 counts from the end, as NAMES does."""
    counts = np.bincount(axes + np.int8(1), minlength=len(AXES) + 1)
    return [int(a) - 1 for a in np.flatnonzero(counts)]


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
    axes, starts, ends = (np.concatenate(column) for column in zip(*(columns[1:] for columns in view.others.values()), strict=True))
    for axis in _axes(axes):
        low, high = _union(starts[axes == axis], ends[axes == axis], window)
        out[axis] += float((np.interp(high, grid, done) - np.interp(low, grid, done)).sum())
    return out
