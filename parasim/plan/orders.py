"""Schedules as search looks at them: which rank holds which stage, the order of actions, what is in flight; kept, since many layouts share them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..schedules import SCHEDULES, Cell, Pair, ScheduleInput, singles

Move = tuple[str, int, int]


class Orders(NamedTuple):
    """`rank_of[stage]` (of the first microbatch); per rank its cells, each its actions (kind, stage, microbatch): one, or the two of a pair;
    `inflight[rank, stage]` microbatches of each stage whose forward has ended and whose backward has not begun, at the instant when a rank holds
    most of them (a pair holds one of its two, for sure)."""

    rank_of: tuple[int, ...]
    cells: tuple[tuple[tuple[Move, ...], ...], ...]
    inflight: NDArray[np.int64]


@cache
def backwards(schedule: str) -> str:
    """The kinds of backward that a schedule has: "B", "IW" (input and weight gradients apart), or "BIW": read off a small instance.

    A schedule that searches may choose any.
    """
    row = SCHEDULES[schedule]
    small = row(ScheduleInput(2, 4, row.chunks if row.fixed else 2))
    found = {a.kind for mine in small.values() for a in singles(mine)}
    return "BIW" if "times" in row.knobs or {"B", "I"} <= found else "IW" if "I" in found else "B"


def least_inflight(schedule: str, pp: int, m: int, rank_of: NDArray[np.int64], *, grouped: bool = False) -> NDArray[np.int64]:
    """Microbatches in flight per rank and stage when a rank begins its first backward, int[ranks, stages], without making the orders.

    At least: one of one stage for schedules that search, for sizes that a schedule refuses, and where groups of microbatches are `grouped` by hand.
    """
    stages, ranks = len(rank_of), np.arange(pp)
    out = np.zeros((pp, stages), dtype=np.int64)
    first = np.unique(rank_of, return_index=True)[1]
    if schedule in ("gpipe", "looped-bfs"):
        out[rank_of, np.arange(stages)] = m
    elif schedule in WARM_UP:
        out[ranks, ranks] = np.minimum(m, [WARM_UP[schedule](pp, r) for r in range(pp)])
    elif schedule in DISTANCE and not grouped and m % max(1, m // pp) == 0:
        for r in range(pp):
            _virtual(out, r, m, DISTANCE[schedule] * (pp - 1 - r))
    elif schedule in ("zb-v", "v-half", "dualpipe-v") or (schedule == "dualpipe" and pp % 2 == 0):
        out = np.minimum(m if schedule != "dualpipe" else max(1, m // 2), _opening(schedule, pp))
    else:
        out[ranks, first] = 1
    return out


WARM_UP = {"1f1b": lambda p, r: p - r, "zb-h1": lambda p, r: p - r, "zb-h2": lambda p, r: 2 * (p - r) - 1}  # forwards before the first backward


DISTANCE = {"interleaved-1f1b": 2, "zb1p-interleaved": 1}  # forwards that a rank starts more than the next one


def _virtual(out: NDArray[np.int64], rank: int, m: int, ahead: int) -> None:
    """Into the row of a rank of an interleaved schedule the forwards before its first backward, `ahead` and one group per further chunk."""
    pp, chunks = len(out), out.shape[1] // len(out)
    group = m // max(1, m // pp)
    k = np.arange(min(m * chunks, ahead + (chunks - 1) * group + 1))
    np.add.at(out[rank], (k % (group * chunks) // group) * pp + rank, 1)


@cache
def _opening(schedule: str, pp: int) -> NDArray[np.int64]:
    """The forwards before the first backward of schedules that open alike however many microbatches there are, 2 pp or more."""
    given = ScheduleInput(pp, 4 * pp, 2)
    stages = SCHEDULES[schedule].placement.stages(pp, 2)
    out = np.zeros((pp, stages), dtype=np.int64)
    for r, cells in SCHEDULES[schedule](given).items():
        for kind, stage, _ in singles(cells):
            if kind != "F":
                break
            out[r, stage] += 1
    return out


@lru_cache(maxsize=256)
def orders(schedule: str, given: ScheduleInput) -> Orders:
    """The orders of a schedule. Raises InvalidLayout for sizes that it does not allow."""
    row, ranks = SCHEDULES[schedule], given.ranks
    made = row(given)
    stages = row.placement.stages(ranks, given.chunks)
    cells = tuple(tuple(tuple((a.kind, a.stage, a.microbatch) for a in singles([cell])) for cell in made[r]) for r in range(ranks))
    rank_of = tuple(row.placement.rank(s, 0, ranks, given.microbatches) for s in range(stages))
    inflight = np.array([_most(made[r], stages) for r in range(ranks)], dtype=np.int64).reshape(ranks, stages)
    return Orders(rank_of, cells, inflight)


def _most(cells: Sequence[Cell], stages: int) -> list[int]:
    alive, best, most = [0] * stages, [0] * stages, -1
    for cell in cells:
        for kind, stage, _ in (cell.backward, cell.forward) if isinstance(cell, Pair) else (cell,):
            if kind == "F":
                alive[stage] += 1
                if sum(alive) > most:
                    best, most = list(alive), sum(alive)
            elif kind in "BI":
                alive[stage] -= 1
    return best


def replay(
    given: Orders,
    seconds: Sequence[dict[str, float]],
    forward: Sequence[float],
    backward: Sequence[float],
    paired: Mapping[tuple[int, int], float],
) -> tuple[list[float], list[float], list[float]]:
    """The longest path through a schedule: per stage the start of its first and of its last backward, per rank the end of its last action.

    `seconds[stage][kind]`, those of kind R the part of a backward that need not wait for its message, `forward[s]` from stage s to s + 1,
    `backward[s]` from s to s - 1; `paired[f, b]` those of a pair of a forward of stage f and a backward of stage b, which starts when both messages are
    there and ends as one. A cell waits for the one before it on its rank and for its messages, a message for its action and for the one before it
    on its channel. Where two backwards of a stage differ (the last one reduces gradients), the common part counts. Raises nothing: an order that
    never ends is refused before.
    """
    stages = len(given.rank_of)
    arrived: dict[tuple[bool, int, int], float] = {}
    free: dict[tuple[int, bool, int], float] = {}
    at, place = [0.0] * len(given.cells), [0] * len(given.cells)
    first, last = [float("inf")] * stages, [0.0] * stages
    going = True
    while going:
        going = False
        for rank, cells in enumerate(given.cells):
            i, now = place[rank], at[rank]
            while i < len(cells):
                cell = cells[i]
                start = now
                for kind, s, m in cell:
                    forth = kind == "F"
                    if kind == "W" or s == (0 if forth else stages - 1):
                        continue
                    ready = arrived.get((forth, s, m))
                    if ready is None:
                        break
                    if ready > start:
                        start = ready if forth or len(cell) > 1 else max(start, ready - seconds[s]["R"])
                else:
                    now = start + (seconds[cell[0][1]][cell[0][0]] if len(cell) == 1 else paired[cell[0][1], cell[1][1]])
                    for kind, s, m in cell:
                        if kind == "F" and s < stages - 1:
                            sent = max(now, free.get((rank, True, s), 0.0)) + forward[s]
                            arrived[True, s + 1, m] = free[rank, True, s] = sent
                        elif kind in "BI":
                            first[s], last[s] = min(first[s], start), max(last[s], start)
                            if s:
                                sent = max(now, free.get((rank, False, s), 0.0)) + backward[s]
                                arrived[False, s - 1, m] = free[rank, False, s] = sent
                    i += 1
                    continue
                break
            going |= i > place[rank]
            place[rank], at[rank] = i, now
    return first, last, at
