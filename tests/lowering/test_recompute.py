"""What is kept from forward to backward, and what runs again: the models and formulas of Korthikanti et al. 2022 (arXiv 2205.05198)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from functools import cache
from typing import Any

import pytest
from layouts import HIDDEN, TOKENS, kept, keys, lowered, ops

from parasim.config import build
from parasim.cost.pricing import flops
from parasim.errors import InvalidLayout
from parasim.lowering import lower
from parasim.memory import memory_peak
from parasim.model.layers import layer_activation_bytes
from parasim.program.ops import P2P, Collective, Compute
from parasim.program.workload import Program, Workload
from parasim.sim import simulate

S, TP = 2048, 8
PAPER = {"22B": (4, 6144, 64), "175B": (1, 12288, 96), "530B": (1, 20480, 128), "1T": (1, 25600, 160)}  # b, h, a: table 3
UNFUSED = {"attention": "unfused", "dropout": True}


@cache
def korthikanti(model: str, tp: int, sp: bool, recompute: str) -> Workload:
    """Three layers of a model of the paper, fp16, unfused attention with dropout."""
    b, h, a = PAPER[model]
    gpt = {"layers": 3, "hidden": h, "heads": a, "vocab": 51200, "activation": "gelu", "bias": True, "positions": "learned", "max_positions": S}
    run = build(
        {
            "model": {"kind": "transformer", **gpt},
            "cluster": "a100-hgx-ib200",
            "devices": tp,
            "batch": {"global": 2 * b, "micro": b, "sequence": S},
            "precision": "fp16",
            "parallel": {"tp": tp},
            "tensor": {"sequence_parallel": sp},
            "recompute": recompute,
            "kernels": UNFUSED,
        }
    )
    return lower(run.plan)


CASES = {  # equations 1, 2, 4, then 5 (selective with tensor parallelism only), 6 and full recomputation, in units of s b h
    (1, False, "none"): lambda x, t: 34 + x,
    (TP, False, "none"): lambda x, t: 10 + 24 / t + x / t,
    (TP, True, "none"): lambda x, t: (34 + x) / t,
    (TP, False, "selective"): lambda x, t: 10 + 24 / t,
    (TP, True, "selective"): lambda x, t: 34 / t,
    (1, False, "full"): lambda x, t: 2,
}
PRINTED = {  # bytes of one layer of the 175B model, evaluated by hand for s b h = 25,165,824 and 5 a s / h = 80
    (1, False, "none"): 2_868_903_936,
    (TP, False, "none"): 578_813_952,
    (TP, True, "none"): 358_612_992,
    (TP, False, "selective"): 327_155_712,
    (TP, True, "selective"): 106_954_752,
    (1, False, "full"): 50_331_648,
}


@pytest.mark.parametrize("model", PAPER)
@pytest.mark.parametrize(("tp", "sp", "recompute"), CASES, ids=str)
def test_activations_of_a_layer(model: str, tp: int, sp: bool, recompute: str) -> None:
    b, h, a = PAPER[model]
    due = S * b * h * CASES[tp, sp, recompute](5 * a * S / h, tp)
    assert kept(korthikanti(model, tp, sp, recompute).programs[0], 1) == round(due)
    if model == "175B":
        assert due == PRINTED[tp, sp, recompute]


def test_the_closed_form_of_a_selective_layer() -> None:
    b, h, a = PAPER["175B"]
    gpt = {"kind": "transformer", "layers": 3, "hidden": h, "heads": a, "vocab": 8, "activation": "gelu"}
    model = build(keys("gpt") | {"model": gpt}).plan.model
    formula = layer_activation_bytes(model, b, S, tp=TP, sequence_parallel=True, attention="materialised", dropout=True, recompute="selective")
    assert formula == PRINTED[TP, True, "selective"]


def repeated(program: Program) -> Counter[str]:
    """Kernels of phase R in one step."""
    return Counter(k.name for o in ops(program) if isinstance(o, Compute) and o.label.phase == "R" for k in o.kernels)


def work(program: Program, phases: str) -> float:
    return sum(flops(k) for o in ops(program) if isinstance(o, Compute) and o.label.phase in phases and o.label.layer >= 0 for k in o.kernels)


@pytest.mark.parametrize(("recompute", "share"), [("selective", 4 * S / (72 * 12288 + 12 * S)), ("full", 1 / 3)])
def test_flops_computed_again(recompute: str, share: float) -> None:
    """The core is 4 b s^2 h of 72 b s h^2 + 12 b s^2 h (0.9 % at 175B); a whole forward is a third of forward and backward."""
    program = korthikanti("175B", 1, False, recompute).programs[0]
    assert work(program, "R") / work(program, "FB") == pytest.approx(share, rel=1e-12)


def test_selective_repeats_the_core_and_nothing_else() -> None:
    _, w = lowered("gpt", m=2, recompute="selective", kernels=UNFUSED)
    assert repeated(w.programs[0]) == dict.fromkeys(("attention_scores", "causal_softmax", "dropout", "attention_context"), 2 * 6)


def test_selective_saves_little_with_tiled_attention() -> None:
    """Only the log-sum-exp, 4 bytes per head and token, is not kept."""
    whole, core = (lowered("gpt", m=2, recompute=r)[1].programs[0] for r in ("none", "selective"))
    assert kept(whole, 2) - kept(core, 2) == 4 * 8 * TOKENS


def test_early_stop_leaves_out_the_last_linear_layer() -> None:
    """Nothing after the GELU is needed: torch's checkpoint stops there, Megatron-LM's repeats the whole forward (12 = 2 microbatches x 6 layers)."""
    whole, early = (lowered("gpt", m=2, recompute={"modules": "full", "early_stop": e})[1].programs[0] for e in (False, True))
    assert (repeated(whole)["linear"], repeated(early)["linear"]) == (12 * 4, 12 * 3)
    assert (repeated(whole)["residual_add"], repeated(early)["residual_add"]) == (12 * 2, 12)
    assert kept(whole, 2) == kept(early, 2)


@pytest.mark.parametrize(("method", "layers", "due"), [("block", 2, [1, 1, 0, 0, 0, 0]), ("uniform", 3, [1, 0, 0, 1, 0, 0])])
def test_chosen_layers(method: str, layers: int, due: list[int]) -> None:
    """block: the first layers keep their input, the others everything; uniform: the first layer of each group keeps its input, the others nothing."""
    _, w = lowered("gpt", m=2, recompute={"modules": "full", "method": method, "layers": layers})
    whole = lowered("gpt", m=2)[1].programs[0]
    inputs = 2 * TOKENS * HIDDEN
    rest = kept(whole, 2) if method == "block" else 0
    assert [kept(w.programs[0], n) for n in range(6)] == [inputs if one else rest for one in due]


@pytest.mark.parametrize(
    ("modules", "saved"),
    [
        (["layernorm"], 2 * 2 * HIDDEN),  # the outputs of both norms
        (["act"], 2 * 4 * HIDDEN),
        (["mlp"], 2 * 8 * HIDDEN),  # up projection and GELU; the module's input stays
        (["layernorm", "mlp"], 2 * (2 + 8) * HIDDEN),  # now not its input either
        (["qkv"], 2 * 3 * HIDDEN),
    ],
)
def test_modules_are_not_kept(modules: list[str], saved: int) -> None:
    whole, some = (lowered("gpt", m=2, recompute=r)[1].programs[0] for r in ("none", modules))
    assert kept(whole, 2) - kept(some, 2) == saved * TOKENS


def test_zero_bubble_keeps_what_was_recomputed_until_the_weight_gradient() -> None:
    """I makes a layer's activations again; those that W reads live until W, so that a rank holds them for each microbatch whose W is pending."""

    def alive(schedule: str, buffer: str) -> int:
        run = build(keys("gpt", pp=3, m=6, pipeline={"schedule": schedule}, recompute="full"))
        t = simulate(lower(run.plan), run.cluster, run.profile)
        rows = t.memory[(t.memory["rank"] == t.representative[2]) & (t.memory["buffer"] == t.buffers.index(buffer))]
        level, most = 0, 0
        for delta in rows[rows["time"].argsort(kind="stable")]["delta"]:
            level += 1 if delta > 0 else -1
            most = max(most, level)
        return most

    assert alive("1f1b", "L4.act.out") == 1
    assert alive("zb-h1", "L4.act.out") == 3  # rank 2 of 3 defers two weight gradients: three are pending when the next I ends


