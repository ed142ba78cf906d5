"""Folding by turns of equal pods gives the same partition, links and loads as folding every rank, and is given up wherever something differs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from parasim.collectives.plan import capacity
from parasim.config import build
from parasim.config.run import Run
from parasim.lowering import lower
from parasim.program.workload import Workload
from parasim.sim import simulate
from parasim.sim.fold import Fold, fold
from parasim.sim.instances import Uneven, instances, turning
from parasim.sim.network import slack
from parasim.sim.traffic import Traffic
from parasim.topology.changes import place, scale, slow

DENSE: dict[str, Any] = {
    "model": {"kind": "transformer", "layers": 8, "hidden": 1024, "heads": 16, "vocab": 32000},
    "cluster": "h100-hgx-ib400",  # pods of 32 servers of 8
    "zero": {"stage": 1},
}
SPARSE = DENSE | {"model": DENSE["model"] | {"experts": {"count": 16, "topk": 2, "ffn": 512}}}


def case(devices: int, like: dict[str, Any] = DENSE, m: int = 2, **more: Any) -> Run:
    degrees = more.get("parallel", {})
    replicas = devices // degrees.get("tp", 1) // degrees.get("pp", 1) // degrees.get("cp", 1)
    return build(like | {"devices": devices, "batch": {"global": m * replicas, "micro": 1, "sequence": 1024}, "parallel": degrees} | more)


CASES: dict[str, tuple[Callable[[], Run], int | None]] = {  # and the order of the turn: pods of a circle over those that a turn passes
    "replicas": (lambda: case(1024), 4),
    "tensor parallel": (lambda: case(1024, parallel={"tp": 8}), 4),
    "two stages of two pods": (lambda: case(1024, parallel={"tp": 8, "pp": 2}), 2),
    "stages of a pod": (lambda: case(1024, parallel={"tp": 8, "pp": 4}), None),
    "two stages, eight pods, all parameters gathered": (lambda: case(2048, parallel={"pp": 2}, zero={"stage": 1}), 4),
    "sharded over one pod": (lambda: case(1024, zero={"stage": 3, "shard": 256}), 4),
    "sharded over two pods": (lambda: case(1024, zero={"stage": 3, "shard": 512}), 2),
    "sharded over a server": (lambda: case(1024, zero={"stage": 3, "shard": 8}), 4),
    "context": (lambda: case(1024, parallel={"cp": 4, "tp": 2}), 4),
    "experts": (lambda: case(1024, SPARSE, parallel={"ep": 16}), 4),
    "experts over all": (lambda: case(512, SPARSE | {"model": SPARSE["model"] | {"experts": {"count": 512, "topk": 2, "ffn": 512}}}, parallel={"ep": 512}), 2),
    "a pod that is not whole": (lambda: case(1024 - 8), None),
    "one pod": (lambda: case(256), None),
}


def folds(run: Run, workload: Workload, monkeypatch: pytest.MonkeyPatch) -> tuple[Fold, Fold]:
    """Folded by turns, and rank by rank."""
    rates = capacity(run.cluster, run.profile)
    few = fold(workload, run.cluster, Traffic(workload, run.cluster, run.profile), rates)
    monkeypatch.setattr("parasim.sim.fold.turning", lambda _: None)
    return few, fold(workload, run.cluster, Traffic(workload, run.cluster, run.profile), rates)


@pytest.mark.parametrize("name", CASES)
def test_the_partition_is_that_of_all_ranks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    build_run, order = CASES[name]
    run = build_run()
    workload = lower(run.plan).bound
    found = turning(Traffic(workload, run.cluster, run.profile))
    assert (None if found is None else found[0].order) == order
    few, all_ = folds(run, workload, monkeypatch)
    assert np.array_equal(few.colour, all_.colour)
    assert np.array_equal(few.representative, all_.representative)
    assert few.links == all_.links
    assert few.loads.keys() == all_.loads.keys()
    for kind, loads in few.loads.items():
        assert loads == pytest.approx(all_.loads[kind], rel=1e-12)  # sums in another order


def test_a_turn_is_a_permutation_that_keeps_every_set() -> None:
    run = CASES["two stages, eight pods, all parameters gathered"][0]()
    workload = lower(run.plan)
    found = turning(Traffic(workload, run.cluster, run.profile))
    assert found is not None
    turned, homes = found[0].turned(), found[0].domain[found[0].homes()]
    assert sorted(turned.tolist()) == list(range(2048))
    for table in workload.groups.values():
        assert {frozenset(row) for row in turned[table].tolist()} == {frozenset(row) for row in table.tolist()}
    assert np.array_equal(found[0].turned(found[0].order), np.arange(2048))
    assert np.array_equal(homes[turned], homes)  # an orbit has one home


@pytest.mark.parametrize(
    "change",
    [lambda c: slow(c, 300, 1.2), lambda c: scale(c, "pod1.leaf0-spine3", 0.5), lambda c: place(c, [1, 0, *range(2, 1024)])],
    ids=["a slow device", "a slow link", "another order"],
)
def test_what_differs_ends_the_turn(change: Any) -> None:
    run = CASES["replicas"][0]()
    assert turning(Traffic(lower(run.plan), run.cluster, run.profile)) is not None
    assert turning(Traffic(lower(run.plan), change(run.cluster), run.profile)) is None


def test_a_plan_that_turns_change_is_found_and_all_ranks_are_folded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two binary trees over 512 ranks have a root each, which no turn of their two pods leaves where it is."""
    run = case(512, zero={"stage": 0})
    run = replace(run, profile=replace(run.profile, algorithms={"all_reduce": "tree"}))
    workload = lower(run.plan)
    traffic = Traffic(workload, run.cluster, run.profile)
    found = turning(traffic)
    assert found is not None
    with pytest.raises(Uneven):
        instances(traffic, found)
    few, all_ = folds(run, workload, monkeypatch)
    assert np.array_equal(few.colour, all_.colour)
    assert few.links == all_.links


