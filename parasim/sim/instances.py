"""Instances: who makes the transfers of every structure, and what they put on which links, as columns for folding."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..collectives.plan import CollectivePlan
from ..hashes import Hashes, floats, mix, row_hashes
from ..program.ops import Collective
from ..program.workload import IntArray
from .traffic import Size, Traffic, message_key
from .turns import Orbits, Turns, turns

Turning = tuple[Turns, dict[str, Orbits]]
Planner = Callable[[int], CollectivePlan]  # of a row of some sets


@dataclass(frozen=True)
class Instances:
    """The sets of ranks of one size that make transfers, as columns; of sets that turns take into each other, one.

    `sets` int[i, n]: the ranks of instance i (sender and receiver of a message), which makes the transfers of all `structures[which[i]]`: these put
    the same on the same links. `members` int[i, k]: those ranks that folding looks at, one of each orbit under the `turns` that take a set into
    itself (1: all of them). Entry e: instance `instance[e]` puts `weight[e]` bytes per byte of progress on `link[e]` in phase `phase[e]`; of entries
    that turns take into each other, one. `latency` float[i, phases]. `ordered`: are the two ends told apart?
    """

    structures: Sequence[tuple[Hashable, ...]]
    which: IntArray
    sets: IntArray
    members: IntArray
    turns: int
    latency: NDArray[np.float64]
    instance: IntArray
    phase: IntArray
    link: IntArray
    weight: NDArray[np.float64]
    ordered: bool


class Uneven(Exception):
    """A plan that turns change, though they take its set of ranks into itself."""


class Around(NamedTuple):
    """Sets of ranks that `length` of some turns take into themselves."""

    turns: Turns
    length: int

    @property
    def times(self) -> int:
        """Turns of a set into itself, the last of them to where it was."""
        return self.turns.order // self.length

    def places(self, sets: IntArray) -> IntArray:
        """Where each member of each set is taken, as a place in its set."""
        return self.turns.places(sets, self.length)

    def first(self, sets: IntArray) -> NDArray[np.bool_]:
        """One member of each orbit: those in the first pods of their circles."""
        return np.asarray(self.turns.rank_phases(sets) < self.length)

    def once(self, links: IntArray, weights: NDArray[np.float64]) -> tuple[IntArray, NDArray[np.float64]]:
        """One link of each orbit. Raises Uneven where its links do not all carry the same."""
        order, turned = np.argsort(links), self.turns.turned_links(links, self.length)
        after = np.argsort(turned)
        if not (np.array_equal(links[order], turned[after]) and np.array_equal(floats(weights[order]), floats(weights[after]))):
            raise Uneven
        first = self.turns.phases(links) < self.length
        return links[first], weights[first]


class Loads(NamedTuple):
    """Entries of `Instances`: bytes per byte of progress on links, by instance and phase."""

    instance: IntArray = np.zeros(0, dtype=np.int64)
    phase: IntArray = np.zeros(0, dtype=np.int64)
    link: IntArray = np.zeros(0, dtype=np.int64)
    weight: NDArray[np.float64] = np.zeros(0)


def turning(traffic: Traffic) -> Turning | None:
    """What leaves the ranks of this workload as they are, with the sets that its groups have then."""
    groups = dict.fromkeys(op.group for collectives, _ in traffic.transfers for op, _ in collectives)
    peers = dict.fromkeys(m.peer for _, messages in traffic.transfers for m, _ in messages)
    return turns(traffic.workload, traffic.cluster, groups, peers)


def instances(traffic: Traffic, around: Turning | None = None) -> list[Instances]:
    """Every structure of the workload with all the sets of ranks that make it, or with those that turns leave. Raises Uneven."""
    return _Builder(traffic, around).all()


class Sets(NamedTuple):
    """Sets of ranks int[k, n], the `members` of them that folding looks at, and by a hash of their look the rows that are alike on the network, and turn
    `around` alike."""

    ranks: IntArray
    members: IntArray
    alike: dict[int, IntArray]
    around: Around | None


class _Builder:
    """Makes Instances; keeps what several structures have in common."""

    def __init__(self, traffic: Traffic, turning: Turning | None) -> None:
        self.traffic, self.turning, self.workload, self.cluster = traffic, turning, traffic.workload, traffic.cluster
        self.domain = turning[0].domain if turning else np.arange(self.workload.world)
        self.apart = False  # was a set seen to look alike, and its links not found?

    def all(self) -> list[Instances]:
        traffic, largest, users = self.traffic, dict[Hashable, tuple[Collective, Size]](), dict[Hashable, list[int]]()
        sent: dict[Hashable, tuple[int, str, int]] = {}
        for c, (collectives, messages) in enumerate(traffic.transfers):
            for op, size in collectives:
                key = traffic.structure(op, size)
                if key not in largest or largest[key][1] < size:
                    largest[key] = (op, size)
                users.setdefault(key, []).append(c)
            sent |= {message_key(c, m, nbytes): (c, m.peer, nbytes) for m, nbytes in messages}
        alike: dict[tuple[str, tuple[int, ...]], dict[Hashable, tuple[Collective, Size]]] = {}
        for key, (op, size) in largest.items():
            alike.setdefault((op.group, tuple(users[key])), {})[key] = op, size
        found = [self._messages(sent)] if sent else []
        for (group, classes), made in alike.items():
            found += self._collectives(self._group(group, classes), made)
        return found

    def _messages(self, sent: Mapping[Hashable, tuple[int, str, int]]) -> Instances:
        """All messages: of each structure the class of the senders, where to, and bytes."""
        mine = {c: self.domain[self.workload.class_of_rank[self.domain] == c] for c, _, _ in sent.values()}
        pairs = [np.stack([mine[c], self.workload.peers[peer][mine[c]]], axis=1) for c, peer, _ in sent.values()]
        counts = [len(p) for p in pairs]
        which, ranks = np.repeat(np.arange(len(sent)), counts), np.concatenate(pairs)
        nbytes = np.repeat(np.array([n for _, _, n in sent.values()], dtype=np.int64), counts)
        looks = np.arange(len(ranks), dtype=np.uint64) if self.cluster.alike is None else mix(self.cluster.alike.looks(ranks), nbytes)
        sets = Sets(ranks, ranks, _grouped(looks), None)

        def planner(row: int) -> CollectivePlan:
            return self.traffic.message(int(nbytes[row]), *ranks[row].tolist())

        stands, latency, loads = self._columns(sets, planner)
        for structure, members, others in zip(sent, pairs, np.split(stands, np.cumsum(counts)[:-1]), strict=True):
            self.traffic.stand(structure, members, others)
        return Instances([(key,) for key in sent], which, ranks, ranks, 1, latency, *loads, ordered=True)

    def _collectives(self, sets: Sets, made: Mapping[Hashable, tuple[Collective, Size]]) -> Iterator[Instances]:
        """All structures that these sets make; those whose plans are the same on the links are one."""
        same: dict[Hashable, dict[Hashable, Planner]] = {}
        for structure, (op, size) in made.items():
            planner = partial(self._collective, op, size, sets.ranks)
            looks = [[(phase.latency, phase.weights) for phase in planner(int(rows[0])).phases] for rows in sets.alike.values()]
            same.setdefault(tuple(map(tuple, looks)), {})[structure] = planner
        for planners in same.values():
            self.apart = False
            once = self._columns(sets, next(iter(planners.values())))
            each = {tuple(planners): once} if not self.apart else {(structure,): self._columns(sets, planner) for structure, planner in planners.items()}
            for structures, (stands, latency, loads) in each.items():
                for structure in structures:
                    self.traffic.stand(structure, sets.ranks, stands)
                which, turns = np.zeros(len(sets.ranks), dtype=np.int64), sets.around.times if sets.around else 1
                yield Instances([structures], which, sets.ranks, sets.members, turns, latency, *loads, ordered=False)

    def _collective(self, op: Collective, size: Size, ranks: IntArray, row: int) -> CollectivePlan:
        return self.traffic.collective(op, size, self.traffic.ranks(ranks[row]))

    def _group(self, name: str, users: tuple[int, ...]) -> Sets:
        """The sets of a group with a rank of the classes `users`."""
        table, around = self.workload.groups[name], None
        if self.turning is not None:
            whole, orbits = self.turning[0], self.turning[1][name]
            table, around = table[orbits.rows], Around(whole, orbits.length) if orbits.length < whole.order else None
        mine = np.zeros(len(self.workload.programs), dtype=bool)
        mine[list(users)] = True
        ranks = table if mine.all() else table[mine[self.workload.class_of_rank[table]].any(axis=1)]
        if around is None:
            return Sets(ranks, ranks, _grouped(self._look(ranks)), None)
        first = around.first(ranks)
        members = ranks[first].reshape(len(ranks), -1)  # the rest of a set is what turns make of these
        looks = mix(self._look(members), row_hashes(around.places(ranks)), row_hashes(first))
        return Sets(ranks, members, _grouped(looks), around)

    def _look(self, sets: IntArray) -> Hashes:
        """Equal for sets that look alike on the network."""
        if self.cluster.alike is None or len(sets) < 2:
            return np.arange(len(sets), dtype=np.uint64)
        return self.cluster.alike.looks(sets)

    def _columns(self, sets: Sets, planner: Planner) -> tuple[IntArray, NDArray[np.float64], Loads]:
        """For all sets: those that stand for them, latencies and entries. One plan for all sets that are alike."""
        parts, latency, stands = [Loads()], np.zeros((len(sets.ranks), 0)), np.empty_like(sets.ranks)
        for rows in sets.alike.values():
            made = planner(int(rows[0]))
            stands[rows] = sets.ranks[rows[0]]
            if latency.shape[1] < len(made.phases):
                latency = np.pad(latency, ((0, 0), (0, len(made.phases) - latency.shape[1])))
            latency[rows, : len(made.phases)] = [phase.latency for phase in made.phases]
            parts += self._spread(made, sets.ranks, rows, planner, sets.around)
        return stands, latency, Loads(*(np.concatenate(column) for column in zip(*parts, strict=True)))

    def _spread(self, made: CollectivePlan, sets: IntArray, rows: IntArray, planner: Planner, around: Around | None) -> Iterator[Loads]:
        """What the plan of the first of `rows` puts on the links, and the same for the others with links of their own."""
        for p, part in enumerate(made.phases):
            if not part.weights:
                continue
            links, weights = np.array([link for link, _ in part.weights]), np.array([weight for _, weight in part.weights], dtype=np.float64)
            if around is not None:
                links, weights = around.once(links, weights)
            found = links[None]
            if len(rows) > 1:
                assert self.cluster.alike is not None
                translated = self.cluster.alike.translate(links, sets[rows[0]], sets[rows])
                if translated is None and around is not None:
                    raise Uneven
                if translated is None:  # a link that no member leads to: each by itself
                    self.apart = True
                    for row in rows.tolist():
                        yield from self._spread(planner(row), sets, np.array([row]), planner, None)
                    return
                found = translated
            yield Loads(np.repeat(rows, len(links)), np.full(found.size, p), found.ravel(), np.tile(weights, len(rows)))


def _grouped(looks: Hashes) -> dict[int, IntArray]:
    """The rows of every look, as row numbers, by its hash."""
    found, inverse = np.unique(looks, return_inverse=True)
    order = np.argsort(inverse, kind="stable")
    return dict(zip(found.tolist(), np.split(order, np.nonzero(np.diff(inverse[order]))[0] + 1), strict=True))
