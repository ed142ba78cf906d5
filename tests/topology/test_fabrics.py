"""Fabrics: what is inside a server, networks of two and three levels, collisions, TCP through the host, slices, changed catalog entries."""

import time
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parasim.errors import Malformed, Refused, Unreachable
from parasim.topology.changes import remove
from parasim.topology.ecmp import slowest_link
from parasim.topology.loader import accelerators, catalog, load_cluster

NVLINK = 25e9  # one NVLink 2, bytes/s per direction
XGMI = {"accelerator": "mi300x", "node": {"devices": 8, "scale_up": {"kind": "mesh", "bandwidth": "64 GB/s", "latency": "1 us"}}}
CUBE = {"accelerator": "v100-sxm-16", "node": {"devices": 8, "scale_up": {"kind": "hybrid-cube-mesh", "bandwidth": "25 GB/s", "latency": "1 us"}}}
PCIE = {
    "accelerator": "h100-pcie",
    "node": {
        "devices": 8,
        "scale_up": {"kind": "pcie", "bandwidth": "63 GB/s", "per_switch": 2, "sockets": 2, "between_sockets": "22 GB/s", "latency": "2 us"},
    },
}
TREE = {"kind": "fat-tree", "bandwidth": "400 Gb/s", "latency": "2 us", "spine_latency": "1 us", "pod_nodes": 2}
SWITCHED = {"accelerator": "h100-sxm", "node": {"devices": 2, "scale_up": {"bandwidth": "450 GB/s", "latency": "1 us"}}}


def hops(cluster, a, b):
    return [cluster.links[i] for i in cluster.route(a, b)]


def kinds(cluster, a, b):
    return [link.kind for link in hops(cluster, a, b)]


def narrowest(cluster, a, b):
    return min(link.bandwidth for link in hops(cluster, a, b))


def test_every_peer_of_an_xgmi_node_has_a_link_of_its_own():
    cluster = load_cluster(XGMI, 8)
    leaving = [link for link in cluster.links if link.a == "node0.gpu0"]
    assert len(leaving) == 7
    assert sum(link.bandwidth for link in leaving) == 448e9  # 7 x 64 GB/s, of which one peer is reached at 64
    assert {narrowest(cluster, "node0.gpu0", f"node0.gpu{i}") for i in range(1, 8)} == {64e9}
    assert {len(cluster.route("node0.gpu3", f"node0.gpu{i}")) for i in range(8)} == {0, 1}


def test_the_hybrid_cube_mesh_has_six_nvlinks_per_gpu_and_at_most_two_hops():
    cluster = load_cluster(CUBE, 8)
    ports = Counter()
    for link in cluster.links:
        ports[link.a] += link.bandwidth / NVLINK
    assert set(ports.values()) == {6}  # NVLink 2: six links per V100
    distance = Counter(len(cluster.route(a, b)) for a in cluster.devices for b in cluster.devices if a != b)
    assert distance == {1: 32, 2: 24}  # 4 neighbours of each GPU, the other 3 through a third GPU
    assert narrowest(cluster, "node0.gpu0", "node0.gpu3") == 2 * NVLINK
    assert narrowest(cluster, "node0.gpu0", "node0.gpu1") == NVLINK


def test_a_hybrid_cube_mesh_has_eight_devices():
    with pytest.raises(Refused, match=r"node\.devices=4 is no hybrid cube mesh; 8 devices, or scale_up\.kind: mesh"):
        load_cluster({**CUBE, "node": {**CUBE["node"], "devices": 4}}, 4)


