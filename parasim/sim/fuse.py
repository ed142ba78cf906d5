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
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from ..program.edges import Resolved
from ..program.workload import IntArray

Floats = NDArray[np.float64]
T = TypeVar("T", bound=np.generic)


@dataclass(frozen=True)
class Order:
    """The n op instances of a Program stream by stream: `instance[p]` stands at place p, made from template `template[p]` (all bodies, one after the
    other). At the places in `breaks` a run begins whatever is known: another stream does, or an edge enters there or leaves just before."""

    resolved: Resolved
    instance: IntArray
    template: IntArray
    breaks: NDArray[np.bool_]

    @staticmethod
    def of(resolved: Resolved) -> Order:
        """That of a resolved Program."""
        program, n = resolved.program, len(resolved)
        instance = np.argsort(resolved.stream.astype(np.int16), kind="stable")  # of short integers in linear time
        first = dict(zip(program.bodies, np.cumsum([0, *map(len, program.bodies.values())]).tolist(), strict=False))
        template = np.array([first[call.body] for call in program.calls], dtype=np.int64)[resolved.call] + resolved.position
        entered, left = np.diff(resolved.edge_start) > 0, np.zeros(n, dtype=bool)
        left[resolved.edges] = True
        stream = resolved.stream[instance]
        breaks = np.append(n > 0, stream[1:] != stream[:-1])[:n] | entered[instance]
        breaks[1:] |= left[instance][:-1]
        return Order(resolved, instance, template[instance], breaks)


@dataclass(frozen=True)
class Cut:
    """Where the runs of a rank begin: run k covers the places `first[k]` to `first[k + 1]`, of which `known` have a length of their own; `meets` by place
    and `meeting` by run number the set of ranks that run it together (0: alone). One for all ranks alike."""

    ordered: Order
    first: IntArray
    known: NDArray[np.bool_]
    meets: IntArray
    section: IntArray

    @property
    def resolved(self) -> Resolved:
        """Edges and streams."""
        return self.ordered.resolved

    @property
    def order(self) -> IntArray:
        """The op instance at every place."""
        return self.ordered.instance

    @cached_property
    def member(self) -> IntArray:
        """The run of every place."""
        return np.repeat(np.arange(len(self.first) - 1), np.diff(self.first))

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


@dataclass(frozen=True)
class Runs:
    """The runs of a rank: `seconds[k]` is the length of run k (nan: one op that must be replayed). Up to place p the known ops last `before[p]` seconds
    in all, with what they wait for others of their sets: `waits[p]` (None: nobody waits)."""

    cut: Cut
    seconds: Floats
    before: Floats
    waits: Floats | None

    @cached_property
    def run(self) -> IntArray:
        """The run of every op instance."""
        return self._by_instance(self.cut.member)

    def times(self, began: Floats) -> tuple[Floats, Floats, Floats]:
        """When every instance is ready, starts and ends, given when every run `began`: where one op ends the next is ready, to the last bit."""
        cut = self.cut
        at = began[cut.member]
        base = self.before[cut.first[:-1]][cut.member]
        ready, after = self.before[:-1] - base, self.before[1:] - base
        known = ~np.isnan(self.seconds)
        after[cut.first[1:][known] - 1] = self.seconds[known]
        offset = ready if self.waits is None else ready + self.waits
        return self._by_instance(at + ready), self._by_instance(at + offset), self._by_instance(at + after)

    def _by_instance(self, column: NDArray[T]) -> NDArray[T]:
        out = np.empty_like(column)
        out[self.cut.order] = column
        return out


