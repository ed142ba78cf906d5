"""GPipe (Huang et al. 2019, arXiv 1811.06965): all forwards, then all backwards."""

from __future__ import annotations

from .actions import Action, Orders, ScheduleInput


def gpipe(given: ScheduleInput) -> Orders:
    """F for every microbatch, then B for every microbatch, both in increasing order (the order torch runs)."""
    m = given.microbatches
    return {r: [Action("F", r, i) for i in range(m)] + [Action("B", r, i) for i in range(m)] for r in range(given.ranks)}
