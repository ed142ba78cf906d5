"""Routes: by structure, by shortest paths, around failures; all deterministic."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parasim.errors import Malformed, Unreachable
from parasim.topology.builders import IDEAL, from_graph, ideal
from parasim.topology.changes import place, remove, scale
from parasim.topology.cluster import Link
from parasim.topology.loader import load_cluster

TREE = {
    "accelerator": "h100-sxm",
    "node": {"devices": 4, "scale_up": {"bandwidth": "450 GB/s", "latency": "1 us"}},
    "scale_out": {"kind": "rail-fat-tree", "bandwidth": "400 Gb/s", "latency": "2 us", "spine_latency": "0.5 us", "pod_nodes": 4},
}
HOSTS = {
    "accelerator": "cpu",
    "node": {"devices": 2, "scale_up": {"kind": "host", "bandwidth": "2 GB/s", "latency": "1 us"}},
    "scale_out": {"kind": "ethernet", "bandwidth": "400 Mb/s", "latency": "100 us"},
}


def kinds(cluster, a, b):
    return [cluster.links[i].kind for i in cluster.route(a, b)]


def names(cluster, a, b):
    return [a, *(cluster.links[i].b for i in cluster.route(a, b))]


def test_same_rail_stays_on_its_leaf_and_other_rails_and_pods_cross_a_spine():
    cluster = load_cluster(TREE, 32)
    assert names(cluster, "node0.gpu1", "node3.gpu1") == ["node0.gpu1", "node0.nic1", "pod0.leaf1", "node3.nic1", "node3.gpu1"]
    assert kinds(cluster, "node0.gpu1", "node3.gpu2") == ["nic", "leaf", "spine", "spine", "leaf", "nic"]
    assert kinds(cluster, "node0.gpu1", "node4.gpu1") == ["nic", "leaf", "spine", "spine", "leaf", "nic"]
    assert cluster.route("node0.gpu1", "node0.gpu1") == ()
    latency = sum(cluster.links[i].latency for i in cluster.route("node0.gpu1", "node4.gpu1"))
    assert latency == pytest.approx(2.5e-6, rel=1e-12)  # latency + spine_latency


def test_a_shift_between_pods_loads_every_spine_link_at_most_once():
    """D-mod-K routing is non-blocking for shift permutations: node i of pod 0 to node i+k of pod 1."""
    cluster = load_cluster(TREE, 32)
    for k in range(4):
        used = Counter(link for i in range(4) for link in cluster.route(f"node{i}.gpu0", f"node{4 + (i + k) % 4}.gpu0"))
        assert max(used.values()) == 1


def test_oversubscription_divides_what_leaves_a_leaf():
    for ratio in (1, 2, 7):
        spec = TREE | {"scale_out": TREE["scale_out"] | {"oversubscription": ratio, "pod_nodes": 14}}
        cluster = load_cluster(spec, 4 * 28)
        up = sum(link.bandwidth for link in cluster.links if link.a == "pod0.leaf0" and link.kind == "spine")
        assert up == pytest.approx(14 * 50e9 / ratio, rel=1e-12)


def test_hosts_share_one_nic_and_meet_inside():
    cluster = load_cluster(HOSTS, 4)
    assert kinds(cluster, "node0.cpu0", "node0.cpu1") == ["host", "host"]
    assert kinds(cluster, "node0.cpu0", "node1.cpu1") == ["host", "pcie", "nic", "nic", "pcie", "host"]
    assert set(cluster.route("node0.cpu0", "node1.cpu0")) & set(cluster.route("node0.cpu1", "node1.cpu1"))


def test_a_nic_shared_by_two_devices():
    cluster = load_cluster(TREE | {"scale_out": TREE["scale_out"] | {"nic_per_device": 0.5}}, 8)
    assert names(cluster, "node0.gpu1", "node1.gpu0")[1:4] == ["node0.nic0", "pod0.leaf0", "node1.nic0"]


def test_several_nics_of_a_device_are_one_striped_port():
    cluster = load_cluster(TREE | {"scale_out": TREE["scale_out"] | {"nic_per_device": 2}}, 8)
    assert {link.bandwidth for link in cluster.links if link.kind == "nic"} == {100e9}  # 2 x 400 Gb/s


def test_an_ideal_message_takes_exactly_its_latency():
    cluster = ideal(3, 0.1)
    assert sum(cluster.links[i].latency for i in cluster.route(*cluster.devices[:2])) == 0.1


def test_shortest_paths_prefer_hops_then_latency_then_bandwidth_then_names():
    nodes = {"a": "gpu", "b": "gpu", "s": "switch", "t": "switch", "u": "switch", "v": "switch"}
    links = [
        *(Link(x, y, "scale_up", 1e9, 2e-6) for x, y in (("a", "s"), ("s", "b"))),
        *(Link(x, y, "scale_up", 1e9, 1e-6) for x, y in (("a", "t"), ("t", "b"))),
        *(Link(x, y, "scale_up", 2e9, 1e-6) for x, y in (("a", "v"), ("v", "b"), ("a", "u"), ("u", "b"))),
    ]
    cluster = from_graph("graph", IDEAL, nodes, links, {})
    assert names(cluster, "a", "b") == ["a", "u", "b"]  # not s (slower), not t (narrower), not v (later in the alphabet)


def test_planes_between_the_same_nodes_are_one_striped_link():
    planes = [Link("g", "s", "scale_up", gigabits * 1e9 / 8, 1e-6) for gigabits in (1000, 800, 800, 1000)]
    cluster = from_graph("planes", IDEAL, {"g": "gpu", "s": "switch"}, planes, {})
    assert [link.bandwidth for link in cluster.links] == [450e9, 450e9]  # 3600 Gb/s per direction


def test_planes_of_different_kinds_are_malformed():
    with pytest.raises(Malformed, match="planes of one link have one kind"):
        from_graph("planes", IDEAL, {"g": "gpu", "s": "switch"}, [Link("g", "s", "nic", 1, 0), Link("g", "s", "leaf", 1, 0)], {})


def test_a_partitioned_graph_names_both_devices():
    nodes = {f"g{i}": "gpu" for i in range(4)} | {"s": "switch", "t": "switch"}
    links = [Link(f"g{i}", "s" if i < 2 else "t", "scale_up", 1e9, 0) for i in range(4)]
    with pytest.raises(Unreachable, match="no route from g1 to g2; the network is partitioned"):
        from_graph("halves", IDEAL, nodes, links, {}).route("g1", "g2")


def test_servers_of_a_graph_are_its_scale_up_islands():
    nodes = {f"g{i}": "gpu" for i in range(4)} | {"s": "switch", "t": "switch"}
    links = [Link(f"g{i}", "s" if i < 2 else "t", "scale_up", 1e9, 0) for i in range(4)] + [Link("s", "t", "spine", 1e9, 0)]
    cluster = from_graph("halves", IDEAL, nodes, links, {"g3": "mine"})
    assert list(cluster.node_of.values()) == ["node0", "node0", "node1", "mine"]


def test_a_lost_spine_link_is_routed_around_and_a_lost_server_is_missed():
    cluster = load_cluster(TREE, 32)
    spine = names(cluster, "node0.gpu0", "node4.gpu0")[3]
    left = remove(cluster, f"pod0.leaf0-{spine}")
    assert names(left, "node0.gpu0", "node4.gpu0")[3] != spine
    assert len(left.route("node0.gpu0", "node4.gpu0")) == 6
    assert names(left, "node0.gpu1", "node4.gpu1") == names(cluster, "node0.gpu1", "node4.gpu1")
    with pytest.raises(Unreachable, match=r"node0.gpu0 to node3.gpu2"):
        remove(left, "node3").route("node0.gpu0", "node3.gpu2")


def test_a_slower_nic_is_slower_in_both_directions_and_nothing_else_changes():
    cluster = load_cluster(TREE, 8)
    slow = scale(cluster, "node0.nic3", 0.25)
    changed = [(a.kind, b.bandwidth / a.bandwidth) for a, b in zip(cluster.links, slow.links, strict=True) if a != b]
    assert sorted(changed) == [("leaf", 0.25)] * 2 + [("nic", 0.25)] * 2
    with pytest.raises(Malformed, match=r"no node, server or pair of joined nodes .*nearest: node0.nic3"):
        scale(cluster, "node0.nic33", 0.5)


def test_placement_reorders_devices():
    cluster = place(load_cluster(TREE, 8), [0, 4, 1, 5])
    assert cluster.devices == ("node0.gpu0", "node1.gpu0", "node0.gpu1", "node1.gpu1")
    with pytest.raises(Malformed, match="placement: 9 is no device; 0 to 3, once each"):
        place(cluster, [0, 9])


CLUSTERS = [
    load_cluster(TREE, 40),
    load_cluster(TREE | {"scale_out": TREE["scale_out"] | {"nic_per_device": 0.5, "pod_nodes": 3}}, 40),
    load_cluster(HOSTS, 20),
    load_cluster("loopback", 20),
    load_cluster("ethernet-100g", 20),
    remove(load_cluster(TREE, 20), "spine1"),
]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_counting_an_exchange_equals_walking_its_pairs(data):
    cluster = data.draw(st.sampled_from(CLUSTERS))
    members = data.draw(st.lists(st.sampled_from(cluster.devices), min_size=2, max_size=14, unique=True))
    pairs = [(a, b) for a in members for b in members if a != b]
    crossings, examples = cluster.exchange(members)
    assert crossings == Counter(link for a, b in pairs for link in cluster.route(a, b))
    slowest = [max(sum(cluster.links[i].latency for i in cluster.route(*pair)) for pair in some) for some in (examples, pairs)]
    assert slowest[0] == slowest[1]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_routes_are_connected_and_take_no_link_twice(data):
    cluster = data.draw(st.sampled_from(CLUSTERS))
    a, b = (data.draw(st.sampled_from(cluster.devices)) for _ in range(2))
    links = [cluster.links[i] for i in cluster.route(a, b)]
    ends = [a, *(link.b for link in links)]
    assert [link.a for link in links] == ends[:-1]
    assert ends[-1] == b
    assert len(set(links)) == len(links)


@pytest.mark.parametrize("spec", ["h100-hgx-ib400", "ethernet-100g"])
def test_columns_of_routes_are_the_routes(spec):
    """Rails, spines and neighbours: every pair of 2,000 drawn, with a pair of a device and itself."""
    cluster = load_cluster(spec, 640)
    rng = np.random.default_rng(5)
    a, b = (list(np.array(cluster.devices)[rng.integers(0, len(cluster.devices), 2000)]) for _ in range(2))
    b[0] = a[0]
    got = cluster.routes(a, b)
    assert [sorted(int(link) for link in row if link >= 0) for row in got] == [sorted(cluster.route(u, v)) for u, v in zip(a, b, strict=True)]
    assert cluster.routes(a[:5], b[:5]).shape[0] == 5
