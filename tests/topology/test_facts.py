"""Facts of clusters as people ask for them."""

from __future__ import annotations

import pytest

from parasim.topology.facts import facts
from parasim.topology.loader import load_cluster


def test_the_ladder_of_an_hgx_server_falls() -> None:
    tree = facts(load_cluster("h100-hgx-ib400", 512), load_cluster("a100-hgx-tcp", 16))
    assert tree["ladder"] == ["shared memory / L1", "L2", "HBM", "NVLink", "PCIe", "InfiniBand NIC", "Ethernet through the CPU"]
    assert tree["scale_up_over_network"] == pytest.approx(450 / 50) and tree["server_network_over_scale_up"] == pytest.approx(8 * 50 / 450)
    assert tree["pod"] == {"servers": 32, "devices": 256, "cross_pod_over_in_pod": 1.0}
    assert (tree["servers"], tree["devices_per_server"]) == (64, [8])


def test_oversubscription_is_what_a_device_gets_across_pods() -> None:
    cluster = load_cluster({"base": "h100-hgx-ib400", "scale_out": {"oversubscription": 4}}, 512)
    assert facts(cluster)["pod"]["cross_pod_over_in_pod"] == pytest.approx(1 / 4)


def test_ways_with_and_without_the_cpu() -> None:
    assert facts(load_cluster("a100-hgx-tcp", 16))["route"]["kinds"][:5] == ["gpu", "pcie", "cpu", "host", "nic"]
    assert "cpu" not in facts(load_cluster("l40s-pcie", 16))["route"]["kinds"]


def test_a_torus_and_one_server() -> None:
    assert facts(load_cluster("tpu-v5p", 64))["torus"] == {"links_per_device": 6, "most_hops": 6}  # 4x4x4: two per axis; 2 + 2 + 2
    alone = facts(load_cluster("single-node", 8))
    assert alone["pod"] is None and alone["scale_up_over_network"] is None and alone["torus"] is None
