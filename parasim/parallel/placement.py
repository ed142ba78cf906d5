"""How layers are cut into stages, and what a layout asks of its schedule."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from .. import schedules
from ..schedules import SCHEDULES, Orders, Placement, ScheduleInput
from ..schedules.one_f_one_b import one_f_one_b
from .layout import Layout

PASSES_AHEAD = 2  # more microbatches in flight where all ranks share head and loss: one between the head and the loss, one between that and the backward


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


def placement_of(layout: Layout) -> Placement:
    """Which rank runs a stage."""
    return SCHEDULES[layout.pipeline.schedule].placement


def stages_of(layout: Layout) -> int:
    """Stages of the whole model."""
    return placement_of(layout).stages(layout.degrees.pp, layout.pipeline.chunks)


def orders_of(layout: Layout) -> Orders:
    """The actions of every pipeline rank, in order. Raises InvalidLayout for what the schedule does not allow."""
    pipe = layout.pipeline
    if layout.vocabulary_parts > 1:
        return one_f_one_b(ScheduleInput(layout.degrees.pp, layout.batch.microbatches), ahead=PASSES_AHEAD)
    return _orders(pipe.schedule, ScheduleInput(layout.degrees.pp, layout.batch.microbatches, pipe.chunks, pipe.group, pipe.times, pipe.memory_cap))


_orders = lru_cache(maxsize=8)(schedules.orders_of)  # asked for by every check and by every pipeline rank; a search may take a second
