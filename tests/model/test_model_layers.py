"""Closed forms against published counts, the formulas of the papers and sums over matrices written out here."""

from __future__ import annotations

import pytest

from parasim.model.catalog import catalog
from parasim.model.layers import (
    attention_convention,
    embedding_parameters,
    forward_flops,
    head_parameters,
    layer_activation_bytes,
    layer_matrices,
    layer_parameters,
    model_flops,
    parameters,
)
from parasim.model.spec import Fixed, Mlp, Transformer


def llama_parameters(layers: int, h: int, f: int, heads: int, kv: int, d: int, v: int, tied: bool) -> int:
    """The count of transformers' LlamaForCausalLM, module by module."""
    attention = h * heads * d + 2 * h * kv * d + heads * d * h
    layer = attention + 3 * h * f + 2 * h
    return v * h + layers * layer + h + (0 if tied else v * h)


@pytest.mark.parametrize(
    ("name", "published"),
    [("llama3-8b", 8_030_261_248), ("llama3-70b", 70_553_706_496), ("llama3-405b", 405_853_388_800)],
)
def test_llama_parameters_are_exact(name: str, published: int) -> None:
    m = catalog()[name]
    assert isinstance(m, Transformer)
    assert parameters(m) == published
    assert parameters(m) == llama_parameters(m.layers, m.hidden, m.ffn, m.heads, m.kv_heads, m.head_dim, m.vocab, m.tied)


@pytest.mark.parametrize(("name", "layers", "h"), [("gpt3-175b", 96, 12288), ("megatron-22b", 48, 6144)])
def test_gpt_parameters_follow_the_formula(name: str, layers: int, h: int) -> None:
    # 12 L h^2 + 13 L h + (V + s) h + 2 h: Narayanan et al. 2021, equation 2, plus the final norm; V = 51200 (padded), s = 2048
    assert parameters(catalog()[name]) == 12 * layers * h * h + 13 * layers * h + (51200 + 2048) * h + 2 * h


def test_unpadded_gpt3_is_the_175_billion_class() -> None:
    padded = parameters(catalog()["gpt3-175b"])
    assert padded - (51200 - 50257) * 12288 == 174_604_259_328


def test_parts_add_up() -> None:
    m = catalog()["llama3-8b"]
    assert parameters(m) == embedding_parameters(m) + 32 * layer_parameters(m) + 4096 + head_parameters(m)
    # h (heads + 2 kv) d + h h + 3 h f + 2 h
    assert layer_parameters(m) == 4096 * (32 + 16) * 128 + 4096 * 4096 + 3 * 4096 * 14336 + 2 * 4096
    assert head_parameters(catalog()["gpt3-175b"]) == 0


def test_mlp_and_fixed() -> None:
    assert parameters(Mlp("m", layers=3, hidden=8, ffn=32)) == 3 * 2 * 8 * 32
    fixed = Fixed("f", layers=4, forward=1.0, input_grad=1.0, weight_grad=1.0, parameters=1000)
    assert parameters(fixed) == 1000 and layer_parameters(fixed) == 250 and model_flops(fixed, 10, 1) == 0.0
    # 3 passes x 2 FLOPs x tokens x (h f + f h) x layers
    assert model_flops(Mlp("m", layers=3, hidden=8, ffn=32), 5, 1) == 3 * 2 * 5 * 2 * 8 * 32 * 3


def test_gpt_flops_are_the_megatron_formula() -> None:
    m = catalog()["megatron-22b"]
    b, s, layers, h, v = 4, 2048, 48, 6144, 51200
    expected = 72 * b * s * layers * h**2 * (1 + s / (6 * h) + v / (12 * layers * h))  # Korthikanti et al. 2022, equation 7
    assert model_flops(m, b * s, s) == pytest.approx(expected, rel=1e-12)


def test_flops_are_a_sum_over_matrices() -> None:
    m = catalog()["llama3-8b"]
    t, s, h, f, d = 1000, 8192, 4096, 14336, 128
    layer = 2 * t * (h * 32 * d + 2 * h * 8 * d + 32 * d * h + 3 * h * f)
    attention = 2 * (2 * t * s * 32 * d)  # q k^T and scores times v
    assert forward_flops(m, t, s) == 32 * (layer + attention) + 2 * t * h * 128256
    assert forward_flops(m, t, s, causal=True) == 32 * (layer + attention / 2) + 2 * t * h * 128256


def test_flops_per_token_are_six_per_matrix_parameter() -> None:
    m = catalog()["llama3-70b"]
    # without attention (sequence 0) a token costs 6 FLOPs per weight it is multiplied with: all but the norms and the token rows
    multiplied = parameters(m) - 128256 * 8192 - (2 * 80 + 1) * 8192
    assert model_flops(m, 1, 0) == pytest.approx(6 * multiplied, rel=1e-12)


def test_the_convention_is_named() -> None:
    assert "full attention" in attention_convention() and "causal" in attention_convention(causal=True)


def test_matrices_have_their_cut() -> None:
    assert [(m.name, m.inner, m.columns, m.role) for m in layer_matrices(catalog()["llama3-8b"])] == [
        ("qkv", 4096, 6144, "column"),
        ("out", 4096, 4096, "row"),
        ("up", 4096, 28672, "column"),
        ("down", 14336, 4096, "row"),
    ]


@pytest.mark.parametrize("tp", [1, 8])
@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_activation_bytes_are_korthikantis(tp: int, sequence_parallel: bool) -> None:
    s, b, h, a = 2048, 4, 6144, 64
    m = catalog()["megatron-22b"]
    whole = tp if sequence_parallel else 1
    expected = s * b * h * (10 / whole + 24 / tp + 5 * a * s / (h * tp))  # Korthikanti et al. 2022, equations 2 and 4
    got = layer_activation_bytes(m, b, s, tp=tp, sequence_parallel=sequence_parallel, attention="materialised", dropout=True)
    assert got == pytest.approx(expected, rel=1e-12)
    # tiled attention drops 5 a s^2 b / t and keeps 4 bytes per head and row
    tiled = layer_activation_bytes(m, b, s, tp=tp, sequence_parallel=sequence_parallel, attention="tiled", dropout=True)
    assert tiled == pytest.approx(s * b * h * (10 / whole + 24 / tp) + 4 * s * b * a / tp, rel=1e-12)
    full = layer_activation_bytes(m, b, s, tp=tp, sequence_parallel=sequence_parallel, recompute="full")
    assert full == 2 * s * b * h / whole


def test_activation_bytes_of_an_mlp() -> None:
    # the layer's input and, before and after the activation, 2 f: bf16
    assert layer_activation_bytes(Mlp("m", 1, hidden=8, ffn=32), 4, 1) == 2 * 4 * (8 + 64)
    assert layer_activation_bytes(Mlp("m", 1, hidden=8, ffn=32), 4, 1, recompute="full") == 2 * 4 * 8
