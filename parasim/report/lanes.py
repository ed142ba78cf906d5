"""How the ops of a rank are laid out for people: lanes of streams, runs of one microbatch, the ranks worth showing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..timeline import COMPUTE, Part, Timeline
from .keys import row_keys


class Runs(NamedTuple):
    """Stretches of a compute stream: the row each begins with, seconds, whether anything is computed in it, and the run of each row."""

    first: NDArray[np.int64]
    start: NDArray[np.float64]
    end: NDArray[np.float64]
    computes: NDArray[np.bool_]
    of_row: NDArray[np.int64]


def rank_per_stage(timeline: Timeline) -> list[int]:
    """The lowest kept rank of each stage, in order of depth, each once."""
    lowest: dict[int, int] = {}
    for part in timeline.parts:
        for stage in stages_of(part):
            lowest.setdefault(stage, part.rank)
    return list(dict.fromkeys(lowest[stage] for stage in sorted(lowest))) or timeline.ranks[:1]


def stages_of(part: Part) -> list[int]:
    """The stages of the compute ops of a rank, in order of depth."""
    counts = np.bincount(part["stage"][part["kind"] == COMPUTE] + 1)
    return [int(stage) for stage in np.flatnonzero(counts[1:])]


def lane_of(stream: str) -> str:
    """The kind of a stream: `pp.send` holds every channel of `pp.send.*`."""
    return ".".join(stream.split(".")[:2])


def apart(start: NDArray[np.float64], end: NDArray[np.float64], least: float = 0.0) -> list[NDArray[np.int64]]:
    """Positions of intervals in order of time, dealt to as few lanes as keep those of a lane from overlapping by more than `least`."""
    order = np.lexsort((np.arange(len(start)), end, start))
    start, end = start[order], end[order]
    if len(order) < 2 or not (start[1:] < np.maximum.accumulate(end)[:-1] - least).any():
        return [order]
    free: list[float] = []
    lane = np.empty(len(order), dtype=np.int64)
    for i, (a, b) in enumerate(zip(start.tolist(), end.tolist(), strict=True)):
        k = next((k for k, t in enumerate(free) if t <= a + least), len(free))
        free[k : k + 1] = [b]
        lane[i] = k
    return [order[lane == k] for k in range(len(free))]


def runs(queue: NDArray[Any] | Mapping[str, NDArray[Any]]) -> Runs:
    """Ops of a compute stream (in order, at least one) that work on one microbatch of a stage without a gap are one run."""
    key = row_keys(queue, ("step", "phase", "stage", "microbatch"))
    new = np.append(True, (key[1:] != key[:-1]) | (queue["start"][1:] > queue["end"][:-1]))
    first, run = np.flatnonzero(new), np.cumsum(new) - 1
    computes = np.bincount(run, weights=queue["kind"] == COMPUTE) > 0
    return Runs(first, queue["start"][first], np.maximum.reduceat(queue["end"], first), computes, run)
