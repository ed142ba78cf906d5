"""Times and bytes of collectives against the closed forms of the field. S bytes, n ranks, B bytes/s per port, a seconds per step."""

import numpy as np
import pytest

from parasim.collectives.catalog import ALGORITHMS
from parasim.collectives.plan import capacity, plan, seconds, send
from parasim.collectives.selection import RING_ORDER
from parasim.cost.profile import Profile, datasheet
from parasim.errors import Malformed, Refused, Unreachable
from parasim.provenance import Number
from parasim.topology.builders import IDEAL, from_graph, ideal
from parasim.topology.cluster import Link
from parasim.topology.loader import load_cluster

FLAT = datasheet()
GLOO = Profile("gloo", "gloo")


def one_switch(n, bandwidth="50 GB/s", latency="0 s"):
    node = {"devices": n, "scale_up": {"bandwidth": bandwidth, "latency": latency}}
    return load_cluster({"accelerator": "h100-sxm", "node": node}, n)


def two_level(nodes, per_node=8, up="450 GB/s", nic="400 Gb/s", latency="0 s"):
    spec = {
        "accelerator": "h100-sxm",
        "node": {"devices": per_node, "scale_up": {"bandwidth": up, "latency": latency}},
        "scale_out": {"kind": "rail-fat-tree", "bandwidth": nic, "latency": latency},
    }
    return load_cluster(spec, nodes * per_node)


def time_of(op, nbytes, cluster, members=None, profile=FLAT, algorithm="auto"):
    return seconds(plan(op, nbytes, members or cluster.devices, cluster, profile, algorithm), cluster, profile)


def loads(made, cluster):
    """Bytes on each link, by (kind, from, to)."""
    return {(cluster.links[i].kind, cluster.links[i].a, cluster.links[i].b): phase.bytes * weight for phase in made.phases for i, weight in phase.weights}


@pytest.mark.parametrize("algorithm", ["ring", "direct"])
def test_all_reduce_of_100_megabytes_over_8_ports_of_50_gigabytes(algorithm):
    assert time_of("all_reduce", 100e6, one_switch(8), algorithm=algorithm) == pytest.approx(3.5e-3, rel=1e-12)  # 2 * 7/8 * 100e6 / 50e9


@pytest.mark.parametrize(
    ("op", "algorithm", "steps", "share"),
    [  # collectives on a full-duplex port: steps * a + share * S / B
        ("all_reduce", "ring", 30, 30 / 16),  # 2(n-1) steps, 2(n-1)/n S
        ("all_gather", "ring", 15, 15 / 16),  # n-1 steps, (n-1)/n S
        ("reduce_scatter", "ring", 15, 15 / 16),
        ("broadcast", "ring", 15, 1.0),  # pipelined chain: n-1 hops to fill, S over each
        ("reduce", "ring", 15, 1.0),
        ("all_to_all", "pairwise", 15, 15 / 16),  # n-1 shifted steps of S/n
        ("all_reduce", "direct", 2, 30 / 16),  # two shots
        ("all_gather", "direct", 1, 15 / 16),
        ("reduce_scatter", "direct", 1, 15 / 16),
        ("all_to_all", "direct", 1, 15 / 16),
        ("broadcast", "direct", 1, 15.0),  # (n-1) S leave the root
        ("reduce", "direct", 1, 15.0),
        ("broadcast", "binomial", 4, 10.0),  # L = log2 n levels, L(L+1)/2 S/B
        ("reduce", "ring-gather", 16, 30 / 16),  # reduce-scatter, then (n-1)/n S enter the root
        ("barrier", "direct", 1, 0.0),
    ],
)
def test_alpha_beta_on_one_switch(op, algorithm, steps, share):
    cluster = one_switch(16, "50 GB/s", "5 us")
    assert time_of(op, 64e6, cluster, algorithm=algorithm) == pytest.approx(steps * 5e-6 + share * 64e6 / 50e9, rel=1e-12)


