"""ZB-H2 (Qi et al. 2023, arXiv 2401.10241, section 2): twice the warm-up of ZB-H1, so that no rank idles between its first and last op."""

from __future__ import annotations

from .actions import Orders, ScheduleInput
from .zb_h1 import split_backward


def zb_h2(given: ScheduleInput) -> Orders:
    """Rank r starts 2 (p - r) - 1 forwards and keeps 2 r weight gradients waiting. Fewer than 2 p - 1 microbatches cap the warm-up."""
    p = given.ranks
    return {r: split_backward(r, given.microbatches, warm=2 * (p - r) - 1, waiting=2 * r) for r in range(p)}
