"""Embedding and head cut over the ranks of a pipeline: what each holds, sends and keeps, when the passes run, and what is refused."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from layouts import HIDDEN, LLAMA, TOKENS, counted, held, keys, lowered, ops

import parasim as ps
from parasim.config import build
from parasim.errors import InvalidLayout, ParasimError, Refused
from parasim.lowering.vocabulary import LOGITS, LOOK_UP, LOSS, SCATTER, planned
from parasim.plan.search import search
from parasim.program.ops import Collective, Compute
from parasim.program.workload import Workload

SPLIT = {"pipeline": {"vocabulary": "parallel"}}
PP, M, VOCAB = 3, 6, 64 * 3


def split(model: str = "llama", pp: int = PP, m: int = M, **more: Any) -> Workload:
    return lowered(model, pp=pp, m=m, **SPLIT, **more)[1]


def test_every_rank_holds_a_part_of_both_tables() -> None:
    w = lowered("llama", pp=2, m=4, **SPLIT)[1]
    for p in w.programs:
        assert p.buffers["embedding.weight"].shape == p.buffers["head.weight"].shape == (LLAMA["vocab"] // 2, HIDDEN)
        assert p.buffers["head.weight"].shard == ((0, "pp"),)
        assert p.buffers["logits"].shape == (TOKENS, LLAMA["vocab"] // 2)
    # together as much as one rank: 2 bytes each; norms of the two ends aside, both ranks hold 3 layers
    ends = lowered("llama", pp=2, m=4)[1]
    assert sum(held(p, "parameters") for p in w.programs) == sum(held(p, "parameters") for p in ends.programs)
    assert held(w.programs[1], "parameters") - held(w.programs[0], "parameters") == HIDDEN * 2  # the final norm


def test_a_vocabulary_that_the_ranks_do_not_divide_is_padded() -> None:
    plan, w = lowered("llama", pp=PP, m=M, tp=2, **SPLIT)  # 64 tokens over 2 x 3 parts: 128 x 6 rows
    assert w.programs[0].buffers["head.weight"].shape == (128, HIDDEN)
    assert any(a.startswith("parallel.tp 2 x pp 3: vocabulary padded from 64 to 768, a multiple of 128 x tp x pp") for a in plan.assumptions)


@pytest.mark.parametrize("tp", [1, 2])
def test_what_the_ranks_tell_each_other(tp: int) -> None:
    """Per microbatch the hidden states once to all and their gradient once from all, for the head and for the embedding; 3 bf16 -> fp32 numbers a row."""
    hidden, stats = TOKENS * HIDDEN * 2, TOKENS * 3 * 4
    for p in split(tp=tp).programs:
        assert counted(p, "pp") == {("broadcast", hidden): 2 * M, ("reduce", hidden): 2 * M, ("all_gather", stats * PP * tp): M}


def test_sequence_parallel_parts_travel() -> None:
    for p in split(tp=2, sp=True).programs:
        assert counted(p, "pp")["broadcast", TOKENS // 2 * HIDDEN * 2] == 2 * M


def test_a_tied_table_is_cut_once_and_summed_with_nobody() -> None:
    for p in split("llama-tied").programs:
        assert p.buffers["embedding.weight"].shape == (128, HIDDEN) and "head.weight" not in p.buffers  # 64 rows, 3 ranks: padded to 384
        assert not any(isinstance(o, Collective) and o.group == "embedding" for o in ops(p))


def test_only_the_first_rank_has_positions_and_only_the_last_counts_the_loss() -> None:
    w = split("gpt")
    assert ["positions.weight" in p.buffers for p in w.programs] == [True, False, False]
    kernels = [{k.name for o in ops(p) if isinstance(o, Compute) for k in o.kernels} for p in w.programs]
    assert ["cross_entropy" in names for names in kernels] == [False, False, True]
    assert all({"head", "cross_entropy_stats", "cross_entropy_grad", "head_weight_grad", "embedding_weight_grad"} <= names for names in kernels)


def test_two_more_microbatches_are_in_flight() -> None:
    """min(m, p - r + 2): Yeung et al., two meetings of all ranks between the last forward and its backward."""
    for rank, p in enumerate(split(m=8).programs):
        alive = peak = 0
        for call in p.calls:
            alive += (call.body == f"F{rank}") - (call.body.rstrip("!") == f"B{rank}")
            peak = max(peak, alive)
        assert peak == PP - rank + 2


@settings(max_examples=30, deadline=None)
@given(p=st.integers(2, 6), m=st.integers(1, 9), logits=st.sampled_from([0.0, 0.1, 1.0, 5.0]), last=st.sampled_from([0.5, 1.0, 3.0]))
def test_passes_run_in_an_order_in_which_nobody_waits_for_good(p: int, m: int, logits: float, last: float) -> None:
    """Replayed by ranks that wait for whatever they need: everything runs once, and F and B as 1F1B has them."""
    rows = planned((1.0,) * (p - 1) + (last,), logits, m)
    left, done = [list(row) for row in rows], set[tuple[str, int, int]]()

    def ready(name: str, i: int, rank: int) -> bool:
        everyone = {"F": LOOK_UP if rank == 0 else "", "B": LOSS if rank == p - 1 else "", LOSS: LOGITS}.get(name, "")
        one = {"F": ("F", rank - 1), "B": ("B", rank + 1), LOGITS: ("F", p - 1), SCATTER: ("B", 0)}.get(name)
        met = all((everyone, i, r) in done for r in range(p)) if everyone else True
        return met and (one is None or not 0 <= one[1] < p or (one[0], i, one[1]) in done)

    while any(left):
        able = [r for r, row in enumerate(left) if row and ready(*row[0], r)]
        assert able, left
        for rank in able:
            done.add((*left[rank].pop(0), rank))
    assert all(sorted(row) == sorted((name, i) for name in ("F", "B", LOOK_UP, LOGITS, LOSS, SCATTER) for i in range(m)) for row in rows)
    assert all(a < b for row in rows for name in (LOGITS, LOSS, LOOK_UP, SCATTER) for a, b in pairwise(i for n, i in row if n == name))


def test_the_last_stage_sets_the_pace_no_more() -> None:
    """A head as heavy as 8 layers of a stage of 2: 1 / 10 of the work on the last of 4 stages becomes a quarter of the head each."""
    layer = 12 * 512 * 512  # elements of the matrices of one block, 4 h^2 and 8 h^2
    model = {"kind": "transformer", "layers": 8, "hidden": 512, "heads": 8, "ffn": 2048, "activation": "gelu", "vocab": 8 * layer // 512}
    run = {"model": model, "cluster": "h100-hgx-ib400", "devices": 4, "batch": {"global": 32, "sequence": 1024}, "parallel": {"pp": 4}}
    ends, parallel = (ps.simulate_run(build(run | {"pipeline": {"vocabulary": v}})).report.to_json() for v in ("ends", "parallel"))
    assert ends["model_flops"] == parallel["model_flops"]
    seconds = [s["compute_s"] for s in parallel["stages"]]
    assert max(seconds) < 1.02 * min(seconds)
    # 2 + 8 layers' work against 2 + 2, and warm-ups of (32 + 3) / 32 and of two more hops
    assert 0.35 < parallel["step_time_s"] / ends["step_time_s"] < 0.5


@pytest.mark.parametrize(
    ("more", "field", "text"),
    [
        ({"pipeline": {"vocabulary": "parallel", "schedule": "gpipe"}}, "pipeline.vocabulary", "placed in 1f1b, not in pipeline.schedule=gpipe"),
        ({"pipeline": {"vocabulary": "parallel", "comm": "blocking"}}, "pipeline.vocabulary", "pipeline.comm=blocking would hold up for good"),
        ({"pipeline": {"vocabulary": "parallel", "layers": [0, 3, 3]}}, "pipeline.layers", "leaves a stage without a layer"),
        ({**SPLIT, "offload": {"optimizer": True, "parameters": True}}, "offload.parameters", "not modelled with pipeline.vocabulary=parallel"),
    ],
)
def test_refusals(more: dict[str, Any], field: str, text: str) -> None:
    with pytest.raises(InvalidLayout) as e:
        build(keys("llama", pp=PP, m=M, **more))
    assert any(v.field == field and text in v.rule and v.legal for v in e.value.violations)


def test_a_model_without_a_vocabulary_has_none_to_cut() -> None:
    with pytest.raises(ParasimError, match="cuts embedding and head, and this model has none"):
        build(keys("mlp", pp=PP, m=M, **SPLIT))


def test_without_a_pipeline_there_is_nothing_to_cut() -> None:
    assert lowered("llama", pp=1, **SPLIT)[1].programs[0] == lowered("llama", pp=1)[1].programs[0]


def test_a_search_has_no_bound_for_it(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(keys("llama", pp=PP, m=M, **SPLIT)), encoding="utf-8")
    with pytest.raises(Refused, match=r"pipeline\.vocabulary=parallel has no bound"):
        search(path, [], PP)