@pytest.mark.parametrize(
    ("op", "algorithm", "share"),
    [  # mean bytes leaving a rank, over S
        ("all_reduce", "ring", 14 / 8),
        ("all_reduce", "direct", 14 / 8),
        ("all_gather", "ring", 7 / 8),
        ("reduce_scatter", "direct", 7 / 8),
        ("all_to_all", "pairwise", 7 / 8),
        ("all_to_all", "direct", 7 / 8),
        ("broadcast", "ring", 7 / 8),  # n-1 of n ranks forward S
        ("broadcast", "binomial", 7 / 8),
        ("reduce", "ring-gather", 7 / 8 + 7 / 64),  # (n-1)/n S each, then n-1 ranks send S/n
    ],
)
def test_wire_bytes_per_rank(op, algorithm, share):
    cluster = one_switch(8)
    assert plan(op, 8e6, cluster.devices, cluster, FLAT, algorithm).wire_bytes_per_rank == pytest.approx(share * 8e6, rel=1e-12)


def test_twice_the_bytes_take_nearly_twice_the_time():
    cluster = one_switch(16, "50 GB/s", "5 us")
    ratio = time_of("all_reduce", 512e6, cluster) / time_of("all_reduce", 256e6, cluster)
    assert 1.9 < ratio <= 2.0  # (30 a + 2 x) / (30 a + x) with x = 1.875 * 256e6 / 50e9 = 9.6 ms, 30 a = 0.15 ms


def test_four_more_microseconds_per_step_of_256_ranks():
    """512 MiB over 256 ports of 50 GB/s: 2 * 255/256 * 2^29 / 50e9 = 21.39 ms and 510 steps."""
    times = [time_of("all_reduce", 2**29, one_switch(256, "50 GB/s", latency)) for latency in ("2 us", "6 us")]
    assert times[1] - times[0] == pytest.approx(510 * 4e-6, rel=1e-9)
    assert times[0] == pytest.approx(2 * 255 / 256 * 2**29 / 50e9 + 510 * 2e-6, rel=1e-9)


def test_a_ring_over_two_nodes_crosses_every_nic_once_per_direction():
    cluster = two_level(2)
    made = plan("all_reduce", 16e6, cluster.devices, cluster, FLAT)
    nics = {key: weight for key, weight in loads(made, cluster).items() if key[0] == "nic"}
    assert len(nics) == 32  # 16 NICs, both directions
    assert list(nics.values()) == pytest.approx([30 / 16 / 8 * 16e6] * 32, rel=1e-12)  # 8 rings of S/8, 2(n-1)/n S around each
    assert not any(key[0] == "spine" for key in loads(made, cluster))
    assert seconds(made, cluster, FLAT) == pytest.approx(30 / 16 * 16e6 / 400e9, rel=1e-12)  # 8 rails of 50 GB/s


@pytest.mark.parametrize("nodes", [2, 3, 4, 5, 7])
@pytest.mark.parametrize("per_node", [1, 3, 4, 8])
def test_rings_stay_on_their_rails_and_load_them_alike(nodes, per_node):
    cluster = two_level(nodes, per_node)
    made = plan("all_gather", 1e6, cluster.devices, cluster, FLAT)
    n = nodes * per_node
    nics = [weight for key, weight in loads(made, cluster).items() if key[0] == "nic"]
    assert len(nics) == 2 * n
    assert nics == pytest.approx([(n - 1) / n / per_node * 1e6] * 2 * n, rel=1e-12)
    assert not any(key[0] == "spine" for key in loads(made, cluster))


def test_a_ring_visits_every_member_once():
    cluster = two_level(3, 4)
    for members in (cluster.devices, cluster.devices[:9], cluster.devices[2:7], cluster.devices[::4], cluster.devices[::-1]):
        for ring in RING_ORDER["nccl"](tuple(members), cluster):
            assert sorted(ring) == sorted(members)


def test_a_ring_waits_for_the_hops_it_makes():
    """16 ranks on 2 nodes, a inside, b across: 30 hops in a row cross 4 times at most (2 crossings in each turn of 16)."""
    spec = {
        "accelerator": "h100-sxm",
        "node": {"devices": 8, "scale_up": {"bandwidth": "450 GB/s", "latency": "1 us"}},
        "scale_out": {"kind": "rail-fat-tree", "bandwidth": "400 Gb/s", "latency": "10 us"},
    }
    cluster = load_cluster(spec, 16)
    made = plan("all_reduce", 8, cluster.devices, cluster, FLAT, "ring")
    assert sum(p.latency for p in made.phases) == pytest.approx(26 * 1e-6 + 4 * 10e-6, rel=1e-12)


