"""A ring all-reduce as one writes it first with simpy: a process per rank, a message per step, nothing folded. To see what folding is worth."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import simpy


def ring_seconds(ranks: int, nbytes: float, bandwidth: float, latency: float) -> tuple[float, int]:
    """(seconds, messages) of an all-reduce of `nbytes` over `ranks` in a ring of links of `bandwidth` bytes/s and `latency` s.

    2 (n - 1) steps in which every rank sends 1/n of the buffer to the next one and waits for the one before.
    """
    environment = simpy.Environment()
    inbox = [simpy.Store(environment) for _ in range(ranks)]

    def rank(me: int) -> Generator[simpy.Event, Any, None]:
        for _ in range(2 * (ranks - 1)):
            environment.process(message(me))
            yield inbox[me].get()

    def message(source: int) -> Generator[simpy.Event, Any, None]:
        yield environment.timeout(latency + nbytes / ranks / bandwidth)
        yield inbox[(source + 1) % ranks].put(nbytes / ranks)

    for me in range(ranks):
        environment.process(rank(me))
    environment.run()
    return float(environment.now), 2 * (ranks - 1) * ranks
