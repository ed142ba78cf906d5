"""Batch size as a budget: how many steps and examples a target takes, and who spends the batch.

McCandlish, Kaplan, Amodei et al., An Empirical Model of Large-Batch Training (arXiv 1812.06162), equations 2.11: with the critical batch Bc,
steps S = Smin (1 + Bc / B), examples E = Emin (1 + B / Bc), Emin = Bc Smin. Any unit of batch (examples, sequences, tokens), the same in both.
"""

from __future__ import annotations

import math

from ..errors import Malformed


def _positive(**values: float) -> None:
    for name, value in values.items():
        if not (math.isfinite(value) and value > 0):
            raise Malformed(f"{name} {value:g} must be a number above 0")


def steps_to_target(batch: float, critical: float, minimum: float) -> float:
    """Optimizer steps to the target at `batch`, where ever larger batches would need `minimum`. Raises Malformed for what is not above 0."""
    _positive(batch=batch, critical_batch=critical, minimum_steps=minimum)
    return minimum * (1 + critical / batch)


def examples_to_target(batch: float, critical: float, minimum: float) -> float:
    """Examples to the target at `batch`, where ever smaller batches would need `minimum`. Raises Malformed for what is not above 0."""
    _positive(batch=batch, critical_batch=critical, minimum_examples=minimum)
    return minimum * (1 + batch / critical)


def time_to_target(step: float, batch: float, critical: float, minimum: float) -> float:
    """Seconds to the target: a step of `step` seconds, as many times as it takes. Raises Malformed for what is not above 0."""
    return step * steps_to_target(batch, critical, minimum)


def useful_speedup(batch: float, larger: float, critical: float) -> float:
    """How much sooner the target comes when batch and devices grow together from `batch` to `larger` and the step stays as long."""
    return steps_to_target(batch, critical, 1.0) / steps_to_target(larger, critical, 1.0)


def budget(batch: float, critical: float) -> dict[str, object]:
    """Steps and examples to the target over their least; the speed-up when batch and devices grow together and the step stays as long, by factor."""
    return {
        "steps_over_minimum": steps_to_target(batch, critical, 1.0),
        "examples_over_minimum": examples_to_target(batch, critical, 1.0),
        "speedup_when_batch_and_devices_grow": {str(k): useful_speedup(batch, k * batch, critical) for k in (2, 4, 8, 16)},
    }


def most_devices(sequences: int, tp: int = 1, cp: int = 1, pp: int = 1) -> int:
    """Devices that `sequences` per batch can feed: one sequence per data-parallel rank, and a microbatch per pipeline stage to keep it busy."""
    return max(sequences // pp, 1) * tp * cp * pp
