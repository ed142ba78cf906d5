"""Profiles from measured collectives: seconds decide; what was put in comes out."""

from __future__ import annotations

import pytest

from parasim.collectives.calibration import calibrate
from parasim.collectives.plan import plan, seconds
from parasim.cost.profile import Profile, datasheet
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