def test_neighbours_on_pcie_stay_under_their_switch_and_sockets_are_narrow():
    cluster = load_cluster(PCIE, 8)
    assert kinds(cluster, "node0.gpu0", "node0.gpu1") == ["pcie", "pcie"]
    assert kinds(cluster, "node0.gpu0", "node0.gpu2") == ["pcie"] * 4
    assert kinds(cluster, "node0.gpu0", "node0.gpu7") == ["pcie", "pcie", "host", "pcie", "pcie"]
    assert narrowest(cluster, "node0.gpu0", "node0.gpu7") == 22e9
    times = [sum(link.latency for link in hops(cluster, "node0.gpu0", f"node0.gpu{i}")) for i in (1, 2, 7)]
    assert times == pytest.approx([2e-6, 2e-6, 4e-6], rel=1e-12)  # through one switch or CPU, and once more between sockets


def test_bridges_join_neighbours_only():
    bridged = {**PCIE, "node": {**PCIE["node"], "scale_up": {**PCIE["node"]["scale_up"], "bridge": "300 GB/s"}}}
    cluster = load_cluster(bridged, 8)
    assert kinds(cluster, "node0.gpu0", "node0.gpu1") == ["scale_up"]
    assert narrowest(cluster, "node0.gpu4", "node0.gpu5") == 300e9
    assert kinds(cluster, "node0.gpu1", "node0.gpu2") == ["pcie"] * 4


def test_without_peer_access_all_goes_through_host_memory():
    cluster = load_cluster("rtx4090-pcie", 8)
    assert narrowest(cluster, "node0.gpu0", "node0.gpu1") == 12e9
    assert kinds(cluster, "node0.gpu0", "node0.gpu7") == ["pcie", "host", "pcie"]


def test_sockets_must_divide_the_devices():
    with pytest.raises(Refused, match=r"node\.scale_up\.sockets=2 must divide node\.devices=3; such as 1"):
        load_cluster({**PCIE, "node": {**PCIE["node"], "devices": 3}}, 3)


def test_a_plain_fat_tree_has_one_leaf_for_all_nics_of_a_node():
    cluster = load_cluster({**SWITCHED, "scale_out": TREE}, 8)
    assert kinds(cluster, "node0.gpu0", "node1.gpu1") == ["nic", "leaf", "leaf", "nic"]  # another rail, the same leaf
    assert kinds(cluster, "node0.gpu0", "node2.gpu0") == ["nic", "leaf", "spine", "spine", "leaf", "nic"]
    up = [link.bandwidth for link in cluster.links if link.a == "pod0.leaf0" and link.kind == "spine"]
    assert sum(up) == 4 * 50e9  # 2 nodes of 2 NICs of 400 Gb/s, not oversubscribed


def test_a_shift_between_the_leaves_of_a_plain_fat_tree_loads_every_uplink_once():
    cluster = load_cluster({**SWITCHED, "scale_out": TREE}, 8)
    for k in range(4):
        used = Counter(link for i in range(4) for link in cluster.route(cluster.devices[i], cluster.devices[4 + (i + k) % 4]))
        assert max(used.values()) == 1


CORE = {**SWITCHED, "scale_out": {**TREE, "kind": "rail-fat-tree", "core": {"pods": 2, "oversubscription": 4, "latency": "3 us"}}}


def test_three_levels_have_two_cliffs():
    """Two nodes of two GPUs under a set of leaves, two such pods under their spines, two such zones under the cores, 1:4."""
    cluster = load_cluster(CORE, 16)
    assert kinds(cluster, "node0.gpu0", "node1.gpu0") == ["nic", "leaf", "leaf", "nic"]
    assert kinds(cluster, "node0.gpu0", "node2.gpu0") == ["nic", "leaf", "spine", "spine", "leaf", "nic"]
    assert kinds(cluster, "node0.gpu0", "node4.gpu0") == ["nic", "leaf", "spine", "dcn", "dcn", "spine", "leaf", "nic"]
    assert sum(link.latency for link in hops(cluster, "node0.gpu0", "node4.gpu0")) == pytest.approx(6e-6, rel=1e-12)  # 2 + 1 + 3 us
    between = sum(link.bandwidth for link in cluster.links if link.b.startswith("core") and link.a.startswith("zone0"))
    assert between == pytest.approx(8 * 50e9 / 4, rel=1e-12)  # 8 NICs of a zone, a quarter upwards