def test_tensor_group_inside_a_node_ignores_the_world_and_the_world_does_not():
    small, large = two_level(4), two_level(8)
    assert time_of("all_reduce", 1e9, small, small.devices[:8]) == time_of("all_reduce", 1e9, large, large.devices[:8])
    ratio = time_of("all_reduce", 1e9, large) / time_of("all_reduce", 1e9, small)
    assert ratio == pytest.approx((2 * 63 / 64) / (2 * 31 / 32), rel=1e-12)  # factor 1.9375 -> 1.96875


def test_a_data_parallel_group_of_one_rank_per_node_has_one_nic():
    cluster = two_level(2)
    assert time_of("all_reduce", 1e9, cluster, cluster.devices[::8]) == pytest.approx(2 * 1 / 2 * 1e9 / 50e9, rel=1e-12)


def test_the_ninth_gpu_falls_off_the_cliff():
    cluster = two_level(2)
    ratio = time_of("all_reduce", 1e9, cluster, cluster.devices[:9]) / time_of("all_reduce", 1e9, cluster, cluster.devices[:8])
    assert ratio == pytest.approx((2 * 8 / 9 / 50) / (2 * 7 / 8 / 450), rel=1e-12)  # 9.14


def test_all_to_all_across_nodes_is_bound_by_the_nic():
    cluster = two_level(4)
    assert time_of("all_to_all", 1e9, cluster) == pytest.approx(24 / 32 * 1e9 / 50e9, rel=1e-12)  # (n-g)/n of S over one NIC


@pytest.mark.parametrize(("op", "inside", "between"), [("all_reduce", 2, 2), ("all_gather", 1, 1), ("reduce_scatter", 1, 1)])
def test_hierarchical_collectives(op, inside, between):
    """k S(g-1)/(g B1) + k (S/g)(m-1)/(m B2), and k(g-1) steps inside, k(m-1) between; g = 8, m = 4, a = 1 us."""
    cluster = two_level(4, latency="1 us")
    expected = inside * (7 / 8 * 1e9 / 450e9 + 7e-6) + between * (1e9 / 8 * 3 / 4 / 50e9 + 3e-6)
    assert time_of(op, 1e9, cluster, algorithm="hierarchical") == pytest.approx(expected, rel=1e-12)
    made = plan(op, 1e9, cluster.devices, cluster, FLAT, "hierarchical")
    assert made.wire_bytes_per_rank == pytest.approx((inside * 7 / 8 + between / 8 * 3 / 4) * 1e9, rel=1e-12)


def test_hierarchical_refuses_uneven_servers():
    cluster = two_level(2)
    with pytest.raises(Refused, match=r"algorithm=hierarchical needs equally many members on every server, not 1 to 8; take ring or direct"):
        plan("all_reduce", 1e9, cluster.devices[:9], cluster, FLAT, "hierarchical")


def graph_of_four_and_six(uplink=10e9):
    nodes = {f"g{i}": "gpu" for i in range(10)} | {"s4": "switch", "s6": "switch"}
    ports = [Link(f"g{i}", "s4" if i < 4 else "s6", "scale_up", 100e9, 0.0) for i in range(10)]
    return from_graph("4+6", IDEAL, nodes, [*ports, Link("s4", "s6", "nic", uplink, 0.0)], {})


def test_groups_of_four_and_six_are_bound_by_the_uplink():
    cluster = graph_of_four_and_six()
    assert time_of("all_reduce", 1e9, cluster) == pytest.approx(2 * 9 / 10 * 1e9 / 10e9, rel=1e-12)  # every ring crosses once per direction
    assert time_of("all_to_all", 1e9, cluster) == pytest.approx(4 * 6 / 10 * 1e9 / 10e9, rel=1e-12)  # 24 pairs of S/n each way


