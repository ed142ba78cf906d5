"""ZB-V (Qi et al. 2024, arXiv 2405.15362): two stages per rank in a V, no bubble inside a rank at equal times, memory of 1F1B."""

from __future__ import annotations

from collections import Counter

from .actions import Action, Kind, Orders, ScheduleInput


def zb_v(given: ScheduleInput) -> Orders:
    """Rank r holds stages a = r and b = 2 p - 1 - r. Fewer than 2 p - 1 microbatches: the order for 2 p - 1, cut."""
    p, m = given.ranks, given.microbatches
    return {r: [a for a in _order(p, max(m, 2 * p - 1), r) if a.microbatch < m] for r in range(p)}


def _order(p: int, m: int, r: int) -> list[Action]:
    a, b = r, 2 * p - 1 - r
    order: list[Action] = []
    count: Counter[tuple[Kind, int]] = Counter()

    def add(*ops: tuple[Kind, int]) -> None:
        for kind, stage in ops:
            if count[kind, stage] < m:
                order.append(Action(kind, stage, count[kind, stage]))
                count[kind, stage] += 1

    for _ in range(2 * (p - r) - 1):
        add(("F", a))
    for _ in range(r):
        add(("F", b), ("F", a))
    for _ in range(p - r):
        add(("F", b), ("I", b), ("W", b))
    while count["F", b] < m:
        add(("F", a), ("I", a), ("W", a), ("F", b), ("I", b), ("W", b))
    for _ in range(r):
        add(("I", a), ("I", b))
    for _ in range(p - r):
        add(("I", a), ("W", a))
    for stage in (b, a):
        while count["W", stage] < m:
            add(("W", stage))
    return order
