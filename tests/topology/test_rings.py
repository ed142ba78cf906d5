"""Rings over direct cables: none shared, and as many as the graph has."""

from collections import Counter
from itertools import pairwise

import pytest

from parasim.topology.changes import remove
from parasim.topology.loader import load_cluster
from parasim.topology.rings import rings


def edges(ring):
    return [*pairwise(ring), (ring[-1], ring[0])]


@pytest.mark.parametrize(
    ("name", "members", "count"),
    [
        ("v100-dgx1-ib100", 8, 6),  # six NVLinks of every GPU, each in use in both directions
        # all pairs joined: n - 1 rings, but for n = 4 and 6 (Tillson, "A Hamiltonian decomposition of K*2m, 2m >= 8", 1980)
        ("mi300x-roce400", 2, 1),
        ("mi300x-roce400", 3, 2),
        ("mi300x-roce400", 4, 2),
        ("mi300x-roce400", 5, 4),
        ("mi300x-roce400", 6, 4),
        ("mi300x-roce400", 7, 6),
        ("mi300x-roce400", 8, 7),
        ("perlmutter-slingshot", 4, 2),
        ("h100-pcie-bridges", 2, 1),
        ("h100-pcie-bridges", 8, 0),  # bridges join pairs only
        ("h100-hgx-ib400", 8, 0),  # a switch between them
        ("mi300x-roce400", 1, 0),
        ("tpu-v5e", 8, 0),  # cables of a torus have algorithms of their own
    ],
)
def test_as_many_rings_as_there_are(name, members, count):
    cluster = load_cluster(name, 8 if "slingshot" not in name else 4)
    devices = cluster.devices[:members]
    found = rings(cluster, devices)
    assert len(found) == count
    assert all(sorted(ring) == sorted(devices) and ring[0] == devices[0] for ring in found)
    used = Counter(edge for ring in found for edge in edges(ring))
    narrow = min((link.bandwidth for link in cluster.links if link.kind == "scale_up"), default=1.0)
    assert all(n * narrow <= cluster.links[cluster.index[edge]].bandwidth * (1 + 1e-12) for edge, n in used.items())


def test_a_lost_cable_costs_a_ring_or_two():
    whole = load_cluster("mi300x-roce400", 8)
    left = remove(whole, "node0.gpu0-node0.gpu1")
    assert len(rings(left, left.devices[:8])) == 6  # gpu0 has six cables left
