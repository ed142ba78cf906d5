"""Interleaved 1F1B (Narayanan et al. 2021, arXiv 2104.04473, section 2.2): several stages per rank, microbatches in groups."""

from __future__ import annotations

from .actions import Action, Orders, ScheduleInput, refused


def interleaved(given: ScheduleInput) -> Orders:
    """1F1B over virtual microbatches: warm up with twice the distance to the last rank and one group per further chunk, alternate, cool down."""
    p, m, v = given.ranks, given.microbatches, given.chunks
    n = microbatch_group(given)
    orders: Orders = {}
    for r in range(p):
        warm = min(m * v, 2 * (p - 1 - r) + (v - 1) * n)
        forward = [Action("F", *virtual(k, r, n, given)) for k in range(m * v)]
        backward = [Action("B", *virtual(k, r, n, given, backward=True)) for k in range(m * v)]
        steady = [a for pair in zip(forward[warm:], backward, strict=False) for a in pair]
        orders[r] = forward[:warm] + steady + backward[m * v - warm :]
    return orders


def virtual(k: int, rank: int, group: int, given: ScheduleInput, *, backward: bool = False) -> tuple[int, int]:
    """(stage, microbatch) of the k-th forward or backward of a rank: a group of microbatches passes one chunk, then the next one.

    The last group may be smaller.
    """
    p, m, v = given.ranks, given.microbatches, given.chunks
    turn, within = divmod(k, group * v)
    size = min(group, m - turn * group)
    chunk, i = divmod(within, size)
    return (v - 1 - chunk if backward else chunk) * p + rank, turn * group + i


def microbatch_group(given: ScheduleInput) -> int:
    """Microbatches per group. By default they are shared out over m div p rounds, as torch does (p of them where p divides m).

    A given size follows Megatron-LM: p <= N <= m, and what is left of m is none or at least p; or all of m. Raises InvalidLayout.
    """
    p, m, n = given.ranks, given.microbatches, given.group
    if n is None:
        rounds = max(1, m // p)
        if m % rounds:
            near = f"nearest legal: {m // rounds * rounds}, {_next_legal(p, m)}; or a group of {_nearest_group(p, m, p)}"
            raise refused("microbatches", m, f"must be a multiple of the {rounds} rounds (microbatches div {p} ranks) to fall into equal groups", near)
        return m // rounds
    if not _legal_group(p, m, n):
        rule = f"must be from the {p} ranks to the {m} microbatches and leave none or at least {p} of them over"
        raise refused("group", n, rule, f"nearest legal: {_nearest_group(p, m, n)}")
    return n


def _legal_group(p: int, m: int, n: int) -> bool:
    return n == m or (p <= n <= m and (m % n == 0 or m % n >= p))


def _nearest_group(p: int, m: int, n: int) -> int:
    return min((k for k in range(1, m + 1) if _legal_group(p, m, k)), key=lambda k: abs(k - n))


def _next_legal(p: int, m: int) -> int:
    return next(k for k in range(m + 1, m + p + 1) if k % (k // p) == 0)
