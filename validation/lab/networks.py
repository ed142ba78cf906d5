"""From a Cluster to a network that Linux can lay out: hosts, switches, cables, and which pairs of hosts meet on which port."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, permutations
from math import isfinite

import networkx as nx

from parasim.errors import Refused
from parasim.topology.cluster import Cluster

INSIDE = ("host", "scale_up", "pcie")  # kinds of links inside one host: ranks of a namespace meet in its memory
MTU = 9000  # bytes
HEADERS = 52  # bytes of IP, TCP and its time stamps inside the MTU
FRAME = 14  # bytes of Ethernet around it
PAYLOAD = (MTU - HEADERS) / (MTU + FRAME)  # part of a port's rate that TCP's payload gets
Pair = tuple[int, int]  # hosts: sender, receiver


@dataclass(frozen=True)
class Host:
    """A server: a namespace with an address and the ranks that live in it."""

    name: str
    address: str
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Port:
    """One end of a cable: a device of a namespace, and the pairs of hosts whose traffic leaves there."""

    namespace: str
    device: str
    pairs: tuple[Pair, ...]


@dataclass(frozen=True)
class Cable:
    """Two ports; bits per second in each direction."""

    ends: tuple[Port, Port]
    rate: int


@dataclass(frozen=True)
class Network:
    """A tree of hosts and switches."""

    hosts: tuple[Host, ...]
    switches: tuple[str, ...]
    cables: tuple[Cable, ...]

    @property
    def ports(self) -> tuple[tuple[Port, int], ...]:
        """Every port with its rate in bits per second."""
        return tuple((end, cable.rate) for cable in self.cables for end in cable.ends)

    @property
    def home(self) -> dict[int, str]:
        """The host of every rank."""
        return {rank: host.name for host in self.hosts for rank in host.ranks}


def network_of(cluster: Cluster) -> Network:
    """The network of `cluster`: its servers as hosts, its links outside of servers as cables.

    Raises Refused where the network is no tree, a host has not one cable, or a cable has no rate or two.
    """
    place = _vertices(cluster)
    hosts: dict[str, list[int]] = defaultdict(list)
    for rank, device in enumerate(cluster.devices):
        hosts[place[device]].append(rank)
    tree = _tree(cluster, place)
    number = {vertex: i for i, vertex in enumerate(hosts)}
    switches = [v for v in tree if v not in hosts]
    names = {v: f"h{i}" for v, i in number.items()} | {v: f"s{i}" for i, v in enumerate(switches)}
    leaving = _leaving(tree, list(hosts))
    ports: dict[str, int] = defaultdict(int)
    cables = []
    for a, b in tree.edges:
        ends = tuple(Port(names[x], _device(names[x], ports), tuple(leaving[x, y])) for x, y in ((a, b), (b, a)))
        cables.append(Cable((ends[0], ends[1]), int(tree.edges[a, b]["rate"])))
    found = tuple(Host(names[v], f"10.77.0.{i + 1}", tuple(ranks)) for i, (v, ranks) in enumerate(hosts.items()))
    crowded = [h.name for h in found if ports[h.name] != 1]
    if crowded:
        raise Refused(f"cluster {cluster.name}: host {crowded[0][1:]} has {ports[crowded[0]]} cables; the lab lays out hosts with one")
    return Network(found, tuple(names[s] for s in switches), tuple(cables))


def _device(name: str, ports: dict[str, int]) -> str:
    ports[name] += 1
    return f"{'e' if name.startswith('h') else 'p'}{ports[name] - 1}"


def _vertices(cluster: Cluster) -> dict[str, str]:
    """Node -> its host or switch: what links inside a host join is one vertex, named by its first node."""
    inside: nx.Graph[str] = nx.Graph()
    inside.add_nodes_from(cluster.nodes)
    inside.add_edges_from((link.a, link.b) for link in cluster.links if link.kind in INSIDE)
    inside.add_edges_from(_neighbours(cluster))
    out = {}
    for part in nx.connected_components(inside):
        first = next(node for node in cluster.nodes if node in part)
        out.update(dict.fromkeys(part, first))
    return out


def _neighbours(cluster: Cluster) -> list[tuple[str, str]]:
    """Neighbouring devices of one server."""
    servers: dict[str, list[str]] = defaultdict(list)
    for device in cluster.devices:
        servers[cluster.node_of[device]].append(device)
    return [pair for devices in servers.values() for pair in pairwise(devices)]


def _tree(cluster: Cluster, place: dict[str, str]) -> nx.Graph[str]:
    """The vertices and their cables, `rate` in bits per second."""
    rates: dict[tuple[str, str], float] = defaultdict(float)
    for link in cluster.links:
        a, b = place[link.a], place[link.b]
        if a != b:
            rates[a, b] += 8 * link.bandwidth
    tree: nx.Graph[str] = nx.Graph()
    tree.add_nodes_from(dict.fromkeys(place.values()))
    for (a, b), rate in rates.items():
        if not isfinite(rate) or rates.get((b, a)) != rate:
            raise Refused(f"cluster {cluster.name}: the link {a}-{b} must have one finite bandwidth in both directions to be laid out")
        tree.add_edge(a, b, rate=round(rate))
    if not nx.is_tree(tree):
        raise Refused(f"cluster {cluster.name}: the lab lays out trees of hosts and switches, and this network has other ways around or parts apart")
    return tree


def _leaving(tree: nx.Graph[str], hosts: Sequence[str]) -> dict[tuple[str, str], list[Pair]]:
    """Directed edge -> the pairs of hosts whose way it is on."""
    out: dict[tuple[str, str], list[Pair]] = defaultdict(list)
    for (i, a), (j, b) in permutations(enumerate(hosts), 2):
        for edge in pairwise(nx.shortest_path(tree, a, b)):
            out[edge].append((i, j))
    return out
