"""What every op template of a simulated rank costs: seconds of a Compute, the way of a Collective's bytes, the messages of a P2P.

Worked out once per template, never per instance; equal kernels and equal collectives share their price.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ..collectives.plan import CollectivePlan
from ..cost.pricing import signature
from ..cost.profile import Profile
from ..cost.timing import body_seconds, seconds
from ..program.ops import COMPUTE, P2P, Collective, Compute, Kernel, Msg, Op
from ..program.workload import Program
from ..topology.cluster import Accelerator
from .fold import Fold, LoadKey, kind_of
from .network import Path
from .traffic import Size, Traffic, collective_size, message_key


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
    """An op template of a rank, priced: seconds of a Compute, route of a Collective, messages of a P2P with receives first.

    `meeting` numbers who meets for a collective of its group on its stream, `user` who does for those of any group.
    """

    op: Op
    price: float = 0.0
    route: Route | None = None
    messages: tuple[Message, ...] = ()
    meeting: int = 0
    user: int = 0

    @property
    def beside(self) -> tuple[int, ...]:
        """The representatives whose compute its collective slows: those that meet, but for one on the stream of compute, or moved by copy engines."""
        if self.route is None or self.op.stream == COMPUTE or (isinstance(self.op, Collective) and self.op.copied):
            return ()
        return self.route.present

    @property
    def sent(self) -> float:
        """Bytes this rank puts on the wire."""
        return self.route.sent if self.route is not None else sum([m.sent for m in self.messages])


class _Draft(NamedTuple):
    """An op template as all ranks of a class have it: seconds at pace 1, or the size of a collective and the number of its form."""

    op: Op
    seconds: float = 0.0
    size: Size = Size(0)
    form: int = -1

    @property
    def transfers(self) -> bool:
        """Does it depend on the rank?"""
        return not isinstance(self.op, Compute)


@dataclass
class Pricer:
    """Makes Steps; keeps what it has priced."""

    traffic: Traffic
    fold: Fold
    path: Callable[[Mapping[int, float]], Path]
    accelerator: Accelerator
    profile: Profile
    paces: Sequence[float]
    launch: float  # seconds of the host per kernel
    _seconds: dict[Hashable, float] = field(default_factory=dict)
    _drafts: dict[int, dict[str, list[_Draft]]] = field(default_factory=dict)
    _computes: dict[tuple[int, float], dict[str, list[Step]]] = field(default_factory=dict)
    _met: dict[tuple[int, str], tuple[int, int]] = field(default_factory=dict)
    _forms: dict[Hashable, int] = field(default_factory=dict)
    _numbers: dict[Hashable, int] = field(default_factory=dict)
    _routes: dict[tuple[int, int], Route] = field(default_factory=dict)
    _shared: dict[Hashable, Route] = field(default_factory=dict)
    _members: dict[Hashable, tuple[tuple[int, ...], tuple[int, ...]]] = field(default_factory=dict)

    def steps(self, rank: int, c: int, program: Program) -> dict[str, list[Step]]:
        """The templates of `program`, of class `c`, as `rank` runs them, by body."""
        if c not in self._drafts:
            self._drafts[c] = {name: self._drafted(program, body) for name, body in program.bodies.items()}
        drafts, pace = self._drafts[c], self.paces[rank]
        if (c, pace) not in self._computes:
            self._computes[c, pace] = {name: [Step(draft.op, draft.seconds * pace) for draft in body] for name, body in drafts.items()}
        steps = {name: body.copy() for name, body in self._computes[c, pace].items()}
        for name, body in drafts.items():
            mine = steps[name]
            for i, draft in enumerate(body):
                if draft.transfers:
                    mine[i] = self._step(rank, c, program, draft)
        return steps

    def _drafted(self, program: Program, body: Sequence[Op]) -> list[_Draft]:
        times = body_seconds(body, self._kernel, self.profile, self.launch)
        return [self._draft(program, op, time) for op, time in zip(body, times, strict=True)]

    def _draft(self, program: Program, op: Op, time: float) -> _Draft:
        if not isinstance(op, Collective):
            return _Draft(op, seconds=time)
        size = collective_size(program, op)
        key = (op.op, op.algorithm, op.group, op.root, op.load, size)
        return _Draft(op, size=size, form=self._forms.setdefault(key, len(self._forms)))

    def _step(self, rank: int, c: int, program: Program, draft: _Draft) -> Step:
        op = draft.op
        if isinstance(op, Collective):
            route = self._route(rank, op, draft.size, draft.form)
            here = id(route), op.stream
            if here not in self._met:
                self._met[here] = self._number((route.present, op.group, op.stream)), self._number((route.present, op.stream))
            meeting, user = self._met[here]
            return Step(op, route=route, meeting=meeting, user=user)
        assert isinstance(op, P2P)
        ends = [self._message(rank, c, program, m, sending) for ms, sending in ((op.recvs, False), (op.sends, True)) for m in ms]
        return Step(op, messages=tuple(ends))

    def _kernel(self, kernel: Kernel) -> float:
        key = signature(kernel)
        known = self._seconds.get(key)
        if known is None:
            known = self._seconds[key] = seconds(kernel, self.accelerator, self.profile)
        return known

    def _route(self, rank: int, op: Collective, size: Size, form: int) -> Route:
        known = self._routes.get((form, rank))
        if known is None:
            known = self._routes[form, rank] = self._found(rank, op, size, form)
        return known

    def _found(self, rank: int, op: Collective, size: Size, form: int) -> Route:
        here = (rank, op.group)
        if here not in self._members:
            ranks = tuple(self.traffic.workload.members(rank, op.group).tolist())
            self._members[here] = ranks, tuple(sorted({int(self.fold.representative[r]) for r in ranks}))
        ranks, present = self._members[here]
        key = (form, ranks)
        if key not in self._shared:
            plan = self.traffic.timed_collective(op, size, ranks)
            kind = kind_of(self.traffic.structure(op, size), ranks, self.fold.colour, ordered=False)
            self._shared[key] = Route(op.group, self._moved(plan, kind), present, plan.wire_bytes_per_rank)
        return self._shared[key]

    def _message(self, rank: int, c: int, program: Program, m: Msg, sending: bool) -> Message:
        other = int(self.traffic.workload.peers[m.peer][rank])
        peer = int(self.fold.representative[other])
        moves: tuple[Move, ...] = ()
        nbytes = program.nbytes((m.buffer,)) if sending else 0
        if sending:
            key = message_key(c, m, nbytes)
            moves = self._moved(self.traffic.timed_message(key, nbytes, rank, other), kind_of(key, (rank, other), self.fold.colour, ordered=True))
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
