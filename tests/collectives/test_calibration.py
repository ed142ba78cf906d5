"""Profiles from measured collectives: seconds decide; what was put in comes out."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

from parasim.calibrating import calibrate_files
from parasim.collectives.calibration import calibrate, from_nccl_tests
from parasim.collectives.catalog import ALGORITHMS
from parasim.collectives.plan import channel_rate, plan, seconds, send
from parasim.cost.nccl_tests import Log, Row, render
from parasim.cost.profile import COLLECTIVE_ALGORITHMS, Profile, datasheet, load_profile, save_profile
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


def test_sizes_in_the_bend_do_not_spoil_latency_and_bandwidth() -> None:
    """Three sizes in the middle take twice as long as any line through the others; without them 20 us and 0.75 come back."""
    cluster = load_cluster("h100-hgx-ib400", 8)
    true = Profile("true", "nccl", {k: Number(v, u, "x", "assumed") for k, v, u in LAW})
    times = {2**k: seconds(plan("all_gather", 2**k, cluster.devices[:8], cluster, true), cluster, true) for k in range(10, 34)}
    made = [Sample("all_gather", s, 8, 1, t * (2 if 2**20 <= s <= 2**22 else 1), "") for s, t in times.items()]
    profile, _ = calibrate(made, cluster, "mine", "a test")
    assert profile.get("collective.all_gather.latency") == pytest.approx(20e-6, rel=0.02)
    assert profile.get("collective.all_gather.bandwidth_factor") == pytest.approx(0.75, rel=0.02)


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
    text = calibrate_files("kineto", sorted(tmp_path.glob("*.json")), "h100-hgx-ib400", tmp_path / "traced.yaml")
    profile = load_profile(tmp_path / "traced.yaml")
    cluster = load_cluster("h100-hgx-ib400", 8)
    assert seconds(plan("all_reduce", 2**28, cluster.devices, cluster, profile), cluster, profile) == pytest.approx(1e-3, rel=1e-2)
    assert "700.0us" in text  # the skew: rank 0 waits seven times 100 us


def test_a_group_over_two_servers_is_planned_where_it_ran(tmp_path: Path) -> None:
    """Ranks 0 and 8 are on two servers, 0 and 1 on one: equal bytes, other links."""
    cluster = load_cluster("h100-hgx-ib400", 16)
    for ranks in ((0, 1), (0, 8)):
        members = [cluster.devices[r] for r in ranks]
        taken = seconds(plan("all_reduce", 2**28, members, cluster, datasheet()), cluster, datasheet())
        profile, _ = calibrate([Sample("all_reduce", 2**28, 2, 0, taken, "", ranks)], cluster, "x", "y")
        assert profile.get("collective.all_reduce.bandwidth_factor") == pytest.approx(1.0, rel=1e-3)


def test_profiles_know_every_algorithm() -> None:
    assert sorted({name for named in ALGORITHMS.values() for name in named}) == sorted(COLLECTIVE_ALGORITHMS)


def profile_of(**numbers: float) -> Profile:
    """Numbers `algorithm__ring__latency` and so on, whatever their unit."""
    return Profile(
        "two protocols", "nccl", {k.replace("__", ".").replace("nvls.tree", "nvls-tree"): Number(v, "1", "x", "assumed") for k, v in numbers.items()}
    )


def test_small_and_large_messages_go_by_the_better_protocol() -> None:
    """t = call + latency + bytes/rate + min(small x bytes/rate, steps x large) in one server."""
    cluster = load_cluster("h100-hgx-ib400", 8)
    profile = profile_of(algorithm__ring__latency=10e-6, algorithm__ring__small_message_cost=4.0, algorithm__ring__large_step_latency=7e-6)
    for size in (2**10, 2**20, 2**30):
        moving = size * 7 / 8 / 450e9
        expected = 10e-6 + 7 * 1e-6 + moving + min(4 * moving, 7 * 7e-6)  # 7 hops of 1 us through NVSwitch
        made = plan("all_gather", size, cluster.devices, cluster, profile, "ring")
        assert seconds(made, cluster, profile) == pytest.approx(expected, rel=1e-9)
        assert max(phase.bytes * weight for phase in made.phases for _, weight in phase.weights) == pytest.approx(size * 7 / 8)  # counted once


def test_latency_between_servers_passes_while_bytes_move() -> None:
    """A ring over m servers of g: (mg - 1) steps, m of each mg between servers; these pass, up to half of the bytes' time: B + L - min(m c, B/2)."""
    cluster = load_cluster("h100-hgx-ib400", 32)
    bare = datasheet()
    profile = profile_of(algorithm__ring__large_step_latency=3e-6, algorithm__ring__large_message_latency=50e-6, algorithm__ring__hidden_latency=0.5)
    for size in (2**20, 2**26, 2**32):
        start = seconds(plan("all_gather", 0.001, cluster.devices, cluster, bare, "ring"), cluster, bare)
        moving = seconds(plan("all_gather", size, cluster.devices, cluster, bare, "ring"), cluster, bare) - start
        latency = start + 31 * 3e-6 + 4 * 50e-6
        made = plan("all_gather", size, cluster.devices, cluster, profile, "ring")
        assert seconds(made, cluster, profile) == pytest.approx(moving + latency - min(4 * 50e-6, moving / 2), rel=1e-6)