def test_collisions_slow_the_hashed_tier_by_the_table():
    """16 up-links, 4 queue pairs: the slowest takes 1.97 times as long as an even spread."""
    flat = {**SWITCHED, "node": {**SWITCHED["node"], "devices": 8}, "scale_out": TREE}
    even, hashed = (load_cluster({**flat, "scale_out": {**TREE, **extra}}, 32) for extra in ({}, {"ecmp": {"queue_pairs": 4}}))
    ratio = {a.kind: a.bandwidth / b.bandwidth for a, b in zip(even.links, hashed.links, strict=True)}
    assert ratio == pytest.approx({"scale_up": 1, "nic": 1, "leaf": 1, "spine": 1.97}, rel=1e-12)
    assert hashed.description["scale_out.ecmp.slowest_link"].value == 1.97


@pytest.mark.parametrize(("uplinks", "parts"), [(8, 1), (8, 4), (16, 2), (32, 16), (64, 1)])
def test_the_table_of_collisions_is_what_hashing_gives(uplinks, parts):
    rng = np.random.default_rng(5)
    thrown = rng.multinomial(uplinks * parts, [1 / uplinks] * uplinks, size=4000)
    assert slowest_link(uplinks, parts).value == pytest.approx(thrown.max(axis=1).mean() / parts, rel=0.02)


def test_collisions_between_and_beyond_the_entries():
    assert slowest_link(1, 1).value == 1.0  # one link: nothing to collide with
    assert slowest_link(8, 1).value < slowest_link(12, 1).value < slowest_link(16, 1).value
    assert slowest_link(16, 8).value < slowest_link(16, 6).value < slowest_link(16, 4).value
    assert slowest_link(1000, 64).value == slowest_link(64, 16).value


def test_sockets_go_through_the_cpu_of_the_host():
    cluster = load_cluster("a100-hgx-tcp", 16)
    assert kinds(cluster, "node0.gpu0", "node1.gpu3") == ["pcie", "host", "nic", "nic", "host", "pcie"]
    assert narrowest(cluster, "node0.gpu0", "node1.gpu3") == 9.45e9
    assert kinds(cluster, "node0.gpu0", "node0.gpu1") == ["scale_up"] * 2


def test_sockets_of_a_pcie_host_use_its_slots():
    tcp = {"kind": "ethernet", "bandwidth": "100 Gb/s", "latency": "15 us", "host": {"bandwidth": "4 GB/s", "device": "20 GB/s"}}
    cluster = load_cluster({**PCIE, "scale_out": tcp}, 16)
    assert kinds(cluster, "node0.gpu0", "node1.gpu7") == ["pcie", "pcie", "host", "nic", "nic", "host", "host", "pcie", "pcie"]


def test_servers_may_be_unequal():
    cluster = load_cluster({**SWITCHED, "node": {**SWITCHED["node"], "devices": [4, 6]}, "scale_out": TREE}, 10)
    assert Counter(cluster.node_of.values()) == {"node0": 4, "node1": 6}
    with pytest.raises(Refused, match="devices=11 is more than cluster inline has; at most 10"):
        load_cluster({**SWITCHED, "node": {**SWITCHED["node"], "devices": [4, 6]}, "scale_out": TREE}, 11)
    with pytest.raises(Refused, match=r"node\.count=3 differs from the 2 servers of node\.devices; auto, or 2"):
        load_cluster({**SWITCHED, "node": {**SWITCHED["node"], "count": 3, "devices": [4, 6]}, "scale_out": TREE}, 4)


