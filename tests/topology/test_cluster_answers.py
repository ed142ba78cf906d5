"""What the shape of a cluster does to a collective: cliffs, lost parts, unequal servers. S bytes, n ranks, bandwidth-bound."""

import pytest

from parasim.collectives.plan import plan, seconds
from parasim.cost.profile import datasheet
from parasim.errors import Unreachable
from parasim.topology.changes import remove, scale
from parasim.topology.loader import load_cluster

FLAT = datasheet()
S = 1e9


def time_of(cluster, members, op="all_reduce", algorithm="ring", nbytes=S):
    return seconds(plan(op, nbytes, members, cluster, FLAT, algorithm), cluster, FLAT)


def quiet(name, devices, **changes):
    """A cluster of the catalog without latencies, so that only bandwidth counts."""
    up = {"latency": "0 s"}
    return load_cluster({"base": name, "node": {"scale_up": up}, "scale_out": {"latency": "0 s", "spine_latency": "0 s", **changes}}, devices)


def test_the_ninth_gpu_falls_off_the_cliff_and_not_in_a_rack_of_72():
    """2S(8/9)/50 against 2S(7/8)/450 GB/s: 9.14; inside one NVLink network (8/9)/(7/8): 1.016."""
    hgx, rack = quiet("h100-hgx-ib400", 16), quiet("nvl72-ib400", 72)
    ratio = [time_of(c, c.devices[:9]) / time_of(c, c.devices[:8]) for c in (hgx, rack)]
    assert ratio == pytest.approx([9.142857142857142, 1.0158730158730158], rel=1e-9)


def test_nothing_but_the_first_cliff_inside_a_pod_and_a_second_one_past_it():
    """All-to-all between two zones of 256 GPUs, 1:4 between them: half of the bytes of 512 ranks share a quarter of the NICs."""
    cluster = quiet("h100-hgx-ib400", 512, core={"pods": 1, "oversubscription": 4, "latency": "0 s"})
    pod, both = cluster.devices[:256], cluster.devices
    inside = time_of(cluster, pod, "all_to_all", "direct")
    across = time_of(cluster, both, "all_to_all", "direct")
    assert inside == pytest.approx(248 / 256 * S / 50e9, rel=1e-9)  # all but the 8 of a server over one NIC
    assert across == pytest.approx(256 / 512 * S / (50e9 / 4), rel=1e-9)  # half of the ranks are beyond the core


def test_an_oversubscribed_leaf_slows_what_leaves_it_only():
    cluster = quiet("h100-hgx-ib400", 32, pod_nodes=2, oversubscription=2)
    same, other = cluster.devices[0:16:8], cluster.devices[0:32:16]  # one rail, one pod or two
    assert time_of(cluster, same) == pytest.approx(S / 50e9, rel=1e-9)  # 2(n-1)/n S over a NIC
    flows = time_of(cluster, [cluster.devices[i] for i in (0, 8, 16, 24)], "all_to_all", "direct")
    assert flows == pytest.approx(2 * 2 * S / 4 / (2 * 50e9 / 2), rel=1e-9)  # 2 senders x 2 receivers beyond, one up-link of 2 ports / 2
    assert time_of(cluster, other) == pytest.approx(S / 50e9, rel=1e-9)  # a single flow has the up-link for itself


def test_collisions_of_roce_make_a_shift_between_racks_slower_by_the_table():
    even = quiet("h100-hgx-roce400", 32, ecmp=None)
    hashed = quiet("h100-hgx-roce400", 32)
    ratio = time_of(hashed, hashed.devices, "all_to_all", "direct") / time_of(even, even.devices, "all_to_all", "direct")
    # 16 of 32 ranks are in the other rack: 16/32 S over an up-link at 50/1.97 GB/s, against 24/32 S over a NIC
    assert ratio == pytest.approx((16 / 32 * 1.97) / (24 / 32), rel=1e-9)


