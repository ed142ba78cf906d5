"""A simulated rank: what it runs, and when."""

from __future__ import annotations

from array import array
from collections import Counter
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
    """Rank `rank`, of class `c`: its resolved Program, its runs, and the times of its ops (nan: not yet)."""

    cut: Cut
    runs: Runs

    def __init__(self, rank: int, c: int, program: Program) -> None:
        self.rank, self.c, self.program = rank, c, program
        self.resolved: Resolved = program.resolved
        n = len(self.resolved)
        self.ready, self.start, self.end = _unknown(n), _unknown(n), _unknown(n)
        self.done = bytearray(n)
        self.steps: dict[str, list[Step]] = {}
        self.met: Counter[int] = Counter()  # collectives reached, by number
        self.waiting: dict[int, list[Stream]] = {}

    def fused(self, runs: Runs) -> None:
        """Take over what ops are run as; `came` holds when the rank reaches each run, `began` when that starts."""
        self.runs, self.cut = runs, runs.cut
        self.began, self.came = _unknown(len(runs.seconds)), _unknown(len(runs.seconds))
        self.length = array("d", runs.seconds.tobytes())

    @property
    def streams(self) -> tuple[range, ...]:
        """The runs of every stream that has any."""
        return self.cut.streams

    @property
    def seconds(self) -> NDArray[np.float64]:
        """Of every op the seconds of its run; nan: it is replayed by itself."""
        return self.runs.seconds[self.runs.run]

    def step(self, k: int) -> Step:
        """The template of run `k`, an op that is replayed by itself."""
        body, position, _ = self.cut.places[k]
        return self.steps[body][position]

    def times(self) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """When every op was ready, started and ended, those of fused runs too."""
        runs, inside = self.runs, ~np.isnan(self.seconds)
        ready, start, end = (np.frombuffer(column, dtype=np.float64) for column in (self.ready, self.start, self.end))
        began, came = (np.frombuffer(column, dtype=np.float64) for column in (self.began, self.came))
        at = began[runs.run][inside]
        ready[inside] = at + runs.ready[inside]
        start[inside] = at + runs.offset[inside]
        end[inside] = at + runs.after[inside]
        together = np.flatnonzero(~np.isnan(came))
        ready[runs.order[runs.first[together]]] = came[together]
        return ready, start, end


def _unknown(n: int) -> array[float]:
    return array("d", [np.nan]) * n
