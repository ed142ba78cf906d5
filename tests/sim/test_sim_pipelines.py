"""Makespans of pipelines with communication against closed forms, as bare schedules and through the whole lowering; the memory bound."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_sim_folding import CLUSTERS, layouts, plan_of, rails

from parasim.config import build
from parasim.cost.profile import datasheet
from parasim.lowering import lower
from parasim.lowering.study import Study, lower_study
from parasim.memory import memory_bound, memory_peak
from parasim.program.checks import verify
from parasim.schedules import SCHEDULES, ScheduleInput
from parasim.sim import simulate
from parasim.topology.builders import ideal
from parasim.topology.loader import load_cluster

MODEST = settings(max_examples=30, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
seconds = st.integers(4, 16).map(lambda n: n / 8)
short = st.integers(0, 4).map(lambda n: n / 32)  # at most a quarter of the shortest time


def closed(name: str, p: int, m: int, total: float, c: float) -> float:
    """naive: m (p T + 2 (p-1) c); GPipe: (m + p - 1) T + 2 (p-1) c; 1F1B, p | m, c small: (m + p - 1) T + c (2 (p-1) m / p + 2 (p-2)).

    T = forward + backward of one microbatch on one rank. 1F1B pays c on 2 (p-1) links once per p microbatches: its latency never amortises.
    """
    if name == "naive":
        return m * (p * total + 2 * (p - 1) * c)
    if name == "gpipe":
        return (m + p - 1) * total + 2 * (p - 1) * c
    return (m + p - 1) * total + c * (2 * (p - 1) * m / p + 2 * (p - 2))


@MODEST
@given(st.sampled_from(("naive", "gpipe", "1f1b")), st.integers(2, 5), st.integers(1, 3), st.tuples(seconds, seconds, seconds), short)
def test_bare_schedules(name: str, p: int, turns: int, times: tuple[float, float, float], c: float) -> None:
    m = p * turns
    study = Study(SCHEDULES[name](ScheduleInput(p, m)), times=times)
    w = lower_study(study)
    assert verify(w) == ()
    assert simulate(w, ideal(p, c), datasheet()).makespan == pytest.approx(closed(name, p, m, sum(times), c), rel=1e-9)


def fixed(p: int, m: int, times: tuple[float, float, float], **more: Any) -> dict[str, Any]:
    names = dict(zip(("forward", "input_grad", "weight_grad"), (f"{t} s" for t in times), strict=True))
    keys = {"model": {"kind": "fixed", "layers": p, "boundary": "1000 B"} | names, "cluster": "h100-hgx-ib400", "devices": p}
    return keys | {"batch": {"global": m, "micro": 1, "sequence": 1}, "parallel": {"pp": p}} | more


@MODEST
@given(st.sampled_from(("naive", "gpipe", "1f1b")), st.integers(2, 5), st.integers(1, 3), st.tuples(seconds, seconds, seconds), short, st.booleans())
def test_lowered_schedules(name: str, p: int, turns: int, times: tuple[float, float, float], c: float, fold: bool) -> None:
    """One layer per stage and messages of 1000 bytes: c is the latency plus 1000 bytes over the bandwidth."""
    m = p * turns
    w = lower(build(fixed(p, m, times, pipeline={"schedule": name})).plan)
    cluster = ideal(p, c / 2, 2000 / c) if c else ideal(p, 0.0)
    assert simulate(w, cluster, datasheet(), fold=fold).makespan == pytest.approx(closed(name, p, m, sum(times), c), rel=1e-9)


@MODEST
@given(
    st.sampled_from(("gpipe", "1f1b")),
    st.integers(1, 5),
    st.integers(1, 9),
    st.tuples(seconds, seconds, seconds),
    st.sampled_from(("async", "stream", "blocking")),
)
def test_without_communication_time_all_models_agree(name: str, p: int, m: int, times: tuple[float, float, float], comm: str) -> None:
    """(m + p - 1) T for any m when messages take no time, whatever streams they are on (1F1B: order permitting)."""
    w = lower(build(fixed(p, m, times, pipeline={"schedule": name, "comm": comm})).plan)
    got = simulate(w, ideal(p, 0.0), datasheet()).makespan
    due = (m + p - 1) * sum(times)
    # a rendezvous on an in-order stream can make a sender wait for its receiver; it can never be faster
    assert got == pytest.approx(due, rel=1e-9) if comm == "async" else got >= due * (1 - 1e-9)


def test_steps_of_a_slow_last_stage() -> None:
    """Sum of stages + (m - 1) x the slowest, F = [1, 1, 1, 2] and B = 2 F: 15 + 7 x 6 = 57 (nnscaler issue 30), through the lowering too."""
    keys = fixed(4, 8, (1.0, 1.0, 1.0), pipeline={"layers": [1, 1, 1, 2]})
    keys["model"]["layers"] = 5
    assert simulate(lower(build(keys).plan), ideal(4, 0.0), datasheet()).makespan == pytest.approx(57)


@MODEST
@given(layouts((1, 2, 4, 8)), st.sampled_from(("none", "full")), st.sampled_from(sorted(CLUSTERS)))
def test_the_memory_bound_is_below_the_exact_peak(layout: dict[str, Any], recompute: str, cluster: str) -> None:
    """Stream order alone never promises more bytes than the exact curve reaches, also where the optimizer takes no time."""
    w = lower(plan_of(layout | {"recompute": recompute}))
    t = simulate(w, load_cluster(CLUSTERS[cluster], w.world), datasheet())
    for rank in t.ranks:
        bound, exact = memory_bound(w.program_of(rank).resolved), memory_peak(t, rank).nbytes
        assert 0 < bound <= exact


def test_the_memory_bound_is_tight() -> None:
    """Where compute decides the peak the bound is the peak; received inputs and buckets in flight are what it may miss."""
    for cut in ({}, {"tp": 2}, {"dp": 2}):
        run = build(
            {
                "model": {"kind": "transformer", "layers": 4, "hidden": 64, "heads": 4, "vocab": 128},
                "cluster": rails(8),
                "devices": 2 if cut else 1,
                "batch": {"global": 16, "micro": 4, "sequence": 64},
                "parallel": cut,
            }
        )
        w = lower(run.plan)
        t = simulate(w, run.cluster, run.profile)
        assert memory_bound(w.programs[0].resolved) == pytest.approx(memory_peak(t, 0).nbytes, rel=0.02)


def test_the_memory_bound_ignores_ops_of_no_time() -> None:
    """ZeRO-1 under an optimizer of 0 s: a gradient shard dies at the instant at which the updated parameters are born, never beside them."""
    keys = fixed(2, 2, (1.0, 1.0, 1.0), devices=8, parallel={"pp": 2, "dp": 4}, zero={"stage": 1}, dp={"mode": "flat"})
    keys["model"] |= {"parameters": 1e6, "boundary": "10 B"}
    w = lower(build(keys | {"batch": {"global": 8, "micro": 1, "sequence": 1}}).plan)
    t = simulate(w, load_cluster(rails(8), 8), datasheet())
    assert all(memory_bound(w.program_of(r).resolved) <= memory_peak(t, r).nbytes for r in t.ranks)
