"""A simulated rank: what it runs, and when."""

from __future__ import annotations

from array import array
from collections import Counter
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..program.edges import Resolved
from ..program.workload import Program
from .fuse import Cut, Runs
from .steps import Step

if TYPE_CHECKING:
    from .replay import Stream


class Rank:
    """Rank `rank`, of class `c`: its resolved Program, its runs, and their times in seconds (nan: not yet)."""

    cut: Cut
    runs: Runs

    def __init__(self, rank: int, c: int, program: Program) -> None:
        self.rank, self.c, self.program = rank, c, program
        self.resolved: Resolved = program.resolved
        self.done = bytearray(len(self.resolved))
        self.steps: dict[str, list[Step]] = {}
        self.met: Counter[int] = Counter()  # collectives reached, by number
        self.waiting: dict[int, list[Stream]] = {}

    def fused(self, runs: Runs) -> None:
        """Take over what ops are run as. By run: when the rank `came` to it, where that is not when it `began`, and when it `ended`, where that is not
        known beforehand."""
        self.runs, self.cut = runs, runs.cut
        self.came, self.began, self.ended = (array("d", [np.nan]) * len(runs.seconds) for _ in range(3))
        self.length = array("d", runs.seconds.tobytes())

    @property
    def streams(self) -> tuple[range, ...]:
        """The runs of every stream that has any."""
        return self.cut.streams

    @property
    def replayed(self) -> NDArray[np.bool_]:
        """Which ops were replayed by themselves."""
        return np.isnan(self.runs.seconds)[self.runs.run]

    def step(self, k: int) -> Step:
        """The template of run `k`, an op that is replayed by itself."""
        body, position, _ = self.cut.places[k]
        return self.steps[body][position]

    @cached_property
    def times(self) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """When every op was ready, started and ended, those of fused runs too."""
        came, began, ended = (np.frombuffer(column, dtype=np.float64) for column in (self.came, self.began, self.ended))
        ready, start, end = self.runs.times(began)
        for column, seen, op in ((ready, came, self.cut.heads), (end, ended, self.cut.tails)):
            there = np.flatnonzero(~np.isnan(seen))
            column[np.array(op, dtype=np.int64)[there]] = seen[there]
        return ready, start, end
