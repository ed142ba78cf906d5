"""Folded equals unfolded on every op of every rank; a relabelling by an automorphism changes nothing; equal inputs give equal bytes."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hand import network, profile
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from parasim.config import build
from parasim.cost.profile import Profile, datasheet, load_profile
from parasim.errors import InvalidLayout
from parasim.lowering import lower
from parasim.program.workload import Workload
from parasim.sim import simulate
from parasim.timeline import Timeline
from parasim.topology.changes import scale
from parasim.topology.cluster import Cluster
from parasim.topology.loader import load_cluster
from validation.random_runs import GPT, UP, rails

MODELS: dict[str, dict[str, Any]] = {
    "gpt": GPT,
    "mlp": {"kind": "mlp", "layers": 4, "hidden": 256, "ffn": 512},
    "fixed": {"kind": "fixed", "layers": 4, "forward": "1 ms", "input_grad": "1 ms", "weight_grad": "1 ms", "parameters": 1e6, "boundary": "1 MB"},
}  # fmt: skip

CLUSTERS: dict[str, Any] = {
    "one fast node": "h100-hgx-ib400",
    "rails under two spines": rails(2),
    "one NIC for two": rails(4, nic_per_device=0.5),
    "one NIC for a node": rails(4, nic_per_device=0.25, pod_nodes=32),
    "ethernet": {"accelerator": "h100-sxm", "node": {"devices": 4, "scale_up": UP}, "scale_out": {"kind": "ethernet", "bandwidth": "10 Gb/s"}},
    "loopback": "loopback",
}


def uneven(slow: float = 1.0) -> Cluster:
    """Ten devices written by a user: 4 behind switch a, 6 behind switch b, one uplink; the port of d2 is `slow` times as fast."""
    ports = [(f"d{i}", "a" if i < 4 else "b", 1e9 * (slow if i == 2 else 1.0)) for i in range(10)]
    h100 = load_cluster("h100-hgx-ib400", 8).accelerator
    return replace(network(10, [*ports, ("a", "b", 4e9)], latency=1e-6, switches=("a", "b")), accelerator=h100)


def plan_of(layout: dict[str, Any]) -> Any:
    try:
        return build(layout).plan
    except InvalidLayout:
        assume(False)


@st.composite
def layouts(draw: Any, worlds: tuple[int, ...]) -> dict[str, Any]:
    world = draw(st.sampled_from(worlds))
    cuts = [(t, p, world // t // p) for t in (1, 2, 4) for p in (1, 2, 4) if world % (t * p) == 0]
    tp, pp, dp = draw(st.sampled_from(cuts))
    m = draw(st.integers(1, 4))
    shards = [d for d in (1, 2, 4, 8) if dp % d == 0]
    return {
        "model": MODELS["mlp" if tp == 4 else draw(st.sampled_from(sorted(MODELS) if tp == 1 else ["gpt", "mlp"]))] | {},
        "cluster": "h100-hgx-ib400",
        "devices": world,
        "batch": {"global": dp * m, "micro": 1, "sequence": 32},
        "parallel": {"tp": tp, "pp": pp, "dp": dp, "order": draw(st.sampled_from((["tp", "cp", "ep", "dp", "pp"], ["tp", "cp", "pp", "ep", "dp"])))},
        "tensor": {"sequence_parallel": tp > 1 and draw(st.booleans())},
        "pipeline": {"schedule": draw(st.sampled_from(("1f1b", "gpipe", "naive"))), "comm": draw(st.sampled_from(("async", "stream", "blocking")))},
        "zero": {"stage": draw(st.integers(0, 3)), "shard": draw(st.sampled_from(shards)), "overlap_gather": draw(st.booleans())},
        "dp": {"mode": "bucketed", "bucket": "64 KiB"},
    }  # fmt: skip


def check(workload: Workload, cluster: Cluster, p: Profile) -> Timeline:
    folded, whole = simulate(workload, cluster, p), simulate(workload, cluster, p, fold=False)
    assert whole.representative.tolist() == list(range(workload.world))
    tolerance = 1e-9 * whole.makespan
    for rank in range(workload.world):
        a, b = folded.of(rank), whole.of(rank)
        for column in ("ready", "start", "end"):
            assert np.abs(a[column] - b[column]).max() <= tolerance, (rank, column)
        assert np.array_equal(a["bytes"], b["bytes"])
    return folded


MODEST = settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


@MODEST
@given(layouts((2, 4, 8, 16)), st.sampled_from(sorted(CLUSTERS)), st.sampled_from(("datasheet", "slow beside", "h100-megatron")))
def test_folded_is_unfolded(layout: dict[str, Any], cluster: str, name: str) -> None:
    p = profile(overlap__slowdown__p2p=0.3, overlap__slowdown__collective=0.7) if name == "slow beside" else load_profile(name)
    w = lower(plan_of(layout))
    check(w, load_cluster(CLUSTERS[cluster], w.world), p)


@MODEST
@given(layouts((4, 8, 16)), st.sampled_from(("rails under two spines", "one NIC for two", "ethernet")), st.integers(0, 10**6), st.sampled_from((0.1, 0.5)))
def test_folded_is_unfolded_with_one_slow_cable(layout: dict[str, Any], cluster: str, cable: int, factor: float) -> None:
    w = lower(plan_of(layout))
    sound = load_cluster(CLUSTERS[cluster], w.world)
    link = sound.links[cable % len(sound.links)]
    check(w, scale(sound, f"{link.a}-{link.b}", factor), datasheet())


@MODEST
@given(layouts((4, 8, 10)), st.sampled_from((0.25, 1.0)))
def test_folded_is_unfolded_on_uneven_nodes(layout: dict[str, Any], slow: float) -> None:
    check(lower(plan_of(layout)), uneven(slow), datasheet())


LAYOUT = {"model": MODELS["gpt"], "cluster": "h100-hgx-ib400", "devices": 16, "batch": {"global": 8, "micro": 1, "sequence": 32}}
LAYOUT |= {"parallel": {"tp": 2, "pp": 2, "dp": 4}, "zero": {"stage": 1}}


def test_a_slow_port_splits_the_ranks_that_meet_it_and_no_others() -> None:
    """Without it, ranks of a stage are alike; with one slow NIC its group is told apart, and still nothing is simulated sixteen times."""
    w = lower(build(LAYOUT).plan)
    sound = load_cluster(rails(2, pod_nodes=32, oversubscription=1), 16)
    assert len(simulate(w, sound, datasheet()).ranks) == 2
    slow = check(w, scale(sound, "node0.nic0", 0.1), datasheet())
    assert 2 < len(slow.ranks) <= 16 and slow.makespan > simulate(w, sound, datasheet()).makespan


def test_flows_of_a_fold_carry_the_bytes_of_all_ranks() -> None:
    w = lower(build(LAYOUT).plan)
    cluster = load_cluster(rails(2), 16)
    carried = []
    for fold in (True, False):
        t = simulate(w, cluster, datasheet(), fold=fold)
        carried.append(sum(float(f["bytes"]) * t.links[int(f["link"])][3] for f in t.flows))
        for f in t.flows:  # no link above its capacity, one transfer at a time
            assert f["bytes"] <= t.links[int(f["link"])][2] * (f["end"] - f["start"]) * (1 + 1e-9)
    assert carried[0] == pytest.approx(carried[1], rel=1e-9)


@pytest.mark.parametrize("fold", [True, False])
def test_no_link_is_above_capacity_at_any_time(fold: bool) -> None:
    """Rates are constant between events, so the mean over a flow is below capacity only if sums over time are: check per link and window."""
    w = lower(build(LAYOUT | {"parallel": {"tp": 1, "pp": 4, "dp": 4}}).plan)
    t = simulate(w, load_cluster(CLUSTERS["ethernet"], 16), datasheet(), fold=fold)
    for link in np.unique(t.flows["link"]):
        mine = t.flows[t.flows["link"] == link]
        order = np.argsort(mine["start"])
        busy, reach, begun = 0.0, -1.0, 0.0
        for row in mine[order]:  # maximal windows without a gap
            if row["start"] > reach:
                busy, begun = 0.0, float(row["start"])
            busy, reach = busy + float(row["bytes"]), max(reach, float(row["end"]))
            later = mine[(mine["start"] < reach) & (mine["end"] > begun)]
            if later["end"].max() <= reach:
                assert busy <= t.links[int(link)][2] * (reach - begun) * (1 + 1e-9)


def relabelled(w: Workload, to: np.ndarray[Any, Any]) -> Workload:
    """The same workload with rank r called `to[r]`."""
    classes, peers = np.empty_like(w.class_of_rank), {}
    classes[to] = w.class_of_rank
    for name, peer in w.peers.items():
        peers[name] = np.empty_like(peer)
        peers[name][to] = to[peer]
    return replace(w, class_of_rank=classes, peers=peers, groups={n: to[g] for n, g in w.groups.items()})


@pytest.mark.parametrize("fold", [True, False])
@pytest.mark.parametrize(("cluster", "to"), [("one fast node", [3, 2, 1, 0, 7, 6, 5, 4]), ("ethernet", [4, 5, 6, 7, 0, 1, 2, 3])])
def test_an_automorphism_changes_nothing(cluster: str, to: list[int], fold: bool) -> None:
    """Devices of a node, or whole nodes, change places: every rank does at the same time what it did."""
    w = lower(build(LAYOUT | {"devices": 8, "parallel": {"tp": 2, "pp": 2, "dp": 2}}).plan)
    there = np.array(to)
    on = load_cluster(CLUSTERS[cluster], 8)
    a, b = simulate(w, on, datasheet(), fold=fold), simulate(relabelled(w, there), on, datasheet(), fold=fold)
    for rank in range(8):
        for column in ("ready", "start", "end"):
            assert np.allclose(a.of(rank)[column], b.of(int(there[rank]))[column], rtol=1e-9, atol=0)


CONTENDED = LAYOUT | {"cluster": CLUSTERS["ethernet"], "parallel": {"tp": 1, "pp": 4, "dp": 4}, "dp": {"mode": "bucketed", "bucket": "8 KiB"}}


def digest(path: Path) -> str:
    run = build(CONTENDED)
    simulate(lower(run.plan), run.cluster, run.profile).save(path)
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_the_same_input_gives_the_same_bytes(tmp_path: Path) -> None:
    """Also in another process with other hashes of strings and other addresses."""
    here = {digest(tmp_path / f"{i}.npz") for i in range(3)}
    assert len(here) == 1
    here_folder, target = str(Path(__file__).parent), str(tmp_path / "x.npz")
    code = f"import sys; sys.path.insert(0, {here_folder!r}); from pathlib import Path; import test_sim_folding as t; print(t.digest(Path({target!r})))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "PYTHONHASHSEED": "7"}, check=False)
    assert out.stdout.strip() == here.pop(), out.stderr


def test_the_same_input_gives_the_same_bytes_unfolded(tmp_path: Path) -> None:
    """Under contention, with other objects in memory before each run."""
    run = build(CONTENDED)
    seen, litter = set(), []
    for i in range(8):
        litter += [object() for _ in range(1000 * i)][:: i + 1]
        simulate(lower(run.plan), run.cluster, run.profile, fold=False).save(tmp_path / "t.npz")
        seen.add(hashlib.sha256((tmp_path / "t.npz").read_bytes()).hexdigest())
    assert len(seen) == 1
