"""Whole steps of every pipeline schedule: as long as the bare schedule with the same times, and what DualPipe's two copies and overlap cost."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from layouts import collectives, held, lowered, messages, ops

from parasim import time_schedule
from parasim.config import build
from parasim.cost.profile import datasheet
from parasim.errors import InvalidLayout
from parasim.lowering import lower
from parasim.program.checks import verify
from parasim.program.ops import COMPUTE, Collective, Compute
from parasim.program.workload import Workload
from parasim.report.accounting import step_window
from parasim.schedules import SCHEDULES
from parasim.sim import simulate
from parasim.timeline import Timeline
from parasim.topology.builders import ideal

TIMES = (1.0, 1.25, 0.75)


def plan_keys(name: str, p: int, m: int, times: tuple[float, float, float] = TIMES, **pipeline: Any) -> dict[str, Any]:
    """A model of given times with one layer per stage; `times` are F, I, W of a rank's share (of each of its two stages under dualpipe)."""
    row = SCHEDULES[name]
    chunks = pipeline.get("chunks", row.chunks)
    share = chunks if row.placement.shares else 1
    names = {k: f"{t / share} s" for k, t in zip(("forward", "input_grad", "weight_grad"), times, strict=True)}
    return {
        "model": {"kind": "fixed", "layers": row.placement.stages(p, chunks), "boundary": "1000 B"} | names,
        "cluster": "h100-hgx-ib400",
        "devices": p,
        "batch": {"global": m, "micro": 1, "sequence": 1},
        "parallel": {"pp": p},
        "pipeline": {"schedule": name} | pipeline,
    }


def run(w: Workload, c: float) -> Timeline:
    """On a network of latency c that nothing else slows down."""
    return simulate(w, ideal(w.world, c), datasheet())


def cases() -> list[tuple[str, int, str]]:
    """(schedule, ranks, communication model)"""
    legal = [(name, p) for name in SCHEDULES for p in (2, 3, 4) if name != "dualpipe" or p % 2 == 0]
    return [(name, p, comm) for name, p in legal for comm in ("async", "stream", "blocking") if comm == "async" or p == 4]


@pytest.mark.parametrize(("name", "p", "comm"), cases())
def test_as_long_as_the_bare_schedule(name: str, p: int, comm: str) -> None:
    """Makespan, start and end of every rank, with and without latency. In a run the searches know no message time: both go without."""
    m, chunks = 2 * p, {} if SCHEDULES[name].fixed else {"chunks": 2}
    workload = lower(build(plan_keys(name, p, m, comm=comm, **chunks)).plan)
    for c in (0.0,) if "times" in SCHEDULES[name].knobs else (0.0, 0.05):
        timeline = run(workload, c)
        study = time_schedule(name, p, m, times=TIMES, comm=c, comm_model=comm, **chunks)[0]
        assert timeline.makespan == pytest.approx(study.makespan, rel=1e-9)
        busy = [timeline.ops[(timeline.ops["rank"] == r) & (timeline.ops["kind"] == 0) & (timeline.ops["stage"] >= 0)] for r in range(p)]
        busy = [rows[rows["end"] > rows["start"]] for rows in busy]
        assert [float(rows["start"].min()) for rows in busy] == pytest.approx(study.rank_start)
        assert [float(rows["end"].max()) for rows in busy] == pytest.approx(study.rank_end)


def period(keys: dict[str, Any]) -> float:
    """Seconds of a step."""
    return step_window(run(lower(build(keys).plan), 0.0)).length


@pytest.mark.parametrize("p", [2, 4])
def test_post_validation_makes_the_span_the_period(p: int) -> None:
    """ZB-H2 at equal times, m >= 2p - 1, O = 0.5 s of optimizer: the barrier pays m T + (p - 1) F + O, post-validation m T + O (Qi et al. 2023)."""
    m = 2 * p
    keys = plan_keys("zb-h2", p, m, (1.0, 1.0, 1.0))
    keys["model"] |= {"optimizer": "0.5 s", "parameters": 100}
    assert period(keys) == pytest.approx(3 * m + p - 1 + 0.5)
    keys["pipeline"]["optimizer"] = "post-validation"
    assert period(keys) == pytest.approx(3 * m + 0.5)


