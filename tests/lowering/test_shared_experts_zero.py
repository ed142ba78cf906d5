"""Experts under ZeRO-2 and 3, and what recomputing their modules saves."""

from __future__ import annotations

from typing import Any

import pytest
from layouts import collectives, held, kept, ops

from parasim.config import build
from parasim.lowering import lower
from parasim.program.ops import Collective, Compute
from parasim.program.workload import Program

H, F, COUNT, LAYERS, SEQUENCE = 64, 32, 8, 2, 128
DENSE = H * 3 * H + H * H + 2 * H + H * COUNT  # of a layer: qkv, output, two norms, router
EXPERT = 3 * H * F  # up, gate and down of one expert
ENDS = 2 * 64 * H + H  # embedding, head, final norm


def program(ep: int, dp: int, stage: int, m: int = 2, **more: Any) -> Program:
    model = {"kind": "transformer", "layers": LAYERS, "hidden": H, "heads": 4, "ffn": 96, "vocab": 64}
    model["experts"] = {"count": COUNT, "topk": 2, "ffn": F}
    run = {
        "model": model, "cluster": "h100-hgx-ib400", "devices": dp, "batch": {"global": dp * m, "micro": 1, "sequence": SEQUENCE},
        "parallel": {"ep": ep, "dp": dp}, "zero": {"stage": stage},
    }  # fmt: skip
    return lower(build(run | more).plan).programs[0]


@pytest.mark.parametrize(("ep", "dp"), [(2, 4), (4, 4), (2, 2)])
def test_experts_are_shared_out_among_those_that_hold_the_same(ep: int, dp: int) -> None:
    """Stage 3: dense parameters over dp, the count / ep experts of a rank over its dp / ep replicas (alone: whole); bf16. Fits without padding."""
    p = program(ep, dp, 3)
    experts = LAYERS * COUNT // ep * EXPERT
    assert held(p, "parameters") == 2 * (experts // (dp // ep) + (LAYERS * DENSE + ENDS) // dp)
    assert held(p, "gradients") == held(p, "parameters")


def test_experts_are_gathered_over_their_replicas_for_forward_and_backward_of_every_microbatch() -> None:
    m, (ep, dp) = 3, (2, 4)
    p = program(ep, dp, 3, m)
    mine = 2 * COUNT // ep * EXPERT  # bytes of a layer's experts of this rank
    gathers = [nbytes for op, nbytes in collectives(p, "edp") if op == "all_gather"]
    scatters = [nbytes for op, nbytes in collectives(p, "edp") if op == "reduce_scatter"]
    assert gathers == [mine] * (2 * m * LAYERS) and scatters == [mine] * (m * LAYERS)


@pytest.mark.parametrize("stage", [2, 3])
def test_experts_that_nobody_shares_add_up_in_place_and_are_not_sent(stage: int) -> None:
    p = program(4, 4, stage)
    sent = [o for o in ops(p) if isinstance(o, Collective) and o.group != "ep" and any("experts.fc" in r.name for r in (*o.reads, *o.writes))]
    assert sent == [] and p.buffers["L0.experts.fc1.weight.grad"].persistent


def repeated(p: Program) -> list[str]:
    return [k.name for o in ops(p) if isinstance(o, Compute) and o.label.phase == "R" and o.label.layer == 0 for k in o.kernels]


def test_modules_of_experts() -> None:
    """Per routed row (two per token), bf16: the activation is F wide; the module keeps nothing but its input, the norm's output, H wide; inside are
    copies and results (2 H), up and gate (2 F), the activation (F), and per token logits, weights and choices (COUNT + 2 x 2 in bf16 and int32)."""
    whole, act, moe = (program(1, 1, 0, 1, recompute=r) for r in ("none", ["moe_act"], ["moe"]))
    rows = 2 * SEQUENCE
    assert kept(whole, 0) - kept(act, 0) == 2 * rows * F
    assert repeated(act) == ["swiglu"]
    per_token = 2 * COUNT + 2 * 2 + 2 * 4
    assert kept(whole, 0) - kept(moe, 0) == 2 * rows * (2 * H + 3 * F) + SEQUENCE * per_token + 4 * COUNT
    assert repeated(moe) == ["linear", "route", "permute", "grouped_linear", "swiglu", "grouped_linear", "combine"]


def test_the_exchanges_of_a_module_are_repeated_with_it() -> None:
    p = program(2, 2, 0, 1, recompute=["moe"])
    again = [o.op for o in ops(p) if isinstance(o, Collective) and o.label.phase == "R" and o.label.layer == 0]
    assert again == ["all_to_all"] * 3  # the counts, rows there, rows back
