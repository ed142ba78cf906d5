"""Key-value heads on several ranks, where tensor parallelism is a multiple of them: bytes, FLOPs and the one sum of their gradients."""

from __future__ import annotations

from typing import Any

import pytest
from layouts import HIDDEN, LLAMA, TOKENS, collectives, held, kept, keys, lowered, ops

import parasim as ps
from parasim.config import build
from parasim.errors import InvalidLayout
from parasim.lowering import lower
from parasim.program.ops import Compute
from parasim.program.workload import Program

LAYERS, HEADS, WIDTH = 6, 8, 4  # of LLAMA: hidden 32 = 8 heads of 4
TP, KV = 8, 2  # every key-value head on four ranks
MODEL = LLAMA | {"kv_heads": KV}


def run(tp: int = TP, model: dict[str, Any] = MODEL, **more: Any) -> ps.Run:
    return build(keys("llama", tp=tp, **more) | {"model": model})


def program(**more: Any) -> Program:
    return lower(run(**more).plan).programs[0]


def test_every_rank_holds_the_copy_of_its_head() -> None:
    """Of a layer: queries h x h / tp, a key and a value h x 2 d in full, output h / tp x h, up and gate 2 h f / tp, down f h / tp, two norms."""
    p = program()
    layer = HIDDEN * HIDDEN // TP + HIDDEN * 2 * WIDTH + HIDDEN // TP * HIDDEN + 3 * HIDDEN * 96 // TP + 2 * HIDDEN
    ends = 2 * 64 * HIDDEN // TP + HIDDEN  # embedding, head, final norm
    assert held(p, "parameters") == 2 * (LAYERS * layer + ends)
    assert p.buffers["L0.kv.weight"].shape == (HIDDEN, 2 * WIDTH) and p.buffers["L0.q.weight"].shape == (HIDDEN, HEADS // TP * WIDTH)


def test_the_product_computes_its_columns_once_and_attention_its_own_heads() -> None:
    p = program()
    dims = {k.name: k.dims for o in ops(p) if isinstance(o, Compute) and o.label.layer == 0 for k in o.kernels if k.name in ("linear", "attention")}
    first = next(k for o in ops(p) if isinstance(o, Compute) for k in o.kernels if k.name == "linear")
    # one product of tokens x h with (heads / tp + 2) d columns, in two weights; one query head, one key-value head
    assert first.dims == (TOKENS, HIDDEN, (HEADS // TP + 2) * WIDTH, 2)
    assert dims["attention"] == (2, 16, 1, 1, WIDTH)


def test_their_gradients_are_summed_once_a_step_over_the_ranks_of_a_head() -> None:
    p = program(m=3)
    assert collectives(p, "tp.kv") == [("all_reduce", 2 * LAYERS * HIDDEN * 2 * WIDTH)]


def test_groups_are_neighbours_along_tp() -> None:
    w = lower(run(dp=2).plan)
    assert w.groups["tp.kv"].tolist() == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]]
    assert w.coordinates["tp.head"].tolist() == [0, 0, 0, 0, 1, 1, 1, 1] * 2


def test_activations_hold_a_key_and_a_value_per_rank() -> None:
    """Kept of the packed projections: (heads / tp + 2) d columns, once before and once after the rotation (the first dies in the forward)."""
    cut, copied = lowered("llama", tp=4)[1].programs[0], program(tp=4)
    assert cut.buffers["L0.rotary.out"].shape == (TOKENS, (2 + 2) * WIDTH)  # 4 key-value heads over tp 4: two query heads, one of each
    assert copied.buffers["L0.rotary.out"].shape == (TOKENS, (2 + 2) * WIDTH)  # 2 of them over tp 4, copied: the same
    assert kept(cut, 0) == kept(copied, 0)


def test_the_report_says_that_heads_are_copied() -> None:
    report = ps.simulate_run(run()).report
    said = "parallel.tp 8: each of the 2 key-value heads is on 4 ranks, which sum its gradients once a step"
    assert said in report.to_json()["assumptions"]


def test_what_neither_divides_is_refused_with_the_nearest() -> None:
    with pytest.raises(InvalidLayout, match=r"parallel.tp=6 must divide model.kv_heads=4, or be a multiple of them .* legal: 1, 2, 4, 12"):
        run(6, LLAMA | {"heads": 12, "kv_heads": 4, "hidden": 48})
