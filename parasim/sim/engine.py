"""The engine: simpy replays the ops of one rank per fold colour. A process per (rank, stream); an event only where somebody waits.

A collective starts when all colours of its group have reached it; a message when both ends have; a compute op progresses at rate 1, or
slower where the Profile names a slow-down beside a transfer of that rank. When no event is left and an op has not ended, the engine names
every stuck rank and op.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Generator, Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np
import simpy
from numpy.typing import NDArray

from ..collectives.plan import capacity
from ..cost.profile import Profile
from ..cost.timing import host_launch
from ..errors import Refused, Violation
from ..program.edges import Resolved
from ..program.ops import COMPUTE, P2P
from ..program.workload import Program, Workload
from ..topology.cluster import Cluster
from .deadlock import explain
from .fold import Fold, LoadKey, fold
from .fuse import Runs, fuse_all
from .network import Network
from .steps import Message, Move, Pricer, Route, Step
from .traffic import Traffic, is_message

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


class Rank:
    """A simulated rank: its resolved Program, its runs, and the times of its ops (nan: not yet)."""

    def __init__(self, rank: int, c: int, program: Program) -> None:
        self.rank, self.c, self.program = rank, c, program
        self.resolved: Resolved = program.resolved
        n = len(self.resolved)
        self.ready, self.start, self.end = np.full(n, np.nan), np.full(n, np.nan), np.full(n, np.nan)
        self.done = bytearray(n)
        self.waited: dict[int, simpy.Event] = {}
        self.steps: dict[str, list[Step]] = {}
        edges, first = self.resolved.edges.tolist(), self.resolved.edge_start.tolist()
        self._places: dict[int, tuple[int, int]] = {}
        self.edges = {i: edges[first[i] : first[i + 1]] for i in np.nonzero(np.diff(self.resolved.edge_start))[0].tolist()}

    def fused(self, runs: Runs) -> None:
        """Take over what ops are run as; `came` holds when the rank reaches each run, `began` when that starts."""
        self.runs = runs
        seconds = self.seconds = runs.seconds[runs.run]  # nan: an op that is replayed by itself
        self.began, self.came = np.full(len(runs.seconds), np.nan), np.full(len(runs.seconds), np.nan)
        self.meets = runs.meets.tolist()
        self.order, self.first, self.length = self.runs.order.tolist(), self.runs.first.tolist(), self.runs.seconds.tolist()
        alone = np.nonzero(np.isnan(seconds))[0]
        calls, positions = self.resolved.call[alone].tolist(), self.resolved.position[alone].tolist()
        self._places = dict(zip(alone.tolist(), zip(calls, positions, strict=True), strict=True))

    def call(self, i: int) -> int:
        """The call of an op that is replayed by itself."""
        return self._places[i][0]

    def step(self, i: int) -> Step:
        """The template of an op that is replayed by itself."""
        call, position = self._places[i]
        return self.steps[self.program.calls[call].body][position]

    def unfold(self) -> None:
        """Give every op of a fused run its own times."""
        inside = ~np.isnan(self.seconds)
        began = self.began[self.runs.run][inside]
        self.ready[inside] = began + self.runs.ready[inside]
        self.start[inside] = began + self.runs.offset[inside]
        self.end[inside] = began + self.runs.after[inside]
        together = np.flatnonzero(~np.isnan(self.came))
        self.ready[self.runs.order[self.runs.first[together]]] = self.came[together]


@dataclass(slots=True)
class _Meeting:
    """Ranks gathering for a collective, or the two ends of a message."""

    event: simpy.Event
    arrived: int = 0
    start: float = 0.0
    sending: bool = False  # of a message: which end came first
    outgoing: tuple[tuple[Move, ...], int, int] | None = None  # what the sender moves, its rank and op

    def over(self, _: object) -> None:
        """Everyone who met goes on."""
        self.event.succeed()


class Engine:
    """One run. `simulate` in the package reads the result off `ranks`, `transfers` and `fold`."""

    def __init__(self, workload: Workload, cluster: Cluster, profile: Profile, *, folding: bool, fusing: bool = True, network: type[Network] = Network) -> None:
        if workload.world > len(cluster.devices):
            raise Refused([Violation("devices", str(workload.world), f"exceeds the {len(cluster.devices)} devices of cluster {cluster.name}")])
        workload = workload.bound
        self.workload, self.cluster, self.profile = workload, cluster, profile
        self.env = simpy.Environment()
        self.traffic = Traffic(workload, cluster, profile)
        self.capacity: NDArray[np.float64] = capacity(cluster, profile)
        self.fold: Fold = fold(workload, cluster, self.traffic, self.capacity, enabled=folding)
        self.network = network(self.env, [bandwidth for _, _, bandwidth, _ in self.fold.links])
        self.ranks = [Rank(r, int(workload.class_of_rank[r]), workload.program_of(r)) for r in self.fold.representatives]
        self.transfers: list[Transfer] = []
        self.events = 0
        self._slowdown = {kind: profile.get(f"overlap.slowdown.{kind}", 0.0) for kind in ("collective", "p2p")}
        self._slows = any(self._slowdown.values())
        self._fusing = fusing and not self._slows  # what transfers may slow has no length of its own
        self._flying: dict[int, Counter[str]] = defaultdict(Counter)
        self._changed: dict[int, simpy.Event] = {}
        self.slowed: dict[int, float] = defaultdict(float)
        self._meetings: dict[Hashable, _Meeting] = {}
        self._ordinals: Counter[Hashable] = Counter()
        self._posted: defaultdict[Hashable, deque[_Meeting]] = defaultdict(deque)
        paces, launch = cluster.paces(workload.world).tolist(), _launch(workload, cluster, profile)
        self._pricer = Pricer(self.traffic, self.fold, self.network.path, cluster.accelerator, profile, paces, launch)

    def run(self) -> None:
        """Replay to the end. Raises Deadlock naming what is stuck."""
        for rank in self.ranks:
            rank.steps = self._pricer.steps(rank.rank, rank.c, rank.program)
        self._fuse()
        for rank in self.ranks:
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
        """Who uses each link colour: the (classes, stream) of collectives, the kind of messages."""
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

    def _fuse(self) -> None:
        """What every rank runs as one: ops whose duration nothing else can change, those of several classes together."""
        users, place = self._users(), {rank.rank: at for at, rank in enumerate(self.ranks)}
        classes = [rank.c for rank in self.ranks]
        numbers: dict[tuple[int, ...], int] = {}
        seconds, meets = [], []
        for rank in self.ranks:
            known = {name: np.array([self._known(step, users) for step in body]) for name, body in rank.steps.items()}
            sets = {name: np.zeros(len(body), dtype=np.int64) for name, body in rank.steps.items()}
            for name, body in rank.steps.items():
                for i, step in enumerate(body):
                    if step.route is not None and len(step.route.present) > 1 and known[name][i] == known[name][i]:
                        if len({classes[place[r]] for r in step.route.present}) == 1:
                            sets[name][i] = numbers.setdefault(step.route.present, len(numbers) + 1)
                        else:
                            known[name][i] = np.nan
            calls = rank.program.calls
            seconds.append(np.concatenate([np.zeros(0), *(known[c.body] for c in calls)]))
            meets.append(np.concatenate([np.zeros(0, dtype=np.int64), *(sets[c.body] for c in calls)]))
        together = {number: tuple(place[r] for r in present) for present, number in numbers.items()}
        self._sets = {number: len(members) for number, members in together.items()}
        for rank, runs in zip(self.ranks, fuse_all([r.resolved for r in self.ranks], seconds, meets, together), strict=True):
            rank.fused(runs)

    def _known(self, step: Step, users: dict[int, set[Hashable]]) -> float:
        if isinstance(step.op, P2P) or not self._fusing:
            return np.nan
        if step.route is None:
            return step.price
        me = {(step.route.present, step.op.stream)}
        alone = all(users[link] == me for move in step.route.moves for link in self.fold.loads[move.loads])
        return sum(move.seconds for move in step.route.moves) if alone else np.nan

    def _stream(self, rank: Rank, mine: range) -> Process:
        env, done, waited, edges = self.env, rank.done, rank.waited, rank.edges
        order, first, length = rank.order, rank.first, rank.length
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
                i = order[first[k + 1] - 1]
                if rank.meets[k]:
                    yield from self._together(rank, k)
                else:
                    rank.began[k] = env.now
                    if seconds > 0:
                        yield env.timeout(seconds)
            else:
                rank.ready[i] = env.now
                step = rank.step(i)
                if step.messages:
                    yield from self._p2p(rank, i, step.messages)
                elif step.route is not None:
                    yield from self._collective(rank, i, step.op.stream, step.route)
                else:
                    rank.start[i] = env.now
                    yield from self._rated(rank, step.price)
                rank.end[i] = env.now
            done[i] = 1
            self.events += 1
            event = waited.pop(i, None)
            if event is not None:
                event.succeed()

    def _together(self, rank: Rank, k: int) -> Process:
        """A run that starts when all ranks of its set have reached it."""
        rank.came[k] = self.env.now
        key = (rank.meets[k], k)
        meeting = self._meetings.get(key)
        if meeting is None:
            meeting = self._meetings[key] = _Meeting(self.env.event())
        meeting.arrived += 1
        if meeting.arrived == self._sets.get(rank.meets[k], 1):
            del self._meetings[key]
            meeting.start = self.env.now
            self.env.timeout(rank.length[k]).callbacks.append(meeting.over)
        yield meeting.event
        rank.began[k] = meeting.start

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
        for r in ranks:
            self._flying[r][kind] += change
            changed = self._changed.pop(r, None)
            if changed is not None:
                changed.succeed()

    def _collective(self, rank: Rank, i: int, stream: str, route: Route) -> Process:
        """Meet the others; the last to come moves the bytes. On another stream than compute that slows the compute of its ranks."""
        beside = route.present if stream != COMPUTE else ()
        if len(route.present) == 1:  # all members do what this one does
            rank.start[i] = self.env.now
            alone = _Meeting(self.env.event())
            self._begin(alone, route.moves, rank.rank, i, beside, "collective")
            yield alone.event
            return
        ordinal = (rank.rank, route.group, stream)
        key = (route.present, route.group, stream, self._ordinals[ordinal])
        self._ordinals[ordinal] += 1
        meeting = self._meetings.get(key)
        if meeting is None:
            meeting = self._meetings[key] = _Meeting(self.env.event())
        meeting.arrived += 1
        if meeting.arrived == len(route.present):
            del self._meetings[key]
            meeting.start = self.env.now
            self._begin(meeting, route.moves, rank.rank, i, beside, "collective")
        yield meeting.event
        rank.start[i] = meeting.start

    def _p2p(self, rank: Rank, i: int, messages: tuple[Message, ...]) -> Process:
        """Post the ends of messages, receives first; the second end of each starts it."""
        microbatches, meetings = rank.resolved.program.calls[rank.call(i)].microbatches, []
        for m in messages:
            name = (m.channel, m.ends, microbatches[m.slot] if m.slot >= 0 else -1)
            posted = self._posted[name]  # ends of one kind: the first of the other kind that comes meets the first of them
            if posted and posted[0].sending != m.sending:
                meeting = posted.popleft()
                meeting.start = self.env.now
                if m.sending:
                    meeting.outgoing = (m.moves, rank.rank, i)
                assert meeting.outgoing is not None
                self._begin(meeting, *meeting.outgoing, m.ends, "p2p")
            else:
                meeting = _Meeting(self.env.event(), sending=m.sending, outgoing=(m.moves, rank.rank, i) if m.sending else None)
                posted.append(meeting)
            meetings.append(meeting)
        for meeting in meetings:
            if not meeting.event.processed:
                yield meeting.event
        rank.start[i] = min([m.start for m in meetings])

    def _begin(self, meeting: _Meeting, moves: tuple[Move, ...], rank: int, i: int, beside: tuple[int, ...], kind: str) -> None:
        """Move the bytes of op `i` of `rank`; the event of the meeting fires at the end. It slows the compute of the ranks `beside`."""
        if self._slows and beside:
            self._fly(beside, kind, 1)

            def arrived() -> None:
                self._fly(beside, kind, -1)
                meeting.event.succeed()

            self._move(moves, 0, rank, i, arrived)
        else:
            self._move(moves, 0, rank, i, meeting.event.succeed)

    def _move(self, moves: tuple[Move, ...], at: int, rank: int, i: int, then: Callable[[], object]) -> None:
        """The phases of a plan from `at` on, one after the other: latency, then bytes on the links."""
        if at == len(moves):
            then()
            return
        self.events += 1
        latency, nbytes, path, loads = moves[at]

        def go(_: object = None) -> None:
            start = self.env.now

            def passed() -> None:
                self.transfers.append(Transfer(rank, i, nbytes, loads, start, self.env.now))
                self._move(moves, at + 1, rank, i, then)

            if path is None:
                self._move(moves, at + 1, rank, i, then)
            else:
                self.network.start(nbytes, path, passed)

        if latency > 0:
            self.env.timeout(latency).callbacks.append(go)
        else:
            go()


def _launch(workload: Workload, cluster: Cluster, profile: Profile) -> float:
    """Seconds of the host per kernel."""
    tp, pp = (int(workload.coordinates[axis].max()) + 1 if axis in workload.coordinates else 1 for axis in ("tp", "pp"))
    return host_launch(profile, tp, pp, len({cluster.node_of[d] for d in cluster.devices[: workload.world]}))
