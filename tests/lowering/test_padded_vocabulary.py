"""Vocabularies that tp does not divide: rows of padding, their bytes, and what the report says; vocabularies that it divides are left alone."""

from __future__ import annotations

from typing import Any

import pytest
from layouts import HIDDEN, LLAMA, TOKENS, held, keys, ops

import parasim as ps
from parasim.config import build
from parasim.lowering import lower
from parasim.model.layers import parameters
from parasim.program.ops import Compute
from parasim.program.text import render
from parasim.program.workload import Program


def run(tp: int, vocab: int, tied: bool = False, **more: Any) -> ps.Run:
    return build(keys("llama", tp=tp, **more) | {"model": LLAMA | {"vocab": vocab, "tied": tied}})


def program(tp: int, vocab: int, tied: bool = False, **more: Any) -> Program:
    return lower(run(tp, vocab, tied, **more).plan).programs[0]


@pytest.mark.parametrize(
    ("tp", "vocab", "padded"),
    [
        (2, 50257, 50432),  # Megatron-LM's GPT-2 vocabulary at tp 2: 197 x 256
        (4, 50257, 50688),  # 99 x 512
        (4, 65, 512),  # three ranks hold nothing but padding
        (4, 64, 64),  # divides
        (1, 50257, 50257),
    ],
)
def test_rows_are_a_multiple_of_128_per_rank_where_tp_does_not_divide_them(tp: int, vocab: int, padded: int) -> None:
    p = program(tp, vocab)
    assert p.buffers["embedding.weight"].shape == p.buffers["head.weight"].shape == (padded // tp, HIDDEN)
    assert p.buffers["embedding.weight"].padding == padded - vocab
    assert p.buffers["logits"].shape == (TOKENS, padded // tp)


@pytest.mark.parametrize("tied", [False, True])
def test_parameters_and_optimizer_state_of_the_padding_count(tied: bool) -> None:
    """Rows of padding are parameters like others: bf16 copies, gradients, fp32 master and moments, once or twice."""
    tp, vocab, padded = 2, 301, 512
    more = (padded - vocab) * HIDDEN * (1 if tied else 2)
    whole = program(tp, padded, tied)
    p = program(tp, vocab, tied)
    for category in ("parameters", "gradients", "optimizer"):
        assert held(p, category) == held(whole, category)
    # all of it: twice a rank's cut parameters less its copy of what is not cut, the norms
    norms = (2 * LLAMA["layers"] + 1) * HIDDEN
    assert (held(p, "parameters") // 2 - norms) * tp + norms == parameters(run(tp, vocab, tied).plan.model) + more


def test_the_loss_knows_where_padding_begins_and_tokens_are_drawn_below_it() -> None:
    kernels = [k for o in ops(program(2, 301)) if isinstance(o, Compute) for k in o.kernels]
    dims = {k.name: k.dims for k in kernels}
    assert dims["cross_entropy_stats"] == (TOKENS, 256, 301) and dims["cross_entropy_grad"][3] == 301
    assert {k.dims[1] for k in kernels if k.name == "sample"} == {301}
    assert {k.name: len(k.dims) for o in ops(program(2, 512)) if isinstance(o, Compute) for k in o.kernels}["cross_entropy_stats"] == 2


def test_it_is_said() -> None:
    said = ps.simulate_run(run(2, 301)).report.to_json()["assumptions"]
    assert f"parallel.tp 2: vocabulary padded from 301 to 512, a multiple of 128 x tp, {211 * HIDDEN * 2} more parameters that train nothing" in said
    assert not any("padded" in a for a in run(4, 64).plan.assumptions)
    assert "embedding.weight: 256x32 bf16 parameters persistent shard dim 0 over tp padded by 211" in render(program(2, 301))


def test_model_flops_are_those_of_the_vocabulary() -> None:
    padded, whole = (ps.simulate_run(run(2, v)).report for v in (301, 512))
    ratio = padded.to_json()["model_flops"] / whole.to_json()["model_flops"]
    assert ratio < 1 and padded.step_time == pytest.approx(whole.step_time, rel=1e-12)  # computed all the same
