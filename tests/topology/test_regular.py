"""Clusters as columns against the same clusters as objects: every link, chain, route and look."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from parasim.topology import assembly, changes
from parasim.topology.cluster import Cluster, LinkColumns
from parasim.topology.loader import load_cluster

NETS = {
    "rails": {"kind": "rail-fat-tree", "pod_nodes": 4, "oversubscription": 2},
    "rails of two devices": {"kind": "rail-fat-tree", "nic_per_device": 0.5, "pod_nodes": 3},
    "two NICs a device": {"kind": "rail-fat-tree", "nic_per_device": 2, "pod_nodes": 4},
    "one leaf a pod": {"kind": "fat-tree", "nic_per_device": 0.5, "pod_nodes": 4, "oversubscription": 4},
    "one pod": {"kind": "fat-tree", "pod_nodes": 64},
    "hashed": {"kind": "rail-fat-tree", "pod_nodes": 4, "oversubscription": 1, "ecmp": {"queue_pairs": 2}},
}


def spec(net: str) -> dict[str, object]:
    """Nodes of 4 under the network, the last pod not full."""
    out = {"bandwidth": "400 Gb/s", "latency": "3 us", "spine_latency": "2 us", "nic_per_device": 1, "oversubscription": 1} | NETS[net]
    node = {"devices": 4, "scale_up": {"kind": "switch", "bandwidth": "450 GB/s", "latency": "1 us"}}
    return {"name": "x", "accelerator": "h100-sxm", "node": node, "scale_out": out}


def both(net: str, monkeypatch: pytest.MonkeyPatch, devices: int = 40) -> tuple[Cluster, Cluster]:
    objects = load_cluster(spec(net), devices)
    monkeypatch.setattr(assembly, "SMALLEST", 1)
    return load_cluster(spec(net), devices), objects


@pytest.mark.parametrize("net", NETS)
def test_columns_are_the_objects(net: str, monkeypatch: pytest.MonkeyPatch) -> None:
    columns, objects = both(net, monkeypatch)
    assert isinstance(columns.links, LinkColumns) and isinstance(objects.links, tuple)
    assert tuple(columns.links[i] for i in range(len(columns.links))) == objects.links == tuple(columns.links)
    assert (columns.devices, columns.node_of, dict(columns.nodes)) == (objects.devices, objects.node_of, objects.nodes)
    for name in ("bandwidths", "latencies", "kinds", "servers"):
        assert np.array_equal(getattr(columns, name), getattr(objects, name)), name
    for a in objects.devices[::3]:
        assert [columns.route(a, b) for b in objects.devices] == [objects.route(a, b) for b in objects.devices]
    assert columns.exchange(columns.devices) == objects.exchange(objects.devices)
    assert columns.leaving("node1.gpu2") == objects.leaving("node1.gpu2")
    assert columns.name == objects.name and dict(columns.description) == dict(objects.description) and columns.price == objects.price


@pytest.mark.parametrize("net", NETS)
def test_looks_are_the_same(net: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sets of devices look alike in one exactly if they do in the other; so after ranks have been placed elsewhere."""
    columns, objects = both(net, monkeypatch)
    order = np.random.default_rng(1).permutation(40).tolist()
    members = np.arange(40).reshape(-1, 4)
    for one, other in ((columns, objects), (changes.place(columns, order), changes.place(objects, order))):
        assert one.alike is not None and other.alike is not None
        found = [np.unique(c.alike.looks(members), return_inverse=True)[1] for c in (one, other) if c.alike is not None]
        same = [f[:, None] == f[None, :] for f in found]
        assert np.array_equal(*same)
        far = one.devices[0], one.devices[-1]
        assert one.route(*far) == other.route(*far)
        assert np.array_equal(one.routes(one.devices[:20] * 30, one.devices[20:] * 30), other.routes(one.devices[:20] * 30, one.devices[20:] * 30))


def test_changes_of_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    columns, objects = both("rails", monkeypatch)
    for change in (lambda c: changes.scale(c, "node3.nic1", 0.5), lambda c: changes.remove(c, "pod0.leaf0-spine0"), lambda c: changes.slow(c, 5, 1.5)):
        one, other = change(columns), change(objects)
        assert tuple(one.links) == tuple(other.links) and one.slowdown == other.slowdown
        assert [one.route(one.devices[0], b) for b in one.devices] == [other.route(one.devices[0], b) for b in one.devices]
    assert replace(columns, price=1.0).links is columns.links
