"""Traffic: every kind of transfer a Workload makes, planned on the cluster for every set of ranks that makes it.

A *structure* is what two transfers have in common when they differ only in their size: op, group, root and the algorithms that its groups
use at that size; or the channel of a message. Its plans put the same bytes per byte of progress on the same links, whatever the size, so
one plan per set of ranks (of the largest size) tells what folding needs to know.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ..collectives.plan import CollectivePlan, plan, send
from ..cost.profile import Profile
from ..program.ops import P2P, Collective, Msg
from ..program.workload import IntArray, Program, Workload
from ..topology.cluster import Cluster


@dataclass(frozen=True)
class Instances:
    """All sets of ranks that make the transfers of one structure, as columns.

    `members` int[i, n]: the ranks of instance i (sender and receiver of a message). Entry e: instance `instance[e]` puts `weight[e]` bytes per
    byte of progress on `link[e]` in phase `phase[e]`. `latency` float[i, phases].
    """

    structure: Hashable
    members: IntArray
    latency: NDArray[np.float64]
    instance: IntArray
    phase: IntArray
    link: IntArray
    weight: NDArray[np.float64]

    @property
    def ordered(self) -> bool:
        """Are its two ends told apart?"""
        return is_message(self.structure)


@dataclass(frozen=True)
class Traffic:
    """All transfers of a workload on a cluster; plans are cached by what determines them."""

    workload: Workload
    cluster: Cluster
    profile: Profile
    _plans: dict[Hashable, CollectivePlan] = field(default_factory=dict)
    _structures: dict[Hashable, Hashable] = field(default_factory=dict)

    @cached_property
    def devices(self) -> tuple[str, ...]:
        """Device of each rank."""
        return self.cluster.devices[: self.workload.world]

    def collective(self, op: Collective, nbytes: int, ranks: tuple[int, ...]) -> CollectivePlan:
        """The plan of `op` over `ranks` for the larger of its two buffers (bytes)."""
        key = (op.op, op.root, nbytes, ranks)
        if key not in self._plans:
            self._plans[key] = plan(op.op, float(nbytes), [self.devices[r] for r in ranks], self.cluster, self.profile, root=op.root)
        return self._plans[key]

    def message(self, nbytes: int, source: int, target: int) -> CollectivePlan:
        """The plan of one message of `nbytes` between two ranks."""
        key = ("send", nbytes, source, target)
        if key not in self._plans:
            self._plans[key] = send(float(nbytes), self.devices[source], self.devices[target], self.cluster, self.profile)
        return self._plans[key]

    def structure(self, op: Collective, nbytes: int) -> Hashable:
        """What a collective of this size has in common with those of other sizes."""
        key = (op.op, op.group, op.root, nbytes)
        if key not in self._structures:
            plans = [self.collective(op, nbytes, rows) for rows in self._samples[op.group]]
            self._structures[key] = (op.op, op.group, op.root, tuple((p.algorithm, tuple(_busy(p))) for p in plans))
        return self._structures[key]

    @cached_property
    def _samples(self) -> dict[str, list[tuple[int, ...]]]:
        """Per group name one set of ranks per number of nodes that a set spans: algorithms may depend on that."""
        out: dict[str, list[tuple[int, ...]]] = {}
        node = {d: n for n, d in enumerate(dict.fromkeys(self.cluster.node_of[x] for x in self.devices))}
        nodes = np.array([node[self.cluster.node_of[d]] for d in self.devices])
        for name, table in self.workload.groups.items():
            placed = np.sort(nodes[table], axis=1)
            spans = (np.diff(placed, axis=1) > 0).sum(axis=1)
            first = np.unique(spans, return_index=True)[1]
            out[name] = [tuple(table[i].tolist()) for i in sorted(first.tolist())]
        return out

    def instances(self) -> list[Instances]:
        """Every structure of the workload with all the sets of ranks that make it."""
        largest: dict[Hashable, tuple[Collective, int]] = {}
        users: dict[Hashable, list[int]] = {}
        out: list[Instances] = []
        for c, program in enumerate(self.workload.programs):
            collectives, messages = _transfers(program)
            for op, nbytes in collectives:
                key = self.structure(op, nbytes)
                if key not in largest or largest[key][1] < nbytes:
                    largest[key] = (op, nbytes)
                users.setdefault(key, []).append(c)
            ranks = np.nonzero(self.workload.class_of_rank == c)[0]
            for m, nbytes in messages:
                members = np.stack([ranks, self.workload.peers[m.peer][ranks]], axis=1)
                out.append(_columns(message_key(c, m, nbytes), members, [self.message(nbytes, int(a), int(b)) for a, b in members]))
        for key, (op, nbytes) in largest.items():
            table = self.workload.groups[op.group]
            members = table[np.isin(self.workload.class_of_rank[table], users[key]).any(axis=1)]
            out.append(_columns(key, members, [self.collective(op, nbytes, tuple(row)) for row in members.tolist()]))
        return out


def _busy(plan: CollectivePlan) -> list[bool]:
    """Which phases move bytes."""
    return [phase.bytes > 0 and bool(phase.weights) for phase in plan.phases]


def _columns(structure: Hashable, members: IntArray, plans: list[CollectivePlan]) -> Instances:
    phases = max((len(p.phases) for p in plans), default=0)
    latency = np.zeros((len(plans), phases))
    instance, phase, links, weights = [], [], list[int](), list[float]()
    for i, made in enumerate(plans):
        for p, part in enumerate(made.phases):
            latency[i, p] = part.latency
            if part.weights:
                link, weight = zip(*part.weights, strict=True)
                links += link
                weights += weight
                instance.append(np.full(len(link), i))
                phase.append(np.full(len(link), p))
    none = np.zeros(0, dtype=np.int64)
    return Instances(
        structure,
        members,
        latency,
        np.concatenate(instance) if instance else none,
        np.concatenate(phase) if phase else none,
        np.array(links, dtype=np.int64),
        np.array(weights, dtype=np.float64),
    )


def message_key(c: int, m: Msg, nbytes: int) -> Hashable:
    """The structure of messages sent by ranks of class `c`, of one size (the rate a message is fed at may depend on it)."""
    return "send", c, m.peer, m.channel, nbytes


def is_message(structure: Hashable) -> bool:
    """Is a structure that of messages?"""
    return isinstance(structure, tuple) and structure[0] == "send"


def _transfers(program: Program) -> tuple[list[tuple[Collective, int]], list[tuple[Msg, int]]]:
    """Distinct collectives and sent messages of a Program with their bytes."""
    collectives: dict[Hashable, tuple[Collective, int]] = {}
    messages: dict[Hashable, tuple[Msg, int]] = {}
    for body in program.bodies.values():
        for op in body:
            if isinstance(op, Collective):
                nbytes = collective_bytes(program, op)
                collectives[op.op, op.group, op.root, nbytes] = (op, nbytes)
            elif isinstance(op, P2P):
                for m in op.sends:
                    nbytes = program.nbytes((m.buffer,))
                    messages[message_key(0, m, nbytes)] = (m, nbytes)
    return list(collectives.values()), list(messages.values())


def collective_bytes(program: Program, op: Collective) -> int:
    """The larger of the two buffers of a collective."""
    return max(program.nbytes(op.reads), program.nbytes(op.writes))