@pytest.mark.parametrize(("schedule", "body"), [("1f1b", "B0"), ("zb-h1", "I0")])
def test_forwards_run_again_when_the_gradient_is_there(schedule: str, body: str) -> None:
    """Megatron-LM and torch receive before they call a backward, which is what runs the forwards again; the last stage, whose loss is its own, has
    nothing to wait for."""
    _, w = lowered("llama", pp=2, recompute="full", pipeline={"schedule": schedule})
    program = w.programs[0]
    gate, first = program.bodies[body][:2]
    assert isinstance(gate, Compute) and (gate.kernels[0].name, gate.kernels[0].dims) == ("delay", (0.0,)) and first.label.phase == "R"
    r = program.resolved
    gates = [i for i in range(len(r)) if r.op(i).label.phase == gate.label.phase]
    assert len(gates) == 4  # one for each microbatch
    for i in gates:
        assert [m.channel for j in r.waits(i) for o in [r.op(j)] if isinstance(o, P2P) for m in o.recvs] == ["B1"]
    assert all(op.label.phase != gate.label.phase for ops in w.programs[1].bodies.values() for op in ops)


def test_whole_layers_are_gathered_before_the_gradient_is_there() -> None:
    _, w = lowered("llama", pp=2, dp=2, recompute="full", zero={"stage": 3})
    before = []
    for op in w.programs[0].bodies["B0"]:
        if isinstance(op, Compute):
            assert op.kernels[0].name == "delay"
            break
        before.append(op)
    assert [isinstance(op, Collective) and op.op for op in before] == ["all_gather"] * 2  # of the last layer, and of one ahead