def test_times_are_those_without_folding() -> None:
    run = case(512, parallel={"tp": 8})  # two pods, a turn of order 2
    workload = lower(run.plan)
    folded, whole = simulate(workload, run.cluster, run.profile), simulate(workload, run.cluster, run.profile, fold=False)
    assert folded.makespan == pytest.approx(whole.makespan, rel=1e-9)
    for rank in (0, 7, 255, 256, 511):
        assert folded.of(rank)["end"] == pytest.approx(whole.of(rank)["end"], rel=1e-9)


def test_links_that_hold_nothing_up_split_no_class() -> None:
    """Rank i of every stage sends over the spine of its slot; the ring of the replicas crosses pods over the spine of slot 0 only. A spine carries
    less than the port below it, so that all ranks of a stage are alike; under spines of half the bandwidth those at the ends of pods are not."""
    layout: dict[str, Any] = {"parallel": {"tp": 8, "pp": 2}, "zero": {"stage": 1}}
    full = case(1024, **layout)
    net = {"kind": "rail-fat-tree", "nic_per_device": 1, "bandwidth": "400 Gb/s", "latency": "2 us", "pod_nodes": 32, "oversubscription": 2}
    inside = {"kind": "switch", "bandwidth": "450 GB/s", "latency": "1 us"}
    half = case(1024, **layout, cluster={"accelerator": "h100-sxm", "node": {"devices": 8, "scale_up": inside}, "scale_out": net})
    classes, idle = {}, {}
    for name, run in (("full", full), ("half", half)):
        workload = lower(run.plan)
        found = fold(workload, run.cluster, Traffic(workload, run.cluster, run.profile), capacity(run.cluster, run.profile))
        classes[name], idle[name] = len(found.representatives), {found.links[c][1] for c in found.slack}
    assert classes == {"full": 2, "half": 4}
    assert "spine" in idle["full"]
    assert "spine" not in idle["half"]


def test_slack_links_change_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    run = case(1024, parallel={"tp": 8, "pp": 2})
    workload = lower(run.plan)
    without = simulate(workload, run.cluster, run.profile)
    monkeypatch.setattr("parasim.sim.network.slack", lambda *_: set())
    monkeypatch.setattr("parasim.sim.fold._Refinement._slack", lambda self, _: np.zeros(len(self.used), dtype=bool))
    compared = simulate(workload, run.cluster, run.profile)
    assert len(compared.ranks) > len(without.ranks)
    assert compared.makespan == pytest.approx(without.makespan, rel=1e-12)
    for rank in (0, 31 * 8, 256, 512, 1023):
        assert compared.of(rank)["end"] == pytest.approx(without.of(rank)["end"], rel=1e-12)


def test_a_link_is_slack_below_one_that_carries_the_same_and_is_fuller() -> None:
    """Kind 0 over links 0, 1 and 2, kind 1 over 1 and 2: link 0 carries a part of what 1 does, link 1 as much as 2 at twice its capacity."""
    loads = [{0: 1.0, 1: 1.0, 2: 1.0}, {1: 1.0, 2: 1.0}]
    assert slack([1.0, 2.0, 1.0], loads) == {0, 1}
    assert slack([1.0, 0.5, 1.0], loads) == {0, 2}
    assert slack([0.5, 1.0, 1.0], loads) == {1}  # of two that are equal one stays; link 0 is the tightest of kind 0
