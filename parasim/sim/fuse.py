"""Fusion: a run of ops of one stream that no edge enters or leaves except at its two ends is one event.

Decided on resolved edges, after folding. An op may be fused when its duration is known beforehand: computes (unless transfers slow them
down), and collectives inside one fold class whose links nobody else uses. The boundaries inside a run are prefix sums, so that every op
gets its own start and end back.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..program.edges import Resolved
from ..program.workload import IntArray


@dataclass(frozen=True)
class Runs:
    """Runs of a rank's n op instances. `order` int[n] lists instances stream by stream; run k covers `order[first[k]:first[k + 1]]`.

    `seconds[k]` is its length (nan: one op that must be replayed). Instance i is in run `run[i]`, from `offset[i]` to `after[i]` seconds after
    the run began: where one op ends the next starts, to the last bit.
    """

    order: IntArray
    first: IntArray
    seconds: NDArray[np.float64]
    offset: NDArray[np.float64]
    after: NDArray[np.float64]
    run: IntArray


def fuse(resolved: Resolved, seconds: NDArray[np.float64]) -> Runs:
    """Group instances into maximal runs, given the seconds of each instance (nan: unknown beforehand)."""
    n = len(resolved)
    order = np.argsort(resolved.stream, kind="stable")
    known = ~np.isnan(seconds)[order]
    entered = (np.diff(resolved.edge_start) > 0)[order]
    left = np.zeros(n, dtype=bool)
    left[resolved.edges] = True
    left = left[order]
    stream = resolved.stream[order]
    begins = np.ones(n, dtype=bool)
    begins[1:] = (stream[1:] != stream[:-1]) | ~known[1:] | ~known[:-1] | entered[1:] | left[:-1]
    first = np.nonzero(begins)[0]
    member = np.cumsum(begins) - 1
    lengths = np.where(known, seconds[order], 0.0)
    before = np.concatenate([[0.0], np.cumsum(lengths)])
    offset, after, run = np.empty(n), np.empty(n), np.empty(n, dtype=np.int64)
    offset[order] = before[:-1] - before[first][member]
    after[order] = before[1:] - before[first][member]
    run[order] = member
    bounds = np.append(first, n)
    total = np.where(known[first], before[bounds[1:]] - before[first], np.nan) if n else np.zeros(0)
    return Runs(order, bounds, total, offset, after, run)
