"""search: its bounds are bounds, its winner is the brute-force winner, its layouts are what the configuration resolves."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from parasim.config import Run, load, vary
from parasim.errors import InvalidLayout, Malformed, Refused
from parasim.lowering import lower
from parasim.plan.bounds import Bounds
from parasim.plan.objective import Limits
from parasim.plan.orders import least_inflight
from parasim.plan.search import search
from parasim.plan.search_report import as_text, to_json
from parasim.plan.space import AXES, Space, axes, space, template
from parasim.report import Report, summarize
from parasim.schedules import SCHEDULES, ScheduleInput, singles
from parasim.sim import simulate

DENSE = {"kind": "transformer", "layers": 6, "hidden": 512, "heads": 8, "kv_heads": 4, "vocab": 1024, "ffn": 2048}
SPARSE = DENSE | {"layers": 4, "experts": {"count": 4, "topk": 2, "ffn": 512}}
MLP = {"kind": "mlp", "layers": 8, "hidden": 1024}
BASE = {"cluster": "h100-hgx-ib400", "devices": 16, "batch": {"global": 32, "micro": 1, "sequence": 512}, "profile": "h100-megatron"}


def written(tmp_path: Path, **keys: object) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(BASE | keys))
    return path


def report_of(run: Run) -> Report:
    return summarize(simulate(lower(run.plan), run.cluster, run.profile), run)


@pytest.fixture(scope="module")
def spaces(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Run, Bounds, Space]]:
    """For each model its legal layouts on 16 devices, with every axis and schedule, and a run that holds the cluster."""
    out = []
    for i, model in enumerate((DENSE, SPARSE, MLP)):
        path = written(tmp_path_factory.mktemp(str(i)), model=model)
        start = template(path, [])
        asked = {"recompute.layers": ["1", "2", "99"]} | ({} if model is MLP else {"parallel.cp": ["1", "2", "4"]})
        found = space(start, 16, axes(start, 16, asked, {}))
        assert {way.schedule for group in found.groups for way in group.ways} == set(SCHEDULES) - {"naive"}
        run = vary(start, found.candidate(found.groups[0], found.groups[0].ways[0]).overrides)
        out.append((run, Bounds(run), found))
    return out


@settings(max_examples=30, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(which=st.integers(0, 2), number=st.integers(0, 10**6), way=st.integers(0, 10**6))
def test_bounds_are_below_what_the_engine_says(spaces: list[tuple[Run, Bounds, Space]], which: int, number: int, way: int) -> None:
    """Bound of the way <= step, closed form <= replay <= simulated step, and so for peak memory; the layout is what the configuration resolves."""
    run, bounds, found = spaces[which]
    group = found.groups[number % len(found.groups)]
    candidate = found.candidate(group, group.ways[way % len(group.ways)])
    try:
        resolved = vary(run, candidate.overrides)
        assert resolved.plan.layout == candidate.layout
        report = report_of(resolved)
    except InvalidLayout:  # by a rule of its schedule, which the space leaves to those that may win
        return
    layout = candidate.layout
    steps, nbytes = bounds.ways(candidate.layout, group.ways)
    step, memory = steps[way % len(group.ways)], nbytes[way % len(group.ways)]
    assert 0 < step <= report.step_time and 0 < memory <= report.memory.peak.nbytes, candidate.name
    assert bounds.quick(layout) <= bounds.step(layout) <= bounds.refined(layout) <= report.step_time, candidate.name
    assert bounds.memory(layout) <= bounds.refined_memory(layout) <= report.memory.peak.nbytes, candidate.name


@pytest.mark.parametrize("schedule", sorted(set(SCHEDULES) - {"naive"}))
def test_what_is_in_flight_at_least_is_in_flight_at_some_instant(schedule: str) -> None:
    """Of every rank, for 2 to 6 ranks: the count of each stage is reached, all at once, by the very order of the schedule."""
    row = SCHEDULES[schedule]
    for p, m, chunks in ((p, m, c) for p in (2, 3, 4, 6) for m in (1, 3, 4, 12, 13) for c in ([row.chunks] if row.fixed else [2, 3])):
        stages = row.placement.stages(p, chunks)
        least = least_inflight(schedule, p, m, np.array([row.placement.rank(s, 0, p, m) for s in range(stages)]))
        try:
            made = row(ScheduleInput(p, m, chunks, times=(1.0, 1.0, 1.0) if "times" in row.knobs else None))
        except InvalidLayout:
            continue
        for r in range(p):
            alive, reached = np.zeros(stages, dtype=int), False
            for kind, stage, _ in singles(made[r]):
                reached |= bool((alive >= least[r]).all())
                alive[stage] += (kind == "F") - (kind in "BI")
            assert reached, (p, m, chunks, r)


NARROW = ["pipeline.schedule=1f1b,zb-auto,dualpipe-v", "pipeline.chunks=2", "zero.stage=0,1", "batch.micro=2", "recompute=none", "parallel.tp=1,2"]


TAPERED = {
    "name": "tapered",
    "accelerator": "h100-sxm",
    "node": {"count": "auto", "devices": 4, "scale_up": {"kind": "switch", "bandwidth": "450 GB/s", "latency": "1 us"}},
    "scale_out": {"kind": "rail-fat-tree", "nic_per_device": 1, "bandwidth": "400 Gb/s", "latency": "2 us", "pod_nodes": 2, "oversubscription": 7},
}


@pytest.mark.parametrize(("model", "cluster"), [(DENSE, "h100-hgx-ib400"), (SPARSE, "h100-hgx-ib400"), (DENSE, TAPERED)])
def test_the_top_is_that_of_brute_force(tmp_path: Path, model: dict[str, object], cluster: object) -> None:
    path = written(tmp_path, model=model, cluster=cluster)
    varied = [*NARROW, "parallel.pp=1,4", "parallel.ep=1,2", "parallel.cp=1,2", "tensor.sequence_parallel=true"]
    found = search(path, [], 16, varied=varied, top=3, runs=10**6)
    start = template(path, [])
    values = {k: [yaml.safe_load(x) for x in v.split(",")] for k, v in (text.split("=") for text in varied)}
    run, steps = None, []
    for candidate in space(start, 16, axes(start, 16, {k: [str(x).lower() for x in v] for k, v in values.items()}, {})).candidates:
        try:
            run = vary(run or start, candidate.overrides)
            steps.append((report_of(run).step_time, candidate.name))
        except InvalidLayout:
            continue
    steps.sort()
    assert found.proven and found.gap == 0.0
    assert [f.report.step_time for f in found.best[:3]] == pytest.approx([s for s, _ in steps[:3]], rel=1e-12)
    assert len(found.found) < len(steps)  # some were bounded away


FEW = ["batch.micro=1", "pipeline.schedule=1f1b,zb-v", "recompute=none"]


def test_counts_add_up_and_the_page_says_them(tmp_path: Path) -> None:
    found = search(written(tmp_path, model=MLP), ["zero.stage=1"], 16, top=3, varied=["parallel.tp=1,2,3", *FEW])
    out = json.loads(json.dumps(to_json(found)))
    assert out["enumerated"] == out["refused"] + out["bounded"] + out["simulated"]
    assert len(out["top"]) == 3 and out["top"][0]["step_time_s"] <= out["top"][1]["step_time_s"]
    assert {row["layout"]["zero.stage"] for row in out["top"]} == {1}  # pinned by --set
    assert out["refused_by_reason"]["devices"] > 0  # 16 is no multiple of 3
    assert set(out["varied"]) == set(AXES)
    assert "bounded away" in as_text(found) and out["why"]


def test_constraints_hold_and_one_that_nothing_meets_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, model=MLP)
    found = search(path, [], 16, constraints=["pp>=2", "tp=2"], top=2, varied=FEW)
    assert all(f.candidate.layout.degrees.pp >= 2 and f.candidate.layout.degrees.tp == 2 for f in found.found)
    with pytest.raises(Refused, match=r"none of .* layouts is legal, fits and meets the constraints"):
        search(path, [], 16, constraints=["peak_memory_bytes<=1MiB"], varied=FEW)
    with pytest.raises(Refused, match=r"none of .* layouts is legal"):
        search(path, [], 16, varied=["parallel.tp=3", *FEW])


@pytest.mark.parametrize(
    "flags",
    [
        {"varied": ["parallel.tpp=1,2"]},
        {"varied": ["zero.stage=7"]},
        {"varied": ["pipeline.schedule=1f2b"]},
        {"objective": "speed"},
        {"constraints": ["mfuu>=0.4"]},
        {"constraints": ["mfu"]},
        {"constraints": ["mfu>=much"]},
        {"objective": "time-to-target"},
    ],
)
def test_nonsense_is_malformed(tmp_path: Path, flags: dict[str, list[str]]) -> None:
    with pytest.raises(Malformed):
        search(written(tmp_path, model=MLP), [], 16, **flags)  # type: ignore[arg-type]


def test_objectives_rank_by_what_they_name(tmp_path: Path) -> None:
    path, narrow = written(tmp_path, model=MLP), ["batch.micro=1", "pipeline.schedule=1f1b", "recompute=none,full", "parallel.tp=1,4"]
    small = search(path, [], 16, objective="memory", top=1, varied=narrow).best[0]
    fast = search(path, [], 16, top=1, varied=narrow).best[0]
    assert small.report.memory.peak.nbytes <= fast.report.memory.peak.nbytes and fast.report.step_time <= small.report.step_time
    assert Limits.of(["peak_memory_bytes<=70GiB"]).memory == 70 * 2**30


def test_ways_to_overlap_are_left_out_and_the_settings_say_so(tmp_path: Path) -> None:
    """User buffers need sequence parallelism on one server, which not every layout has; what is printed can be run on the file."""
    path = tmp_path / "run.yaml"
    path.write_text(
        """\
model: {kind: transformer, layers: 2, hidden: 256, heads: 4, vocab: 512}
cluster: h100-hgx-ib400
devices: 4
batch: {global: 4, micro: 1, sequence: 64}
parallel: {tp: 2}
tensor: {sequence_parallel: true, user_buffers: true, async: true}
"""
    )
    found = search(path, [], 4, runs=3)
    best = found.best[0].candidate
    assert "tensor.user_buffers=false" in best.overrides and "tensor.async=false" in best.overrides
    assert load(path, best.overrides).plan.layout == best.layout