def test_slices_are_the_smallest_that_hold_the_devices_and_join_over_the_network():
    assert len(load_cluster("tpu-v5e", 5).devices) == 8  # 2x4
    ring, line = load_cluster("tpu-v5e", 256), load_cluster("tpu-v5e", 64)
    assert len(ring.route("slice0.chip0.0", "slice0.chip15.0")) == 1  # an axis of 16 closes
    assert len(line.route("slice0.chip0.0", "slice0.chip7.0")) == 7  # an axis of 8 does not
    two = load_cluster("tpu-v5e", 300)
    assert len(two.devices) == 512
    assert kinds(two, "slice0.chip0.0", "slice1.chip0.0") == ["pcie", "dcn", "dcn", "pcie"]
    with pytest.raises(Refused, match=r"torus\.dcn=null is missing: 300 devices need more than one slice of 16x16"):
        load_cluster({"base": "tpu-v5e", "torus": {"dcn": None}}, 300)


def test_a_full_pod_of_v3_closes_both_axes():
    pod = load_cluster({"base": "tpu-v3", "torus": {"shapes": "32x32", "wrap": "all"}}, 1024)
    assert len(pod.route("slice0.chip0.0", "slice0.chip31.31")) == 2


def test_a_cluster_may_change_another():
    base = load_cluster("h100-hgx-ib400", 16)
    changed = load_cluster({"base": "h100-hgx-ib400", "name": "mine", "accelerator": "h200-sxm", "scale_out": {"bandwidth": "200 Gb/s"}}, 16)
    assert (changed.name, changed.accelerator.name) == ("mine", "h200-sxm")
    assert changed.nodes == base.nodes
    assert narrowest(changed, "node0.gpu0", "node1.gpu0") == 25e9
    tcp = load_cluster({"base": "h100-hgx-ib400", "scale_out": {"kind": "ethernet", "bandwidth": "100 Gb/s"}}, 16)  # another kind replaces the block
    assert narrowest(tcp, "node0.gpu0", "node1.gpu0") == 12.5e9


def test_faults_of_a_changed_cluster_have_their_place(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("base: h100-hgx-ib400\nscale_out:\n  bandwith: 1 GB/s\n")
    with pytest.raises(Malformed, match=rf"{path}:3:3: scale_out\.bandwith: unknown key; nearest: bandwidth"):
        load_cluster(path, 8)
    path.write_text("base: h100-hgx\n")
    with pytest.raises(Malformed, match=rf"{path}:1:1: base: 'h100-hgx' is no catalog name and no path; nearest: h100-hgx-"):
        load_cluster(path, 8)
    path.write_text("base: ./mine.yaml\n")
    with pytest.raises(Malformed, match=r"mine\.yaml' is its own base"):
        load_cluster(path, 8)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"scale_up": {"kind": "mush", "bandwidth": "1 GB/s"}}, "kind mush: one of switch, host, mesh, hybrid-cube-mesh, pcie"),
        ({"scale_up": {"kind": "pcie", "bandwidth": "1 GB/s", "bridges": "1 GB/s"}}, "bridges: unknown key; nearest: bridge"),
        ({"scale_up": {"kind": "mesh"}}, "node.scale_up.bandwidth: is missing; due here: kind, bandwidth, latency"),
        ({"devices": [4, 0]}, "[4, 0] is no list of counts"),
    ],
)
def test_malformed_insides_are_named(spec, words):
    with pytest.raises(Malformed) as caught:
        load_cluster({"accelerator": "h100-sxm", "node": {"devices": 8, **spec}}, 2)
    assert words in str(caught.value)


def test_a_torus_has_its_own_network():
    with pytest.raises(Malformed, match=r"torus has its network in torus\.dcn: leave scale_out out"):
        load_cluster({"base": "tpu-v4", "scale_out": TREE}, 8)
    with pytest.raises(Malformed, match=r"'4xfour' is no shape; chips along each axis, such as 4x4x8"):
        load_cluster({"base": "tpu-v4", "torus": {"shapes": "4xfour"}}, 8)


