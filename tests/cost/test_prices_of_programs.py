"""What lowering emits, priced kernel by kernel, adds up to the closed forms of the model, however it is cut."""

from __future__ import annotations

from typing import Any

import pytest

from parasim.config import build
from parasim.cost.pricing import flops
from parasim.lowering import lower
from parasim.model.layers import head_flops, layer_attention_flops, layer_matmul_flops, model_flops, parameters
from parasim.program.ops import Compute, Kernel
from parasim.program.workload import Workload, buffer_bytes

LLAMA = {"kind": "transformer", "layers": 4, "hidden": 64, "heads": 8, "kv_heads": 4, "ffn": 160, "vocab": 96}
GPT = {
    "kind": "transformer", "layers": 4, "hidden": 64, "heads": 8, "vocab": 96, "activation": "gelu", "norm": "layer_norm", "bias": True,
    "positions": "learned", "max_positions": 32, "tied": True,
}  # fmt: skip
MLP = {"kind": "mlp", "layers": 4, "hidden": 64, "ffn": 256}
CUTS: list[dict[str, Any]] = [
    {"devices": 1},
    {"devices": 2, "parallel": {"tp": 2}},
    {"devices": 4, "parallel": {"tp": 4}, "tensor": {"sequence_parallel": True}},
    {"devices": 4, "parallel": {"pp": 4}},
    {"devices": 8, "parallel": {"tp": 2, "pp": 2, "dp": 2}, "zero": {"stage": 1}},
]
TOKENS, SEQUENCE = 8 * 32, 32


def lowered(model: dict[str, Any], cut: dict[str, Any], **more: Any) -> tuple[Any, Workload]:
    run = build({"model": model, "cluster": "h100-hgx-ib400", "batch": {"global": 8, "micro": 1, "sequence": SEQUENCE}} | cut | more)
    return run.plan.model, lower(run.plan)


def kernels(workload: Workload) -> list[Kernel]:
    """Every kernel of every rank's step."""
    programs = [workload.program_of(rank) for rank in range(workload.world)]
    return [k for p in programs for call in p.calls for op in p.bodies[call.body] if isinstance(op, Compute) for k in op.kernels]


@pytest.mark.parametrize("cut", CUTS, ids=str)
@pytest.mark.parametrize("model", [LLAMA, GPT], ids=["llama", "gpt"])
def test_flops_of_a_step(model: dict[str, Any], cut: dict[str, Any]) -> None:
    spec, workload = lowered(model, cut)
    products = layer_matmul_flops(spec, TOKENS) * spec.layers + head_flops(spec, TOKENS)
    core = layer_attention_flops(spec, TOKENS, SEQUENCE, causal=True) * spec.layers
    # 3 x the matrices (forward, input gradient, weight gradient); tiled attention is 1 forward and 2.5 backward
    assert sum(flops(k) for k in kernels(workload)) == pytest.approx(3 * products + 3.5 * core, rel=1e-12)


@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_full_recompute_adds_the_forward_of_the_layers(cut: dict[str, Any]) -> None:
    spec, workload = lowered(LLAMA, cut, recompute="full")
    layers = (layer_matmul_flops(spec, TOKENS) + layer_attention_flops(spec, TOKENS, SEQUENCE, causal=True)) * spec.layers
    spec_plain, plain = lowered(LLAMA, cut)
    extra = sum(flops(k) for k in kernels(workload)) - sum(flops(k) for k in kernels(plain))
    assert spec == spec_plain and extra == pytest.approx(layers, rel=1e-12)


def test_flops_of_an_mlp_are_its_model_flops() -> None:
    spec, workload = lowered(MLP, {"devices": 2})
    assert sum(flops(k) for k in kernels(workload)) == model_flops(spec, TOKENS, SEQUENCE)


@pytest.mark.parametrize("model", [LLAMA, GPT, MLP], ids=["llama", "gpt", "mlp"])
def test_parameters_held_are_the_models(model: dict[str, Any]) -> None:
    spec, workload = lowered(model, {"devices": 1})
    held = sum(buffer_bytes(b) for b in workload.programs[0].buffers.values() if b.category == "parameters")
    assert held == 2 * parameters(spec)  # bf16
