"""Changed clusters: other placement of ranks, slow devices, slower links, failed links and nodes. The cluster given stays as it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import zip_longest

from ..errors import Malformed
from ..words import nearest
from .cluster import Cluster
from .draft import assemble
from .regular import Ways
from .routing import Detour, Nested, UpDown
from .shortest import ShortestPaths


def place(cluster: Cluster, order: Sequence[int]) -> Cluster:
    """The cluster with rank i on what was device `order[i]`; devices left out hold no rank. Raises `Malformed` for repeats or strangers."""
    known = len(cluster.devices)
    wrong = [i for i in order if not 0 <= i < known]
    if wrong or len(set(order)) < len(order):
        raise Malformed(f"placement: {wrong[0] if wrong else 'a device'} {'is no device' if wrong else 'is there twice'}; 0 to {known - 1}, once each")
    return replace(cluster, devices=tuple(cluster.devices[i] for i in order))


def round_robin(cluster: Cluster) -> list[int]:
    """Indices of the devices, one of each server in turn; servers with fewer drop out."""
    servers: dict[str, list[int]] = {}
    for i, device in enumerate(cluster.devices):
        servers.setdefault(cluster.node_of[device], []).append(i)
    return [i for turn in zip_longest(*servers.values()) for i in turn if i is not None]


def slow(cluster: Cluster, rank: int, factor: float) -> Cluster:
    """The cluster whose device of `rank` takes `factor` times as long to compute (on top of what it takes already)."""
    if not 0 <= rank < len(cluster.devices):
        raise Malformed(f"rank={rank} is no rank of cluster {cluster.name}; legal: 0 to {len(cluster.devices) - 1}")
    device = cluster.devices[rank]
    return replace(cluster, slowdown={**cluster.slowdown, device: cluster.slowdown.get(device, 1.0) * factor})


def scale(cluster: Cluster, name: str, bandwidth: float) -> Cluster:
    """The cluster with `bandwidth` times the bytes/s on the links that `name` means: those of a node, or those between "a" and "b" in "a-b".

    Routes stay. Raises `Malformed` for an unknown name or a factor that is not above 0.
    """
    if not bandwidth > 0:
        raise Malformed(f"bandwidth={bandwidth:g} of {name} must be above 0; a link that failed is removed")
    chosen = _links(cluster, name)
    links = tuple(k._replace(bandwidth=k.bandwidth * bandwidth) if i in chosen else k for i, k in enumerate(cluster.links))
    return replace(cluster, links=links)


def remove(cluster: Cluster, name: str) -> Cluster:
    """The cluster without a node, a whole server ("node3": all its parts), or the links of "a-b".

    A tree of switches uses its other spines, then the shortest ways left. A device that is gone stays a device, so that its rank is
    missed: routes to it raise `Unreachable`.
    """
    gone = _links(cluster, name)
    links = [link for i, link in enumerate(cluster.links) if i not in gone]
    node_of = {device: cluster.node_of[device] for device in cluster.devices}
    left = replace(
        assemble(cluster.name, cluster.accelerator, cluster.nodes, links, node_of, None, cluster.price, cluster.description), slowdown=cluster.slowdown
    )
    tree = cluster.router.tree if isinstance(cluster.router, Detour | Ways) else cluster.router
    if isinstance(tree, UpDown | Nested):
        return replace(left, router=Detour(tree, ShortestPaths(left.links)))
    return left


def _links(cluster: Cluster, name: str) -> set[int]:
    """Indices of the links that `name` means, both directions."""
    pairs = {f"{link.a}-{link.b}": i for i, link in enumerate(cluster.links)}
    if name in pairs:
        a, b = cluster.links[pairs[name]][:2]
        return {pairs[name]} | ({pairs[f"{b}-{a}"]} if f"{b}-{a}" in pairs else set())
    nodes = {name} if name in cluster.nodes else {node for node in cluster.nodes if node.startswith(f"{name}.")}
    if not nodes:
        known = [*cluster.nodes, *dict.fromkeys(cluster.node_of.values()), *(pairs if "-" in name else ())]
        raise Malformed(f"link={name!r} is no node, server or pair of joined nodes of cluster {cluster.name}; {nearest(name, dict.fromkeys(known))}")
    return {i for i, link in enumerate(cluster.links) if link.a in nodes or link.b in nodes}