CLUSTERS = [
    load_cluster({**XGMI, "scale_out": {**TREE, "kind": "rail-fat-tree"}}, 40),
    load_cluster({**CUBE, "scale_out": {**TREE, "nic_per_device": 0.5}}, 40),
    load_cluster({**PCIE, "scale_out": {**TREE, "nic_per_device": 0.5}}, 40),
    load_cluster({**PCIE, "scale_out": {"kind": "ethernet", "bandwidth": "100 Gb/s", "latency": "15 us"}}, 40),
    load_cluster({**SWITCHED, "scale_out": TREE}, 20),
    load_cluster(CORE, 40),
    load_cluster({**CORE, "node": {**CORE["node"], "devices": [1, 2, 3, 2, 4]}}, 12),
    load_cluster("a100-hgx-tcp", 40),
]


@settings(max_examples=120, deadline=None)
@given(st.data())
def test_counting_an_exchange_equals_walking_its_pairs(data):
    cluster = data.draw(st.sampled_from(CLUSTERS))
    members = data.draw(st.lists(st.sampled_from(cluster.devices), min_size=2, max_size=14, unique=True))
    pairs = [(a, b) for a in members for b in members if a != b]
    crossings, examples = cluster.exchange(members)
    assert crossings == Counter(link for a, b in pairs for link in cluster.route(a, b))
    slowest = [max(sum(link.latency for link in hops(cluster, *pair)) for pair in some) for some in (examples, pairs)]
    assert slowest[0] == pytest.approx(slowest[1], rel=1e-12)


@settings(max_examples=120, deadline=None)
@given(st.data())
def test_routes_are_connected_and_the_way_back_is_as_long(data):
    cluster = data.draw(st.sampled_from(CLUSTERS))
    a, b = (data.draw(st.sampled_from(cluster.devices)) for _ in range(2))
    ends = [a, *(link.b for link in hops(cluster, a, b))]
    assert all((u, v) in cluster.index for u, v in pairwise(ends))
    assert ends[-1] == b
    assert len(cluster.route(b, a)) == len(cluster.route(a, b))


def test_a_lost_nvlink_or_xgmi_link_is_routed_around():
    for spec in (XGMI, CUBE):
        left = remove(load_cluster(spec, 8), "node0.gpu0-node0.gpu1")
        assert len(left.route("node0.gpu0", "node0.gpu1")) == 2
        assert len(left.route("node0.gpu0", "node0.gpu2")) == 1


def test_a_lost_core_is_routed_around_and_a_zone_without_any_is_apart():
    cluster = load_cluster(CORE, 16)
    core = hops(cluster, "node0.gpu0", "node4.gpu0")[3].b
    left = remove(cluster, core)
    assert len(left.route("node0.gpu0", "node4.gpu0")) == 8
    for name in [n for n in cluster.nodes if n.startswith("core") and n != core]:
        left = remove(left, name)
    with pytest.raises(Unreachable, match=r"no route from node0.gpu0 to node4.gpu0; the network is partitioned"):
        left.route("node0.gpu0", "node4.gpu0")


FABRICS = (
    "selene-hdr200x8 hdr-ib ib-ndr400x8 ib-xdr800x8 efa-3200g rdma-per-gpu roce-800g roce-200gx8 roce-400gx8 roce-400gx8-oversubscribed7 roce-2000g "
    "nvl72-ib400 nvl72-ib800 hdr200x4 edr100x1-hybrid-cube-mesh single-node"
)


def test_every_fabric_of_the_published_measurements_is_in_the_catalog():
    assert set(FABRICS.split()) <= set(catalog())


