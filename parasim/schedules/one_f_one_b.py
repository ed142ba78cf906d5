"""1F1B (PipeDream-Flush, Narayanan et al. 2021, arXiv 2104.04473): warm up, alternate, cool down."""

from __future__ import annotations

from .actions import Action, Orders, ScheduleInput


def one_f_one_b(given: ScheduleInput, ahead: int = 0) -> Orders:
    """Rank r warms up with min(m, p - 1 - r + ahead) forwards, alternates F and B, and drains the backwards."""
    p, m = given.ranks, given.microbatches
    orders: Orders = {}
    for r in range(p):
        warm = min(m, p - 1 - r + ahead)
        steady = [a for i in range(m - warm) for a in (Action("F", r, warm + i), Action("B", r, i))]
        orders[r] = [Action("F", r, i) for i in range(warm)] + steady + [Action("B", r, i) for i in range(m - warm, m)]
    return orders
