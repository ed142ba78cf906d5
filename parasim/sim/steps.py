"""What every op template of a simulated rank costs: seconds of a Compute, the way of a Collective's bytes, the messages of a P2P.

Worked out once per template, never per instance; equal kernels and equal collectives share their price.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..collectives.plan import CollectivePlan
from ..cost.pricing import signature
from ..cost.profile import Profile
from ..cost.timing import body_seconds, seconds
from ..hashes import distinct
from ..program.ops import COMPUTE, P2P, Collective, Kernel, Msg
from ..program.workload import Program
from ..topology.cluster import Accelerator
from .fold import Fold, LoadKey, counted
from .network import Path
from .traffic import Size, Traffic, message_key


class Move(NamedTuple):
    """A phase of a plan in the folded network: latency, then bytes along a path. `loads` is its key in the fold."""

    latency: float
    bytes: float
    path: Path | None
    loads: LoadKey

    @property
    def seconds(self) -> float:
        """Its time alone on its links."""
        return self.latency + (self.bytes / self.path.solo if self.path is not None else 0.0)


class Route(NamedTuple):
    """How a rank's collective runs: its group, what it moves, the representatives that must meet, bytes that this rank sends."""

    group: str
    moves: tuple[Move, ...]
    present: tuple[int, ...]
    sent: float


class Message(NamedTuple):
    """One end of a message: its channel, the representatives (sender, receiver), the slot that names its microbatch; `sent` bytes, moved how.

    `number` is that of channel and ends.
    """

    channel: str
    ends: tuple[int, int]
    slot: int
    sending: bool
    sent: float
    moves: tuple[Move, ...]
    number: int


class Step(NamedTuple):
    """What an op template of a rank costs: `price` seconds of a Compute, route of a Collective, messages of a P2P with receives first.

    `meeting` numbers who meets for a collective of its group on its stream, `user` who does for those of any group. `beside` are the
    representatives whose compute it slows: those that meet, but for one on the stream of compute, or moved by copy engines. `sent`: bytes this rank
    puts on the wire.
    """

    price: float = 0.0
    route: Route | None = None
    messages: tuple[Message, ...] = ()
    meeting: int = 0
    user: int = 0
    beside: tuple[int, ...] = ()
    sent: float = 0.0


@dataclass
class Pricer:
    """Makes Steps; keeps what it has priced."""

    traffic: Traffic
    fold: Fold
    path: Callable[[Mapping[int, float]], Path]
    accelerator: Accelerator
    profile: Profile
    paces: NDArray[np.float64]
    launch: float  # seconds of the host per kernel
    _seconds: dict[Hashable, float] = field(default_factory=dict)
    _bodies: dict[int, dict[str, list[float]]] = field(default_factory=dict)
    _computes: dict[tuple[int, float], dict[str, list[Step]]] = field(default_factory=dict)
    _collectives: dict[tuple[int, int, str], Step] = field(default_factory=dict)
    _numbers: dict[Hashable, int] = field(default_factory=dict)
    _shared: dict[Hashable, Route] = field(default_factory=dict)
    _members: dict[Hashable, tuple[tuple[int, ...], int, tuple[int, ...], Hashable]] = field(default_factory=dict)

    def steps(self, rank: int, c: int, program: Program) -> dict[str, list[Step]]:
        """The templates of `program`, of class `c`, as `rank` runs them, by body."""
        pace = float(self.paces[rank])
        if (c, pace) not in self._computes:
            if c not in self._bodies:
                self._bodies[c] = {name: body_seconds(body, self._kernel, self.profile, self.launch) for name, body in program.bodies.items()}
            self._computes[c, pace] = {name: [Step(seconds * pace) for seconds in body] for name, body in self._bodies[c].items()}
        steps = {name: body.copy() for name, body in self._computes[c, pace].items()}
        for name, drafts in self.traffic.drafts[c].items():
            mine = steps[name]
            for draft in drafts:
                op = draft.op
                mine[draft.place] = self._batch(rank, c, program, op) if isinstance(op, P2P) else self._collective(rank, op, draft.size, draft.form)
        return steps

    def _collective(self, rank: int, op: Collective, size: Size, form: int) -> Step:
        here = rank, form, op.stream
        if here not in self._collectives:
            route = self._found(rank, op, size, form)
            meeting, user = self._number((route.present, op.group, op.stream)), self._number((route.present, op.stream))
            beside = () if op.stream == COMPUTE or op.copied else route.present
            self._collectives[here] = Step(route=route, meeting=meeting, user=user, beside=beside, sent=route.sent)
        return self._collectives[here]

    def _batch(self, rank: int, c: int, program: Program, op: P2P) -> Step:
        ends = [self._message(rank, c, program, m, sending) for ms, sending in ((op.recvs, False), (op.sends, True)) for m in ms]
        return Step(messages=tuple(ends), sent=sum([m.sent for m in ends]))

    def _kernel(self, kernel: Kernel) -> float:
        key = signature(kernel)
        known = self._seconds.get(key)
        if known is None:
            known = self._seconds[key] = seconds(kernel, self.accelerator, self.profile)
        return known

    def _found(self, rank: int, op: Collective, size: Size, form: int) -> Route:
        here = (rank, op.group)
        if here not in self._members:
            members = self.traffic.workload.members(rank, op.group)
            present = tuple(distinct(self.fold.representative[members]).tolist())
            everyone = self.traffic.ranks(members)
            self._members[here] = everyone, self._number(everyone), present, counted(self.fold.colour[members])
        ranks, number, present, colours = self._members[here]
        key = (form, number)
        if key not in self._shared:
            plan = self.traffic.timed_collective(op, size, ranks)
            kind = self.traffic.structure(op, size), colours
            self._shared[key] = Route(op.group, self._moved(plan, kind), present, plan.wire_bytes_per_rank)
        return self._shared[key]

    def _message(self, rank: int, c: int, program: Program, m: Msg, sending: bool) -> Message:
        other = int(self.traffic.workload.peers[m.peer][rank])
        peer = int(self.fold.representative[other])
        moves: tuple[Move, ...] = ()
        nbytes = program.nbytes((m.buffer,)) if sending else 0
        if sending:
            key = message_key(c, m, nbytes)
            kind = key, tuple(self.fold.colour[[rank, other]].tolist())
            moves = self._moved(self.traffic.timed_message(key, nbytes, rank, other), kind)
        ends = (rank, peer) if sending else (peer, rank)
        return Message(m.channel, ends, m.buffer.slot, sending, float(nbytes), moves, self._number((m.channel, ends)))

    def _number(self, meeting: Hashable) -> int:
        return self._numbers.setdefault(meeting, len(self._numbers))

    def _moved(self, plan: CollectivePlan, kind: Hashable) -> tuple[Move, ...]:
        moves = []
        for p, phase in enumerate(plan.phases):
            loads = self.fold.loads[kind, p]
            moves.append(Move(phase.latency, phase.bytes, self.path(loads) if phase.bytes > 0 and loads else None, (kind, p)))
        return tuple(moves)
