"""Interleaved zero bubble (torch's InterleavedZeroBubble): interleaved 1F1B with half the warm-up and split backwards."""

from __future__ import annotations

from .actions import Action, Orders, ScheduleInput
from .interleaved import microbatch_group, virtual


def zb1p_interleaved(given: ScheduleInput) -> Orders:
    """Like interleaved 1F1B, with the distance to the last rank counted once; from the r-th I on, each is followed by the W of r positions earlier."""
    p, total = given.ranks, given.microbatches * given.chunks
    n = microbatch_group(given)
    orders: Orders = {}
    for r in range(p):
        warm = min(total, (p - 1 - r) + (given.chunks - 1) * n)
        forward = [Action("F", *virtual(k, r, n, given)) for k in range(total)]
        backward = [virtual(k, r, n, given, backward=True) for k in range(total)]
        order = forward[:warm]
        for k, work in enumerate(backward):
            order += forward[warm + k : warm + k + 1]
            order.append(Action("I", *work))
            if k >= r:
                order.append(Action("W", *backward[k - r]))
        orders[r] = order + [Action("W", *work) for work in backward[max(0, total - r) :]]
    return orders