def test_planes_that_stripe_equal_one_wide_link():
    def node(planes):
        links = [Link(f"g{i}", "s", "scale_up", gigabits * 1e9 / 8, 1e-6) for i in range(8) for gigabits in planes]
        return from_graph("planes", IDEAL, {f"g{i}": "gpu" for i in range(8)} | {"s": "switch"}, links, {})

    one, four = node([3600]), node([1000, 800, 800, 1000])
    for op in ("all_reduce", "all_to_all"):
        assert time_of(op, 1e9, one) == time_of(op, 1e9, four)


def test_a_partition_is_an_answer():
    nodes = {"a": "gpu", "b": "gpu"}
    with pytest.raises(Unreachable, match="no route from a to b"):
        time_of("all_reduce", 1e6, from_graph("halves", IDEAL, nodes, [], {}))


def test_one_rank_and_zero_bytes_have_no_phase():
    cluster = one_switch(4, latency="5 us")
    for op in ALGORITHMS:
        assert plan(op, 1e6, cluster.devices[:1], cluster, FLAT).phases == ()
        if op != "barrier":
            assert plan(op, 0, cluster.devices, cluster, FLAT).phases == ()
    assert time_of("barrier", 0, cluster) == pytest.approx(5e-6, rel=1e-12)


def test_messages():
    cluster = two_level(2, latency="2 us")
    assert seconds(send(50e6, "node0.gpu0", "node1.gpu0", cluster, FLAT), cluster, FLAT) == pytest.approx(2e-6 + 1e-3, rel=1e-12)
    assert send(0, "node0.gpu0", "node1.gpu0", cluster, FLAT).phases == ()
    assert send(5, "node0.gpu0", "node0.gpu0", cluster, FLAT).phases == ()
    assert send(5, "node0.gpu0", "node0.gpu1", cluster, FLAT).wire_bytes_per_rank == 5


def test_a_byte_on_the_ideal_network_takes_exactly_the_latency():
    cluster = ideal(4, 0.1)
    assert seconds(send(1, *cluster.devices[:2], cluster, FLAT), cluster, FLAT) == 0.1
    assert time_of("all_reduce", 1e9, cluster, algorithm="direct") == 0.2


def number(value, unit="1"):
    return Number(value, unit, "test", "assumed")


def test_the_profile_adds_latencies_and_divides_bandwidth():
    cluster = one_switch(8, "50 GB/s", "1 us")
    numbers = {
        "network.bandwidth_factor.scale_up": number(0.8),
        "network.latency.scale_up": number(0.5e-6, "s"),
        "collective.all_reduce.latency": number(10e-6, "s"),
        "collective.all_reduce.step_latency": number(3e-6, "s"),
        "collective.all_reduce.bandwidth_factor": number(0.5),
        "p2p.latency": number(7e-6, "s"),
        "p2p.bandwidth_factor": number(0.25),
    }
    fitted = Profile("fitted", "nccl", numbers)
    assert set(capacity(cluster, fitted)) == {40e9}
    expected = 10e-6 + 14 * (1e-6 + 2 * 0.5e-6 + 3e-6) + 14 / 8 * 1e8 / (0.8 * 0.5 * 50e9)  # two links per step
    assert time_of("all_reduce", 1e8, cluster, profile=fitted) == pytest.approx(expected, rel=1e-12)
    made = send(1e8, *cluster.devices[:2], cluster, fitted)
    assert seconds(made, cluster, fitted) == pytest.approx(1e-6 + 1e-6 + 7e-6 + 1e8 / (0.8 * 0.25 * 50e9), rel=1e-12)


LAB = {
    "accelerator": "cpu",
    "scale_out": {"kind": "ethernet", "bandwidth": "400 Mb/s"},
    "node": {"devices": 2, "scale_up": {"kind": "host", "bandwidth": "100 GB/s"}},
}


