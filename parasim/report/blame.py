"""Who is waited for: every idle second of a rank, blamed on the rank that was computing while it waited.

An idle piece of a rank ends when a transfer starts; the transfer starts when the last of its partners is ready, and that one is waited for.
Where that one was itself waiting meanwhile, the piece goes on to whom it waited for. Idle time after a rank's last op waits for the rank that
ends last. The longest pieces are looked at, up to MOST.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from ..timeline import COMPUTE, Timeline
from .accounting import IDLE, RankTimes, Window

MOST = 2000  # idle pieces that are looked at, longest first
NOTABLE = 1.01  # compute over that of the other ranks of the stage, from which a rank is called slow
DEEPEST = 64  # ranks that wait in a row
NEAR = 1e-12  # seconds: times that differ by less are the same instant


@dataclass(frozen=True)
class Blame:
    """`idle`: the longest that one of the `waiting` ranks is idle for `rank` in a step (s); `total`: over all of them (rank-seconds)."""

    rank: int
    waiting: int
    idle: float
    total: float


@dataclass(frozen=True)
class _Waits:
    """The transfers of one rank that waited for a partner, by start: (ready, start, culprit)."""

    start: list[float]
    rows: list[tuple[float, float, int]]

    def ending(self, low: float, high: float) -> int | None:
        """For whom the rank waits in [low, high]: the last to come of the first transfer that starts at `high` or later."""
        at = bisect_right(self.start, high - NEAR * max(1.0, high))
        found = (row for row in self.rows[at : at + 8] if row[0] <= low + NEAR * max(1.0, low))
        return next((culprit for _, _, culprit in found), None)


def blame(timeline: Timeline, window: Window, times: Mapping[int, RankTimes]) -> tuple[Blame, ...]:
    """The ranks that others are idle for, the one with most rank-seconds first; empty where nobody waits. `times`: of every kept rank."""
    pieces = _idle(times)
    if not pieces:
        return ()
    waits = _waits(timeline)
    last = max((p for p in timeline.parts if len(p)), key=lambda p: (p.end.max(), -p.rank)).rank
    held: dict[int, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    for rank, low, high in pieces:
        culprit = last if high >= window.end - NEAR else _culprit(waits, rank, low, high)
        if culprit != rank:
            held[culprit][rank] += high - low
    many = timeline.multiplicity
    found = [Blame(c, sum(many[r] for r in by), max(by.values()), sum(many[r] * s for r, s in by.items())) for c, by in held.items()]
    return tuple(sorted(found, key=lambda b: (-b.total, b.rank)))


def _idle(times: Mapping[int, RankTimes]) -> list[tuple[int, float, float]]:
    """The longest idle pieces as (rank, start, end), longest first."""
    idle = [t.gaps.cause == IDLE for t in times.values()]
    rank = np.repeat(np.array(list(times), dtype=np.int64), [int(here.sum()) for here in idle])
    start = np.concatenate([t.gaps.start[here] for t, here in zip(times.values(), idle, strict=True)])
    end = np.concatenate([t.gaps.end[here] for t, here in zip(times.values(), idle, strict=True)])
    order = np.lexsort((rank, end, start, end - start))[::-1][:MOST]
    return list(zip(rank[order].tolist(), start[order].tolist(), end[order].tolist(), strict=True))


def _culprit(waits: Mapping[int, _Waits], rank: int, low: float, high: float) -> int:
    """Follow who waits for whom from `rank` to one that does not wait in [low, high]; after DEEPEST steps, to wherever that is."""
    path = {rank: 0}
    for _ in range(DEEPEST):
        following = waits[rank].ending(low, high) if rank in waits else None
        if following is None or following == rank:
            return rank
        if following in path:  # ranks that wait for each other in turn: the rest of the steps go round
            entry = path[following]
            return list(path)[entry + (DEEPEST - entry) % (len(path) - entry)]
        rank = following
        path[rank] = len(path)
    return rank


def _waits(timeline: Timeline) -> dict[int, _Waits]:
    """Per kept rank its transfers that waited. Who came last is ready when the transfer starts; transfers of one start and axis met there."""
    moved = [np.flatnonzero((p["kind"] != COMPUTE) & (p.end > p.start)) for p in timeline.parts]
    late = [p.start[m] - p.ready[m] <= NEAR * np.maximum(1.0, p.start[m]) for p, m in zip(timeline.parts, moved, strict=True)]
    waited = [(p, m[~x]) for p, m, x in zip(timeline.parts, moved, late, strict=True)]
    instants = np.unique(np.concatenate([p.start[rows] for p, rows in waited]))
    culprits: dict[tuple[float, int], int] = {}
    for part, m, x in zip(timeline.parts, moved, late, strict=True) if len(instants) else ():
        start = part.start[m[x]]
        came = m[x][instants[np.minimum(np.searchsorted(instants, start), len(instants) - 1)] == start]
        for meeting in zip(part.start[came].tolist(), part["axis"][came].tolist(), strict=True):
            culprits.setdefault(meeting, part.rank)
    out: dict[int, list[tuple[float, float, int]]] = defaultdict(list)
    for part, rows in waited:
        for axis, since, begun in zip(*(part[name][rows].tolist() for name in ("axis", "ready", "start")), strict=True):
            culprit = culprits.get((begun, axis))
            if culprit is not None:
                out[part.rank].append((since, begun, culprit))
    for found in out.values():
        found.sort(key=lambda row: row[1])
    return {rank: _Waits([begun for _, begun, _ in found], found) for rank, found in out.items()}


def led_by(slow: Straggler | None, found: tuple[Blame, ...], times: Mapping[int, RankTimes], many: Mapping[int, int]) -> tuple[Blame, ...]:
    """`found` with a slow rank in front, where others wait for it.

    In a pipeline they do so between any two microbatches and behind others that wait, so that single pieces tell little. What another rank is
    idle longer than the slow one, at most what that one computes longer than its like, it waits for it.
    """
    if slow is None:
        return found
    held = {r: min(t.idle - times[slow.rank].idle, slow.compute - slow.others) for r, t in times.items() if r != slow.rank}
    held = {r: seconds for r, seconds in held.items() if seconds > NEAR}
    if not held:
        return found
    own = Blame(slow.rank, sum(many[r] for r in held), max(held.values()), sum(many[r] * seconds for r, seconds in held.items()))
    seen = next((b for b in found if b.rank == slow.rank), own)
    return (max(own, seen, key=lambda b: b.total), *(b for b in found if b.rank != slow.rank))


@dataclass(frozen=True)
class Straggler:
    """A rank that computes longer than the others of its stage: `compute` against the median `others` of them (s)."""

    rank: int
    stage: int
    compute: float
    others: float


def straggler(stages: Iterable[tuple[int, Mapping[int, float]]], compute: Mapping[int, float], multiplicity: Mapping[int, int]) -> Straggler | None:
    """The rank that exceeds the median of its stage by the largest factor, at least NOTABLE; `stages` lists the kept ranks of every stage."""
    worst: Straggler | None = None
    for stage, ranks in stages:
        slowest = max(ranks, key=lambda r: (compute[r], -r))
        others = _median([compute[r] for r in ranks], [multiplicity.get(r, 0) for r in ranks])
        if others > 0 and compute[slowest] > NOTABLE * others and (worst is None or compute[slowest] / others > worst.compute / worst.others):
            worst = Straggler(slowest, stage, compute[slowest], others)
    return worst


def _median(values: list[float], counts: list[int]) -> float:
    """The median where each of `values` is there so many times; numpy's own loads masked arrays, which takes longer than a report."""
    order = np.argsort(values)
    until = np.cumsum(np.array(counts)[order])
    low, high = np.searchsorted(until, [(until[-1] - 1) // 2, until[-1] // 2], side="right").tolist()
    return float(values[order[low]] + values[order[high]]) / 2
