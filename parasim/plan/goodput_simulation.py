"""Goodput by drawing failures one by one: the obvious twin of the closed form."""

from __future__ import annotations

import heapq
import math
from typing import NamedTuple

import numpy as np

from ..errors import Refused
from .goodput import Outages, shares

MOST_FAILURES = 1000  # per interval, on average: beyond that drawing them takes too long


class Estimate(NamedTuple):
    """Share of wall time that is training, and its standard error."""

    fraction: float
    error: float


class _Repairs:
    """Servers in repair, by when they come back."""

    def __init__(self, outages: Outages, rng: np.random.Generator) -> None:
        self.outages, self.rng = outages, rng
        self.back: list[float] = []

    def wait(self, now: float) -> float:
        """Seconds that a failure at `now` waits for a server."""
        o = self.outages
        if o.spares is None or not o.repair or self.rng.random() >= o.replaced:
            return 0.0
        while self.back and self.back[0] <= now:
            heapq.heappop(self.back)
        heapq.heappush(self.back, now + self.rng.exponential(o.repair))
        return heapq.heappop(self.back) - now if len(self.back) > o.spares else 0.0


def simulate(outages: Outages, interval: float, rng: np.random.Generator, intervals: int = 20_000) -> Estimate:
    """Live through `intervals` intervals of training with their checkpoints; planned interruptions and stragglers count as in the closed form.

    The standard error is that of the mean duration of an interval, carried over to the ratio. Raises Refused as `shares` does, and where
    intervals hardly ever end.
    """
    expected = shares(outages, interval)
    if (interval + outages.checkpoint + outages.restart) / outages.mtbf > math.log(MOST_FAILURES):
        raise Refused(f"an interval takes more than {MOST_FAILURES} attempts; too many to draw one by one")
    repairs, now = _Repairs(outages, rng), 0.0
    durations = np.empty(intervals)
    for i in range(intervals):
        began = now
        now = _until(interval + outages.checkpoint, outages, repairs, rng, now)
        durations[i] = now - began
    mean = float(durations.mean())
    factor = interval / mean * (1 - expected.planned) / outages.slowdown
    return Estimate(factor, factor * float(durations.std(ddof=1)) / mean / math.sqrt(intervals))


def _until(work: float, outages: Outages, repairs: _Repairs, rng: np.random.Generator, now: float) -> float:
    """When `work` seconds without a failure have passed; after each failure it is noticed, waits for a server and restarts, which may fail too."""
    restarting = False
    while True:
        due = outages.restart if restarting else work
        lived = rng.exponential(outages.mtbf)
        if lived >= due:
            now += due
            if not restarting:
                return now
            restarting = False
            continue
        silent = rng.random() < outages.silent
        now += lived + (outages.silent_delay if silent else outages.detection)
        now += repairs.wait(now)
        restarting = True