def test_buffers_are_in_the_same_order_in_every_process() -> None:
    """Several buffers are kept and made again for one module: their order must not be that of a set of names."""
    keys_ = keys("gpt", pp=2, precision="fp8", recompute=["core_attn", "mlp"], pipeline={"schedule": "zb-h1"})
    script = f"from parasim.config import build; from parasim.lowering import lower; print([list(p.buffers) for p in lower(build({keys_!r}).plan).programs])"
    said = {subprocess.check_output([sys.executable, "-c", script], env=os.environ | {"PYTHONHASHSEED": seed}) for seed in ("1", "2", "3")}
    assert len(said) == 1 and b".again" in said.pop()


def test_recompute_lowers_the_peak_step_by_step() -> None:
    def peak(recompute: Any) -> float:
        run = build(keys("gpt", micro=8, recompute=recompute, kernels=UNFUSED))
        return memory_peak(simulate(lower(run.plan), run.cluster, run.profile), 0).by_category["activations"]

    full, selective, none = peak("full"), peak("selective"), peak("none")
    assert full < selective < none


@pytest.mark.parametrize(
    ("model", "more", "text"),
    [
        ("mlp", {"recompute": "selective"}, "recompute.modules=core_attn is no part of this model's layers; legal: none, full, mlp, act"),
        ("gpt", {"recompute": ["moe"]}, "recompute.modules=moe is no part of this model's layers; legal: none, full, layernorm, qkv"),
        ("gpt", {"recompute": {"modules": ["act"], "layers": 2}}, "recompute.layers=2 chooses among whole layers; leave it out, or write"),
        ("mlp", {"kernels": {"dropout": True}}, "kernels.dropout=true is modelled for transformers; legal: false"),
    ],
)
def test_refusals(model: str, more: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidLayout) as error:
        build(keys(model, **more))
    assert text in str(error.value)
