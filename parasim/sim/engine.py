"""The engine: simpy replays the ops of one rank per fold colour. A process per (rank, stream); an event only where somebody waits.

A collective starts when all colours of its group have reached it; a message when both ends have; a compute op progresses at rate 1, or
slower where the Profile names a slow-down beside a transfer of that rank. When no event is left and an op has not ended, the engine names
every stuck rank and op.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Generator, Hashable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import simpy
from numpy.typing import NDArray

from ..collectives.plan import CollectivePlan, capacity
from ..cost.pricing import seconds
from ..cost.profile import Profile
from ..errors import Refused, Violation
from ..program.edges import Resolved
from ..program.ops import COMPUTE, P2P, Collective, Compute, Msg, Op
from ..program.workload import Program, Workload
from ..topology.cluster import Cluster
from .deadlock import explain
from .fold import Fold, LoadKey, fold, kind_of
from .fuse import fuse
from .network import Network, Path
from .traffic import Traffic, collective_bytes, is_message, message_key

Process = Generator[simpy.Event, Any, None]


@dataclass(frozen=True)
class Transfer:
    """A phase that moved bytes: of op instance `op` of `rank`, with its loads by link colour."""

    rank: int
    op: int
    bytes: float
    loads: LoadKey
    start: float
    end: float


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


class _Route(NamedTuple):
    """How a rank's collective runs: its group, what it moves, the representatives that must meet."""

    group: str
    moves: tuple[Move, ...]
    present: tuple[int, ...]


class _Step(NamedTuple):
    """An op template of a rank, priced: seconds of a Compute, route of a Collective."""

    op: Op
    price: float
    route: _Route | None


class Rank:
    """A simulated rank: its resolved Program, its runs, and the times of its ops (nan: not yet)."""

    def __init__(self, rank: int, c: int, program: Program) -> None:
        self.rank, self.c, self.program = rank, c, program
        self.resolved: Resolved = program.resolved
        n = len(self.resolved)
        self.ready, self.start, self.end = np.full(n, np.nan), np.full(n, np.nan), np.full(n, np.nan)
        self.done = bytearray(n)
        self.waited: dict[int, simpy.Event] = {}
        self.steps: dict[str, list[_Step]] = {}
        self.edges = {i: self.resolved.waits(int(i)) for i in np.nonzero(np.diff(self.resolved.edge_start))[0].tolist()}

    def fused(self, seconds: NDArray[np.float64]) -> None:
        """Group the ops into runs, given what is known of their seconds; `began` holds when each run starts."""
        self.seconds = seconds
        self.runs = fuse(self.resolved, seconds)
        self.began = np.full(len(self.runs.seconds), np.nan)

    def unfold(self) -> None:
        """Give every op of a fused run its own times."""
        inside = ~np.isnan(self.seconds)
        start = self.began[self.runs.run] + self.runs.offset
        self.ready[inside] = self.start[inside] = start[inside]
        self.end[inside] = (self.began[self.runs.run] + self.runs.after)[inside]


@dataclass
class _Meeting:
    """Ranks gathering for a collective, or the two ends of a message."""

    event: simpy.Event
    arrived: int = 0
    start: float = 0.0


