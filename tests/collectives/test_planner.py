"""NCCL's own estimates, by hand from src/graph/tuning.cc; latencies in us, bandwidths in GB/s."""

from dataclasses import replace

import pytest

from parasim.collectives import planner
from parasim.collectives.chunks import Pipeline
from parasim.collectives.plan import plan, seconds
from parasim.collectives.planner import Facts, facts_of, ranked
from parasim.collectives.protocols import Start
from parasim.cost.profile import datasheet, load_profile
from parasim.topology.loader import load_cluster

POLARIS = Facts(8, 2, "a100*", inside=240, between=48, channels=2, latency=0, overhead=2, ll=0.5, ll128=0)


def test_facts_of_a_group() -> None:
    """Two NICs of 25 GB/s: two channels of 24, the largest step of NCCL's ladder that fits; 20 of 25 GB/s per NVLink."""
    cluster, profile = load_cluster("polaris-slingshot", 8), load_profile("nccl-slingshot-2.21")
    assert facts_of(cluster.devices, cluster, profile) == POLARIS
    assert facts_of(cluster.devices[:4], cluster, profile) is None  # one server
    assert facts_of(cluster.devices, cluster, datasheet()) is None
    older = facts_of(cluster.devices, cluster, load_profile("nccl-slingshot-2.18"))
    assert older == replace(POLARIS, ll=0.25)


def test_estimates_by_hand() -> None:
    """All-reduce of 64 KiB: trees by LL 6.8 + 2 (3 x 0.6 + 5), at min(0.92 x 2 x 48, 2 x 23.6) x 0.263 / 2 x 0.6; rings by LL 6.6 + 12 x 2 + 2 x 2.7,
    at min(22.5, 24) x 8/14; by Simple 1.4 (8.4 + 12 x 6 + 2 x 14), at 48 x 8/14."""
    found = {(p.algorithm, p.protocol): p.seconds * 1e6 for p in ranked("all_reduce", 2**16, ["ring", "tree"], POLARIS)}
    assert found["tree", "LL"] == pytest.approx(20.4 + 65.536 / (47.2 * 0.263 / 2 * 0.6))
    assert found["ring", "LL"] == pytest.approx(36.0 + 65.536 / (22.5 * 8 / 14))
    assert found["ring", "Simple"] == pytest.approx(1.4 * 108.4 + 65.536 / (48 * 8 / 14))
    assert found["tree", "Simple"] == pytest.approx(8.4 + 2 * (12 + 14) + 65.536 / (47.2 / 2 * 0.6))
    assert ("ring", "LL128") not in found
    (gather,) = (p for p in ranked("all_gather", 2**16, ["ring", "tree"], POLARIS) if p.protocol == "LL")
    assert gather.seconds * 1e6 == pytest.approx(6.6 + 6 * 2 + 2.7 + 65.536 / (22.5 * 8 / 7))
    assert ranked("all_to_all", 2**16, ["direct"], POLARIS) == []


def test_nvls_trees_and_a_network_that_states_its_latency() -> None:
    """NVLSTree on 8 servers: 25 + 6 (20.9 + 2 x 75), at 8 x 45.5 x n / (2 (n-1)) of 8 x 48; on two 8 x 57.7 of twice 384, and of what the switch does."""
    p5 = Facts(64, 8, "*h[128]00*", inside=360, between=384, channels=32, latency=75, overhead=2, ll=0.5, ll128=0.92)
    (best,) = ranked("all_reduce", 2**30, ["nvls-tree"], p5)
    assert best.seconds * 1e6 == pytest.approx(25 + 6 * 170.9 + 2**30 / 1e3 / (8 * 45.5 * 64 / 126))
    (two,) = ranked("all_reduce", 2**30, ["nvls-tree"], replace(p5, ranks=16, servers=2, latency=0))
    assert two.seconds * 1e6 == pytest.approx(25 + 2 * 20.9 + 2**30 / 1e3 / (8 * 57.7 * 16 / 30))


def test_a_channel_carries_so_much_on_many_servers() -> None:
    """16 servers of 8 H100, 8 NICs: trees at min(0.92 x 8 x 48, 8 x 36), by LL128 at 8 x 29; on two at 0.92 x 360 and 0.9375 of it; rings at 8 x 36.7."""
    facts = Facts(128, 16, "*h[128]00*", inside=360, between=384, channels=8, latency=0, overhead=1, ll=0.5, ll128=0.92)
    size, part = 2**28, 254 / 128
    many = {(p.algorithm, p.protocol): p.seconds * 1e6 for p in ranked("all_reduce", size, ["ring", "tree"], facts)}
    assert many["tree", "Simple"] == pytest.approx(8.4 + 2 * (7 * 4 + 4 * 14) + size / 1e3 / (8 * 36 / 2 * 0.9))
    assert many["tree", "LL128"] == pytest.approx(14 + 2 * (7 * 1.25 + 4 * 8.5) + size / 1e3 / (8 * 29 / 2))
    assert many["ring", "LL128"] == pytest.approx(14 + 224 * 1.9 + 30 * 4 + size / 1e3 / (8 * 36.7 / part))
    two = {(p.algorithm, p.protocol): p.seconds * 1e6 for p in ranked("all_reduce", size, ["tree"], replace(facts, ranks=16, servers=2))}
    assert two["tree", "LL128"] == pytest.approx(14 + 2 * (7 * 1.25 + 8.5) + size / 1e3 / (8 * 36.7 / 2))
    (alone,) = (p for p in ranked("all_gather", size, ["ring"], replace(facts, ranks=16)) if p.protocol == "LL")  # one GPU per server: hops as of trees
    assert alone.seconds * 1e6 == pytest.approx(6.6 + 15 * 5.0 + size / 1e3 / (20.4 * 16 / 15))


