"""Stages of unequal depth: the heaviest counts, not the mean."""

from __future__ import annotations

import pytest
from layouts import held, lowered

import parasim as ps
from parasim.config import build
from parasim.model.layers import layer_parameters
from parasim.program.ops import DTYPE_BYTES


def test_the_heaviest_stage_is_reported() -> None:
    """Eight equal layers as 1, 2, 2, 3 (Megatron-Bridge pull request 5077): a stage holds the parameters of its layers, the last 3 / 2 of the mean's."""
    model = {"kind": "mlp", "layers": 8, "hidden": 64, "ffn": 128}
    run = build(
        {
            "model": model,
            "cluster": "h100-hgx-ib400",
            "devices": 4,
            "batch": {"global": 1, "micro": 1},
            "parallel": {"pp": 4},
            "pipeline": {"layers": [1, 2, 2, 3], "schedule": "gpipe"},
        }
    )
    memory = ps.simulate_run(run).report.memory
    assert memory is not None
    per_layer = layer_parameters(run.plan.model)
    assert per_layer == 2 * 64 * 128
    # bf16 parameters and gradients, fp32 master copy and two moments: 2 + 2 + 3 x 4 bytes
    each = (2 * DTYPE_BYTES["bf16"] + 3 * DTYPE_BYTES["fp32"]) * per_layer
    persistent = [sum(p.by_category[c] for c in ("parameters", "gradients", "optimizer")) for p in memory.per_stage]
    assert persistent == [each * n for n in (1, 2, 2, 3)]
    assert memory.stage == 3 and memory.peak.nbytes == max(p.nbytes for p in memory.per_stage) > 1.4 * sum(persistent) / 4


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_a_stage_without_layers_has_no_weight_gradients_to_put_off(recompute: str) -> None:
    """Under zb-v the last stage may hold the head alone, the first one the embedding: W bodies of stages may be empty, or nearly."""
    _, w = lowered("llama", pp=2, m=8, recompute=recompute, pipeline={"schedule": "zb-v", "layers": {"first": 0, "last": 1}})
    assert sum(held(p, "parameters") for p in w.programs) == held(lowered("llama", pp=1)[1].programs[0], "parameters")
