"""Looped BFS (Lamy-Poirier 2022, arXiv 2211.05953): every chunk runs all its microbatches before the next chunk begins."""

from __future__ import annotations

from .actions import Action, Orders, ScheduleInput


def looped_bfs(given: ScheduleInput) -> Orders:
    """F of all microbatches chunk after chunk, then B chunk after chunk from the last one, in decreasing order of microbatches (as torch does)."""
    p, m, v = given.ranks, given.microbatches, given.chunks
    return {
        r: [Action("F", c * p + r, i) for c in range(v) for i in range(m)] + [Action("B", c * p + r, i) for c in reversed(range(v)) for i in reversed(range(m))]
        for r in range(p)
    }
