"""ZB-H1 (Qi et al. 2023, arXiv 2401.10241, section 2): 1F1B with split backwards, W postponed into the bubble, memory of 1F1B."""

from __future__ import annotations

from .actions import Action, Orders, ScheduleInput


def zb_h1(given: ScheduleInput) -> Orders:
    """Rank r starts p - r forwards and keeps r weight gradients waiting."""
    p = given.ranks
    return {r: split_backward(r, given.microbatches, warm=p - r, waiting=r) for r in range(p)}


def split_backward(stage: int, microbatches: int, *, warm: int, waiting: int) -> list[Action]:
    """`warm` forwards, then one I each, the oldest W once more than `waiting` of them wait, and a forward while there are some; then the rest of W."""
    order = [Action("F", stage, i) for i in range(min(warm, microbatches))]
    started, done = len(order), 0
    for i in range(microbatches):
        order.append(Action("I", stage, i))
        if i + 1 - done > waiting:
            order.append(Action("W", stage, done))
            done += 1
        if started < microbatches:
            order.append(Action("F", stage, started))
            started += 1
    return order + [Action("W", stage, i) for i in range(done, microbatches)]