@pytest.mark.parametrize("name", ["naive", "gpipe", "1f1b", "zb-h1", "zb-v", "dualpipe", "dualpipe-v", "interleaved-1f1b"])
def test_post_validation_is_never_slower(name: str) -> None:
    """Its period is at least the longest span of a rank, and at most that of the barrier. 1F1B gains nothing: rank 0 starts first and ends last."""
    keys = plan_keys(name, 4, 8)
    keys["model"]["parameters"] = 100
    slow = period(keys)
    keys["pipeline"]["optimizer"] = "post-validation"
    w = lower(build(keys).plan)
    assert w.steps == 2 and verify(w) == ()
    fast = step_window(run(w, 0.0)).length
    study = time_schedule(name, 4, 8, times=TIMES)[0]
    span = max(e - s for s, e in zip(study.rank_start, study.rank_end, strict=True))
    assert span - 1e-9 <= fast <= slow + 1e-9
    if name in ("naive", "gpipe", "1f1b"):
        assert fast == pytest.approx(slow)


def test_the_norm_goes_up_in_the_step_and_comes_back_in_the_next_warm_up() -> None:
    """p - 1 messages of 4 bytes each way; the check of rank r of 4 stands before forward min(2 (3 - r), warm-up - 1) of the second step."""
    _, w = lowered("mlp", pp=4, m=8, pipeline={"schedule": "zb-h2", "optimizer": "post-validation"})
    for r, program in enumerate(w.programs):
        second = [c.body for c in program.calls if c.step == 1 and c.body[0] in "Fc"]
        assert second.index("check") == min(2 * (3 - r), 2 * (4 - r) - 2)
        assert messages(program).count(4) == 2 * (r < 3) + (r > 0)  # up in both steps, back once
    _, alone = lowered("mlp", m=2, pipeline={"optimizer": "post-validation"})
    assert alone.steps == 1


