"""Naive pipeline: one microbatch in flight."""

from __future__ import annotations

from .actions import Action, Orders, ScheduleInput


def naive(given: ScheduleInput) -> Orders:
    """For each microbatch F then B; the next one waits for the last backward.

    Rank 0 enforces that by order: its F(i + 1) follows its B(i). The others see the microbatches one by one.
    """
    return {r: [Action(kind, r, i) for i in range(given.microbatches) for kind in ("F", "B")] for r in range(given.ranks)}