def test_a_tree_passes_small_messages_whole_from_server_to_server_and_has_a_rate_of_its_own() -> None:
    """Two servers of 4: 2 x (3 hops inside + 1 between); small: 2 S / hop rate more; large: 2 hops between; the buffer at most at its rate."""
    cluster = load_cluster("polaris-slingshot", 8)
    bare, size = datasheet(), 2**14
    profile = profile_of(algorithm__tree__hop_bandwidth=2e9, algorithm__tree__large_message_latency=1e-3, algorithm__tree__bandwidth=10e9)
    start = seconds(plan("all_reduce", 0.001, cluster.devices, cluster, bare, "tree"), cluster, bare)
    for nbytes, expected in ((size, start + 2 * size / 2e9 + size / 10e9), (2**30, start + 2 * 1e-3 + 2**30 / 10e9)):
        made = plan("all_reduce", nbytes, cluster.devices, cluster, profile, "tree")
        assert seconds(made, cluster, profile) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("size", [8, 2**16, 2**20, 2**24, 2**30])
def test_an_all_reduce_takes_longer_on_more_servers(size: int) -> None:
    """As rules of thumb have it: trees add the same for every doubling of the servers, rings the same for every server, large ones reach a plateau."""
    profile = load_profile("nccl-h100")
    times = []
    for nodes in (1, 2, 4, 8, 16, 32, 64):
        cluster = load_cluster("h100-hgx-ib400", 8 * nodes)
        times.append(seconds(plan("all_reduce", float(size), cluster.devices, cluster, profile), cluster, profile))
    assert size == 2**24 or all(b > a for a, b in pairwise(times))  # 16 MiB: NCCL picks NVLSTree on two to eight servers, trees by LL128 beyond
    assert times[-1] < (14 if size < 2**24 else 4 if size < 2**30 else 1.6) * times[0]
    if size <= 2**16:
        growth = [b - a for a, b in pairwise(times[1:])]
        assert max(growth) < 2 * min(growth)  # one hop up and one down for every doubling


def test_messages_share_channels() -> None:
    """32 channels of 20 GB/s, 16 MiB each: over 8 ranks 4 channels up to 64 MiB, then 8, then 16 (NCCL, src/enqueue.cc)."""
    keys = {"p2p.channels": 32.0, "p2p.channel_bandwidth": 20e9, "p2p.channel_bytes": 2.0**24}
    profile = Profile("channels", "nccl", {k: Number(v, "1", "x", "assumed") for k, v in keys.items()})
    assert [channel_rate(2**k, 8, profile) / 20e9 for k in (20, 26, 27, 28, 30)] == [4, 4, 8, 16, 16]
    assert channel_rate(2**30, 80, profile) == 20e9 and channel_rate(2**30, 80, datasheet()) == float("inf")
    cluster = load_cluster("h100-hgx-ib400", 8)
    a, b = cluster.devices[:2]
    made = send(2**26, a, b, cluster, profile, ranks=8)
    assert seconds(made, cluster, profile) == pytest.approx(1e-6 + 2**26 / 80e9, rel=1e-6)
    assert seconds(send(2**26, a, b, cluster, datasheet()), cluster, datasheet()) == pytest.approx(1e-6 + 2**26 / 450e9, rel=1e-6)
