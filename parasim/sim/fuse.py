"""Fusion: a run of ops of one stream that no edge enters or leaves except at its two ends is one event.

Decided on resolved edges, after folding. An op may be fused when its duration is known beforehand: computes (unless transfers slow them
down), and collectives whose links nobody else uses. The boundaries inside a run are prefix sums, so that every op gets its own start and end
back.

A collective of several fold classes starts when the last of them has come. Its classes run the same Program, so a run that begins and ends
with such collectives is one event of them all: between two of them everyone waits for the one that computes longest.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ..program.edges import Resolved
from ..program.workload import IntArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Runs:
    """Runs of a rank's n op instances. `order` int[n] lists instances stream by stream; run k covers `order[first[k]:first[k + 1]]`.

    `seconds[k]` is its length (nan: one op that must be replayed), `meets[k]` the number of the set of ranks that run it together (0: alone).
    Instance i is in run `run[i]`, is ready `ready[i]`, starts `offset[i]` and ends `after[i]` seconds after the run began: where one op ends the
    next is ready, to the last bit.
    """

    order: IntArray
    first: IntArray
    seconds: Floats
    meets: IntArray
    ready: Floats
    offset: Floats
    after: Floats
    run: IntArray
    cut: Cut


@dataclass(frozen=True)
class Cut:
    """Where the runs of a rank begin: `order`, `first` and `run` as in Runs, `known` and `meets` by place in the order. One for all ranks alike."""

    resolved: Resolved
    order: IntArray
    first: IntArray
    member: IntArray
    known: NDArray[np.bool_]
    meets: IntArray
    section: IntArray

    @cached_property
    def heads(self) -> list[int]:
        """The first op of every run."""
        found: list[int] = self.order[self.first[:-1]].tolist()
        return found

    @cached_property
    def tails(self) -> list[int]:
        """The last op of every run."""
        found: list[int] = self.order[self.first[1:] - 1].tolist()
        return found

    @cached_property
    def waits(self) -> list[list[int]]:
        """The ops that every run waits for: those of its first op."""
        first, edges = self.resolved.edge_start, self.resolved.edges.tolist()
        begins, ends = first[self.heads].tolist(), first[np.array(self.heads, dtype=np.int64) + 1].tolist()
        return [edges[a:b] for a, b in zip(begins, ends, strict=True)]

    @cached_property
    def meeting(self) -> list[int]:
        """Per run the number of the set of ranks that run it together."""
        found: list[int] = self.section.tolist()
        return found

    @cached_property
    def streams(self) -> tuple[range, ...]:
        """The runs of every stream that has any."""
        streams = self.resolved.stream[self.heads]
        mine = (np.flatnonzero(streams == s) for s in range(len(self.resolved.streams)))
        return tuple(range(int(runs[0]), int(runs[-1]) + 1) for runs in mine if len(runs))

    @cached_property
    def places(self) -> dict[int, tuple[str, int, tuple[int, ...]]]:
        """Body, position and microbatches of every run that is one op to be replayed."""
        alone = np.flatnonzero(~self.known[self.first[:-1]])
        op, calls = self.order[self.first[alone]], self.resolved.program.calls
        at = zip(alone.tolist(), self.resolved.call[op].tolist(), self.resolved.position[op].tolist(), strict=True)
        return {k: (calls[call].body, position, calls[call].microbatches) for k, call, position in at}


def fuse_all(resolved: Sequence[Resolved], seconds: Sequence[Floats], meets: Sequence[IntArray], sets: Mapping[int, tuple[int, ...]]) -> list[Runs]:
    """The runs of every kind of rank, given the seconds of each instance (nan: unknown beforehand) and the number of the set of ranks that it is a
    collective of (0: of none but ranks like this one). `sets[number]` are places in the sequences; the ranks of a set have equal Programs."""
    if not sets:
        return [_runs(c, s, np.zeros(len(s))) for c, s in zip(_cuts(resolved, seconds, meets), seconds, strict=True)]
    known, meets = _agreed(seconds, meets, sets)
    seconds = [np.where(k, s, np.nan) for k, s in zip(known, seconds, strict=True)]
    cuts = _cuts(resolved, seconds, meets)
    waits = _waits(cuts, seconds, sets)
    runs = [_runs(c, s, w) for c, s, w in zip(cuts, seconds, waits, strict=True)]
    for number, members in sets.items():  # one length for all, to the last bit
        mine = [np.flatnonzero(runs[r].meets == number) for r in members]
        if len(mine[0]):
            longest = np.max([runs[r].seconds[k] for r, k in zip(members, mine, strict=True)], axis=0)
            for r, k in zip(members, mine, strict=True):
                runs[r].seconds[k] = longest
                runs[r].after[runs[r].order[runs[r].first[k + 1] - 1]] = longest
    return runs


def _agreed(seconds: Sequence[Floats], meets: Sequence[IntArray], sets: Mapping[int, tuple[int, ...]]) -> tuple[list[NDArray[np.bool_]], list[IntArray]]:
    """What is known to all ranks of a set, and where any of them meets others: ranks that meet have the same runs."""
    known, meeting = [~np.isnan(s) for s in seconds], [m > 0 for m in meets]
    changed = True
    while changed:
        changed = False
        for members in sets.values():
            all_know, any_meets = np.logical_and.reduce([known[r] for r in members]), np.logical_or.reduce([meeting[r] for r in members])
            for r in members:
                changed |= bool((known[r] != all_know).any() or (meeting[r] != any_meets).any())
                known[r], meeting[r] = all_know, any_meets
    alone = max(sets) + 1  # a collective of like ranks where others meet: a set of its own
    return known, [np.where(m & k, np.where(given > 0, given, alone + r), 0) for r, (m, k, given) in enumerate(zip(meeting, known, meets, strict=True))]


def _cuts(resolved: Sequence[Resolved], seconds: Sequence[Floats], meets: Sequence[IntArray]) -> list[Cut]:
    """The cut of every rank; ranks of one Program that know the same share it."""
    made: dict[Hashable, Cut] = {}
    out = []
    for r, s, m in zip(resolved, seconds, meets, strict=True):
        key = id(r), np.isnan(s).tobytes(), m.tobytes()
        if key not in made:
            made[key] = _cut(r, s, m)
        out.append(made[key])
    return out


def _cut(resolved: Resolved, seconds: Floats, meets: IntArray) -> Cut:
    """Maximal runs, and of those the sections from the first to the last collective of one set."""
    n = len(resolved)
    order = np.argsort(resolved.stream.astype(np.int16), kind="stable")  # of short integers in linear time
    known = ~np.isnan(seconds)[order]
    entered = (np.diff(resolved.edge_start) > 0)[order]
    left = np.zeros(n, dtype=bool)
    left[resolved.edges] = True
    left = left[order]
    stream = resolved.stream[order]
    begins = np.ones(n, dtype=bool)
    begins[1:] = (stream[1:] != stream[:-1]) | ~known[1:] | ~known[:-1] | entered[1:] | left[:-1]
    section = meets[order]
    if section.any():
        whole = np.append(np.flatnonzero(begins), n)
        run, places, there = np.cumsum(begins) - 1, np.arange(n), section > 0
        last = np.maximum.accumulate(np.where(there, places, -1))
        following = np.minimum.accumulate(np.where(there, places, n)[::-1])[::-1]
        inside = ~there & (last >= whole[run]) & (following < whole[run + 1])
        same = section[np.maximum(last, 0)] == section[np.minimum(following, n - 1)]
        section = np.where(inside & same, section[np.maximum(last, 0)], section)
        begins[1:] |= section[1:] != section[:-1]
    first = np.flatnonzero(begins)
    return Cut(resolved, order, np.append(first, n), np.cumsum(begins) - 1, known, meets[order], section[first] if n else section)


def _waits(cuts: Sequence[Cut], seconds: Sequence[Floats], sets: Mapping[int, tuple[int, ...]]) -> list[Floats]:
    """Seconds that every instance, in order, waits inside its run for the others of its set."""
    waits = [np.zeros(len(c.order)) for c in cuts]
    before = [np.concatenate([[0.0], np.cumsum(np.where(c.known, s[c.order], 0.0))]) for c, s in zip(cuts, seconds, strict=True)]
    for number, members in sets.items():
        places = [np.flatnonzero(cuts[r].meets == number) for r in members]
        inner = [p[1:][cuts[r].member[p[1:]] == cuts[r].member[p[:-1]]] for r, p in zip(members, places, strict=True)]
        previous = [p[:-1][cuts[r].member[p[1:]] == cuts[r].member[p[:-1]]] for r, p in zip(members, places, strict=True)]
        if len(inner[0]):
            computed = np.array([before[r][i] - before[r][j + 1] for r, i, j in zip(members, inner, previous, strict=True)])
            for r, i, mine in zip(members, inner, computed, strict=True):
                waits[r][i] = computed.max(axis=0) - mine
    return waits


def _runs(cut: Cut, seconds: Floats, waits: Floats) -> Runs:
    n = len(cut.order)
    lengths = np.where(cut.known, seconds[cut.order], 0.0)
    before = np.concatenate([[0.0], np.cumsum(lengths + waits)])
    ready, offset, after, run = np.empty(n), np.empty(n), np.empty(n), np.empty(n, dtype=np.int64)
    began = before[cut.first[:-1]][cut.member] if n else np.zeros(0)
    ready[cut.order] = before[:-1] - began
    offset[cut.order] = ready[cut.order] + waits
    after[cut.order] = before[1:] - began
    run[cut.order] = cut.member
    first = cut.first[:-1]
    total = np.where(cut.known[first], before[cut.first[1:]] - before[first], np.nan) if n else np.zeros(0)
    return Runs(cut.order, cut.first, total, cut.section, ready, offset, after, run, cut)
