"""Traffic: every kind of transfer a Workload makes, planned on the cluster for every set of ranks that makes it.

A *structure* is what two transfers have in common when they differ only in their size: op, group, root and the algorithms that its groups
use at that size; or the channel of a message. Its plans put the same bytes per byte of progress on the same links, whatever the size, so
one plan per set of ranks (of the largest size) tells what folding needs to know.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from ..collectives.plan import CollectivePlan, plan, send
from ..cost.profile import Profile
from ..errors import Unreachable
from ..program.ops import P2P, Collective, Msg, Op
from ..program.workload import IntArray, Program, Workload
from ..topology.cluster import Cluster


class Size(NamedTuple):
    """What a collective moves: the larger of its two buffers (bytes), and how many copies a server makes of a byte that crossed the network
    (written over read bytes where `copies` is per_node; below 1: what it adds up before it sends)."""

    nbytes: int
    copies: float = 1.0


class Ranks(tuple[int, ...]):
    """Ranks of a collective, of which there may be thousands, hashed once."""

    def __hash__(self) -> int:
        found = self.__dict__.get("hash")
        if found is None:
            found = self.__dict__["hash"] = super().__hash__()
        return int(found)


class Draft(NamedTuple):
    """A transfer template of a Program: its place in its body, and of a collective what it moves and the number of its form.

    Collectives of one form over the same ranks move the same bytes the same way.
    """

    place: int
    op: Collective | P2P
    size: Size = Size(0)
    form: int = -1


@dataclass(frozen=True)
class Traffic:
    """All transfers of a workload on a cluster; plans are cached by what determines them."""

    workload: Workload
    cluster: Cluster
    profile: Profile
    _plans: dict[Hashable, CollectivePlan] = field(default_factory=dict)
    _structures: dict[Hashable, Hashable] = field(default_factory=dict)
    _stands: dict[Hashable, tuple[IntArray, IntArray]] = field(default_factory=dict)
    _stood: dict[tuple[int, tuple[int, ...]], tuple[int, ...]] = field(default_factory=dict)
    _samples: dict[str, list[Ranks]] = field(default_factory=dict)
    _sets: dict[Ranks, Ranks] = field(default_factory=dict)

    @cached_property
    def devices(self) -> tuple[str, ...]:
        """Device of each rank."""
        return self.cluster.devices[: self.workload.world]

    def ranks(self, members: IntArray) -> Ranks:
        """Some ranks, as one object for equal ones: to find what is known of it nobody compares thousands of numbers."""
        made = Ranks(members.tolist())
        return self._sets.setdefault(made, made)

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
        if structure not in self._stands:
            return ranks
        members, stands = self._stands[structure]
        here = id(members), ranks
        if here not in self._stood:
            rows = [row for row in np.flatnonzero(members[:, 0] == ranks[0]).tolist() if members[row].tolist() == list(ranks)]
            self._stood[here] = self.ranks(stands[rows[0]]) if rows else ranks
        return self._stood[here]

    def structure(self, op: Collective, size: Size) -> Hashable:
        """What a collective of this size has in common with those of other sizes."""
        same = (op.op, op.algorithm, op.group, op.root, op.load, size.copies)
        key = (same, size.nbytes)
        if key not in self._structures:
            plans = [self.collective(op, size, rows) for rows in self._sample(op.group)]
            self._structures[key] = (*same, tuple((p.algorithm, tuple(_busy(p))) for p in plans))
        return self._structures[key]

    def _sample(self, group: str) -> list[Ranks]:
        """One set of ranks per number of servers that a set of this group spans: algorithms may depend on that."""
        if group not in self._samples:
            table = self.workload.groups[group]
            steps = np.diff(self.cluster.servers[table], axis=1)
            if (steps < 0).any():
                steps = np.diff(np.sort(self.cluster.servers[table], axis=1), axis=1)
            first = np.unique((steps > 0).sum(axis=1), return_index=True)[1]
            self._samples[group] = [self.ranks(table[i]) for i in sorted(first.tolist())]
        return self._samples[group]

    def stand(self, structure: Hashable, sets: IntArray, others: IntArray) -> None:
        """For the `sets` int[k, n] of ranks that make a structure stand `others`, row by row."""
        self._stands[structure] = sets, others

    @cached_property
    def drafts(self) -> list[dict[str, list[Draft]]]:
        """The transfer templates of every Program by body."""
        forms: dict[Hashable, int] = {}
        return [{name: _drafts(program, body, forms) for name, body in program.bodies.items()} for program in self.workload.programs]

    @cached_property
    def transfers(self) -> list[tuple[list[tuple[Collective, Size]], list[tuple[Msg, int]]]]:
        """Distinct collectives and sent messages of every Program, with their bytes."""
        return [_transfers(program, drafts) for program, drafts in zip(self.workload.programs, self.drafts, strict=True)]


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


def _drafts(program: Program, body: Sequence[Op], forms: dict[Hashable, int]) -> list[Draft]:
    drafts = []
    for place, op in enumerate(body):
        if isinstance(op, Collective):
            size = collective_size(program, op)
            drafts.append(Draft(place, op, size, forms.setdefault((op.op, op.copied, op.group, op.root, op.load, size), len(forms))))
        elif isinstance(op, P2P):
            drafts.append(Draft(place, op))
    return drafts


def _transfers(program: Program, drafts: Mapping[str, Sequence[Draft]]) -> tuple[list[tuple[Collective, Size]], list[tuple[Msg, int]]]:
    """Distinct collectives and sent messages of a Program with their bytes."""
    collectives: dict[int, tuple[Collective, Size]] = {}
    messages: dict[Hashable, tuple[Msg, int]] = {}
    for draft in (draft for body in drafts.values() for draft in body):
        if isinstance(draft.op, Collective):
            collectives.setdefault(draft.form, (draft.op, draft.size))
        else:
            for m in draft.op.sends:
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
