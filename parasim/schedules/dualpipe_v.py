"""DualPipe-V (Qi et al. and DeepSeek 2025): DualPipe cut in half, two stages per rank in a V."""

from __future__ import annotations

from .actions import Orders, ScheduleInput, refused
from .dualpipe import Side, eight_phases


def dualpipe_v(given: ScheduleInput) -> Orders:
    """Rank r overlaps forwards of one of its stages r and 2 p - 1 - r with backwards of the other. Needs 2 p microbatches or more."""
    p, m = given.ranks, given.microbatches
    if m < 2 * p:
        raise refused("microbatches", m, f"must be at least the {2 * p} stages", f"nearest legal: {2 * p}")
    return {r: eight_phases(Side(r, 0), Side(2 * p - 1 - r, 0), m, p, r) for r in range(p)}
