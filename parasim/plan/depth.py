"""How a schedule lays a model's parts over its ranks, as matrices: with them the bounds of all layouts of a shape are a few products.

A row is a rank of a schedule, a column a part of the model (dense layer, layer with experts, embedding, head), a number how often the rank meets it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..parallel.placement import split_layers, stage_bounds
from ..schedules import BIDIRECTIONAL, SCHEDULES
from .orders import backwards, least_inflight
from .parts import FIRST, LAST
from .space import OVERLAPPED

Floats = NDArray[np.float64]
PARTS = (0, 1, FIRST, LAST)  # the columns


class Times(NamedTuple):
    """Seconds by part, float[4]: a forward, a whole backward, what of a backward repeats the forward (see `pieces`).

    Of overlapped schedules also what a link moves of both, and the messages that nothing hides outside a pair.
    """

    forward: Floats
    backward: Floats
    again: Floats
    moved: Floats
    messages: Floats


class Sizes(NamedTuple):
    """Bytes by part: `state` float[4, zeros] per stage of ZeRO, `kept` float[4] from forward to backward, `message` of a boundary."""

    state: Floats
    kept: Floats
    message: float


@dataclass(frozen=True)
class Depth:
    """Rows of several (schedule, chunks), those of one after those of the other; `begins` are their first rows.

    fill: parts that a microbatch passes before it reaches the rank, from either end of a schedule that has two (float[2, rows, 4]); work: parts of a
    microbatch; drain: parts of its backward after the rank's, `again` the last layers of these stages (none where a schedule may cut backwards apart).
    alone: parts of forwards, and as many of backwards, outside the pairs of an overlapped schedule.
    held: parts whose state the rank holds; active: parts in flight at some instant; arrived: of these those of stage 0 (its last output leaves it).
    """

    begins: NDArray[np.int64]
    fill: Floats
    work: Floats
    drain: Floats
    again: Floats
    alone: Floats
    held: Floats
    active: Floats
    arrived: Floats

    def seconds(self, times: Times, microbatches: int, *, steady: bool) -> Floats:
        """Seconds that a step takes at least, float[schedules]; `steady`: as one of many, whose ends overlap."""
        kernels = microbatches * (self.work @ (times.forward + times.backward))
        busy = np.maximum(kernels + self.alone @ times.messages, microbatches * (self.work @ times.moved))
        if not steady:
            busy = busy + (self.fill @ times.forward).min(axis=0) + self.drain @ times.backward - self.again @ times.again
        return np.asarray(np.maximum.reduceat(busy, self.begins))

    def bytes(self, sizes: Sizes) -> Floats:
        """Bytes of the heaviest rank at least, float[schedules, zeros]."""
        active = np.maximum(0.0, self.active @ sizes.kept - self.arrived * sizes.message)
        return np.asarray(np.maximum.reduceat(self.held @ sizes.state + active[:, None], self.begins, axis=0))


def by_part(rows: Mapping[int, Mapping[str, float]], what: str) -> Floats:
    """One number of every part as a column."""
    return np.array([rows.get(part, {}).get(what, 0.0) for part in PARTS])


def depth(kinds: list[int], pp: int, microbatches: int, schedules: Sequence[tuple[str, int]], *, grouped: bool = False) -> Depth:
    """The matrices of `schedules` (name, chunks) for a model whose layers are of `kinds`; `grouped` as in `least_inflight`."""
    rows = [_rows(kinds, pp, microbatches, *one, grouped=grouped) for one in schedules]
    columns = (np.concatenate(parts, axis=max(0, parts[0].ndim - 2)) for parts in zip(*rows, strict=True))
    return Depth(np.arange(len(schedules)) * pp, *columns)


def _rows(kinds: list[int], pp: int, microbatches: int, schedule: str, chunks: int, *, grouped: bool) -> tuple[Floats, ...]:
    row = SCHEDULES[schedule]
    stages, two = row.placement.stages(pp, chunks), row.placement is BIDIRECTIONAL
    rank_of = np.array([row.placement.rank(s, 0, pp, microbatches) for s in range(stages)])
    parts, last = np.zeros((stages, len(PARTS))), np.zeros((stages, len(PARTS)))
    for s, (a, b) in enumerate(stage_bounds(split_layers(len(kinds), stages))):
        for k in (0, 1):
            parts[s, k] = kinds[a:b].count(k)
        last[s, kinds[b - 1]] = 1
    parts[0, PARTS.index(FIRST)] = parts[-1, PARTS.index(LAST)] = 1
    lowest = np.unique(rank_of, return_index=True)[1]
    before = np.concatenate([np.zeros((1, len(PARTS))), np.cumsum(parts, axis=0)])[lowest]
    lasts = np.concatenate([np.zeros((1, len(PARTS))), np.cumsum(last, axis=0)])[lowest]
    whole = backwards(schedule) == "B"
    mine = np.zeros((pp, len(PARTS)))
    np.add.at(mine, rank_of, parts)
    both = mine + mine[::-1] if two else mine
    inflight = least_inflight(schedule, pp, microbatches, rank_of, grouped=grouped)
    arrived = inflight[:, 0].astype(np.float64) if stages > 1 else np.zeros(pp)
    fill = np.stack([before, before[::-1] if two else before])
    return fill, both / 2 if two else both, before * whole, lasts * whole, _alone(schedule, rank_of, parts, microbatches), both, inflight @ parts, arrived


def _alone(schedule: str, rank_of: NDArray[np.int64], parts: Floats, microbatches: int) -> Floats:
    """Parts outside the pairs: at least those of the smaller of a rank's two stages, as often as `eight_phases` says."""
    pp = int(rank_of.max()) + 1
    if schedule not in OVERLAPPED:
        return np.zeros((pp, len(PARTS)))
    two = SCHEDULES[schedule].placement is BIDIRECTIONAL
    half = pp // 2 if two else pp
    ranks = np.arange(pp)
    distance = half - 1 - (np.minimum(ranks, ranks[::-1]) if two else ranks)
    smaller = np.minimum(parts[ranks], parts[len(rank_of) - 1 - ranks])
    times = np.minimum(2 * half + distance, microbatches if two else 2 * microbatches)
    return np.asarray(times[:, None] * smaller)
