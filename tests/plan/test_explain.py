"""The critical path and what the step depends on, against things known by hand."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from parasim.config import Run, build
from parasim.cost.profile import datasheet
from parasim.lowering import lower
from parasim.lowering.study import Study, lower_study
from parasim.plan.critical_path import blame, critical_path
from parasim.plan.explain import explain
from parasim.plan.sensitivity import sensitivities
from parasim.report import step_window
from parasim.schedules import SCHEDULES, ScheduleInput
from parasim.sim import simulate
from parasim.topology.builders import ideal

RANKS = 4
GB = 1e9
LINKS = [
    {"a": a, "b": b, "kind": "dcn" if (a, b) == ("g2", "g3") else "nic", "bandwidth": "1 GB/s" if (a, b) == ("g2", "g3") else "50 GB/s", "latency": "1 us"}
    for a, b in (("g0", "g1"), ("g1", "g2"), ("g2", "g3"))
]
CHAIN = {"name": "chain", "accelerator": "h100-sxm", "nodes": [{"id": f"g{i}", "kind": "gpu"} for i in range(RANKS)], "links": LINKS}


def slow_link() -> Run:
    """p = 4, m = 8, a chain of devices whose last link is 50 times slower."""
    model = {"kind": "fixed", "layers": RANKS, "forward": "1 ms", "input_grad": "1 ms", "weight_grad": "1 ms", "boundary": "10 MB"}
    return build({"model": model, "cluster": CHAIN, "devices": RANKS, "batch": {"global": 8, "micro": 1}, "parallel": {"pp": RANKS}})


def test_the_path_crosses_the_slow_link_and_its_derivative_is_a_finite_difference() -> None:
    run = slow_link()
    found = explain(run)
    crossing = [s for s in found.path.segments if s.kind == "transfer" and {s.stage} <= {2, 3}]
    assert crossing and sum(s.seconds for s in crossing) >= 2 * 10e6 / GB  # forward of the first, backward of the last microbatch: 10 MB at 1 GB/s
    row = next(s for s in found.sensitivities if s.name == "dcn bandwidth")
    assert row.value == GB and row.elasticity == min(s.elasticity for s in found.sensitivities)
    workload, steps = lower(run.plan), []
    for factor in (0.995, 1.005):  # an own central difference
        links = tuple(k._replace(bandwidth=k.bandwidth * factor) if k.kind == "dcn" else k for k in run.cluster.links)
        steps.append(step_window(simulate(workload, replace(run.cluster, links=links), run.profile)).length)
    assert row.derivative == pytest.approx((steps[1] - steps[0]) / (0.01 * GB), rel=0.01)


def test_the_path_has_no_gaps_and_is_the_step() -> None:
    found = explain(slow_link())
    path = found.path.segments
    assert path[0].start == found.path.start == 0.0 and path[-1].end == found.path.end == found.report.step_time
    assert all(abs(a.end - b.start) < 1e-9 for a, b in pairwise(path))
    assert sum(s.seconds for s in path) == pytest.approx(found.report.step_time, rel=1e-12)
    assert sum(found.path.by(lambda s: s.kind).values()) == pytest.approx(found.report.step_time, rel=1e-12)


def test_without_transfers_the_path_of_1f1b_is_compute_and_elasticities_sum_to_minus_one() -> None:
    """1F1B, p = 3, m = 4, F = 1, B = 2 without messages: the step is (m + p - 1) 3 = 18 s, all of it compute on the path."""
    orders = SCHEDULES["1f1b"](ScheduleInput(3, 4))
    timeline = simulate(lower_study(Study(orders, 1, (1.0, 1.0, 1.0), (), "async")), ideal(3, 0.0), datasheet(), fold=False)
    path = critical_path(timeline)
    assert path.by(lambda s: s.kind)["compute"] == pytest.approx(18.0)
    assert path.by(lambda s: s.stage)[2] == pytest.approx(12.0)  # the last stage: m (F + B)


def test_a_path_never_runs_an_op_before_what_it_waits_for() -> None:
    run = build(
        {
            "model": {"kind": "mlp", "layers": 4, "hidden": 512},
            "cluster": "h100-hgx-ib400",
            "devices": 16,
            "batch": {"global": 32, "micro": 1, "sequence": 512},
            "parallel": {"tp": 2, "pp": 2},
            "zero": {"stage": 1},
        }
    )
    timeline = simulate(lower(run.plan), run.cluster, run.profile)
    path = critical_path(timeline)
    ops = timeline.ops
    assert all(ops["start"][s.row] <= s.start + 1e-12 and s.end <= ops["end"][s.row] + 1e-12 for s in path.segments if s.kind != "wait")
    assert not [s for s in path.segments if s.kind == "wait"]
    assert {s.axis for s in path.segments if s.kind == "transfer"} >= {"tp", "dp"}
    assert np.isclose(sum(s.seconds for s in path.segments), step_window(timeline).length)


def test_stages_wait_for_the_stage_before_them_while_the_pipeline_fills() -> None:
    """m = 1: stage s waits s (F + message) for its first forward, and stage 0 at last for the others; with messages of 10 MB at 50 GB/s or 1 GB/s."""
    run = slow_link()
    plan = replace(run.plan, layout=replace(run.plan.layout, batch=replace(run.plan.layout.batch, global_=1, microbatches=1)))
    found = blame(simulate(lower(plan), run.cluster, run.profile))
    assert found[1, 0, "pp"] == pytest.approx(1e-3)  # the forward of stage 0
    assert found[2, 1, "pp"] == pytest.approx(2e-3 + 10e6 / (50 * GB) + 1e-6)  # two forwards and the message between them


def test_compute_alone_has_elasticity_one() -> None:
    """One rank of a model bound by FLOPs and memory: step = a / FLOP/s + b / memory bandwidth, so the two elasticities sum to -1."""
    run = build(
        {
            "model": {"kind": "mlp", "layers": 2, "hidden": 1024},
            "cluster": "h100-hgx-ib400",
            "devices": 1,
            "batch": {"global": 2, "micro": 1, "sequence": 1024},
        }
    )
    rows = {s.name: s.elasticity for s in sensitivities(run)}
    assert rows["h100-sxm bf16"] + rows["h100-sxm memory bandwidth"] == pytest.approx(-1.0, abs=2e-3)
    assert rows["all latencies"] == 0.0