def test_where_ll_is_off_simple_is_alone() -> None:
    efa = Facts(16, 2, "a100*", inside=240, between=48, channels=4, latency=75, overhead=1, ll=0, ll128=0)
    assert {p.protocol for p in ranked("all_reduce", 1024, ["ring", "tree"], efa)} == {planner.ALONE}
    start = Start(call=1.0, latency=2.0, per_byte=0.5, small=1.0, large=10.0, middle=3.0, middle_cost=0.25)
    assert [start.waiting(4.0, p) for p in ("", planner.LL, planner.LL128, planner.SIMPLE, planner.ALONE)] == [6.0, 6.0, 6.0, 12.0, 6.0]
    assert [start.waiting(40.0, p) for p in ("", planner.LL, planner.LL128, planner.SIMPLE, planner.ALONE)] == [12.0, 42.0, 15.0, 12.0, 12.0]


def test_the_pick_is_priced_with_the_profile() -> None:
    """The first EFA's plugin turns LL off: trees take over rings up to 16 MiB and more; the reason says what NCCL reckons."""
    cluster, profile = load_cluster("aws-p4de-efa", 16), load_profile("nccl-efa-v1")
    made = plan("all_reduce", 2.0**20, cluster.devices, cluster, profile)
    assert made.algorithm == "tree" and "NCCL's planner takes tree by Simple alone" in made.reason
    asked = plan("all_reduce", 2.0**20, cluster.devices, cluster, profile, "tree")
    assert seconds(made, cluster, profile) == pytest.approx(seconds(asked, cluster, profile), rel=1e-9)
    large = plan("all_reduce", 2.0**24, load_cluster("polaris-slingshot", 8).devices, load_cluster("polaris-slingshot", 8), datasheet())
    assert "planner" not in large.reason


TREE = Pipeline("tree", servers=2, members=8, inside=14, across=2, width=8, rate=20e9, hop=70e-6)
NVLS = Pipeline("nvls-tree", servers=2, members=8, inside=2, across=2, width=128, rate=40e9, hop=10e-6)


def test_chunks_of_trees_by_hand() -> None:
    """src/enqueue.cc, trees over 8 channels and a depth of 7 + 1: 512 KiB halved to 128 KiB below 64 in a channel's part, to 64 below 32, to 32 below 8.

    LL128: 576,000 bytes of data halved above 128 KiB below 64 x (1 + 1 + 0.8) / 8 = 22.4, above 32 KiB below 5.6. LL: 32 KiB, or the whole part.
    """
    simple = {2**20: 32768, 2**22: 65536, 2**24: 65536, 2**25: 131072, 2**27: 262144, 2**28: 524288, 2**31: 524288}
    assert {size: TREE.chunk(size, planner.SIMPLE) for size in simple} == simple
    assert TREE.chunk(2**12, planner.SIMPLE) == 2**12  # less than a channel's part: over one channel, in one chunk
    assert [TREE.chunk(size, planner.LL) for size in (2**10, 2**30)] == [2**10, 32768]
    assert [TREE.chunk(size, planner.LL128) for size in (2**20, 2**22, 2**30)] == [36000 / 2, 72000, 576000]
    assert [NVLS.chunk(2**k, planner.SIMPLE) for k in (21, 22, 23, 25, 26, 30)] == [2**14, 2**15, 2**16, 2**16, 2**17, 2**17]
    assert NVLS._replace(servers=4).chunk(2**30, planner.SIMPLE) == 2**16


def test_small_buffers_of_trees_go_over_fewer_channels() -> None:
    """src/enqueue.cc: as many of the 8 as have 512 threads x 8 bytes each by LL, 640 x 8 by LL128, 512 x 64 by Simple, but one. Whole parts count."""
    found = {protocol: [TREE.used(size, protocol) for size in (1024, 10000, 2**15, 2**17, 2**18)] for protocol in planner.PROTOCOLS}
    assert found == {planner.LL: [1, 2, 8, 8, 8], planner.LL128: [1, 1, 6, 8, 8], planner.SIMPLE: [1, 1, 1, 4, 8]}
    assert NVLS.used(1024, planner.SIMPLE) == 128
    # 32 KiB on one channel, whose NIC (two channels of the eight) takes four times the whole buffer's time; two hops between, 14 inside at 20 GB/s
    slow = 4 * 2**15 / 50e9
    assert TREE.filling(2.0**15, planner.SIMPLE, 1 / 50e9, 0.0) == pytest.approx(14 * 2**15 / 20e9 + 2 * slow - 2**15 / 50e9, rel=1e-12)
    # by LL a hop of 2 GB/s over all channels passes 8 KiB over two of them as slowly as 32 KiB over eight
    start = Start(0.0, 0.0, 1 / 50e9, small=1 / 2e9, pipe=TREE._replace(inside=0, across=1, rate=1e30, hop=0.0))
    assert start.waiting(2.0**13, planner.LL) + 2**13 / 50e9 == pytest.approx(2**15 / 2e9 + (2**13 / 50e9) * 2, rel=1e-12)