class Engine:
    """One run. `simulate` in the package reads the result off `ranks`, `transfers` and `fold`."""

    def __init__(self, workload: Workload, cluster: Cluster, profile: Profile, *, folding: bool) -> None:
        if workload.world > len(cluster.devices):
            raise Refused([Violation("devices", str(workload.world), f"exceeds the {len(cluster.devices)} devices of cluster {cluster.name}")])
        self.workload, self.cluster, self.profile = workload, cluster, profile
        self.env = simpy.Environment()
        self.traffic = Traffic(workload, cluster, profile)
        self.capacity: NDArray[np.float64] = capacity(cluster, profile)
        self.fold: Fold = fold(workload, cluster, self.traffic, self.capacity, enabled=folding)
        self.network = Network(self.env, [bandwidth for _, _, bandwidth, _ in self.fold.links])
        self.ranks = [Rank(r, int(workload.class_of_rank[r]), workload.program_of(r)) for r in self.fold.representatives]
        self.transfers: list[Transfer] = []
        self.events = 0
        self._overhead = profile.get("compute.op_overhead", 0.0)
        self._slowdown = {kind: profile.get(f"overlap.slowdown.{kind}", 0.0) for kind in ("collective", "p2p")}
        self._slows = any(self._slowdown.values())
        self._flying: dict[int, Counter[str]] = defaultdict(Counter)
        self._changed: dict[int, simpy.Event] = {}
        self.slowed: dict[int, float] = defaultdict(float)
        self._meetings: dict[Hashable, _Meeting] = {}
        self._ordinals: Counter[Hashable] = Counter()
        self._outgoing: dict[Hashable, tuple[tuple[Move, ...], int, int]] = {}

    def run(self) -> None:
        """Replay to the end. Raises Deadlock naming what is stuck."""
        for rank in self.ranks:
            rank.steps = {name: [self._step(rank, op) for op in body] for name, body in rank.program.bodies.items()}
        users = self._users()
        for rank in self.ranks:
            rank.fused(self._known_seconds(rank, users))
            streams = rank.resolved.stream[rank.runs.order[rank.runs.first[:-1]]]
            for s in range(len(rank.resolved.streams)):
                mine = np.nonzero(streams == s)[0]
                if len(mine):
                    self.env.process(self._stream(rank, range(int(mine[0]), int(mine[-1]) + 1)))
        self.env.run()
        heads = [(at, i) for at, rank in enumerate(self.ranks) for i in self._heads(rank)]
        if heads:
            raise explain(self.workload, self.ranks, heads, self.fold.representative)
        for rank in self.ranks:
            rank.unfold()

    @staticmethod
    def _heads(rank: Rank) -> list[int]:
        """The first op of every stream that has not ended."""
        heads: dict[int, int] = {}
        last = rank.runs.order[rank.runs.first[1:] - 1]
        for k in np.nonzero(np.frombuffer(rank.done, dtype=np.uint8)[last] == 0)[0].tolist():
            i = int(rank.runs.order[rank.runs.first[k]])
            heads.setdefault(int(rank.resolved.stream[i]), i)
        return list(heads.values())

    def _users(self) -> dict[int, set[Hashable]]:
        """Who uses each link colour: the (class, stream) of collectives inside one class, anything else by itself."""
        users: dict[int, set[Hashable]] = defaultdict(set)
        for rank in self.ranks:
            for step in {id(s.route): s for body in rank.steps.values() for s in body if s.route is not None}.values():
                assert step.route is not None
                for move in step.route.moves:
                    for link in self.fold.loads[move.loads]:
                        users[link].add((step.route.present, step.op.stream))
        for (kind, p), loads in self.fold.loads.items():
            if isinstance(kind, tuple) and is_message(kind[0]):
                for link in loads:
                    users[link].add((kind, p))
        return users

    def _known_seconds(self, rank: Rank, users: dict[int, set[Hashable]]) -> NDArray[np.float64]:
        """Seconds of every op instance whose duration nothing else can change, nan for the others."""
        table = {name: np.array([self._known(step, users) for step in body]) for name, body in rank.steps.items()}
        return np.concatenate([table[c.body] for c in rank.program.calls]) if rank.program.calls else np.zeros(0)

    def _known(self, step: _Step, users: dict[int, set[Hashable]]) -> float:
        if self._slows or isinstance(step.op, P2P):
            return np.nan
        if step.route is None:
            return step.price
        me = {(step.route.present, step.op.stream)}
        alone = len(step.route.present) == 1 and all(users[link] == me for move in step.route.moves for link in self.fold.loads[move.loads])
        return sum(move.seconds for move in step.route.moves) if alone else np.nan

    def _stream(self, rank: Rank, mine: range) -> Process:
        env, done, waited, edges = self.env, rank.done, rank.waited, rank.edges
        order, first, length = rank.runs.order.tolist(), rank.runs.first.tolist(), rank.runs.seconds.tolist()
        for k in mine:
            i = order[first[k]]
            for e in edges.get(i, ()):
                if not done[e]:
                    event = waited.get(e)
                    if event is None:
                        event = waited[e] = env.event()
                    yield event
            seconds = length[k]
            if seconds == seconds:  # known: a fused run
                rank.began[k] = env.now
                i = order[first[k + 1] - 1]
                if seconds > 0:
                    yield env.timeout(seconds)
            else:
                yield from self._replay(rank, i)
            done[i] = 1
            self.events += 1
            event = waited.pop(i, None)
            if event is not None:
                event.succeed()

    def _replay(self, rank: Rank, i: int) -> Process:
        """One op whose end depends on others."""
        rank.ready[i] = self.env.now
        op, price, route = rank.steps[rank.program.calls[int(rank.resolved.call[i])].body][int(rank.resolved.position[i])]
        if route is not None:
            yield from self._collective(rank, i, op.stream, route)
        elif isinstance(op, P2P):
            yield from self._p2p(rank, i, op)
        else:
            rank.start[i] = self.env.now
            yield from self._rated(rank, price)
        rank.end[i] = self.env.now

    def _step(self, rank: Rank, op: Op) -> _Step:
        if isinstance(op, Compute):
            return _Step(op, self._overhead + sum(seconds(k, self.cluster.accelerator, self.profile) for k in op.kernels), None)
        if isinstance(op, Collective):
            ranks = tuple(self.workload.members(rank.rank, op.group).tolist())
            nbytes = collective_bytes(rank.program, op)
            plan = self.traffic.collective(op, nbytes, ranks)
            kind = kind_of(self.traffic.structure(op, nbytes), ranks, self.fold.colour, ordered=False)
            present = tuple(sorted({int(self.fold.representative[r]) for r in ranks}))
            return _Step(op, 0.0, _Route(op.group, self._moves(plan, kind), present))
        return _Step(op, 0.0, None)

    def _moves(self, plan: CollectivePlan, kind: Hashable) -> tuple[Move, ...]:
        moves = []
        for p, phase in enumerate(plan.phases):
            loads = self.fold.loads[kind, p]
            path = self.network.path(loads) if phase.bytes > 0 and loads else None
            moves.append(Move(phase.latency, phase.bytes, path, (kind, p)))
        return tuple(moves)

    def _rated(self, rank: Rank, work: float) -> Process:
        """Compute beside transfers: the rate changes only when one of this rank's starts or ends. `slowed` adds up the seconds lost."""
        began, due = self.env.now, work
        while work > 0:
            rate = 1.0 / (1.0 + sum(self._slowdown[kind] for kind, n in self._flying[rank.rank].items() if n))
            changed = self._changed.get(rank.rank)
            if changed is None:
                changed = self._changed[rank.rank] = self.env.event()
            since = self.env.now
            end = self.env.timeout(work / rate)
            yield end | changed
            work = 0.0 if end.processed else work - (self.env.now - since) * rate
        self.slowed[rank.rank] += max(0.0, self.env.now - began - due)

    def _fly(self, ranks: tuple[int, ...], kind: str, change: int) -> None:
        if self._slows:
            for r in ranks:
                self._flying[r][kind] += change
                changed = self._changed.pop(r, None)
                if changed is not None:
                    changed.succeed()

    def _collective(self, rank: Rank, i: int, stream: str, route: _Route) -> Process:
        if len(route.present) == 1:
            rank.start[i] = self.env.now
            yield from self._beside(route, stream, rank.rank, i)
            return
        ordinal = (rank.rank, route.group, stream)
        key = (route.present, route.group, stream, self._ordinals[ordinal])
        self._ordinals[ordinal] += 1
        meeting = self._meetings.setdefault(key, _Meeting(self.env.event()))
        meeting.arrived += 1
        if meeting.arrived == len(route.present):
            del self._meetings[key]
            meeting.start = self.env.now
            yield from self._beside(route, stream, rank.rank, i)
            meeting.event.succeed()
        else:
            yield meeting.event
        rank.start[i] = meeting.start

    def _beside(self, route: _Route, stream: str, rank: int, i: int) -> Process:
        """Move the bytes; a collective on another stream than compute slows the compute of its ranks."""
        beside = self._slows and stream != COMPUTE
        if beside:
            self._fly(route.present, "collective", 1)
        yield from self._transfer(route.moves, rank, i)
        if beside:
            self._fly(route.present, "collective", -1)

    def _p2p(self, rank: Rank, i: int, op: P2P) -> Process:
        microbatches = rank.resolved.microbatches(i)
        meetings = [self._post(rank, i, m, microbatches, sending=False) for m in op.recvs]
        meetings += [self._post(rank, i, m, microbatches, sending=True) for m in op.sends]
        for meeting in meetings:
            if not meeting.event.processed:
                yield meeting.event
        rank.start[i] = min((m.start for m in meetings), default=self.env.now)

    def _post(self, rank: Rank, i: int, m: Msg, microbatches: tuple[int, ...], *, sending: bool) -> _Meeting:
        """Post one end of a message; the second end starts it."""
        peer = int(self.fold.representative[self.workload.peers[m.peer][rank.rank]])
        microbatch = microbatches[m.buffer.slot] if m.buffer.slot >= 0 else -1
        ends = (rank.rank, peer) if sending else (peer, rank.rank)
        name = (m.channel, ends, microbatch)
        ordinal = self._ordinals[name, sending]
        self._ordinals[name, sending] += 1
        meeting = self._meetings.setdefault((name, ordinal), _Meeting(self.env.event()))
        meeting.arrived += 1
        if sending:
            self._outgoing[name, ordinal] = (self._message(rank, m), rank.rank, i)
        if meeting.arrived == 2:
            del self._meetings[name, ordinal]
            meeting.start = self.env.now
            self.env.process(self._deliver(meeting, ends, *self._outgoing.pop((name, ordinal))))
        return meeting

    def _message(self, rank: Rank, m: Msg) -> tuple[Move, ...]:
        target = int(self.workload.peers[m.peer][rank.rank])
        nbytes = rank.program.nbytes((m.buffer,))
        plan = self.traffic.message(nbytes, rank.rank, target)
        return self._moves(plan, kind_of(message_key(rank.c, m, nbytes), (rank.rank, target), self.fold.colour, ordered=True))

    def _deliver(self, meeting: _Meeting, ends: tuple[int, int], moves: tuple[Move, ...], sender: int, i: int) -> Process:
        self._fly(ends, "p2p", 1)
        yield from self._transfer(moves, sender, i)
        self._fly(ends, "p2p", -1)
        meeting.event.succeed()

    def _transfer(self, moves: tuple[Move, ...], rank: int, i: int) -> Process:
        """The phases of a plan, one after the other: latency, then bytes on the links."""
        for latency, nbytes, path, loads in moves:
            if latency > 0:
                yield self.env.timeout(latency)
            if path is not None:
                start = self.env.now
                yield self.network.start(nbytes, path)
                self.transfers.append(Transfer(rank, i, nbytes, loads, start, self.env.now))
            self.events += 1
