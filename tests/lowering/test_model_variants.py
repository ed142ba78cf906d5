"""Every variant of a dense model lowers to what the closed forms say: parameters, FLOPs, and bytes kept per layer."""

from __future__ import annotations

from math import prod
from typing import Any

import pytest
from layouts import GPT, HIDDEN, LLAMA, MODELS, SEQUENCE, TOKENS, collectives, kept, lowered, ops

from parasim.cost.pricing import flops
from parasim.model.layers import head_flops, layer_activation_bytes, layer_attention_flops, layer_matmul_flops, layer_matrices, parameters
from parasim.program.ops import Compute

LATENT = LLAMA | {"kv_heads": 8, "latent": {"kv_rank": 14, "query_rank": 20, "nope_dim": 6, "rope_dim": 4, "value_dim": 5}}
VARIANTS: dict[str, dict[str, Any]] = {
    "gemma2": LLAMA | {"activation": "geglu", "norm_at": "both", "head_dim": 6, "tied": True},
    "qwen2": LLAMA | {"bias": "qkv"},
    "qwen3": LLAMA | {"qk_norm": "head"},
    "olmo2": LLAMA | {"norm_at": "post", "qk_norm": "full"},
    "olmo": LLAMA | {"norm": "layer_norm", "norm_weights": "none"},
    "mpt": GPT | {"bias": False, "positions": "alibi", "norm_weights": "scale"},
    "opt": GPT | {"activation": "relu"},
    "nemotron": GPT | {"activation": "squared_relu", "bias": False, "positions": "rotary", "tied": False},
    "no-positions": LLAMA | {"positions": "none", "bias": "attention"},
    "latent": LATENT,
    "latent-plain-queries": LATENT | {"latent": LATENT["latent"] | {"query_rank": 0}},
}
CUTS = [{}, {"tp": 2}, {"tp": 2, "sp": True}, {"pp": 2}]
ALL = [(v, c) for v in VARIANTS for c in CUTS if not (v == "olmo2" and "tp" in c)]


@pytest.fixture(autouse=True)
def _variants(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, model in VARIANTS.items():
        monkeypatch.setitem(MODELS, name, model)


@pytest.mark.parametrize(("variant", "cut"), ALL, ids=str)
def test_closed_forms(variant: str, cut: dict[str, Any]) -> None:
    plan, w = lowered(variant, m=2, **cut)
    model = plan.model
    held = {}
    for rank in range(w.world):
        for b in w.program_of(rank).buffers.values():
            if b.category == "parameters" and b.persistent:
                held[b.name, tuple(int(w.coordinates[axis][rank]) for _, axis in b.shard)] = prod(int(n) for n in b.shape)
    assert sum(held.values()) == parameters(model)
    work = sum(flops(k) for r in range(w.world) for o in ops(w.program_of(r)) if isinstance(o, Compute) for k in o.kernels)
    tokens = 2 * TOKENS
    matrices = layer_matmul_flops(model, tokens) * model.layers + head_flops(model, tokens)
    core = layer_attention_flops(model, tokens, SEQUENCE, causal=True) * model.layers
    # queries and keys make three of the five backward products, values two; equal widths give 2.5 times the forward
    d, e = model.key_dim, model.value_dim  # type: ignore[union-attr]
    whole = sum(m.elements for m in layer_matrices(model) if m.role == "whole") * model.layers  # every rank runs these, on its rows or on all
    again = 0 if cut.get("sp") else 3 * 2 * tokens * whole * (cut.get("tp", 1) - 1)
    assert work == pytest.approx(3 * matrices + again + core * (1 + (3 * d + 2 * e) / (d + e)), rel=1e-12)
    due = layer_activation_bytes(model, 2, SEQUENCE, tp=cut.get("tp", 1), sequence_parallel=bool(cut.get("sp")))
    assert kept(w.programs[0], 1) == due


def test_collectives_of_latent_attention() -> None:
    """Without sequence parallelism a layer adds to Megatron's four all-reduces: instead of one at the input of qkv it has one at each compression
    (ranks 20 and 14) and one at the shared key (4), all in the backward. bf16: 2 bytes."""
    _, w = lowered("latent", tp=2, m=1)
    found = collectives(w.programs[0], "tp")
    for width in (20, 14, 4):
        assert found.count(("all_reduce", TOKENS * width * 2)) == 6
    assert found.count(("all_reduce", TOKENS * HIDDEN * 2)) == 3 * 6 + 2  # proj, fc2, input of fc1; embedding, head
    _, w = lowered("latent", tp=2, sp=True, m=1)
    gathers = [n for op, n in collectives(w.programs[0], "tp") if op == "all_gather"]
    assert gathers.count(TOKENS * 4 * 2) == 6 and gathers.count(TOKENS * 14 * 2) == 12  # the latter once more for kv_up's weight gradient


def test_one_norm_over_all_heads_cannot_be_cut() -> None:
    from parasim.errors import InvalidLayout

    with pytest.raises(InvalidLayout, match=r"parallel.tp=2 cuts the heads that model.qk_norm=full"):
        lowered("olmo2", tp=2)
