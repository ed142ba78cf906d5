"""The replay: what every stream of every simulated rank does, event by event, on simpy's clock.

A stream goes on as far as it can. It stops at a run that takes time, at an edge that has not ended, or at a transfer that waits for its
partners, and goes on when that is over; of streams that may go on at one instant, the one that could first.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence
from math import inf
from typing import NamedTuple

from .clock import Clock, Dues
from .islands import Islands, bridges
from .network import Network
from .ranks import Rank
from .steps import Message, Move, Route, Step


class Transfer(NamedTuple):
    """A phase that moved bytes: of op instance `op` of `rank`."""

    rank: int
    op: int
    move: Move
    start: float
    end: float


class Stream:
    """A stream of a rank: the next of its runs, up to `stop`; of the transfer at `next`, how many parts are `pending` and when the first `began`.

    A compute that transfers slow down has `work` seconds left at `since`, goes at `rate`, and is `due`.
    """

    __slots__ = ("began", "due", "next", "pending", "rank", "rate", "since", "stop", "work")

    def __init__(self, rank: Rank, mine: range) -> None:
        self.rank, self.next, self.stop = rank, mine.start, mine.stop
        self.pending, self.began = 0, inf
        self.work = self.rate = self.since = self.due = 0.0


class Flight:
    """The bytes of a collective or a message: who is at either end, what moves, for which op; `at` is the phase in flight, `since` its start."""

    __slots__ = ("at", "behind", "beside", "ends", "kind", "moves", "op", "rank", "sending", "since", "start")

    def __init__(self, stream: Stream, moves: tuple[Move, ...], op: int, kind: str, beside: tuple[int, ...]) -> None:
        self.ends, self.moves, self.rank, self.op, self.kind, self.beside = [stream], moves, stream.rank.rank, op, kind, beside
        self.at, self.start, self.since = 0, 0.0, 0.0
        self.sending = False  # of a message that waits: which end has come
        self.behind: Flight | None = None  # the same end of the next message of the channel


class Replay:
    """One run of `ranks`. `sets`: the ranks that run the runs of a number together. `slowdown[kind]`: what transfers do to compute."""

    def __init__(self, ranks: Sequence[Rank], network: Network, clock: Clock, slowdown: Mapping[str, float], sets: Mapping[tuple[int, ...], int]) -> None:
        self.ranks, self.network, self.clock = ranks, network, clock
        self.sets = {number: len(present) for present, number in sets.items()}
        self._islands = Islands(ranks)
        self._bridges = bridges(self._islands, ranks, sets)
        self._held: Dues | None = None  # while an island is alone: what has reached a bridge
        self.transfers: list[Transfer] = []
        self.events = 0
        self.slowed: dict[int, float] = defaultdict(float)
        self._slowdown = slowdown if any(slowdown.values()) else {}
        self._flying: dict[int, Counter[str]] = defaultdict(Counter)
        self._computing: dict[int, dict[Stream, None]] = defaultdict(dict)
        self._together: dict[tuple[int, int], list[Stream]] = {}
        self._meetings: dict[tuple[int, int], list[Stream]] = {}
        self._posted: dict[tuple[int, int], Flight] = {}
        self._ready: deque[Stream] = deque()

    def run(self) -> None:
        """Until nothing moves any more."""
        self.clock.rest = self._drain
        left: list[Dues] = []
        islands = self._islands.members
        for members in islands if len(islands) > 1 else ():
            self._held = {}
            self._begin_all(members)
            left.append(self.clock.alone(self._held))
            left.append(self._held)
        self._held = None
        for dues in left:
            self.clock.expect(dues)
        if not left:
            self._begin_all(self.ranks)
        self.clock.run()

    def _begin_all(self, ranks: Sequence[Rank]) -> None:
        for rank in ranks:
            self._ready += [Stream(rank, mine) for mine in rank.streams]

    def _holds(self, stream: Stream, number: int, *, fused: bool) -> bool:
        """Alone on its island before a bridge? It goes there at this instant when all islands are at hand."""
        if self._held is None or number not in self._bridges[fused]:
            return False
        self._held.setdefault(self.clock.now, []).append((self._ready.append, stream))
        return True

    def _drain(self) -> None:
        ready = self._ready
        while ready:
            self._go(ready.popleft())

    def _go(self, stream: Stream) -> None:
        """From the run at `next` to the first that does not end at once."""
        rank, now, k = stream.rank, self.clock.now, stream.next
        done, cut, length, waits = rank.done, rank.cut, rank.length, rank.cut.waits
        while k < stream.stop:
            for e in waits[k]:
                if not done[e]:
                    stream.next = k
                    waiting = rank.waiting
                    if e in waiting:
                        waiting[e].append(stream)
                    else:
                        waiting[e] = [stream]
                    return
            seconds = length[k]
            stream.next = k
            if seconds != seconds:  # unknown beforehand: an op of its own
                rank.came[k] = now
                body, position, microbatches = cut.places[k]
                self._op(stream, cut.tails[k], rank.steps[body][position], microbatches)
                return
            if cut.meeting[k]:
                self._come(stream, cut.meeting[k], k)
                return
            rank.began[k] = now
            if seconds > 0:
                self.clock.after(seconds, self._end, stream)
                return
            self._done(rank, cut.tails[k])
            k += 1
        stream.next = k

    def _end(self, stream: Stream) -> None:
        """The run at `next` has ended; the stream goes on."""
        rank = stream.rank
        self._done(rank, rank.cut.tails[stream.next])
        stream.next += 1
        if stream.next < stream.stop:
            self._ready.append(stream)

    def _done(self, rank: Rank, i: int) -> None:
        rank.done[i] = 1
        self.events += 1
        if i in rank.waiting:
            self._ready += rank.waiting.pop(i)

    def _end_op(self, stream: Stream) -> None:
        """An op that was replayed by itself has ended (`_end`, without its calls)."""
        rank = stream.rank
        i = rank.cut.tails[stream.next]
        rank.ended[stream.next] = self.clock.now
        rank.done[i] = 1
        self.events += 1
        if i in rank.waiting:
            self._ready += rank.waiting.pop(i)
        stream.next += 1
        if stream.next < stream.stop:
            self._ready.append(stream)

    def _op(self, stream: Stream, i: int, step: Step, microbatches: tuple[int, ...]) -> None:
        if step.messages:
            self._post(stream, i, step.messages, microbatches)
        elif step.route is not None:
            self._collective(stream, i, step.route, step.meeting, step.beside)
        else:
            stream.rank.began[stream.next] = self.clock.now
            if self._slowdown:
                self._rated(stream, step.price)
            elif step.price > 0:
                self.clock.after(step.price, self._end_op, stream)
            else:
                self._end_op(stream)

    # ---- several ranks

    def _come(self, stream: Stream, number: int, k: int) -> None:
        """A run that starts when all ranks of its set have reached it."""
        if self._holds(stream, number, fused=True):
            return
        stream.rank.came[k] = self.clock.now
        streams = self._together.setdefault((number, k), [])
        streams.append(stream)
        if len(streams) == self.sets.get(number, 1):
            del self._together[number, k]
            for one in streams:
                one.rank.began[k] = self.clock.now
            self.clock.after(stream.rank.length[k], self._end_all, streams)

    def _end_all(self, streams: Sequence[Stream]) -> None:
        for stream in streams:
            self._end(stream)

    def _collective(self, stream: Stream, i: int, route: Route, number: int, beside: tuple[int, ...]) -> None:
        """Meet the others; the last to come moves the bytes. That slows the compute of the ranks `beside`."""
        if self._holds(stream, number, fused=False):
            return
        stream.pending, stream.began = 1, inf
        flight = Flight(stream, route.moves, i, "collective", beside)
        if len(route.present) > 1:  # else all members do what this one does
            met = stream.rank.met
            key = (number, met[number])
            met[number] += 1
            streams = self._meetings.setdefault(key, [])
            streams.append(stream)
            if len(streams) < len(route.present):
                return
            flight.ends = self._meetings.pop(key)
        self._begin(flight)

    def _post(self, stream: Stream, i: int, messages: tuple[Message, ...], microbatches: tuple[int, ...]) -> None:
        """Post the ends of messages, receives first; the second end of each starts it."""
        stream.pending, stream.began = len(messages), inf
        posted = self._posted
        for m in messages:
            key = (m.number, microbatches[m.slot] if m.slot >= 0 else -1)
            first = posted.get(key)  # ends of one kind: the first of the other kind that comes meets the first of them
            if first is None or first.sending == m.sending:
                mine = Flight(stream, m.moves, i, "p2p", m.ends)
                mine.sending = m.sending
                if first is None:
                    posted[key] = mine
                else:
                    while first.behind is not None:
                        first = first.behind
                    first.behind = mine
                continue
            if first.behind is None:
                del posted[key]
            else:
                posted[key] = first.behind
            if m.sending:
                first.moves, first.rank, first.op = m.moves, stream.rank.rank, i
            first.ends.append(stream)
            self._begin(first)

    # ---- bytes

    def _begin(self, flight: Flight) -> None:
        flight.start = self.clock.now
        if self._slowdown and flight.beside:
            self._fly(flight.beside, flight.kind, 1)
        if flight.moves:
            self._move(flight)
        else:
            self._landed(flight)

    def _move(self, flight: Flight) -> None:
        """The phases of a plan, one after the other: latency, then bytes on the links."""
        self.events += 1
        move = flight.moves[flight.at]
        if move.path is not None:
            flight.since = self.clock.now + move.latency
            self.network.start(move.latency, move.bytes, move.path, self._passed, flight)
        elif move.latency > 0:
            self.clock.after(move.latency, self._next, flight)
        else:
            self._next(flight)

    def _next(self, flight: Flight) -> None:
        """A phase of a plan is over."""
        flight.at += 1
        if flight.at < len(flight.moves):
            self._move(flight)
        else:
            self._landed(flight)

    def _passed(self, flight: Flight) -> None:
        self.transfers.append(Transfer(flight.rank, flight.op, flight.moves[flight.at], flight.since, self.clock.now))
        self._next(flight)

    def _landed(self, flight: Flight) -> None:
        """All that waited for these bytes, and for no others, goes on."""
        if self._slowdown and flight.beside:
            self._fly(flight.beside, flight.kind, -1)
        for stream in flight.ends:
            stream.pending -= 1
            stream.began = min(stream.began, flight.start)
            if not stream.pending:
                stream.rank.began[stream.next] = stream.began
                self._end_op(stream)

    # ---- compute beside transfers

    def _rated(self, stream: Stream, work: float) -> None:
        """Compute whose rate changes only when one of this rank's transfers starts or ends. `slowed` adds up the seconds lost."""
        stream.began, stream.work, stream.pending = self.clock.now, work, 0
        if work > 0:
            self._computing[stream.rank.rank][stream] = None
            self._rate(stream)
        else:
            self._end_op(stream)

    def _rate(self, stream: Stream) -> None:
        """Set the time of its end under the rate of now."""
        flying = self._flying[stream.rank.rank]
        stream.since, stream.rate = self.clock.now, 1.0 / (1.0 + sum(self._slowdown[kind] for kind, n in flying.items() if n))
        delay = stream.work / stream.rate
        stream.due = stream.since + delay
        self.clock.after(delay, self._computed, stream)

    def _computed(self, stream: Stream) -> None:
        if stream.due != self.clock.now or stream not in self._computing[stream.rank.rank]:  # another rate since
            return
        del self._computing[stream.rank.rank][stream]
        rank = stream.rank
        due = rank.step(stream.next).price
        self.slowed[rank.rank] += max(0.0, self.clock.now - stream.began - due)
        self._end_op(stream)

    def _fly(self, ranks: tuple[int, ...], kind: str, change: int) -> None:
        now = self.clock.now
        for r in ranks:
            self._flying[r][kind] += change
            for stream in self._computing[r]:
                if stream.due > now:
                    stream.work -= (now - stream.since) * stream.rate
                    self._rate(stream)
