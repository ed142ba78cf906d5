"""summarize: every key of the contract, with values that follow from the drawing."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from timeline_sketch import Sketch

from parasim.model.layers import model_flops
from parasim.model.spec import Fixed
from parasim.report import Tried, doesnotfit, summarize
from parasim.report.accounting import step_window
from parasim.report.network import link_use
from parasim.timeline import COLLECTIVE
from tests.contract import REPORT_KEYS

AXES = ("tp", "cp", "ep", "dp", "pp")


def test_the_contract(pipeline: Sketch, run: Any) -> None:
    pipeline.hold(0, "weights", "parameters", 600)
    pipeline.hold(0, "x", "activations", 200, 0, 8)
    pipeline.hold(1, "weights", "parameters", 700)
    t = pipeline.timeline(recomputed_flops={"matmul": 100.0, "attention": 30.0}, events=12, wall_s=0.5, lowering_s=0.25, classes=2, capacity_bytes=1000.0)
    out = summarize(t, run).to_json()
    assert next(iter(out)) == "schema"
    assert out["schema"] == "parasim.report/1"
    assert set(REPORT_KEYS) <= set(out)
    assert (out["step_time_s"], out["world_size"]) == (8.0, 2)
    assert out["tokens_per_s"] == 2 / 8  # one sequence of two tokens in 8 s
    assert out["tokens_per_s_per_device"] == 2 / 8 / 2
    flops = model_flops(run.plan.model, 2, 2)
    assert out["model_flops"] == flops
    assert out["mfu"] == flops / (8 * 2 * 100)
    assert out["hardware_flops"] == flops + 100 + 2 * 30  # attention kernels skip the masked half, model FLOPs do not
    assert out["hfu"] == out["hardware_flops"] / (8 * 2 * 100)
    # compute: rank 0 4 s, rank 1 2 s; spans 8 and 2; ideal is the 4 s of rank 0
    assert (out["bubble_makespan"], out["bubble_span"], out["bubble_over_ideal"]) == (0.5, 0.5, 1.0)
    times = out["time_s"]
    assert (times["compute"], times["idle"], times["optimizer"]) == (3.0, 3.5, 0.0)
    assert times["exposed"] == {"tp": 0, "cp": 0, "ep": 0, "dp": 0, "pp": 1.5}
    assert set(times["overlapped"]) == set(AXES)
    assert out["comm_bytes"]["pp"] == (100 + 60) / 2
    memory = out["memory"]
    assert memory["peak_bytes"] == 800 == sum(memory["by_category"].values())
    assert memory["per_stage_peak_bytes"] == [800, 700]
    assert (memory["capacity_bytes"], memory["headroom_bytes"], memory["fits"], memory["peak_rank"]) == (1000, 200, True, 0)
    assert any("NCCL" in e for e in memory["excluded"])
    first, second = out["stages"]
    assert (first["stage"], first["rank"], first["compute_s"], first["idle_s"], first["slack_s"]) == (0, 0, 4.0, 3.0, 0.0)
    assert (second["stage"], second["rank"], second["compute_s"], second["exposed_s"]["pp"], second["slack_s"]) == (1, 1, 2.0, 2.0, 3.0)
    assert out["engine"] == {"ranks": 2, "classes": 2, "events": 12, "wall_s": 0.5, "lowering_s": 0.25}
    assert out["cost_usd_per_step"] == pytest.approx(36 * 2 * 8 / 3600)
    assert out["uncertainty"] is None
    assert "layers are split evenly" in out["assumptions"]
    assert out["provenance"]["source"] == "simulated"
    assert out["provenance"]["inputs"] == {"run.yaml": "0123"}
    json.dumps(out, allow_nan=False)


def test_times_of_every_stage_sum_to_the_step(pipeline: Sketch, run: Any) -> None:
    out = summarize(pipeline.timeline(), run).to_json()
    for row in out["stages"]:
        assert row["compute_s"] + row["idle_s"] + sum(row["exposed_s"].values()) == pytest.approx(out["step_time_s"], rel=1e-9)


def test_bare_meta_and_fixed_times(pipeline: Sketch, run: Any) -> None:
    plan = run.plan
    run.plan = type(plan)(Fixed("given", 2, 1.0, 1.0, 1.0), plan.layout)
    run.cluster.price = None
    out = summarize(pipeline.timeline(), run).to_json()
    assert out["model_flops"] is out["mfu"] is out["hfu"] is out["hardware_flops"] is out["cost_usd_per_step"] is None
    assert out["engine"]["events"] is None
    assert out["memory"]["capacity_bytes"] == 1000  # of the accelerator
    assert out["memory"]["peak_bytes"] == 0


def test_measured_without_memory_claims_nothing(pipeline: Sketch, run: Any) -> None:
    report = summarize(pipeline.timeline(source="measured"), run)
    memory = report.to_json()["memory"]
    assert memory["peak_bytes"] is memory["fits"] is memory["headroom_bytes"] is None
    assert "peak" not in str(report).split("stages")[0]


def test_a_step_of_no_length_has_no_ratios(sketch: Sketch, run: Any) -> None:
    sketch.add(0, "F", 0, 0)
    out = summarize(sketch.timeline(), run).to_json()
    assert out["step_time_s"] == 0.0
    assert out["tokens_per_s"] is out["mfu"] is out["bubble_makespan"] is out["bubble_over_ideal"] is None
    str(summarize(sketch.timeline(), run))


def test_infinity_never_reaches_json(pipeline: Sketch, run: Any) -> None:
    out = summarize(pipeline.timeline(capacity_bytes=float("inf"), wall_s=float("nan")), run).to_json()
    assert out["memory"]["capacity_bytes"] is out["engine"]["wall_s"] is None
    json.dumps(out, allow_nan=False)


def test_a_kept_rank_counts_as_often_as_it_stands_for_others(pipeline: Sketch, run: Any) -> None:
    t = pipeline.timeline(representative=[0, 1, 1, 1])
    out = summarize(t, run).to_json()
    assert out["world_size"] == 4
    assert out["time_s"]["compute"] == (4 + 3 * 2) / 4
    assert out["comm_bytes"]["pp"] == (100 + 3 * 60) / 4


def test_a_rank_with_two_stages_appears_in_both(sketch: Sketch, run: Any) -> None:
    sketch.add(0, "F", 0, 1, stage=0)
    sketch.add(0, "F", 1, 4, stage=1)
    sketch.add(0, "S", 4, 5)
    rows = summarize(sketch.timeline(), run).to_json()["stages"]
    assert [(r["stage"], r["rank"], r["compute_s"], r["own_compute_s"]) for r in rows] == [(0, 0, 5.0, 1.0), (1, 0, 5.0, 3.0)]


def test_transfers_without_an_axis_are_kept_apart(sketch: Sketch, run: Any) -> None:
    sketch.add(0, "F", 0, 1)
    sketch.add(0, "barrier", 1, 2, kind=COLLECTIVE)
    assert summarize(sketch.timeline(), run).to_json()["time_s"]["exposed"]["other"] == 1.0


def test_link_use(sketch: Sketch) -> None:
    # 30 bytes in [1, 2] on each of two 50 B/s ports, of which a third moves nothing; 10 bytes in [2, 4] on the one spine; step 10 s
    sketch.add(0, "F", 0, 10)
    a = sketch.add(0, "reduce", 1, 2, stream="dp.reduce", axis="dp")
    b = sketch.add(0, "reduce", 2, 4, stream="dp.reduce", axis="dp")
    sketch.move(a, 0, 30.0)
    sketch.move(b, 1, 10.0)
    links = (("port", "nic", 50.0, 2), ("trunk", "spine", 20.0, 1), ("spare", "nic", 50.0, 1))
    t = sketch.timeline(representative=[0, 0], links=links)
    nic, spine = link_use(t, step_window(t))
    assert (nic.kind, nic.busiest, nic.busiest_mean, nic.peak) == ("nic", "port", 30 / (50 * 10), 0.6)
    assert nic.mean == pytest.approx((2 * 0.06 + 0.0) / 3)
    assert (spine.kind, spine.busiest_mean, spine.peak) == ("spine", 10 / (20 * 10), 0.25)


def test_link_peak_counts_an_end_before_a_start(sketch: Sketch) -> None:
    for k in range(4):
        op = sketch.add(0, "send", k, k + 1, stream="pp.send", axis="pp")
        sketch.move(op, 0, 7.0)
    t = sketch.timeline(links=(("port", "nic", 10.0, 1),))
    (use,) = link_use(t, step_window(t))
    assert (use.mean, use.peak) == pytest.approx((0.7, 0.7))


def test_text_says_what_matters(pipeline: Sketch, run: Any) -> None:
    pipeline.hold(0, "weights", "parameters", 1200)
    text = str(summarize(pipeline.timeline(), run))
    for words in ("tiny on 2 x toy", "8 s", "exposed pp", "idle", "DOES NOT FIT", "slack", "layers are split evenly", "fragmentation"):
        assert words in text


def test_does_not_fit_names_stage_part_and_way_out(pipeline: Sketch, run: Any) -> None:
    pipeline.hold(0, "weights", "parameters", 300)
    pipeline.hold(1, "weights", "parameters", 300)
    pipeline.hold(1, "h1", "activations", 900, 3, 5)
    report = summarize(pipeline.timeline(), run)
    text = doesnotfit(report, run)
    for words in ("stage 1 (rank 1)", "toy has 1 kB", "200 B too much", "activations 900 B", "h1 900 B", "recompute=full"):
        assert words in text
    fits = doesnotfit(report, run, [Tried("recompute=full", 800.0), Tried("batch.micro=1", 1100.0)])
    assert "fits with: --set recompute=full (800 B)" in fits
    assert "batch.micro" not in fits
    assert "nearest: --set batch.micro=1" in doesnotfit(report, run, [Tried("batch.micro=1", 1100.0)])


def test_report_is_the_same_twice(pipeline: Sketch, run: Any) -> None:
    t = pipeline.timeline()
    assert json.dumps(summarize(t, run).to_json()) == json.dumps(summarize(t, run).to_json())
    assert np.array_equal(t.ops, pipeline.timeline().ops)
