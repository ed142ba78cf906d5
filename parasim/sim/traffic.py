"""Traffic: every kind of transfer a Workload makes, priced on the cluster, for every set of ranks that makes it.

A *flow type* is one phase of a collective plan, or a message, made by ranks of the same colours. Folding groups ranks by colour; a type then
stands for all its instances, and its load on a link is the sum over them.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from ..collectives.plan import CollectivePlan, plan, send
from ..cost.profile import Profile
from ..program.ops import P2P, Collective, Msg
from ..program.workload import Program, Workload
from ..topology.cluster import Cluster


@dataclass(frozen=True)
class Instance:
    """One set of ranks making one transfer: `ranks` in order (all members; sender and receiver), and its plan."""

    ranks: tuple[int, ...]
    plan: CollectivePlan


@dataclass(frozen=True)
class Traffic:
    """All transfers of a workload on a cluster, cached by what determines them."""

    workload: Workload
    cluster: Cluster
    profile: Profile
    _plans: dict[Hashable, CollectivePlan] = field(default_factory=dict)

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

    def instances(self) -> dict[Hashable, list[Instance]]:
        """Every transfer kind of the workload, keyed by (name, size), with all the sets of ranks that make it."""
        out: dict[Hashable, list[Instance]] = {}
        known: set[Hashable] = set()
        for c, program in enumerate(self.workload.programs):
            ranks = np.nonzero(self.workload.class_of_rank == c)[0]
            for key, op, nbytes in _kinds(c, program):
                if isinstance(op, Collective):
                    for m in _members(self.workload, op, ranks):
                        if (key, m) not in known:
                            known.add((key, m))
                            out.setdefault(key, []).append(Instance(m, self.collective(op, nbytes, m)))
                else:
                    peers = self.workload.peers[op.peer]
                    out[key] = [Instance((int(r), int(peers[r])), self.message(nbytes, int(r), int(peers[r]))) for r in ranks]
        return out


def collective_key(program: Program, op: Collective) -> Hashable:
    """What makes two collectives of a group the same kind of transfer."""
    return op.op, op.group, op.root, collective_bytes(program, op)


def message_key(c: int, program: Program, m: Msg) -> Hashable:
    """What makes two messages sent by ranks of class `c` the same kind of transfer."""
    return "send", c, m.peer, m.channel, program.nbytes((m.buffer,))


def is_message(kind: Hashable) -> bool:
    """Is a kind of the fold, (key, colours), that of messages?"""
    return isinstance(kind, tuple) and isinstance(kind[0], tuple) and kind[0][0] == "send"


def _kinds(c: int, program: Program) -> Iterable[tuple[Hashable, Collective | Msg, int]]:
    """Distinct collectives and sent messages of a Program with their bytes."""
    found: dict[Hashable, tuple[Collective | Msg, int]] = {}
    for body in program.bodies.values():
        for op in body:
            if isinstance(op, Collective):
                found[collective_key(program, op)] = (op, collective_bytes(program, op))
            elif isinstance(op, P2P):
                for m in op.sends:
                    found[message_key(c, program, m)] = (m, program.nbytes((m.buffer,)))
    return [(key, op, nbytes) for key, (op, nbytes) in found.items()]


def _members(workload: Workload, op: Collective, ranks: Iterable[int]) -> list[tuple[int, ...]]:
    """Every group of `op` that holds a rank of this class, in table order."""
    mine = {int(r) for r in ranks}
    return [row for row in map(tuple, workload.groups[op.group].tolist()) if mine.intersection(row)]


def collective_bytes(program: Program, op: Collective) -> int:
    """The larger of the two buffers of a collective."""
    return max(program.nbytes(op.reads), program.nbytes(op.writes))


def link_loads(instances: Mapping[Hashable, list[Instance]]) -> dict[int, dict[tuple[Hashable, int], float]]:
    """Bytes per byte of progress that each (kind, phase) puts on each link, summed over its instances."""
    loads: dict[int, dict[tuple[Hashable, int], float]] = {}
    for key, sets in instances.items():
        for instance in sets:
            for p, phase in enumerate(instance.plan.phases):
                for link, weight in phase.weights:
                    row = loads.setdefault(link, {})
                    row[key, p] = row.get((key, p), 0.0) + weight
    return loads
