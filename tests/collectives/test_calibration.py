"""Profiles from measured collectives: seconds decide; what was put in comes out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from parasim.collectives.calibration import calibrate, from_kineto, from_nccl_tests
from parasim.collectives.plan import plan, seconds
from parasim.cost.nccl_tests import Log, Row, render
from parasim.cost.profile import Profile, datasheet, load_profile, save_profile
from parasim.cost.samples import Sample
from parasim.errors import Refused
from parasim.provenance import Number
from parasim.topology.loader import load_cluster


def test_latency_and_bandwidth_come_back() -> None:
    cluster = load_cluster("h100-hgx-ib400", 8)
    true = Profile("true", "nccl", {k: Number(v, u, "x", "assumed") for k, v, u in LAW})
    sizes = [2**k for k in range(10, 31, 4)]
    made = [Sample("all_gather", s, 8, 1, seconds(plan("all_gather", s, cluster.devices[:8], cluster, true), cluster, true), "") for s in sizes]
    profile, text = calibrate(made, cluster, "mine", "a test")
    assert profile.get("collective.all_gather.latency") == pytest.approx(20e-6, rel=1e-3)
    assert profile.get("collective.all_gather.bandwidth_factor") == pytest.approx(0.75, rel=1e-3)
    assert profile.numbers["collective.all_gather.latency"].status == "fitted" and text.count("all_gather") == len(sizes)


LAW = (("collective.all_gather.latency", 20e-6, "s"), ("collective.all_gather.bandwidth_factor", 0.75, "1"))


def test_one_size_gives_a_bandwidth() -> None:
    cluster = load_cluster("h100-hgx-ib400", 8)
    base = seconds(plan("all_gather", 1e9, cluster.devices[:8], cluster, datasheet()), cluster, datasheet())
    profile, _ = calibrate([Sample("all_gather", 10**9, 8, 1, 5e-3, "x:1")], cluster, "mine", "a test")
    # all of 5 ms but the seven hops is bytes: the factor is (base - hops) / (5 ms - hops)
    hops = base - 1e9 * 7 / 8 / 450e9
    assert profile.get("collective.all_gather.bandwidth_factor") == pytest.approx((base - hops) / (5e-3 - hops), rel=1e-3)


def test_what_cannot_be_fitted() -> None:
    cluster = load_cluster("h100-hgx-ib400", 8)
    with pytest.raises(Refused, match="16 ranks"):
        calibrate([Sample("all_gather", 10**9, 16, 2, 5e-3, "x:1")], cluster, "mine", "a test")
    good = Sample("all_gather", 10**9, 8, 1, 5e-3, "x:1")
    _, text = calibrate([good, good._replace(op="hypercube"), good._replace(ranks=16)], cluster, "mine", "a test")
    assert "hypercube: passed over" in text and "1 samples of more ranks" in text


def test_a_log_becomes_a_profile_that_predicts_it(tmp_path: Path) -> None:
    log = Log("all_gather", dict.fromkeys(range(8), "host"))
    log.rows += [Row(size, size // 4, "float", 30e-6 + size / 300e9, None, "") for size in (2**16, 2**24, 2**30)]
    path = tmp_path / "gather.log"
    path.write_text(render(log))
    profile, text = from_nccl_tests([path], "h100-hgx-ib400", "mine")
    save_profile(profile, tmp_path / "mine.yaml")
    assert load_profile(tmp_path / "mine.yaml") == profile and "gather.log" in profile.description
    cluster = load_cluster("h100-hgx-ib400", 8)
    for row in log.rows:
        again = seconds(plan("all_gather", row.nbytes, cluster.devices, cluster, profile), cluster, profile)
        assert again == pytest.approx(row.out_of_place, rel=1e-2)
    assert text.count("all_gather") == 3


def test_traces_become_a_profile(tmp_path: Path) -> None:
    fields = {"Collective name": "allreduce", "In msg nelems": 2**26, "Out msg nelems": 2**26, "dtype": "Float", "Group size": 8, "Process Group Name": "0"}
    for rank in range(8):  # rank 7 comes last: the others wait for it
        event = {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce", "ts": 100 * rank, "dur": 1000 + 100 * (7 - rank), "args": fields}
        (tmp_path / f"{rank}.json").write_text(json.dumps({"distributedInfo": {"rank": rank}, "traceEvents": [event]}))
    profile, text = from_kineto(sorted(tmp_path.glob("*.json")), "h100-hgx-ib400")
    cluster = load_cluster("h100-hgx-ib400", 8)
    assert seconds(plan("all_reduce", 2**28, cluster.devices, cluster, profile), cluster, profile) == pytest.approx(1e-3, rel=1e-2)
    assert "700.0us" in text  # the skew: rank 0 waits seven times 100 us
