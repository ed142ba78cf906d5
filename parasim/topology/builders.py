"""Clusters from a few numbers: servers under a rail-optimised fat tree or one Ethernet switch, one host, an ideal network, any graph.

Every cable is two directed links. Latencies of the files are one way, end to end (device to device through a scale-up switch, NIC to NIC
through one leaf); half of them lies on each of the two links.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import networkx as nx

from ..errors import Malformed, Refused, Violation
from ..provenance import Number
from .cluster import Accelerator, Cluster, Link, Router
from .routing import Chain, ShortestPaths, UpDown

IDEAL = Accelerator(
    name="ideal",
    kind="gpu",
    peak_flops={d: Number(math.inf, "FLOP/s", "no limit, by definition", "assumed") for d in ("bf16", "fp16", "fp32", "fp64")},
    memory=Number(math.inf, "bytes", "no limit, by definition", "assumed"),
    memory_bandwidth=Number(math.inf, "bytes/s", "no limit, by definition", "assumed"),
)
DEVICE_KIND = {"gpu": "gpu", "cpu": "cpu", "tpu": "chip"}
SCALE_UP_LINK = {"switch": "scale_up", "host": "host"}


class Wire(NamedTuple):
    """A network seen from one port: link kind, bytes/s per direction, seconds one way from end to end."""

    kind: str
    bandwidth: float
    latency: float


class RailFatTree(NamedTuple):
    """`nics` per node of `bandwidth` (bytes/s per direction); NIC i of the nodes of a pod on leaf i; leaves joined by spines.

    `latency` NIC to NIC under one leaf, `spine_latency` more over a spine (s). `oversubscription` = down-links over up-links of a leaf.
    """

    nics: int
    bandwidth: float
    latency: float
    spine_latency: float
    pod_nodes: int
    oversubscription: float


@dataclass
class Draft:
    """A cluster being put together; `finish` freezes it."""

    accelerator: Accelerator
    kinds: dict[str, str] = field(default_factory=dict)
    links: list[Link] = field(default_factory=list)
    node_of: dict[str, str] = field(default_factory=dict)
    servers: list[list[str]] = field(default_factory=list)
    chains: dict[str, tuple[Chain, ...]] = field(default_factory=dict)
    spines: tuple[str, ...] = ()
    slot: dict[str, int] = field(default_factory=dict)

    def cable(self, a: str, b: str, kind: str, bandwidth: float, latency: float) -> None:
        """Both directions between `a` and `b`."""
        self.links += (Link(a, b, kind, bandwidth, latency), Link(b, a, kind, bandwidth, latency))

    def finish(self, name: str, price: float | None = None, description: Mapping[str, Number | str] | None = None) -> Cluster:
        """The cluster, routed by its structure."""
        router = UpDown(self.chains, self.spines, self.slot)
        return assemble(name, self.accelerator, self.kinds, self.links, self.node_of, router, price, description)


def assemble(
    name: str,
    accelerator: Accelerator,
    kinds: Mapping[str, str],
    links: Iterable[Link],
    node_of: Mapping[str, str],
    router: Router | None = None,
    price: float | None = None,
    description: Mapping[str, Number | str] | None = None,
) -> Cluster:
    """A Cluster of nodes (name -> kind) and directed links; planes are striped; the devices are those of `node_of`, in order."""
    striped = stripe(links)
    graph: nx.DiGraph[str] = nx.DiGraph()
    graph.add_nodes_from((node, {"kind": kind}) for node, kind in kinds.items())
    graph.add_edges_from((link.a, link.b, {"link": i}) for i, link in enumerate(striped))
    router = router or ShortestPaths(graph, striped)
    return Cluster(name, accelerator, graph, tuple(node_of), striped, dict(node_of), router, price, dict(description or {}))


def stripe(links: Iterable[Link]) -> tuple[Link, ...]:
    """Several planes from one node to another count as one link: bandwidths add up, the slowest latency holds."""
    planes: dict[tuple[str, str], Link] = {}
    for link in links:
        first = planes.setdefault((link.a, link.b), link)
        if first is not link:
            if first.kind != link.kind:
                raise Malformed(f"links {link.a} - {link.b}: planes of one link have one kind, not {first.kind} and {link.kind}")
            wider = first.bandwidth + link.bandwidth
            planes[link.a, link.b] = first._replace(bandwidth=wider, latency=max(first.latency, link.latency))
    return tuple(planes.values())


def servers(count: int, devices: int, accelerator: Accelerator, scale_up: Wire | None) -> Draft:
    """`count` nodes of `devices`, each device with one full-duplex port of `scale_up` to the switch of its node."""
    draft = Draft(accelerator)
    kind = DEVICE_KIND[accelerator.kind]
    for n in range(count):
        names = [f"node{n}.{kind}{i}" for i in range(devices)]
        draft.servers.append(names)
        draft.kinds.update(dict.fromkeys(names, kind))
        draft.node_of.update(dict.fromkeys(names, f"node{n}"))
        if scale_up is None:
            draft.chains.update((name, ((name,),)) for name in names)
            continue
        switch = f"node{n}.switch"
        draft.kinds[switch] = "switch"
        for name in names:
            draft.cable(name, switch, scale_up.kind, scale_up.bandwidth, scale_up.latency / 2)
            draft.chains[name] = ((name, switch),)
    return draft


def rail_fat_tree(draft: Draft, net: RailFatTree) -> Draft:
    """Put the servers of `draft` under a rail-optimised two-level fat tree.

    Link kinds: `nic` device to NIC, `leaf` NIC to leaf, `spine` leaf to spine. A device whose NICs are several has one of their sum.
    """
    rails = min(net.nics, len(draft.servers[0]))
    port = net.bandwidth * net.nics / rails
    for n, names in enumerate(draft.servers):
        pod, place = divmod(n, net.pod_nodes)
        for i, name in enumerate(names):
            rail = i * rails // len(names)
            nic, leaf = f"node{n}.nic{rail}", f"pod{pod}.leaf{rail}"
            if nic not in draft.kinds:
                draft.kinds[nic] = "nic"
                draft.kinds[leaf] = "switch"
                draft.cable(nic, leaf, "leaf", port, net.latency / 2)
            draft.cable(name, nic, "nic", port, 0.0)
            draft.chains[name] = (*draft.chains[name], (name, nic, leaf))
            draft.slot[name] = place
    leaves = [node for node in draft.kinds if node.startswith("pod")]
    if len(leaves) > 1:
        _spines(draft, net, leaves, port)
    return draft


def _spines(draft: Draft, net: RailFatTree, leaves: Sequence[str], port: float) -> None:
    """Join the leaves: a leaf of `pod_nodes` ports has 1/oversubscription of their bandwidth upwards, one up-link per spine."""
    uplinks = max(1, math.floor(net.pod_nodes / net.oversubscription + 1e-9))
    bandwidth = net.pod_nodes * port / net.oversubscription / uplinks
    used = min(uplinks, net.pod_nodes, len(draft.servers))  # routes pick a spine by the receiver's port, so the others stay idle
    draft.spines = tuple(f"spine{s}" for s in range(used))
    draft.kinds.update(dict.fromkeys(draft.spines, "switch"))
    for leaf in leaves:
        for spine in draft.spines:
            draft.cable(leaf, spine, "spine", bandwidth, net.spine_latency / 2)


def ethernet(draft: Draft, net: Wire) -> Draft:
    """Put the servers under one switch, each with one NIC that its devices share. Link kinds: `pcie` server to NIC, `nic` NIC to switch."""
    draft.kinds["ethernet"] = "switch"
    for n, names in enumerate(draft.servers):
        nic = f"node{n}.nic0"
        draft.kinds[nic] = "nic"
        top = draft.chains[names[0]][0][-1]  # the switch of the node, or its only device
        draft.cable(top, nic, "pcie", net.bandwidth, 0.0)
        draft.cable(nic, "ethernet", net.kind, net.bandwidth, net.latency / 2)
        for name in names:
            draft.chains[name] = ((*draft.chains[name][0], nic, "ethernet"),)
    return draft


def loopback(n: int, accelerator: Accelerator, bandwidth: float, latency: float) -> Cluster:
    """`n` ranks on one host, each with one full-duplex link of kind `host` (bytes/s per direction, seconds rank to rank)."""
    return servers(1, n, accelerator, Wire("host", bandwidth, latency)).finish("loopback")


def ideal(n: int, latency: float, bandwidth: float = math.inf, accelerator: Accelerator = IDEAL) -> Cluster:
    """`n` devices on one ideal switch: a message takes exactly `latency` seconds plus bytes over `bandwidth` (none when unlimited)."""
    return servers(1, n, accelerator, Wire("scale_up", bandwidth, latency)).finish("ideal")


def from_graph(
    name: str,
    accelerator: Accelerator,
    nodes: Mapping[str, str],
    links: Sequence[Link],
    placed: Mapping[str, str],
    price: float | None = None,
    description: Mapping[str, Number | str] | None = None,
) -> Cluster:
    """Any network: `nodes` (id -> kind), `links` undirected; `placed` names the server of devices where the user said so.

    Devices are the nodes of kind gpu or chip, in order; cpu nodes where there are none. Devices joined by links of kind scale_up, ici or
    host alone form one server.
    """
    _check_ends(nodes, links)
    devices = [node for node, kind in nodes.items() if kind in ("gpu", "chip")] or [node for node, kind in nodes.items() if kind == "cpu"]
    if not devices:
        raise Refused([Violation("nodes", name, "has no device", "give at least one node kind gpu, chip or cpu")])
    near: nx.Graph[str] = nx.Graph()
    near.add_nodes_from(nodes)
    near.add_edges_from((link.a, link.b) for link in links if link.kind in ("scale_up", "ici", "host"))
    island = {node: part for part, members in enumerate(nx.connected_components(near)) for node in members}
    numbers = {part: f"node{i}" for i, part in enumerate(dict.fromkeys(island[device] for device in devices))}
    node_of = {device: placed.get(device, numbers[island[device]]) for device in devices}
    both = [way for link in links for way in (link, link._replace(a=link.b, b=link.a))]
    return assemble(name, accelerator, nodes, both, node_of, None, price, description)


def _check_ends(nodes: Mapping[str, str], links: Sequence[Link]) -> None:
    for i, link in enumerate(links):
        for end in (link.a, link.b):
            if end not in nodes:
                raise Malformed(f"links.{i}: {end!r} is no id of nodes; known: {', '.join(list(nodes)[:12])}")
        if link.a == link.b:
            raise Malformed(f"links.{i}: joins {link.a!r} to itself; a link has two ends")
