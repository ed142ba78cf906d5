"""The builder of zb-auto: every rank, whenever it is free, decides what to run next by what it knows then."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from .actions import Action, Kind, Orders, ScheduleInput, Times
from .zb_timing import duration


class Taste(NamedTuple):
    """What a rank prefers: F to I when both are ready; W to I when memory holds back an F; a W to any wait, even one shorter than W."""

    forward_first: bool
    weight_first: bool
    fill: bool


@dataclass
class _Rank:
    """A rank while its order is built; `forward[i]`, `backward[i]` are when the inputs of F and I of microbatch i arrive."""

    stage: int
    cap: int
    times: Times
    forward: list[float]
    backward: list[float]
    done: dict[Kind, int] = field(default_factory=lambda: {"F": 0, "I": 0, "W": 0})
    free: float = 0.0
    order: list[Action] = field(default_factory=list)

    def choose(self, now: float, taste: Taste) -> Kind | None:
        """What to start now; None to wait."""
        f, i, w = self.done["F"], self.done["I"], self.done["W"]
        fits = f - w < self.cap
        next_f = self.forward[f] if f < len(self.forward) else inf
        next_i = self.backward[i] if i < f else inf
        can_i, can_f, waiting = next_i <= now, fits and next_f <= now, i > w
        if waiting and not fits and next_f <= now and (taste.weight_first or not can_i):
            return "W"
        if can_i or can_f:
            return "F" if can_f and (taste.forward_first or not can_i) else "I"
        wait = min(next_i, next_f if fits else inf) - now
        return "W" if waiting and (taste.fill or wait >= self.times[2] or wait == inf) else None


def greedy(given: ScheduleInput, times: Sequence[Times], caps: Sequence[int], taste: Taste) -> Orders:
    """Orders of one stage per rank with split backwards in which no rank ever holds more microbatches (F start to W end) than its cap."""
    p, m = given.ranks, given.microbatches
    ranks = [_Rank(r, caps[r], times[r], [inf if r else 0.0] * m, [inf] * m) for r in range(p)]
    lasts = [{kind: duration(kind, times[r]) for kind in "FIW"} for r in range(p)]
    clock = [(0.0, r) for r in range(p)]  # when a rank may have something to decide: it is free, or an input arrives
    while clock:
        now, r = heapq.heappop(clock)
        rank = ranks[r]
        kind = rank.choose(now, taste) if rank.free <= now else None
        if kind is None:
            continue
        i = rank.done[kind]
        rank.order.append(Action(kind, r, i))
        rank.done[kind] += 1
        rank.free = now + lasts[r][kind]
        heapq.heappush(clock, (rank.free, r))
        if kind == "F" and r == p - 1:
            rank.backward[i] = rank.free
        elif kind != "W" and 0 <= (other := r + (1 if kind == "F" else -1)) < p:
            arrival = rank.free + given.comm
            (ranks[other].forward if kind == "F" else ranks[other].backward)[i] = arrival
            if ranks[other].free <= arrival:  # else it decides when it is free, and knows of the input then
                heapq.heappush(clock, (arrival, other))
    return {rank.stage: rank.order for rank in ranks}
