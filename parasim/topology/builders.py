"""Clusters from a few numbers: servers, one host, an ideal network, any graph.

Every cable is two directed links. Latencies of the files are one way, end to end (device to device through a scale-up switch, NIC to NIC
through one leaf); half of them lies on each of the two links. What is inside a server that is no switch is in `inside`, the networks between
servers in `fat_tree` and `ethernet`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ..errors import Malformed, Refused, Violation
from ..provenance import Number
from .cluster import Accelerator, Cluster, Link
from .draft import Draft, Wire, assemble
from .fat_tree import FatTree, ethernet, fat_tree
from .inside import Inside
from .shortest import islands

__all__ = [
    "IDEAL",
    "RailFatTree",
    "Wire",
    "assemble",
    "ethernet",
    "from_graph",
    "ideal",
    "loopback",
    "rail_fat_tree",
    "servers",
    "uneven_servers",
    "wired_servers",
]

IDEAL = Accelerator(
    name="ideal",
    kind="gpu",
    peak_flops={d: Number(math.inf, "FLOP/s", "no limit, by definition", "assumed") for d in ("bf16", "fp16", "fp32", "fp64")},
    memory=Number(math.inf, "bytes", "no limit, by definition", "assumed"),
    memory_bandwidth=Number(math.inf, "bytes/s", "no limit, by definition", "assumed"),
)
DEVICE_KIND = {"gpu": "gpu", "cpu": "cpu", "tpu": "chip"}
SCALE_UP_LINK = {"switch": "scale_up", "host": "host"}


class RailFatTree(NamedTuple):
    """`nics` per node of `bandwidth` (bytes/s per direction), the same on every node; the rest as in `FatTree`."""

    nics: int
    bandwidth: float
    latency: float
    spine_latency: float
    pod_nodes: int
    oversubscription: float


def servers(count: int, devices: int, accelerator: Accelerator, scale_up: Wire | None) -> Draft:
    """`count` nodes of `devices`, each device with one full-duplex port of `scale_up` to the switch of its node."""
    return uneven_servers([devices] * count, accelerator, scale_up)


def uneven_servers(sizes: Sequence[int], accelerator: Accelerator, scale_up: Wire | None) -> Draft:
    """A node per entry of `sizes`, each of its devices with one full-duplex port of `scale_up` to the switch of the node."""
    draft = Draft(accelerator)
    for n, size in enumerate(sizes):
        names = _devices(draft, n, size)
        if scale_up is None:
            draft.chains.update((name, ((name,),)) for name in names)
            continue
        switch = f"node{n}.switch"
        draft.kinds[switch] = "switch"
        for name in names:
            draft.cable(name, switch, scale_up.kind, scale_up.bandwidth, scale_up.latency / 2)
            draft.chains[name] = ((name, switch),)
    return draft


def wired_servers(insides: Sequence[Inside], accelerator: Accelerator) -> Draft:
    """A node per entry of `insides`, wired as that says."""
    draft = Draft(accelerator)
    for n, inside in enumerate(insides):
        server = f"node{n}"
        names = _devices(draft, n, len(inside.devices))
        draft.kinds.update((f"{server}.{name}", kind) for name, kind in inside.others.items())
        for a, b, kind, bandwidth, latency in inside.cables:
            draft.cable(f"{server}.{a}", f"{server}.{b}", kind, bandwidth, latency)
        for name, local in zip(names, inside.devices, strict=True):
            draft.place[name] = (server, local)
            draft.chains[name] = ((name, server),)
            draft.attach[name] = tuple(f"{server}.{node}" for node in inside.attach[local])
            if local in inside.to_cpu:
                draft.to_cpu[name] = tuple(f"{server}.{node}" for node in inside.to_cpu[local])
    for inside in dict.fromkeys(insides):
        draft.inside |= inside.paths
    return draft


def _devices(draft: Draft, n: int, size: int) -> list[str]:
    """The names of the devices of node `n`, entered in the draft."""
    kind = DEVICE_KIND[draft.accelerator.kind]
    names = [f"node{n}.{kind}{i}" for i in range(size)]
    draft.servers.append(names)
    draft.kinds.update(dict.fromkeys(names, kind))
    draft.node_of.update(dict.fromkeys(names, f"node{n}"))
    draft.attach.update((name, (name,)) for name in names)
    return names


def rail_fat_tree(draft: Draft, net: RailFatTree) -> Draft:
    """Put the servers of `draft` under a rail-optimised two-level fat tree."""
    return fat_tree(draft, FatTree(net.nics / len(draft.servers[0]), *net[1:]))


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
    island = islands(nodes, ((link.a, link.b) for link in links if link.kind in ("scale_up", "ici", "host")))
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
