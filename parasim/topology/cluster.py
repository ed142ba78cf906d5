"""Cluster: devices, switches and the directed links between them, over a networkx graph, with deterministic routes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

from ..errors import Refused, Unreachable, Violation
from ..provenance import Number

if TYPE_CHECKING:
    import networkx as nx

NODE_KINDS = ("gpu", "chip", "nic", "pcie", "cpu", "switch")
LINK_KINDS = ("scale_up", "nic", "leaf", "spine", "pcie", "ici", "dcn", "host")


@dataclass(frozen=True)
class Accelerator:
    """What one rank computes on.

    `peak_flops[dtype]` is the dense peak (FLOP/s), `memory` its capacity (bytes), `memory_bandwidth` read plus write (bytes/s).
    """

    name: str
    kind: Literal["gpu", "cpu", "tpu"]
    peak_flops: Mapping[str, Number]
    memory: Number
    memory_bandwidth: Number

    def peak(self, dtype: str) -> float:
        """Dense peak for `dtype` in FLOP/s. Raises `Refused` for a dtype the accelerator has no number for, naming those it has."""
        if dtype not in self.peak_flops:
            known = ", ".join(sorted(self.peak_flops))
            raise Refused([Violation("precision", dtype, f"has no peak on accelerator {self.name}", f"known: {known}")])
        return self.peak_flops[dtype].value


class Link(NamedTuple):
    """One direction of a cable or port: `bandwidth` in bytes/s of this direction, `latency` in seconds."""

    a: str
    b: str
    kind: str
    bandwidth: float
    latency: float


class Router(Protocol):
    """The names of the nodes from one device to another, both included; None where there is no way."""

    def path(self, a: str, b: str) -> tuple[str, ...] | None: ...


@dataclass(frozen=True, eq=False)
class Cluster:
    """A network of devices. Compared and hashed by identity.

    `graph` is directed, each edge's attribute "link" is its index in `links`, each node has a `kind` of NODE_KINDS. Rank i runs on
    `devices[i]`. `node_of` names the server (scale-up domain) of each device. `price` is USD per device and hour.
    `description` holds the numbers the cluster was built from, with their sources, for reports.
    """

    name: str
    accelerator: Accelerator
    graph: nx.DiGraph[str]
    devices: tuple[str, ...]
    links: tuple[Link, ...]
    node_of: Mapping[str, str]
    router: Router = field(repr=False)
    price: float | None = None
    description: Mapping[str, Number | str] = field(default_factory=dict)
    _routes: dict[tuple[str, str], tuple[int, ...]] = field(default_factory=dict, init=False, repr=False)

    def route(self, a: str, b: str) -> tuple[int, ...]:
        """Indices of the links from device `a` to device `b`, in order; empty if they are the same. Raises `Unreachable` naming both."""
        known = self._routes.get((a, b))
        if known is None:
            known = self._routes[a, b] = self._find(a, b)
        return known

    def _find(self, a: str, b: str) -> tuple[int, ...]:
        path = self.router.path(a, b)
        if path is None:
            raise Unreachable(f"cluster {self.name}: no route from {a} to {b}; the network is partitioned")
        neighbours = self.graph.adj
        return tuple(neighbours[u][v]["link"] for u, v in pairwise(path))
