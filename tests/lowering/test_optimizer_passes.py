"""Optimizers of several passes over the master copy."""

from __future__ import annotations

import pytest
from layouts import lowered, ops

from parasim.cost.pricing import bytes_moved
from parasim.program.ops import Compute


@pytest.mark.parametrize(
    ("precision", "gradient", "extra"),
    [
        ("bf16", "fp32", 4 + 8 + 4),  # norm; clipped: read, written; the master copy read again
        ("bf16", "bf16", (2 + 4) + 4 + 8 + 4),  # first copied to fp32
        ("fp16", "fp16", (2 + 4) + 8 + 4 + 8 + 4),  # and unscaled: read, written
        ("fp16", "fp32", 8 + 4 + 8 + 4),
    ],
)
def test_passes_of_an_optimizer(precision: str, gradient: str, extra: int) -> None:
    """Adam itself: 7 x 4 bytes an element and 2 of the rounded copy."""
    for step, more in (("fused", 0), ("separate", extra)):
        program = lowered("mlp", precision=precision, optimizer={"gradient_dtype": gradient, "step": step})[1].programs[0]
        assert {bytes_moved(k) for o in ops(program) if isinstance(o, Compute) for k in o.kernels if k.name == "adam"} == {(30 + more) * 32 * 64}
