"""Traffic: every kind of transfer a Workload makes, planned on the cluster for every set of ranks that makes it.

A *structure* is what two transfers have in common when they differ only in their size: op, group, root and the algorithms that its groups
use at that size; or the channel of a message. Its plans put the same bytes per byte of progress on the same links, whatever the size, so
one plan per set of ranks (of the largest size) tells what folding needs to know.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..collectives.plan import CollectivePlan, plan, send
from ..cost.profile import Profile
from ..errors import Unreachable
from ..hashes import floats, mix, row_hashes
from ..program.ops import P2P, Collective, Msg
from ..program.workload import IntArray, Program, Workload
from ..topology.cluster import Cluster
from .turns import Orbits, Turns, turns


class Size(NamedTuple):
    """What a collective moves: the larger of its two buffers (bytes), and how many copies a server makes of a byte that crossed the network
    (written over read bytes where `copies` is per_node; below 1: what it adds up before it sends)."""

    nbytes: int
    copies: float = 1.0


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


@dataclass(frozen=True)
class Traffic:
    """All transfers of a workload on a cluster; plans are cached by what determines them."""

    workload: Workload
    cluster: Cluster
    profile: Profile
    _plans: dict[Hashable, CollectivePlan] = field(default_factory=dict)
    _structures: dict[Hashable, Hashable] = field(default_factory=dict)
    _stands: dict[Hashable, tuple[IntArray, IntArray]] = field(default_factory=dict)  # by structure: sets of ranks, and the row that stands for each

    @cached_property
    def devices(self) -> tuple[str, ...]:
        """Device of each rank."""
        return self.cluster.devices[: self.workload.world]

    def collective(self, op: Collective, size: Size, ranks: tuple[int, ...]) -> CollectivePlan:
        """The plan of `op` over `ranks`; with a `load` table member i of the group sends member j its part [i, j] of the larger buffer."""
        key = (op.op, op.algorithm, op.root, op.load, size, ranks)
        if key not in self._plans:
            members = [self.devices[r] for r in ranks]
            try:
                self._plans[key] = planned(op, size, members, self.workload, self.cluster, self.profile)
            except Unreachable as error:
                raise Unreachable(f"group {op.group} of ranks {_listed(ranks)} is partitioned ({op.op}): {error}") from error
        return self._plans[key]

    def message(self, nbytes: int, source: int, target: int) -> CollectivePlan:
        """The plan of one message of `nbytes` between two ranks."""
        key = ("send", nbytes, source, target)
        if key not in self._plans:
            try:
                self._plans[key] = send(float(nbytes), self.devices[source], self.devices[target], self.cluster, self.profile)
            except Unreachable as error:
                raise Unreachable(f"group pp is partitioned between ranks {source} and {target} (send): {error}") from error
        return self._plans[key]

    def timed_collective(self, op: Collective, size: Size, ranks: tuple[int, ...]) -> CollectivePlan:
        """`collective`, perhaps of other ranks that look alike: equal but for the names of its links."""
        return self.collective(op, size, self._stand(self.structure(op, size), ranks))

    def timed_message(self, structure: Hashable, nbytes: int, source: int, target: int) -> CollectivePlan:
        """`message`, perhaps of other ranks that look alike: equal but for the names of its links."""
        source, target = self._stand(structure, (source, target))
        return self.message(nbytes, source, target)

    def _stand(self, structure: Hashable, ranks: tuple[int, ...]) -> tuple[int, ...]:
        """The ranks whose plan stands for that of `ranks`; a rank begins one set of a structure at most."""
        if structure in self._stands:
            members, stands = self._stands[structure]
            for row in np.flatnonzero(members[:, 0] == ranks[0]).tolist():
                if members[row].tolist() == list(ranks):
                    return tuple(members[stands[row]].tolist())
        return ranks

    def structure(self, op: Collective, size: Size) -> Hashable:
        """What a collective of this size has in common with those of other sizes."""
        same = (op.op, op.algorithm, op.group, op.root, op.load, size.copies)
        key = (same, size.nbytes)
        if key not in self._structures:
            plans = [self.collective(op, size, rows) for rows in self._samples[op.group]]
            self._structures[key] = (*same, tuple((p.algorithm, tuple(_busy(p))) for p in plans))
        return self._structures[key]

    @cached_property
    def _samples(self) -> dict[str, list[tuple[int, ...]]]:
        """Per group name one set of ranks per number of nodes that a set spans: algorithms may depend on that."""
        out: dict[str, list[tuple[int, ...]]] = {}
        nodes = self.cluster.servers[: self.workload.world]
        for name, table in self.workload.groups.items():
            placed = np.sort(nodes[table], axis=1)
            spans = (np.diff(placed, axis=1) > 0).sum(axis=1)
            first = np.unique(spans, return_index=True)[1]
            out[name] = [tuple(table[i].tolist()) for i in sorted(first.tolist())]
        return out

    def turns(self) -> tuple[Turns, dict[str, Orbits]] | None:
        """What leaves the ranks of this workload as they are, with the sets that its groups have then."""
        groups: dict[str, None] = {}
        peers: dict[str, None] = {}
        for collectives, messages in self._transfers:
            groups |= {op.group: None for op, _ in collectives}
            peers |= {m.peer: None for m, _ in messages}
        return turns(self.workload, self.cluster, groups, peers)

    @cached_property
    def _transfers(self) -> list[tuple[list[tuple[Collective, Size]], list[tuple[Msg, int]]]]:
        """By class."""
        return [_transfers(program) for program in self.workload.programs]

    def instances(self, turning: tuple[Turns, dict[str, Orbits]] | None = None) -> list[Instances]:
        """Every structure of the workload with all the sets of ranks that make it, or with those that `turning` leaves. Raises Uneven."""
        largest: dict[Hashable, tuple[Collective, Size]] = {}
        users: dict[Hashable, list[int]] = {}
        out: list[Instances] = []
        classes = self.workload.class_of_rank
        domain = turning[0].domain if turning else np.arange(self.workload.world)
        for c, (collectives, messages) in enumerate(self._transfers):
            for op, size in collectives:
                key = self.structure(op, size)
                if key not in largest or largest[key][1] < size:
                    largest[key] = (op, size)
                users.setdefault(key, []).append(c)
            ranks = domain[classes[domain] == c]
            for m, nbytes in messages:
                members = np.stack([ranks, self.workload.peers[m.peer][ranks]], axis=1)
                out.append(self._columns(message_key(c, m, nbytes), members, lambda pair, nbytes=nbytes: self.message(nbytes, *pair)))  # type: ignore[misc]
        for key, (op, size) in largest.items():
            table, around = self.workload.groups[op.group], None
            if turning is not None:
                orbits = turning[1][op.group]
                table, around = table[orbits.rows], Around(turning[0], orbits.length) if orbits.length < turning[0].order else None
            members = table[np.isin(classes[table], users[key]).any(axis=1)]
            out.append(self._columns(key, members, lambda ranks, op=op, size=size: self.collective(op, size, ranks), around))  # type: ignore[misc]
        return out

    def _columns(self, structure: Hashable, sets: IntArray, planner: Callable[[tuple[int, ...]], CollectivePlan], around: Around | None = None) -> Instances:
        """The instances int[k, n] of a structure: one plan for all sets of ranks that look alike on the network, and turn `around` alike."""
        parts: list[Loads] = []
        latency, stands = np.zeros((len(sets), 0)), np.empty(len(sets), dtype=np.int64)
        self._stands[structure] = sets, stands
        members = around.members(sets) if around else sets
        for rows in self._alike(sets, around):
            stands[rows] = rows[0]
            made = planner(tuple(sets[rows[0]].tolist()))
            if latency.shape[1] < len(made.phases):
                latency = np.pad(latency, ((0, 0), (0, len(made.phases) - latency.shape[1])))
            latency[rows, : len(made.phases)] = [phase.latency for phase in made.phases]
            parts += self._spread(made, sets, rows, planner, around)
        columns = (np.concatenate([getattr(p, c) for p in (Loads(), *parts)]) for c in Loads._fields)
        return Instances(structure, sets, members, around.times if around else 1, latency, *columns)

    def _alike(self, sets: IntArray, around: Around | None) -> list[IntArray]:
        """The rows of `sets` that look alike, as lists of row numbers."""
        if self.cluster.alike is None or len(sets) < 2:
            return [np.array([i]) for i in range(len(sets))]
        looks = self.cluster.alike.looks(sets)
        if around is not None:
            looks = mix(looks, row_hashes(around.places(sets)))
        inverse = np.unique(looks, return_inverse=True)[1]
        order = np.argsort(inverse, kind="stable")
        return np.split(order, np.nonzero(np.diff(inverse[order]))[0] + 1)

    def _spread(
        self, made: CollectivePlan, sets: IntArray, rows: IntArray, planner: Callable[[tuple[int, ...]], CollectivePlan], around: Around | None
    ) -> Iterator[Loads]:
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
                    yield from (load for row in rows for load in self._spread(planner(tuple(sets[row].tolist())), sets, np.array([row]), planner, None))
                    return
                found = translated
            yield Loads(np.repeat(rows, len(links)), np.full(found.size, p), found.ravel(), np.tile(weights, len(rows)))


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

    def members(self, sets: IntArray) -> IntArray:
        """Of every set one member of each orbit; int[k, n / times]."""
        places = self.places(sets)
        at, least = places, np.broadcast_to(np.arange(sets.shape[1]), sets.shape).copy()
        for _ in range(self.times - 1):
            least = np.minimum(least, at)
            at = np.take_along_axis(places, at, axis=1)
        first = least == np.arange(sets.shape[1])
        return np.asarray(sets[first].reshape(len(sets), -1))

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


def _listed(ranks: tuple[int, ...], most: int = 16) -> str:
    return ", ".join(map(str, ranks[:most])) + (f", ... ({len(ranks)} in all)" if len(ranks) > most else "")


def _busy(plan: CollectivePlan) -> list[bool]:
    """Which phases move bytes."""
    return [phase.bytes > 0 and bool(phase.weights) for phase in plan.phases]


def message_key(c: int, m: Msg, nbytes: int) -> Hashable:
    """The structure of messages sent by ranks of class `c`, of one size (the rate a message is fed at may depend on it)."""
    return "send", c, m.peer, m.channel, nbytes


def is_message(structure: Hashable) -> bool:
    """Is a structure that of messages?"""
    return isinstance(structure, tuple) and structure[0] == "send"


def _transfers(program: Program) -> tuple[list[tuple[Collective, Size]], list[tuple[Msg, int]]]:
    """Distinct collectives and sent messages of a Program with their bytes."""
    collectives: dict[Hashable, tuple[Collective, Size]] = {}
    messages: dict[Hashable, tuple[Msg, int]] = {}
    for body in program.bodies.values():
        for op in body:
            if isinstance(op, Collective):
                size = collective_size(program, op)
                collectives[op.op, op.group, op.root, op.load, size] = (op, size)
            elif isinstance(op, P2P):
                for m in op.sends:
                    nbytes = program.nbytes((m.buffer,))
                    messages[message_key(0, m, nbytes)] = (m, nbytes)
    return list(collectives.values()), list(messages.values())


def collective_size(program: Program, op: Collective) -> Size:
    """The larger of the two buffers of a collective (with a load the largest of any member), and the copies that servers make of it."""
    nbytes = program.largest_nbytes if op.load else program.nbytes
    read, written = nbytes(op.reads), nbytes(op.writes)
    copies = written / read if op.copies == "per_node" and read and written else 1.0
    return Size(max(read, written), copies)


def planned(op: Collective, size: Size, members: Sequence[str], workload: Workload, cluster: Cluster, profile: Profile) -> CollectivePlan:
    """The plan of `op`, of this size, over the devices `members`. Raises as `collectives.plan.plan` does."""
    shares = workload.loads[op.load] if op.load else None
    return plan(op.op, float(size.nbytes), members, cluster, profile, op.algorithm, root=op.root, shares=shares, copies=size.copies)
