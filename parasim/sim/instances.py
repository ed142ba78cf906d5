"""Instances: who makes the transfers of every structure, and what they put on which links, as columns for folding."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..collectives.plan import CollectivePlan
from ..hashes import Hashes, floats, mix, row_hashes
from ..program.ops import Collective
from ..program.workload import IntArray
from .traffic import Size, Traffic, is_message, message_key
from .turns import Orbits, Turns, turns

Turning = tuple[Turns, dict[str, Orbits]]
Planner = Callable[[tuple[int, ...]], CollectivePlan]


@dataclass(frozen=True)
class Instances:
    """The sets of ranks that make the transfers of one structure, as columns; of sets that turns take into each other, one.

    `sets` int[i, n]: the ranks of instance i (sender and receiver of a message); `members` int[i, k]: those of them that folding looks at, one of
    each orbit under the `turns` that take a set into itself (1: all of them). Entry e: instance `instance[e]` puts `weight[e]` bytes per byte of
    progress on `link[e]` in phase `phase[e]`; of entries that turns take into each other, one. `latency` float[i, phases].
    """

    structure: Hashable
    sets: IntArray
    members: IntArray
    turns: int
    latency: NDArray[np.float64]
    instance: IntArray
    phase: IntArray
    link: IntArray
    weight: NDArray[np.float64]

    @property
    def ordered(self) -> bool:
        """Are its two ends told apart?"""
        return is_message(self.structure)


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

    def members(self, sets: IntArray) -> IntArray:
        """Of every set one member of each orbit; int[k, n / times]."""
        return np.asarray(sets[self.first(sets)].reshape(len(sets), -1))

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
        self._looks: dict[str, Hashes] = {}
        self._groups: dict[Hashable, Sets] = {}
        self._sent: dict[tuple[int, int], tuple[CollectivePlan, IntArray]] = {}  # by bytes and look: the plan of a message and its ends

    def all(self) -> list[Instances]:
        traffic, largest, users, out = self.traffic, dict[Hashable, tuple[Collective, Size]](), dict[Hashable, list[int]](), list[Instances]()
        for c, (collectives, messages) in enumerate(traffic.transfers):
            for op, size in collectives:
                key = traffic.structure(op, size)
                if key not in largest or largest[key][1] < size:
                    largest[key] = (op, size)
                users.setdefault(key, []).append(c)
            for m, nbytes in messages:
                out.append(self._columns(message_key(c, m, nbytes), self._ends(c, m.peer), partial(self._message, nbytes), nbytes))
        for key, (op, size) in largest.items():
            out.append(self._columns(key, self._group(op.group, tuple(users[key])), partial(traffic.collective, op, size)))
        return out

    def _message(self, nbytes: int, ends: tuple[int, ...]) -> CollectivePlan:
        source, target = ends
        return self.traffic.message(nbytes, source, target)

    def _ends(self, c: int, peer: str) -> Sets:
        """The ranks of class `c` and their peers."""
        if peer not in self._looks:
            self._looks[peer] = self._look(np.stack([self.domain, self.workload.peers[peer][self.domain]], axis=1))
        mine = np.flatnonzero(self.workload.class_of_rank[self.domain] == c)
        ranks = self.domain[mine]
        pairs = np.stack([ranks, self.workload.peers[peer][ranks]], axis=1)
        return Sets(pairs, pairs, _grouped(self._looks[peer][mine]), None)

    def _group(self, name: str, users: tuple[int, ...]) -> Sets:
        """The sets of a group with a rank of the classes `users`."""
        if (name, users) not in self._groups:
            table, around = self.workload.groups[name], None
            if self.turning is not None:
                whole, orbits = self.turning[0], self.turning[1][name]
                table, around = table[orbits.rows], Around(whole, orbits.length) if orbits.length < whole.order else None
            ranks = table[np.isin(self.workload.class_of_rank[table], users).any(axis=1)]
            members = ranks
            looks = self._look(ranks) if around is None else np.zeros(0, dtype=np.uint64)
            if around is not None:  # the rest of a set is what turns make of these members
                members = around.members(ranks)
                looks = mix(self._look(members), row_hashes(around.places(ranks)), row_hashes(around.first(ranks)))
            self._groups[name, users] = Sets(ranks, members, _grouped(looks), around)
        return self._groups[name, users]

    def _look(self, sets: IntArray) -> Hashes:
        """Equal for sets that look alike on the network."""
        if self.cluster.alike is None or len(sets) < 2:
            return np.arange(len(sets), dtype=np.uint64)
        return self.cluster.alike.looks(sets)

    def _columns(self, structure: Hashable, sets: Sets, planner: Planner, nbytes: int = -1) -> Instances:
        """The instances of a structure: one plan for all sets of ranks that are alike; of messages of `nbytes` one for those of all structures."""
        ranks, parts = sets.ranks, list[Loads]()
        latency, stands = np.zeros((len(ranks), 0)), np.empty_like(ranks)
        for look, rows in sets.alike.items():
            made, example = self._sent.get((nbytes, look)) or (planner(tuple(ranks[rows[0]].tolist())), ranks[rows[0]])
            if nbytes >= 0 and self.cluster.alike is not None:
                self._sent[nbytes, look] = made, example
            stands[rows] = example
            if latency.shape[1] < len(made.phases):
                latency = np.pad(latency, ((0, 0), (0, len(made.phases) - latency.shape[1])))
            latency[rows, : len(made.phases)] = [phase.latency for phase in made.phases]
            parts += self._spread(made, example, ranks, rows, planner, sets.around)
        self.traffic.stand(structure, ranks, stands)
        columns = (np.concatenate([getattr(p, c) for p in (Loads(), *parts)]) for c in Loads._fields)
        return Instances(structure, ranks, sets.members, sets.around.times if sets.around else 1, latency, *columns)

    def _spread(self, made: CollectivePlan, example: IntArray, sets: IntArray, rows: IntArray, planner: Planner, around: Around | None) -> Iterator[Loads]:
        """What the plan of the ranks `example` puts on the links, and the same for `rows` of the sets with links of their own."""
        for p, part in enumerate(made.phases):
            if not part.weights:
                continue
            links, weights = np.array([link for link, _ in part.weights]), np.array([weight for _, weight in part.weights], dtype=np.float64)
            if around is not None:
                links, weights = around.once(links, weights)
            found = links[None]
            if len(rows) > 1 or not np.array_equal(example, sets[rows[0]]):
                assert self.cluster.alike is not None
                translated = self.cluster.alike.translate(links, example, sets[rows])
                if translated is None and around is not None:
                    raise Uneven
                if translated is None:  # a link that no member leads to: each by itself
                    for row in rows:
                        yield from self._spread(planner(tuple(sets[row].tolist())), sets[row], sets, np.array([row]), planner, None)
                    return
                found = translated
            yield Loads(np.repeat(rows, len(links)), np.full(found.size, p), found.ravel(), np.tile(weights, len(rows)))


def _grouped(looks: Hashes) -> dict[int, IntArray]:
    """The rows of every look, as row numbers, by its hash."""
    found, inverse = np.unique(looks, return_inverse=True)
    order = np.argsort(inverse, kind="stable")
    return dict(zip(found.tolist(), np.split(order, np.nonzero(np.diff(inverse[order]))[0] + 1), strict=True))
