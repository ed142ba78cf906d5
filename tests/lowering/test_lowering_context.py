"""Context parallelism: what travels, who reduces what, and that attention work is even; against closed forms."""

from __future__ import annotations

from math import prod

import pytest
from layouts import HIDDEN, SEQUENCE, keys, ops

from parasim.config import build
from parasim.lowering import lower
from parasim.model.layers import parameters
from parasim.program.ops import P2P, Collective, Compute
from parasim.program.workload import Workload
from parasim.sim import simulate

MICRO, LAYERS, HEAD_DIM, KV_HEADS, BF16 = 2, 6, 4, 4, 2


def run(cp: int, style: str, *, tp: int = 1, dp: int = 1, m: int = 1, **more: object):
    text = keys("llama", tp=tp, dp=dp, m=m, context={"style": style}, **more)
    text["devices"] = tp * dp * cp
    text["parallel"]["cp"] = cp
    return build(text)


def sent(w: Workload, phases: str) -> list[int]:
    """Bytes of every message over cp in those phases."""
    program = w.programs[0]
    return [program.nbytes((m.buffer,)) for o in ops(program) if isinstance(o, P2P) and o.label.phase in phases for m in o.sends]


@pytest.mark.parametrize(("cp", "tp"), [(2, 1), (4, 1), (4, 2)])
def test_a_ring_sends_keys_and_values_and_back_their_gradients(cp: int, tp: int) -> None:
    """Liu et al. 2023, section 3: cp - 1 blocks of 2 kv_heads head_dim (s/cp) b forward per layer; as many and as many gradients backward."""
    m = 3
    w = lower(run(cp, "ring", tp=tp, m=m).plan)
    block = 2 * (KV_HEADS // tp) * HEAD_DIM * (SEQUENCE // cp) * MICRO * BF16
    assert sent(w, "F") == [block] * (m * LAYERS * (cp - 1))
    assert sent(w, "B") == [block] * (m * LAYERS * 2 * (cp - 1))


@pytest.mark.parametrize(("cp", "tp"), [(2, 1), (4, 1), (2, 2)])
def test_heads_are_exchanged_four_times_a_layer(cp: int, tp: int) -> None:
    """Jacobs et al. 2023, section 3: packed qkv and the output forward, their gradients backward; each rank holds 1/cp of the tokens."""
    m = 2
    w = lower(run(cp, "all-to-all", tp=tp, m=m).plan)
    program = w.programs[0]
    exchanges = [o for o in ops(program) if isinstance(o, Collective) and o.group == "cp"]
    tokens = MICRO * SEQUENCE // cp
    qkv, out = (tokens * width // tp * BF16 for width in (HIDDEN + 2 * KV_HEADS * HEAD_DIM, HIDDEN))
    for phase, due in (("F", [qkv, out]), ("B", [out, qkv])):
        assert [program.nbytes(o.reads) for o in exchanges if o.label.phase == phase] == due * (m * LAYERS)
    assert {o.op for o in exchanges} == {"all_to_all"}


@pytest.mark.parametrize("style", ["ring", "all-to-all"])
def test_attention_work_is_even(style: str) -> None:
    """Causal: b a s^2 (d + e) / cp per rank forward and layer, half of all pairs of queries and keys over all ranks."""
    from parasim.cost.pricing import PRICES

    cp = 4
    program = lower(run(cp, style).plan).programs[0]
    kernels = [k for o in ops(program) if isinstance(o, Compute) and o.label.phase == "F" for k in o.kernels if k.name.startswith("attention")]
    flops = sum(PRICES[k.name].flops(k) for k in kernels)
    assert flops == LAYERS * MICRO * 8 * SEQUENCE**2 * 2 * HEAD_DIM / cp


@pytest.mark.parametrize("stage", [0, 1, 3])
def test_gradients_are_reduced_over_dp_and_cp(stage: int) -> None:
    run_ = run(2, "ring", dp=2, m=1, zero={"stage": stage})
    w = lower(run_.plan)
    program = w.programs[0]
    assert w.groups["dp.cp"].tolist() == [[0, 1, 2, 3]]
    assert "dp" not in w.groups
    reduced = [o for o in ops(program) if isinstance(o, Collective) and o.op in ("all_reduce", "reduce_scatter") and o.group == "dp.cp"]
    assert {o.label.axis for o in reduced} == {"dp"}
    assert sum(program.nbytes(o.reads) for o in reduced) == BF16 * parameters(run_.plan.model)
    if stage:
        moments = [b for n, b in program.buffers.items() if n.endswith(".m")]
        assert sum(prod(map(int, b.shape)) for b in moments) == pytest.approx(parameters(run_.plan.model) / 4, rel=0.01)


@pytest.mark.parametrize("style", ["ring", "all-to-all"])
def test_folded_and_unfolded_steps_agree(style: str) -> None:
    run_ = run(4, style, tp=2 if style == "ring" else 1, dp=2)
    w = lower(run_.plan)
    folded, alone = (simulate(w, run_.cluster, run_.profile, fold=fold) for fold in (True, False))
    assert folded.makespan == pytest.approx(alone.makespan, rel=1e-9)
    assert len(set(folded.representative.tolist())) < w.world