def fuse_all(orders: Sequence[Order], seconds: Sequence[Floats], meets: Sequence[IntArray], sets: Mapping[int, tuple[int, ...]]) -> list[Runs]:
    """The runs of every kind of rank, given by place in its order the seconds (nan: unknown beforehand) and the number of the set of ranks that it is a
    collective of (0: of none but ranks like this one). `sets[number]` are places in the sequences; the ranks of a set have equal Programs."""
    if not sets:
        return [_runs(c, s, None) for c, s in zip(_cuts(orders, seconds, meets), seconds, strict=True)]
    known, meets = _agreed(seconds, meets, sets)
    seconds = [np.where(k, s, np.nan) for k, s in zip(known, seconds, strict=True)]
    cuts = _cuts(orders, seconds, meets)
    waits = _waits(cuts, seconds, sets)
    runs = [_runs(c, s, w) for c, s, w in zip(cuts, seconds, waits, strict=True)]
    for number, members in sets.items():  # one length for all, to the last bit
        mine = [np.flatnonzero(runs[r].cut.section == number) for r in members]
        if len(mine[0]):
            longest = np.max([runs[r].seconds[k] for r, k in zip(members, mine, strict=True)], axis=0)
            for r, k in zip(members, mine, strict=True):
                runs[r].seconds[k] = longest
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


def _cuts(orders: Sequence[Order], seconds: Sequence[Floats], meets: Sequence[IntArray]) -> list[Cut]:
    """The cut of every rank; ranks of one Program that know the same share it."""
    made: dict[Hashable, Cut] = {}
    out = []
    for o, s, m in zip(orders, seconds, meets, strict=True):
        known = ~np.isnan(s)
        key = id(o), known.tobytes(), m.tobytes() if m.any() else b""
        if key not in made:
            made[key] = _cut(o, known, m)
        out.append(made[key])
    return out


def _cut(order: Order, known: NDArray[np.bool_], meets: IntArray) -> Cut:
    """Maximal runs, and of those the sections from the first to the last collective of one set."""
    n = len(known)
    begins = order.breaks.copy()
    begins[1:] |= ~(known[1:] & known[:-1])
    section = meets
    if meets.any():
        whole = np.append(np.flatnonzero(begins), n)
        run, places, there = np.cumsum(begins) - 1, np.arange(n), meets > 0
        last = np.maximum.accumulate(np.where(there, places, -1))
        following = np.minimum.accumulate(np.where(there, places, n)[::-1])[::-1]
        inside = ~there & (last >= whole[run]) & (following < whole[run + 1])
        same = meets[np.maximum(last, 0)] == meets[np.minimum(following, n - 1)]
        section = np.where(inside & same, meets[np.maximum(last, 0)], meets)
        begins[1:] |= section[1:] != section[:-1]
    first = np.flatnonzero(begins)
    return Cut(order, np.append(first, n), known, meets, section[first])


def _waits(cuts: Sequence[Cut], seconds: Sequence[Floats], sets: Mapping[int, tuple[int, ...]]) -> list[Floats]:
    """Seconds that the instance at every place waits inside its run for the others of its set."""
    waits = [np.zeros(len(c.known)) for c in cuts]
    before = [np.concatenate([[0.0], np.cumsum(np.where(c.known, s, 0.0))]) for c, s in zip(cuts, seconds, strict=True)]
    for number, members in sets.items():
        places = [np.flatnonzero(cuts[r].meets == number) for r in members]
        inner = [p[1:][cuts[r].member[p[1:]] == cuts[r].member[p[:-1]]] for r, p in zip(members, places, strict=True)]
        previous = [p[:-1][cuts[r].member[p[1:]] == cuts[r].member[p[:-1]]] for r, p in zip(members, places, strict=True)]
        if len(inner[0]):
            computed = np.array([before[r][i] - before[r][j + 1] for r, i, j in zip(members, inner, previous, strict=True)])
            for r, i, mine in zip(members, inner, computed, strict=True):
                waits[r][i] = computed.max(axis=0) - mine
    return waits


def _runs(cut: Cut, seconds: Floats, waits: Floats | None) -> Runs:
    before = np.zeros(len(cut.known) + 1)
    lengths = np.where(cut.known, seconds, 0.0)
    np.cumsum(lengths if waits is None else lengths + waits, out=before[1:])
    first = cut.first[:-1]
    return Runs(cut, np.where(cut.known[first], before[cut.first[1:]] - before[first], np.nan), before, waits)