def test_channels_have_a_rate_of_their_own() -> None:
    """Trees on 8 NICs: 23.6 GB/s of a channel on two servers of A100, 17.8 beyond, twice through each; H100 by LL128 36.7 and 29, rings 36.7 x n / (n-1)."""
    a100 = Facts(16, 2, "a100*", inside=240, between=192, channels=8, latency=0, overhead=2, ll=0.5, ll128=0.92)
    h100 = Facts(64, 8, "*h[128]00*", inside=360, between=384, channels=8, latency=0, overhead=1, ll=0.5, ll128=0.92)
    assert planner.reach("all_reduce", "tree", planner.SIMPLE, a100) == pytest.approx(8 * 23.6e9 / 2)
    assert planner.reach("all_reduce", "tree", planner.SIMPLE, replace(a100, servers=4)) == pytest.approx(8 * 17.8e9 / 2)
    assert planner.reach("all_reduce", "tree", planner.LL128, h100) == pytest.approx(8 * 29e9 / 2)
    assert planner.reach("all_gather", "ring", planner.LL128, h100) == pytest.approx(8 * 36.7e9 * 64 / 63)
    assert planner.reach("all_gather", "ring", planner.SIMPLE, h100) == planner.reach("broadcast", "tree", planner.SIMPLE, h100) == float("inf")
    # a fitted rate is that of two servers and falls with those of the table; where the table has none it holds
    assert planner.tree_rate("all_reduce", 17e9, a100) == 17e9
    assert planner.tree_rate("all_reduce", 17e9, replace(a100, servers=4)) == pytest.approx(17e9 * 17.8 / 23.6)
    assert planner.tree_rate("all_reduce", 0.0, a100) == pytest.approx(8 * 23.6e9 / 2)
    assert planner.tree_rate("broadcast", 17e9, replace(a100, servers=4)) == 17e9
    cluster, profile = load_cluster("a100-hgx-ib200", 32), load_profile("nccl-a100")
    large, larger = (seconds(plan("all_reduce", size, cluster.devices, cluster, profile, "tree"), cluster, profile) for size in (2.0**31, 2.0**32))
    assert larger - large == pytest.approx(2**31 / (8 * 17.8e9 / 2), rel=0.01)


def test_filling_a_tree_by_hand() -> None:
    """16 MiB in 32 chunks of 64 KiB a channel: 14 hops inside at 20 GB/s, a second hop between at the pace of the bytes (50 GB/s: 10.5 us), then 31 chunks
    that wait for one of 8 places, each held for 4 crossings of 75 us and its own time."""
    stage = 65536 * 8 / 50e9
    expected = 14 * 65536 / 20e9 + stage + 31 * ((4 * 75e-6 + stage) / 8 - stage)
    assert TREE.filling(2.0**24, planner.SIMPLE, 1 / 50e9, 5e-6) == pytest.approx(expected, rel=1e-12)
    assert TREE.filling(0.0, planner.SIMPLE, 1 / 50e9, 5e-6) == 0.0
    # 64 KiB x 16 channels x 8 members in every hop, four hops: three more than the bytes alone; no chunk waits for a place
    assert NVLS.filling(2.0**25, planner.SIMPLE, 1 / 250e9, 3e-6) == pytest.approx(3 * 2**23 / 250e9, rel=1e-12)


def test_a_tree_between_servers_takes_the_time_of_its_chunks() -> None:
    """The first EFA, LL off: 7 + 7 hops inside and 2 between; what the profile adds to a step inside and to a hop between, then the filling."""
    cluster, profile = load_cluster("aws-p4de-efa", 16), load_profile("nccl-efa-v1")
    leaf, rate = profile.get("network.latency.leaf"), profile.get("network.bandwidth_factor.leaf") * 50e9
    hop = 15e-6 + 2 * leaf
    tree = TREE._replace(width=8, rate=23.6e9, hop=hop)
    for size in (2.0**12, 2.0**24):
        links = 14 * 0.6e-6 + 2 * hop
        expected = 6.8e-6 + links + 16 * 3.4e-6 + 2 * 9e-6 + tree.filling(size, planner.SIMPLE, 1 / rate, 9e-6) + size / rate
        made = plan("all_reduce", size, cluster.devices, cluster, profile)
        assert seconds(made, cluster, profile) == pytest.approx(expected, rel=1e-6), size
