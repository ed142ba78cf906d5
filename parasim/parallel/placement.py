"""How layers are cut into stages."""

from __future__ import annotations

from collections.abc import Sequence


def split_layers(layers: int, stages: int) -> tuple[int, ...]:
    """Layers of each stage, as even as possible.

    What does not divide goes, one layer each, to the stages in the middle in order of depth, then to the first one (it has the embedding and, under
    1f1b, the most microbatches in flight); the last one, which has the head and the loss, never gets more than the others.
    """
    share, rest = divmod(layers, stages)
    first_served = [*range(1, stages - 1), 0][:rest]
    return tuple(share + (stage in first_served) for stage in range(stages))


def stage_bounds(layers: Sequence[int]) -> list[tuple[int, int]]:
    """[first, last) layer of every stage from the layers per stage."""
    bounds, at = [], 0
    for n in layers:
        bounds.append((at, at + n))
        at += n
    return bounds
