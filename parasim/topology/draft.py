"""A cluster being put together: nodes, cables and ways up, entered server by server and network by network, then frozen."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from ..errors import Malformed
from ..provenance import Number
from .cluster import Accelerator, Cluster, Link, Router
from .routing import Chain, Nested, UpDown
from .shortest import ShortestPaths


class Wire(NamedTuple):
    """A network seen from one port: link kind, bytes/s per direction, seconds one way from end to end."""

    kind: str
    bandwidth: float
    latency: float


@dataclass
class Draft:
    """A cluster being put together; `finish` freezes it.

    `attach[device]` are the nodes from a device to where its NIC is plugged in, the device itself where that is all; `to_cpu[device]` those
    to the first CPU of a server that has one. `place[device]` is the server and the name there, of servers with an `inside`.
    """

    accelerator: Accelerator
    kinds: dict[str, str] = field(default_factory=dict)
    links: list[Link] = field(default_factory=list)
    node_of: dict[str, str] = field(default_factory=dict)
    servers: list[list[str]] = field(default_factory=list)
    chains: dict[str, tuple[Chain, ...]] = field(default_factory=dict)
    attach: dict[str, Chain] = field(default_factory=dict)
    to_cpu: dict[str, Chain] = field(default_factory=dict)
    spines: tuple[tuple[str, ...], ...] = ()
    slot: dict[str, int] = field(default_factory=dict)
    zone: dict[str, int] = field(default_factory=dict)
    cores: tuple[str, ...] = ()
    inside: dict[tuple[str, str], tuple[str, ...]] = field(default_factory=dict)
    place: dict[str, tuple[str, str]] = field(default_factory=dict)

    def cable(self, a: str, b: str, kind: str, bandwidth: float, latency: float) -> None:
        """Both directions between `a` and `b`."""
        self.links += (Link(a, b, kind, bandwidth, latency), Link(b, a, kind, bandwidth, latency))

    def finish(self, name: str, price: float | None = None, description: Mapping[str, Number | str] | None = None) -> Cluster:
        """The cluster, routed by its structure."""
        tree = UpDown(self.chains, self.spines, self.slot, self.zone, self.cores)
        router = Nested(self.inside, self.place, tree) if self.place else tree
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
    router = router or ShortestPaths(striped)
    return Cluster(name, accelerator, dict(kinds), tuple(node_of), striped, dict(node_of), router, price, dict(description or {}))


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