def test_xgmi_reaches_one_peer_on_one_link_and_all_peers_on_seven():
    cluster = quiet("mi300x-roce400", 8)
    assert time_of(cluster, cluster.devices[:2]) == pytest.approx(S / 64e9, rel=1e-9)
    assert time_of(cluster, cluster.devices, "all_gather", "direct") == pytest.approx(S / 8 / 64e9, rel=1e-9)
    assert time_of(cluster, cluster.devices, "all_gather", "ring") == pytest.approx(7 * S / 8 / (7 * 64e9), rel=1e-9)  # seven rings that share no link


def test_a_slower_link_and_a_lost_spine_slow_the_ring_or_nothing():
    cluster = quiet("h100-hgx-ib400", 64, pod_nodes=4)
    members = cluster.devices[::8]  # one rail, two pods
    whole = time_of(cluster, members)
    assert time_of(scale(cluster, "node1.nic0", 0.25), members) == pytest.approx(4 * whole, rel=1e-9)
    assert time_of(remove(cluster, "spine0"), members) == pytest.approx(whole, rel=1e-9)  # another spine takes over
    crowded = remove(remove(remove(cluster, "spine0"), "spine1"), "spine2")
    shifted = [m for pair in zip(cluster.devices[0:32:8], cluster.devices[32:64:8], strict=True) for m in pair]
    assert time_of(crowded, shifted) == pytest.approx(4 * time_of(cluster, shifted), rel=1e-9)  # four flows on the spine that is left


def test_a_lost_nic_leaves_through_the_servers_switch_and_its_neighbours():
    """Its device reaches the network over NVLink and the NIC of another device, which two then share."""
    cluster = quiet("h100-hgx-ib400", 16)
    left = remove(cluster, "node0.nic3")
    with pytest.raises(Unreachable):
        remove(left, "node0.switch").route("node0.gpu3", "node1.gpu3")
    route = left.route("node0.gpu3", "node1.gpu3")
    assert [left.links[i].kind for i in route][:3] == ["scale_up", "scale_up", "nic"]
    assert time_of(left, cluster.devices[::8]) == pytest.approx(time_of(cluster, cluster.devices[::8]), rel=1e-9)


@pytest.mark.parametrize("gone", ["node1", "node1.gpu0"])
def test_a_lost_server_partitions_its_group_and_names_both_devices(gone):
    cluster = remove(quiet("h100-hgx-ib400", 16), gone)
    with pytest.raises(Unreachable, match=r"no route from node\d\.gpu0 to node\d\.gpu0; the network is partitioned"):
        time_of(cluster, cluster.devices[::8])


def test_unequal_servers_are_bound_by_the_uplink():
    """4 GPUs and 6 GPUs, one NIC of 50 GB/s each server: the ring enters and leaves each once."""
    spec = {
        "accelerator": "h100-sxm",
        "node": {"devices": [4, 6], "scale_up": {"bandwidth": "450 GB/s"}},
        "scale_out": {"kind": "ethernet", "bandwidth": "400 Gb/s"},
    }
    cluster = load_cluster(spec, 10)
    alone = load_cluster({**spec, "node": {**spec["node"], "devices": 10}, "scale_out": None}, 10)
    assert time_of(alone, alone.devices) == pytest.approx(2 * 9 / 10 * S / 450e9, rel=1e-9)
    one_ring = time_of(cluster, cluster.devices)
    assert one_ring >= 2 * 9 / 10 * S / 50e9 * (1 - 1e-9)
    assert one_ring == pytest.approx(2 * 9 / 10 * S / 50e9, rel=1e-9)


def test_a_partitioned_group_ends_a_command_with_exit_code_1(cli, tmp_path):
    path = tmp_path / "islands.yaml"
    nodes = [f"{{id: g{i}, kind: gpu}}" for i in range(4)]
    links = ["{a: g0, b: g1, bandwidth: 1 GB/s}", "{a: g2, b: g3, bandwidth: 1 GB/s}"]
    path.write_text(f"name: islands\naccelerator: h100-sxm\nnodes: [{', '.join(nodes)}]\nlinks: [{', '.join(links)}]\n")
    answer = cli("collective", "--cluster", path, "--op", "all_reduce", "--ranks", 4, "--bytes", "1MB")
    assert answer.code == 1
    assert "no route from g0 to g2; the network is partitioned" in answer.err
