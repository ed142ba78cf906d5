"""Facts of a cluster for people: the ladder of bandwidths around one device, the way between two devices, pods, and a torus's hops.

Bandwidths are bytes/s of one direction and one device, latencies seconds one way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

from .cluster import Cluster

OUTWARD = ("nic", "leaf", "spine", "dcn")


class Rung(NamedTuple):
    """A level of memory or network: what reaches one device."""

    name: str
    bandwidth: float


def facts(cluster: Cluster, beside: Cluster | None = None, source: int = 0, target: int | None = None) -> dict[str, Any]:
    """All facts, JSON-ready; the ladder also holds the rungs that only `beside` has. `source`, `target`: devices of the route (default: first, last)."""
    a, b = cluster.devices[source], cluster.devices[-1 if target is None else target]
    every = {rung.name: rung for rung in [*(rungs(beside) if beside else ()), *rungs(cluster)]}
    ladder = sorted(every.values(), key=lambda rung: -rung.bandwidth)
    sizes = Counter(cluster.node_of[d] for d in cluster.devices)
    own = {rung.name: rung.bandwidth for rung in rungs(cluster)}
    up, nic = _port(cluster, inside=True), _port(cluster, inside=False)
    memory = own["HBM"]
    return {
        "name": cluster.name,
        "devices": len(cluster.devices),
        "servers": len(sizes),
        "devices_per_server": sorted(set(sizes.values())),
        "capacity_bytes": cluster.accelerator.memory.value,
        "ladder": [rung.name for rung in ladder],
        "rungs": [{"name": r.name, "bandwidth_Bps": r.bandwidth} for r in ladder],
        "scale_up_Bps": up,
        "network_Bps": nic,
        "memory_over_scale_up": {"per_direction": memory / up, "both_directions": memory / (2 * up)} if up else None,
        "scale_up_over_network": up / nic if up and nic else None,
        "server_network_over_scale_up": max(sizes.values()) * nic / up if up and nic else None,
        "pod": _pod(cluster),
        "route": route(cluster, a, b),
        "torus": _torus(cluster),
    }


def rungs(cluster: Cluster) -> Iterator[Rung]:
    """From inside the device to the network between servers; what the files do not say is left out."""
    chip = cluster.accelerator
    for name, number in (("shared memory / L1", chip.shared_memory_bandwidth), ("L2", chip.l2_bandwidth), ("HBM", chip.memory_bandwidth)):
        if number is not None:
            yield Rung(name, number.value)
    if up := _port(cluster, inside=True):
        yield Rung("NVLink" if "NVLink" in _source(cluster, "node.scale_up.bandwidth") else "scale-up", up)
    if chip.host_link is not None:
        yield Rung("PCIe", chip.host_link.value)
    if nic := _port(cluster, inside=False):
        far = next(d for d in cluster.devices if cluster.node_of[d] != cluster.node_of[cluster.devices[0]])
        through = any(cluster.nodes[cluster.links[i].a] == "cpu" for i in cluster.route(cluster.devices[0], far))
        source = _source(cluster, "scale_out.bandwidth")
        yield Rung("Ethernet through the CPU" if through else "InfiniBand NIC" if "InfiniBand" in source else "NIC", nic)


def _source(cluster: Cluster, key: str) -> str:
    return str(getattr(cluster.description.get(key), "source", ""))


def _port(cluster: Cluster, *, inside: bool) -> float:
    """Bytes/s of the narrowest link from the first device to another of its server, or of another server; 0 where there is none."""
    first = cluster.devices[0]
    same = (d for d in cluster.devices[1:] if (cluster.node_of[d] == cluster.node_of[first]) == inside)
    other = next(same, None)
    return 0.0 if other is None else min(cluster.links[i].bandwidth for i in cluster.route(first, other))


def route(cluster: Cluster, a: str, b: str) -> dict[str, Any]:
    """The way from `a` to `b`: kinds of nodes and links in turn, its links, their least bandwidth and the sum of latencies."""
    links = [cluster.links[i] for i in cluster.route(a, b)]
    kinds = [kind for link in links for kind in (cluster.nodes[link.a], link.kind)] + [cluster.nodes[b]]
    return {
        "from": a,
        "to": b,
        "kinds": [kind for i, kind in enumerate(kinds) if i == 0 or kind != kinds[i - 1]],
        "hops": len(links),
        "bandwidth_Bps": min((link.bandwidth for link in links), default=None),
        "latency_s": sum(link.latency for link in links),
    }


def _pod(cluster: Cluster) -> dict[str, Any] | None:
    """Servers that the first one reaches without a spine, and what one device gets across the spines over what its port gives, all sending at once."""
    first = cluster.devices[0]
    heads: dict[str, str] = {}
    for device in cluster.devices:
        heads.setdefault(cluster.node_of[device], device)
    ways = {server: [cluster.links[i].kind for i in cluster.route(first, device)] for server, device in heads.items()}
    near = [server for server, kinds in ways.items() if "spine" not in kinds and not set(kinds) & {"dcn"}]
    if all(not set(kinds) & set(OUTWARD) for kinds in ways.values()):
        return None
    return {"servers": len(near), "devices": sum(cluster.node_of[d] in near for d in cluster.devices), "cross_pod_over_in_pod": _across(cluster, first)}


def _across(cluster: Cluster, device: str) -> float | None:
    """Bytes/s up from the leaf of `device` to the spines over those that come into it, at most 1; None without a spine."""
    far = next((d for d in reversed(cluster.devices) if any(cluster.links[i].kind == "spine" for i in cluster.route(device, d))), None)
    if far is None:
        return None
    leaf = next(cluster.links[i].a for i in cluster.route(device, far) if cluster.links[i].kind == "spine")
    up = sum(link.bandwidth for link in cluster.links if link.a == leaf and link.kind == "spine")
    into = sum(link.bandwidth for link in cluster.links if link.b == leaf and link.kind != "spine")
    return min(1.0, up / into)


def _torus(cluster: Cluster) -> dict[str, int] | None:
    """Links of a chip, and hops to the chip that is farthest from the first."""
    first = cluster.devices[0]
    links = sum(link.a == first and link.kind == "ici" for link in cluster.links)
    return {"links_per_device": links, "most_hops": max(len(cluster.route(first, d)) for d in cluster.devices)} if links else None
