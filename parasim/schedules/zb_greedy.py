"""The builder of zb-auto: every rank, whenever it is free, decides what to run next by what it knows then."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from .actions import Action, Kind, Orders, ScheduleInput
from .zb_timing import Times, duration


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
    forward: list[float]
    backward: list[float]
    done: dict[Kind, int] = field(default_factory=lambda: {"F": 0, "I": 0, "W": 0})
    free: float = 0.0
    order: list[Action] = field(default_factory=list)

    def choose(self, now: float, taste: Taste, times: Times) -> Kind | None:
        """What to start now; None to wait."""
        f, i, w = (self.done[k] for k in ("F", "I", "W"))
        fits = f - w < self.cap
        next_f = self.forward[f] if f < len(self.forward) else inf
        next_i = self.backward[i] if i < f else inf
        ready: list[Kind] = [kind for kind, at in (("I", next_i), ("F", next_f if fits else inf)) if at <= now]  # type: ignore[misc]
        waiting = i > w
        if waiting and not fits and next_f <= now and (taste.weight_first or not ready):
            return "W"
        if ready:
            return ready[-1] if taste.forward_first else ready[0]
        wait = min(next_i, next_f if fits else inf) - now
        return "W" if waiting and (taste.fill or wait >= times[2] or wait == inf) else None


def greedy(given: ScheduleInput, times: Times, caps: Sequence[int], taste: Taste) -> Orders:
    """Orders of one stage per rank with split backwards in which no rank ever holds more microbatches (F start to W end) than its cap."""
    p, m = given.ranks, given.microbatches
    ranks = [_Rank(r, caps[r], [inf if r else 0.0] * m, [inf] * m) for r in range(p)]
    clock = [0.0]
    while clock:
        now = heapq.heappop(clock)
        for rank in ranks:
            kind = rank.choose(now, taste, times) if rank.free <= now else None
            if kind is None:
                continue
            i = rank.done[kind]
            rank.order.append(Action(kind, rank.stage, i))
            rank.done[kind] += 1
            rank.free = now + duration(kind, times)
            heapq.heappush(clock, rank.free)
            if kind == "F" and rank.stage == p - 1:
                rank.backward[i] = rank.free
            elif kind != "W" and 0 <= (other := rank.stage + (1 if kind == "F" else -1)) < p:
                arrival = rank.free + given.comm
                (ranks[other].forward if kind == "F" else ranks[other].backward)[i] = arrival
                heapq.heappush(clock, arrival)
    return {rank.stage: rank.order for rank in ranks}
