"""Which pipeline rank holds which stage."""

from __future__ import annotations

from collections.abc import Sequence


def rank_of_stage(stage: int, ranks: int) -> int:
    """Looping placement: stage s sits on rank s mod p."""
    return stage % ranks


def split_layers(layers: int, stages: int) -> tuple[int, ...]:
    """As even as possible. The remainder goes to the stages after the first, and the last stage, which also holds the head, gets one last."""
    base, extra = divmod(layers, stages)
    order = [*range(1, stages - 1), 0, stages - 1] if stages > 1 else [0]
    gets_one = set(order[:extra])
    return tuple(base + (s in gets_one) for s in range(stages))


def stage_bounds(layers: Sequence[int]) -> list[tuple[int, int]]:
    """[first, last) layer of every stage from the layers per stage."""
    bounds, at = [], 0
    for n in layers:
        bounds.append((at, at + n))
        at += n
    return bounds