def test_dualpipe_holds_everything_twice() -> None:
    """Rank r has stages r and p - 1 - r, so together the ranks hold two copies; their gradients are summed over both holders, each once."""
    for pp in (2, 4):
        plan, w = lowered("mlp", pp=pp, dp=2, m=2 * pp, pipeline={"schedule": "dualpipe", "layers": [6 // pp + (s < 6 % pp) for s in range(pp)]})
        _, plain = lowered("mlp", pp=pp, dp=2, m=2 * pp)
        for category in ("parameters", "gradients", "optimizer"):
            assert sum(held(program, category) for program in w.programs) == 2 * sum(held(program, category) for program in plain.programs)
        for r, program in enumerate(w.programs):
            assert {o.label.stage for o in ops(program) if isinstance(o, Compute) and o.label.phase == "F"} == {r, pp - 1 - r}
            assert held(program, "parameters") == held(w.programs[pp - 1 - r], "parameters")
            both = collectives(program, "pp.mirror")
            assert {op for op, _ in both} == {"all_reduce"} and sum(n for _, n in both) == held(program, "gradients")
        at = w.coordinates["pp"]
        assert all(at[a] + at[b] == pp - 1 for a, b in w.groups["pp.mirror"].tolist()) and len(w.groups["pp.mirror"]) == w.world // 2
        assert plan.layout.pipeline.chunks == 2


def test_a_gradient_summed_over_one_holder_only_is_refused() -> None:
    _, w = lowered("mlp", pp=2, m=4, pipeline={"schedule": "dualpipe"})

    def without(body: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(o for o in body if not (isinstance(o, Collective) and o.group == "pp.mirror"))

    bad = replace(w, programs=tuple(replace(p, bodies={k: without(b) for k, b in p.bodies.items()}) for p in w.programs))
    assert any("is reduced over pp.mirror 0 times in step 0, due once" in str(v) for v in verify(bad))


def test_a_pair_overlaps_its_collectives() -> None:
    """While both halves of a pair have work, the tensor-parallel sums that one waits for are off the compute stream; alone they are on it."""
    _, w = lowered("llama", pp=2, tp=2, m=8, pipeline={"schedule": "dualpipe-v", "layers": [1, 2, 2, 1]})
    body = next(b for n, b in w.programs[0].bodies.items() if "&" in n)
    streams = [o.stream for o in body if isinstance(o, Collective) and o.group == "tp"]
    assert "tp.overlap" in streams
    alone = w.programs[0].bodies["F0"]
    assert {o.stream for o in alone} == {COMPUTE}
    sequential = sum(len([o for o in w.programs[0].bodies[n] if isinstance(o, Collective)]) for n in ("F0", "B3"))
    pair = w.programs[0].bodies["F0&B3"]
    assert len([o for o in pair if isinstance(o, Collective)]) == sequential


def test_layers_of_the_first_and_the_last_stage() -> None:
    """As Megatron-LM's first and last counts; the others share the rest: 6 = 1 + 2 + 2 + 1."""
    for written, layers in (({"first": 1, "last": 1}, (1, 2, 2, 1)), ({"first": 3}, (3, 1, 1, 1)), ({"last": 2}, (1, 2, 1, 2)), ("auto", (1, 2, 2, 1))):
        assert lowered("mlp", pp=4, pipeline={"layers": written})[0].layout.pipeline.layers == layers
    with pytest.raises(InvalidLayout, match=r"pipeline.layers=\[5, 0, 0, 1\] leaves a stage without a layer"):
        lowered("mlp", pp=4, pipeline={"layers": {"first": 5, "last": 1}})


def test_the_group_and_the_memory_cap_of_a_run() -> None:
    """`group` of interleaved 1F1B and `memory_cap` of zb-auto reach the schedule; elsewhere they are refused."""
    plan, w = lowered("mlp", pp=2, m=4, pipeline={"schedule": "interleaved-1f1b", "chunks": 2, "group": 4, "layers": [2, 1, 1, 2]})
    first = [c.body for c in w.programs[0].calls if c.body[0] == "F"][:5]
    assert plan.layout.pipeline.group == 4 and first == ["F0"] * 4 + ["F2"]
    _, capped = lowered("mlp", pp=2, m=6, pipeline={"schedule": "zb-auto", "memory_cap": [2, 1]})
    for rank, cap in ((0, 2), (1, 1)):
        alive = peak = 0
        for call in capped.programs[rank].calls:
            alive += (call.body[0] == "F") - (call.body[0] in "WB")
            peak = max(peak, alive)
        assert peak == cap
    with pytest.raises(InvalidLayout, match=r"pipeline.group=4 means nothing to 1f1b"):
        lowered("mlp", pp=2, pipeline={"group": 4})
    with pytest.raises(InvalidLayout, match=r"pipeline.memory_cap=\(3 numbers\) must be one number, or one for each of the 2 ranks"):
        lowered("mlp", pp=2, pipeline={"schedule": "zb-auto", "memory_cap": [1, 2, 3]})


def test_the_search_knows_the_flops_of_every_stage() -> None:
    """F = 2 t h f x 2 per MLP layer, I and W the same; 1 : 2 : 2 : 1 layers. Where a model's times are given, they are the hints."""
    plan, _ = lowered("mlp", pp=4, m=8, pipeline={"schedule": "zb-1p"})
    one = 2.0 * 2 * 16 * 32 * 64 * 2
    assert plan.layout.pipeline.times == tuple((n * one,) * 3 for n in (1, 2, 2, 1))
    given = build(plan_keys("zb-2p", 3, 6)).plan.layout.pipeline.times
    assert given == (TIMES,) * 3
    head, _ = lowered("llama", pp=2, pipeline={"schedule": "zb-auto"})
    assert head.layout.pipeline.times is not None
    (f0, _, w0), (f1, _, w1) = head.layout.pipeline.times
    assert f1 - f0 == w1 - w0 == 2 * 2 * 16 * 32 * 64  # the head on the last stage: 2 tokens hidden vocab
    assert lowered("mlp", pp=2)[0].layout.pipeline.times is None