def uplink(op, order, nodes=2):
    """Bytes over the busiest NIC, over S, for ranks placed by `order`."""
    cluster = load_cluster(LAB, 2 * nodes)
    made = plan(op, 1.0, [cluster.devices[i] for i in order], cluster, GLOO)
    return max(
        sum(w * p.bytes for p in made.phases for i, w in p.weights if i == link) for link in range(len(cluster.links)) if cluster.links[link].kind == "nic"
    )


def test_gloo_rings_follow_rank_order():
    """Two nodes of two ranks: 1.5 S per uplink in rank order, 3 S when ranks alternate between the nodes."""
    assert uplink("all_reduce", [0, 1, 2, 3]) == pytest.approx(1.5, rel=1e-12)
    assert uplink("all_reduce", [0, 2, 1, 3]) == pytest.approx(3.0, rel=1e-12)
    assert uplink("all_gather", [0, 2, 1, 3]) == 2 * uplink("all_gather", [0, 1, 2, 3])


def test_gloo_reduce_scatter_is_an_all_reduce_and_broadcast_a_binomial_tree():
    cluster = one_switch(8)
    chosen = {op: plan(op, 8e6, cluster.devices, cluster, GLOO) for op in ALGORITHMS}
    assert chosen["reduce_scatter"].wire_bytes_per_rank == chosen["all_reduce"].wire_bytes_per_rank == 14e6
    assert "all-reduce inside" in chosen["reduce_scatter"].reason
    assert seconds(chosen["broadcast"], cluster, GLOO) == pytest.approx(6 * 8e6 / 50e9, rel=1e-12)  # L(L+1)/2 with L = 3
    assert seconds(chosen["reduce"], cluster, GLOO) == pytest.approx(2 * 7 / 8 * 8e6 / 50e9, rel=1e-12)


def test_a_binomial_tree_reaches_everyone_from_any_root():
    for n in (2, 3, 5, 6, 8, 13):
        cluster = one_switch(n)
        made = plan("broadcast", 1.0, cluster.devices, cluster, GLOO, root=n - 1)
        arrived = {cluster.links[i].b for p in made.phases for i, _ in p.weights} - {"node0.switch"}
        assert arrived == set(cluster.devices) - {cluster.devices[n - 1]}
        assert len(made.phases) == max(place.bit_count() for place in range(n))  # place i is reached through its set bits


def test_shares_move_an_uneven_all_to_all():
    """Loads [[1,2,0,1],[0,1,3,0],[2,0,1,1],[1,1,1,1]]: sent 3 3 3 3, received 3 3 4 2 without the diagonal; the port that gets 4 binds."""
    cluster = one_switch(4)
    shares = np.array([[1, 2, 0, 1], [0, 1, 3, 0], [2, 0, 1, 1], [1, 1, 1, 1]]) / 4
    for algorithm, slowest in (("direct", 4), ("pairwise", 3 + 2 + 1)):  # shifts by 1, 2, 3 wait for their largest pair
        made = plan("all_to_all", 4e6, cluster.devices, cluster, FLAT, algorithm, shares=shares)
        assert made.wire_bytes_per_rank == pytest.approx(3e6, rel=1e-12)
        assert seconds(made, cluster, FLAT) == pytest.approx(slowest * 1e6 / 50e9, rel=1e-12)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"op": "allreduce"}, "op='allreduce' is no collective; nearest: all_reduce"),
        ({"algorithm": "rng"}, "algorithm='rng' is not one of all_reduce; nearest: ring"),
        ({"members": ["node0.gpu0", "node0.gpu9"]}, "'node0.gpu9' is no device"),
        ({"members": ["node0.gpu0", "node0.gpu0"]}, "a group has each member once"),
        ({"members": []}, "a group has each member once, one or more"),
        ({"nbytes": -1}, "0 bytes or more"),
        ({"nbytes": float("nan")}, "0 bytes or more"),
        ({"root": 4}, "root=4 is no position in a group of 4; 0 to 3"),
    ],
)
def test_malformed_calls_are_named(arguments, words):
    cluster = one_switch(4)
    defaults = {"op": "all_reduce", "nbytes": 8, "members": cluster.devices, "cluster": cluster, "profile": FLAT}
    with pytest.raises(Malformed) as caught:
        plan(**(defaults | arguments))
    assert words in str(caught.value)
