"""Python's cyclic garbage collector looks at every living object again and again while many are made; here it can wait."""

from __future__ import annotations

import atexit
import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """No cyclic garbage collection inside: for building what stays alive (clusters, programs, timelines). Also a decorator."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def rarely() -> None:
    """Let the collector look far less often, for a process that ends with its one command: what it would find stays alive until then anyway.

    At the end it looks at nothing: that would take longer than a fifth of the simulation.
    """
    gc.set_threshold(1_000_000, 10, 10)
    atexit.register(gc.freeze)
