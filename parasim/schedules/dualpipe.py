"""DualPipe (DeepSeek-AI 2024, arXiv 2412.19437, section 3.2.1): microbatches from both ends, forwards overlapped with backwards."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from typing import NamedTuple

from .actions import Action, Cell, Kind, Orders, Pair, ScheduleInput, refused


class Side(NamedTuple):
    """One of the two stages of a rank and the first microbatch that passes it."""

    stage: int
    first: int


def dualpipe(given: ScheduleInput) -> Orders:
    """Rank r holds stage r for the first half of the microbatches and stage p - 1 - r for the second half, which enters at the last rank."""
    p, m = given.ranks, given.microbatches
    if p % 2:
        raise refused("ranks", p, "must be even, for the two directions meet in the middle", f"nearest legal: {', '.join(str(k) for k in (p - 1, p + 1) if k)}")
    if m % 2 or m < 2 * p:
        near = sorted({max(m - m % 2, 2 * p), max(m + m % 2, 2 * p)})
        raise refused("microbatches", m, f"must be even and at least 2 x ranks = {2 * p}", f"nearest legal: {', '.join(map(str, near))}")
    orders: Orders = {}
    for r in range(p):
        down, up = Side(r, 0), Side(p - 1 - r, m // 2)
        near_side, far_side = (down, up) if r < p // 2 else (up, down)
        orders[r] = eight_phases(near_side, far_side, m // 2, p // 2, min(r, p - 1 - r))
    return orders


def eight_phases(a: Side, b: Side, n: int, half: int, h: int) -> list[Cell]:
    """The order of a rank at distance `h` of `half` from its end: n microbatches pass each of its sides `a` (nearer to its input) and `b`."""
    return list(_phases(a, b, n, half, h))


def _phases(a: Side, b: Side, n: int, half: int, h: int) -> Iterator[Cell]:
    count: Counter[tuple[str, Side]] = Counter()
    waiting: deque[Action] = deque()

    def take(kind: Kind, side: Side) -> Action:
        """The next action of a side; F counts by itself, I and B together. An I leaves a W waiting."""
        key = ("F" if kind == "F" else "B", side)
        i = side.first + count[key]
        count[key] += 1
        if kind == "I":
            waiting.append(Action("W", side.stage, i))
        return Action(kind, side.stage, i)

    inner = half - h - 1
    yield from (take("F", a) for _ in range(2 * inner))
    for _ in range(h + 1):
        yield take("F", a)
        yield take("F", b)
    for _ in range(inner):
        yield take("I", b)
        yield waiting.popleft()
        yield take("F", b)
    for k in range(n - 2 * half + h + 1):
        first = (take("F", a), take("B", b))
        yield from first if k == 0 and inner == 0 else (Pair(*first),)
        yield Pair(take("F", b), take("B", a))
    for _ in range(inner):
        yield take("B", b)
        yield Pair(take("F", b), take("B", a))
    for k in range(2 * (h + 1)):  # b, a, b, a, ...: the second half leaves its W for later
        yield take("I" if k >= h + 1 else "B", a if k % 2 else b)
    for _ in range(inner):
        yield waiting.popleft()
        yield take("I", a)
    yield from waiting