@pytest.mark.parametrize(
    ("name", "per_node", "gigabits"),
    [  # Gb/s of all NICs of a node, as the names say
        ("selene-hdr200x8", 8, 1600), ("ib-ndr400x8", 8, 3200), ("ib-xdr800x8", 8, 6400), ("efa-3200g", 8, 3200), ("roce-800g", 8, 800),
        ("roce-200gx8", 8, 1600), ("roce-400gx8", 8, 3200), ("roce-2000g", 8, 2000), ("nvl72-ib400", 72, 72 * 400), ("nvl72-ib800", 72, 72 * 800),
        ("hdr200x4", 8, 800), ("edr100x1-hybrid-cube-mesh", 8, 100), ("v100-dgx1-ib100", 8, 400), ("v100-dgx2-ib100", 16, 800),
    ],
)  # fmt: skip
def test_a_node_of_a_fabric_has_the_line_rate_of_its_name(name, per_node, gigabits):
    cluster = load_cluster(name, 2 * per_node)
    assert Counter(cluster.node_of.values())["node0"] == per_node
    rate = sum(link.bandwidth for link in cluster.links if link.a.startswith("node0.nic") and link.kind == "leaf")
    assert rate == pytest.approx(gigabits * 1e9 / 8, rel=1e-12)


def test_zones_of_the_llama_3_cluster_hold_3072_gpus_and_share_a_seventh():
    cluster = load_cluster({"base": "roce-400gx8-oversubscribed7", "scale_out": {"ecmp": None}}, 6144)
    zone = cluster.devices[:3072]
    far = cluster.devices[3072]
    assert "dcn" not in kinds(cluster, zone[0], zone[-1])
    assert "dcn" in kinds(cluster, zone[0], far)
    up = sum(link.bandwidth for link in cluster.links if link.a.startswith("zone0") and link.b.startswith("core"))
    assert up == pytest.approx(3072 * 50e9 / 7, rel=1e-9)


@pytest.mark.parametrize(
    ("name", "peak", "gigabytes", "rate"),
    [  # dense bf16 (V100: fp16) TFLOP/s, GB, GB/s
        ("a100-sxm-40", 312, 40, 1555), ("a100-pcie-80", 312, 80, 1940), ("h100-pcie", 756, 80, 2000), ("h100-96-500w", 989, 96, 2400),
        ("h200-sxm", 989, 141, 4800), ("h800-sxm", 989, 80, 3350), ("b200-sxm", 2250, 180, 8000), ("b300-sxm", 2250, 288, 8000),
        ("gb200", 2500, 186, 8000), ("gb300", 2500, 288, 8000), ("v100-sxm-16", 125, 16, 900), ("v100-sxm-32", 125, 32, 900),
        ("mi300x", 1307, 192, 5300), ("rtx-4090", 165.2, 24, 1008), ("l40s", 362, 48, 864), ("tpu-v3", 123, 32, 900), ("tpu-v4", 275, 32, 1200),
        ("tpu-v5e", 197, 16, 819), ("tpu-v5p", 459, 95, 2765), ("tpu-v6e", 918, 32, 1640), ("tpu-v7", 2307, 192, 7380),
    ],
)  # fmt: skip
def test_accelerators_of_the_catalog(name, peak, gigabytes, rate):
    found = accelerators()[name]
    assert found.peak("fp16" if name.startswith("v100") else "bf16") == pytest.approx(peak * 1e12)
    assert (found.memory.value, found.memory_bandwidth.value) == pytest.approx((gigabytes * 1e9, rate * 1e9))


def test_v100_has_no_bf16():
    with pytest.raises(Refused, match="precision=bf16 has no peak on accelerator v100-sxm-16; known: fp16, fp32, fp64"):
        accelerators()["v100-sxm-16"].peak("bf16")


def test_sixteen_thousand_gpus_are_built_in_a_second():
    load_cluster("h100-hgx-ib400", 8)
    best = min(_timed(16384) for _ in range(3))
    assert best < 1.0, f"{best:.3f} s of one core"


def _timed(devices):
    start = time.process_time()
    load_cluster("h100-hgx-ib400", devices)
    return time.process_time() - start
