"""Placement: which rank runs a stage, given the microbatch."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Placement(NamedTuple):
    """`rank(stage, microbatch, ranks, microbatches)` and how many stages there are for (ranks, chunks).

    `shares`: a rank's stages divide its share of the depth (else each of them is a whole share).
    """

    name: str
    rank: Callable[[int, int, int, int], int]
    stages: Callable[[int, int], int]
    shares: bool = True


LOOP = Placement("loop", lambda stage, microbatch, ranks, microbatches: stage % ranks, lambda ranks, chunks: ranks * chunks)
VEE = Placement("V", lambda stage, microbatch, ranks, microbatches: min(stage, 2 * ranks - 1 - stage), lambda ranks, chunks: 2 * ranks)
# The first half of the microbatches enters at rank 0, the second half at the last rank: stage s is on rank s for the one, p - 1 - s for the other.
BIDIRECTIONAL = Placement(
    "bidirectional",
    lambda stage, microbatch, ranks, microbatches: stage if 2 * microbatch < microbatches else ranks - 1 - stage,
    lambda ranks, chunks: ranks,
    shares=False,
)
PLACEMENTS = (LOOP, VEE, BIDIRECTIONAL)
