"""Expert parallelism: who is in which group, what moves, what a rank holds, and what a load of experts does to a step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from parasim import simulate
from parasim.config import build
from parasim.errors import InvalidLayout
from parasim.lowering import lower
from parasim.parallel.layout import Degrees
from parasim.parallel.mesh import Mesh
from parasim.program.checks import verify
from parasim.program.ops import AXES, Collective, Compute
from parasim.program.workload import Workload
from tests.lowering.layouts import ops

H, F, SEQUENCE = 64, 32, 128
ALL_TO_ONE = {"shares": [1, 0, 0, 0, 0, 0, 0, 0]}


def run_of(ep: int = 8, dp: int = 8, topk: int = 1, tp: int = 1, experts: dict[str, Any] | None = None, **more: Any) -> Any:
    model = {"kind": "transformer", "layers": 1, "hidden": H, "heads": 4, "ffn": 96, "vocab": 64, "experts": {"count": 8, "topk": topk, "ffn": F}}
    keys = {
        "model": model, "cluster": "h100-hgx-ib400", "devices": dp * tp, "batch": {"global": dp, "micro": 1, "sequence": SEQUENCE},
        "parallel": {"ep": ep, "dp": dp, "tp": tp}, "experts": experts or {}, "tensor": {"sequence_parallel": tp > 1},
    }  # fmt: skip
    return build(keys | more)


def rows(workload: Workload, rank: int, kernel: str = "grouped_linear") -> list[int]:
    return [int(k.dims[0]) for o in ops(workload.bound.program_of(rank)) if isinstance(o, Compute) for k in o.kernels if k.name == kernel]


def test_ep_retiles_dp_with_expert_replicas_across():
    """world = tp dp pp = 2 x 4 x 1, ep 2: neighbours along dp share out experts; those at equal places hold the same."""
    mesh = Mesh(Degrees(tp=2, dp=4, ep=2))
    assert mesh.experts["ep"].tolist() == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert mesh.experts["edp"].tolist() == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert mesh.expert_coordinate.tolist() == [0, 0, 1, 1, 0, 0, 1, 1]
    both = Mesh(Degrees(cp=2, dp=2, ep=4))  # over dp x cp, cp first
    assert both.experts["ep"].tolist() == [[0, 1, 2, 3]] and both.experts["edp"].shape == (4, 1)


@pytest.mark.parametrize("ep", [1, 2, 8])
def test_routed_rows_do_not_depend_on_ep(ep: int):
    """s = 4096 tokens to topk = 8 of 8 experts: 32,768 rows per rank, whatever ep is."""
    workload = lower(run_of(ep, topk=8, batch={"global": 8, "micro": 1, "sequence": 4096}).plan)
    assert set(rows(workload, 0)) == {32_768}


def test_two_exchanges_forward_and_two_back_of_every_routed_row():
    workload = lower(run_of(ep=8, topk=2).plan)
    program = workload.bound.program_of(0)
    moved = [o for o in ops(program) if isinstance(o, Collective) and o.op == "all_to_all"]
    assert [o.label.phase for o in moved] == ["F", "F", "F", "B", "B"]  # the first tells the counts
    assert [program.nbytes(o.reads) for o in moved] == [8 * 4, *[SEQUENCE * 2 * H * 2] * 4]  # int32 per expert; tokens x topk x h in bf16


@pytest.mark.parametrize("ep", [1, 2, 4, 8])
def test_a_rank_holds_its_experts_and_reduces_them_over_their_replicas(ep: int):
    workload = lower(run_of(ep).plan)
    program = workload.program_of(0)
    assert program.buffers["L0.experts.fc1.weight"].shape == (8 // ep, H, 2 * F)
    assert program.buffers["L0.experts.fc2.weight"].shape == (8 // ep, F, H)
    reduced = {r.name: o.group for o in ops(program) if isinstance(o, Collective) and o.op == "all_reduce" for r in o.reads}
    assert reduced.get("L0.experts.fc1.weight.grad") == {1: "dp", 8: None}.get(ep, "edp")  # with ep = dp nobody else has them
    assert reduced["L0.router.weight.grad"] == "dp"


def test_experts_are_cut_by_tp_as_well():
    """Each rank routes s/tp tokens; a rank's part of its experts sees the rows of all tp ranks."""
    workload = lower(run_of(ep=2, dp=2, tp=2, topk=2).plan)
    program = workload.bound.program_of(0)
    assert program.buffers["L0.experts.fc1.weight"].shape == (4, H, 2 * F // 2)
    assert program.buffers["L0.experts.copies"].shape == (SEQUENCE // 2 * 2, H)
    assert set(rows(workload, 0)) == {SEQUENCE * 2}


def test_all_tokens_to_one_expert():
    """Its rank computes 8 times the even rows, the others none; what enters it bounds the exchange; no token is lost."""
    even, hot = lower(run_of().plan), lower(run_of(experts={"load": ALL_TO_ONE}).plan)
    assert [set(rows(hot, r)) for r in range(8)] == [{8 * SEQUENCE}] + [{0}] * 7
    assert sum(rows(hot, r)[0] for r in range(8)) == 8 * SEQUENCE == sum(rows(even, r)[0] for r in range(8))
    assert len(hot.programs) == 1 and len(hot.bound.programs) == 2
    assert hot.loads["experts.out"].sum(axis=1) == pytest.approx([1 / 8] * 8)  # parts of the largest buffer, 8 ranks' rows
    run = run_of(experts={"load": ALL_TO_ONE})
    times = {}
    for name, w in (("even", even), ("hot", hot)):
        timeline = simulate(w, run.cluster, run.profile)
        exchange = timeline.ops[(timeline.ops["kind"] == 1) & (timeline.ops["phase"] == timeline.phases.index("F"))]
        times[name] = float((exchange["end"] - exchange["start"]).max())
        assert simulate(w, run.cluster, run.profile, fold=False).makespan == pytest.approx(timeline.makespan, rel=1e-9)
    latency = 2e-6  # at most: the exchange has one step
    sent = SEQUENCE * H * 2
    assert times["hot"] - times["even"] == pytest.approx((7 - 7 / 8) * sent / 450e9, abs=latency / 1000)  # 7 ranks send all to one, 450 GB/s


def test_zipf_loads_are_whole_rows_and_shares_stay_below_one_per_token():
    workload = lower(run_of(topk=2, experts={"load": {"zipf": 1.5}}).plan)
    arriving = workload.loads["experts.arriving"]
    assert arriving.sum() == 8 * SEQUENCE * 2 and (np.diff(arriving) <= 0).all() and arriving[0] == 8 * SEQUENCE  # at most every token once
    assert not verify(workload)


def test_a_load_table_that_loses_rows_is_refused():
    workload = lower(run_of(experts={"load": ALL_TO_ONE}).plan)
    broken = replace(workload, loads={**workload.loads, "experts.out": workload.loads["experts.out"] * 0.5})
    assert any("by load table experts.out" in v.rule for v in verify(broken))


def test_capacity_bounds_what_one_rank_sends_one_expert():
    """ceil(1.5 x 128 / 8) = 24 rows of each of 8 ranks."""
    workload = lower(run_of(experts={"load": ALL_TO_ONE, "capacity": 1.5}).plan)
    assert set(rows(workload, 0)) == {8 * 24}
    assert workload.bound.program_of(3).buffers["L0.experts.copies"].shape == (24, H)


def test_node_limited_dispatch_sends_a_row_per_server():
    run = run_of(ep=8, topk=4, experts={"max_nodes": 2})
    program = lower(run.plan).bound.program_of(0)
    out = next(o for o in ops(program) if isinstance(o, Collective) and o.copies == "per_node")
    assert program.nbytes(out.reads) * 2 == program.nbytes(out.writes) == SEQUENCE * 4 * H * 2
    model = {"kind": "transformer", "layers": 1, "hidden": H, "heads": 4, "ffn": 96, "vocab": 64, "experts": {"count": 16, "topk": 4, "ffn": F}}
    crossed = []
    for experts in ({}, {"max_nodes": 2}):  # 16 experts on two servers
        run = run_of(ep=16, dp=16, model=model, experts=experts)
        timeline = simulate(lower(run.plan), run.cluster, run.profile, fold=False)
        exchanges = np.nonzero((timeline.ops["axis"] == AXES.index("ep")) & (timeline.ops["phase"] == timeline.phases.index("F")))[0]
        nics = [i for i, link in enumerate(timeline.links) if link[1] == "nic"]
        flows = timeline.flows[np.isin(timeline.flows["op"], exchanges) & np.isin(timeline.flows["link"], nics)]
        crossed.append(float(flows["bytes"].sum()))
    assert 0 < crossed[1] == pytest.approx(crossed[0] / 2, rel=0.02)  # of 4 experts 2 are on the other server: a row instead of two; counts cross as before


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        ({"ep": 3}, "parallel.ep=3 must divide dp x cp = 8; legal: 1, 2, 4, 8"),
        ({"ep": 16, "dp": 16}, "parallel.ep=16 must divide model.experts.count=8; legal: 1, 2, 4, 8"),
        ({"experts": {"load": {"shares": [0.5, 0.5]}}}, "must be one per expert, model.experts.count=8; legal: 8 shares"),
        ({"experts": {"load": {"shares": [1] * 8}}}, "must be parts of 1; they sum to 8; divide them by their sum"),
        ({"topk": 2, "experts": {"load": ALL_TO_ONE}}, "gives one expert 1 of all assignments"),
        ({"experts": {"load": {"zipf": -1}}}, "experts.load=zipf -1 is no exponent of experts' popularity; legal: 0 (even) to 10"),
        ({"tp": 2, "tensor": {"sequence_parallel": False}}, "must be true for experts with parallel.tp=2"),
        ({"model": {"kind": "mlp", "layers": 2, "hidden": 8}}, "parallel.ep=8 needs experts, and this model has none; legal: 1"),
    ],
)
def test_rules(layout: dict[str, Any], message: str):
    with pytest.raises(InvalidLayout) as caught:
        run_of(**layout)
    assert message in str(caught.value)
