"""The fluid network: transfers in flight share links max-min fairly.

A fluid has bytes left and, per byte of its progress, a load on each link it crosses. Rates are the max-min fair ones under the link
capacities (progressive filling: raise all rates together, freeze the fluids of a link when it is full). They change only when a fluid
starts or ends, and only in the connected component that it touches.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, nan
from typing import Any, NamedTuple

from .clock import Clock


class Path(NamedTuple):
    """Where a kind of fluid goes: bytes it puts on each link per byte of progress, and its rate when it is alone there (bytes/s)."""

    loads: Mapping[int, float]
    solo: float


@dataclass(eq=False, slots=True)
class Fluid:
    """A transfer in flight: `left` bytes of progress, `then(of)` when they have passed, `rate` bytes/s, `since` the time both hold for, `number` its
    turn in every order, `due` when its last byte passes at this rate."""

    left: float
    loads: Mapping[int, float]
    then: Callable[[Any], None]
    of: Any
    rate: float
    since: float
    number: int = 0
    due: float = nan


class Network:
    """Links by colour with capacities (bytes/s), and the fluids on them. Fluids that share links get new rates once per instant."""

    def __init__(self, clock: Clock, capacity: Sequence[float], loads: Iterable[Mapping[int, float]] = (), idle: Collection[int] = ()) -> None:
        """`loads` of every kind of fluid that there will be; links that these never fill first, and the `idle` ones, are left out of every path."""
        self.clock = clock
        self.capacity = [float(c) for c in capacity]
        self.slack = slack(self.capacity, loads, idle)
        self.on_link: list[dict[int, Fluid]] = [{} for _ in self.capacity]
        self.started = 0
        self.solves = 0
        self._touched: dict[int, Fluid] = {}

    def path(self, loads: Mapping[int, float]) -> Path:
        """`loads` without those that never matter, and what they allow alone."""
        real = {link: w for link, w in loads.items() if w > 0 and link not in self.slack}
        return Path(real, min((self.capacity[link] / w for link, w in real.items()), default=inf))

    def start(self, latency: float, nbytes: float, path: Path, then: Callable[[Any], None], of: Any) -> None:
        """Put a fluid on its links in `latency` seconds; `then(of)` is called when its last byte has passed."""
        self.started += 1
        now = self.clock.now
        fluid = Fluid(nbytes, path.loads, then, of, path.solo, now + latency, self.started)
        if not latency:
            self._enter(fluid)
            return
        on_link = self.on_link
        for link in path.loads:
            if on_link[link]:
                self.clock.after(latency, self._enter, fluid)
                return
        for link in path.loads:  # so far nothing will be there: only when that changes it needs an instant of its own to come
            on_link[link][fluid.number] = fluid
        delay = latency + nbytes / path.solo
        fluid.due = now + delay
        self.clock.after(delay, self._finish, fluid)

    def _enter(self, fluid: Fluid) -> None:
        """Its first byte is there, with others or alone."""
        now, shared = self.clock.now, False
        for link in fluid.loads:
            others = self.on_link[link]
            if others:
                first = next(iter(others.values()))
                if first.since > now:  # it was to come to a free link
                    self._later(first)
                shared = shared or bool(others)
            others[fluid.number] = fluid
        if shared:
            fluid.rate, fluid.since = 0.0, now
            self._touch({fluid.number: fluid})
        else:
            self._set(fluid, fluid.rate)

    def _later(self, fluid: Fluid) -> None:
        """Take back that a fluid passes alone: it enters when its time has come."""
        for link in fluid.loads:
            del self.on_link[link][fluid.number]
        fluid.due = nan
        self.clock.after(fluid.since - self.clock.now, self._enter, fluid)

    def _finish(self, fluid: Fluid) -> None:
        if fluid.due != self.clock.now:  # another rate since
            return
        fluid.due = nan
        for link in fluid.loads:
            others = self.on_link[link]
            del others[fluid.number]
            if others:
                self._touch(others)
        self._touched.pop(fluid.number, None)
        fluid.then(fluid.of)

    def _touch(self, fluids: Mapping[int, Fluid]) -> None:
        """Remember who needs a new rate; all of an instant are settled together, when nothing else is left to happen then."""
        if not self._touched:
            self.clock.at_last(self._settle)
        self._touched |= fluids

    def _settle(self) -> None:
        touched, self._touched = self._touched, {}
        seen: set[int] = set()
        for number in sorted(touched):
            if number not in seen:
                component = self._component(touched[number])
                seen.update(f.number for f in component)
                self._solve(component)

    def _component(self, fluid: Fluid) -> list[Fluid]:
        """All that share links with `fluid`, directly or through others, in order of their numbers."""
        found, todo, links = {fluid.number: fluid}, [fluid], set[int]()
        while todo:
            for link in todo.pop().loads:
                if link not in links:
                    links.add(link)
                    for number, other in self.on_link[link].items():
                        if number not in found:
                            found[number] = other
                            todo.append(other)
        return [found[number] for number in sorted(found)]

    def _solve(self, fluids: Sequence[Fluid]) -> None:
        self.solves += 1
        for fluid, rate in max_min(fluids, self.capacity).items():
            if rate != fluid.rate:
                self._set(fluid, rate)

    def _set(self, fluid: Fluid, rate: float) -> None:
        """Account for the bytes since the last change and set the time of the last byte under the new rate."""
        now = self.clock.now
        if now > fluid.since:
            fluid.left = max(0.0, fluid.left - fluid.rate * (now - fluid.since))
        fluid.rate, fluid.since = rate, now
        delay = 0.0 if rate == inf else fluid.left / rate
        fluid.due = now + delay
        self.clock.after(delay, self._finish, fluid)


def slack(capacity: Sequence[float], loads: Iterable[Mapping[int, float]], known: Collection[int] = ()) -> set[int]:
    """The links that are never the only bottleneck of anything, with those `known`: another carries all that they do, and as much of its capacity.

    `loads` are those of every kind of fluid. Whatever the fluids in flight, such a link is at most as full as the other.
    """
    kinds: dict[int, dict[int, float]] = {}  # by link and kind: seconds that a byte of progress fills it
    users: list[list[int]] = []
    for kind, load in enumerate(loads):
        users.append([link for link, w in load.items() if w > 0 and link not in known])
        for link in users[-1]:
            kinds.setdefault(link, {})[kind] = load[link] / capacity[link]
    found = set(known)
    for link, mine in kinds.items():
        rarest = min(mine, key=lambda kind: len(users[kind]))
        for other in users[rarest]:
            theirs = kinds[other]
            if other != link and other not in found and len(theirs) >= len(mine) and all(x <= theirs.get(kind, -1.0) for kind, x in mine.items()):
                found.add(link)
                break
    return found


def max_min(fluids: Sequence[Fluid], capacity: Sequence[float]) -> dict[Fluid, float]:
    """Max-min fair rates by progressive filling; loads are positive. Every fluid ends with a full link (its bottleneck); no link exceeds its capacity."""
    room = {link: capacity[link] for f in fluids for link in f.loads}
    load = dict.fromkeys(room, 0.0)
    members: dict[int, dict[Fluid, None]] = {link: {} for link in room}
    for f in fluids:
        for link, w in f.loads.items():
            load[link] += w
            members[link][f] = None
    rates: dict[Fluid, float] = {f: inf for f in fluids if not f.loads}
    while len(rates) < len(fluids):
        level = {link: room[link] / load[link] for link in room if members[link]}
        lowest = min(level.values())
        if lowest == inf:
            return rates | {f: inf for f in fluids if f not in rates}
        full = [link for link, x in level.items() if x <= lowest * (1 + 1e-12)]
        frozen = dict.fromkeys(f for link in full for f in members[link])
        for f in frozen:
            rates[f] = lowest
            for link, w in f.loads.items():
                room[link] -= w * lowest
                load[link] -= w
                del members[link][f]
    return rates
