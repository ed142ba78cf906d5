"""Cluster: devices, switches and the directed links between them, with deterministic routes; also as a networkx graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, overload

import numpy as np
from numpy.typing import NDArray

from ..errors import Refused, Unreachable, Violation
from ..provenance import Number

if TYPE_CHECKING:
    import networkx as nx

    from .alike import Alike
    from .bulk import Climbs
    from .pods import Pods

Floats = NDArray[np.float64]
MANY = 512  # pairs from which columns of routes pay
NODE_KINDS = ("gpu", "chip", "nic", "pcie", "cpu", "switch")
LINK_KINDS = ("scale_up", "nic", "leaf", "spine", "pcie", "ici", "dcn", "host")


@dataclass(frozen=True)
class Accelerator:
    """What one rank computes on.

    `peak_flops[dtype]` is the dense peak (FLOP/s), `memory` its capacity (bytes), `memory_bandwidth` read plus write (bytes/s).
    `host_link` is one direction to the host's memory, `host_memory_bandwidth` this device's share of that, read plus write (bytes/s).
    `multiprocessors` compute tiles of products at a time; `matrix_unit` is the width (elements) of a systolic array that
    multiplies. `shared_memory_bandwidth` and `l2_bandwidth` (bytes/s) are told, and price nothing.
    """

    name: str
    kind: Literal["gpu", "cpu", "tpu"]
    peak_flops: Mapping[str, Number]
    memory: Number
    memory_bandwidth: Number
    host_link: Number | None = None
    host_memory_bandwidth: Number | None = None
    multiprocessors: Number | None = None
    matrix_unit: Number | None = None
    shared_memory_bandwidth: Number | None = None
    l2_bandwidth: Number | None = None

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


class LinkColumns(Sequence[Link]):
    """Links of which the numbers are there as columns, and a Link when it is asked for; `kinds` are places in LINK_KINDS."""

    bandwidths: Floats
    latencies: Floats
    kinds: NDArray[np.int64]
    pods: Pods | None = None  # of the devices in the order of the network


class Router(Protocol):
    """Decides the way from one device to another."""

    def path(self, a: str, b: str) -> tuple[str, ...] | None:
        """The names of the nodes from `a` to `b`, both included; None where there is no way."""
        ...

    def exchange(self, members: Sequence[str]) -> Exchange | None:
        """All pairs of `members` counted at once; None where this router has no short cut for it."""
        ...

    def columns(self, devices: Sequence[str], index: Callable[[], Mapping[tuple[str, str], int]]) -> Climbs | None:
        """The routes between all `devices` as columns of links (`index()` by their ends); None where this router has no short cut for it."""
        ...


class Exchange(NamedTuple):
    """Every member sends to every other: how many of the messages cross each edge, and one pair of devices per sort of route."""

    crossings: Mapping[tuple[str, str], int]
    examples: tuple[tuple[str, str], ...]


@dataclass(frozen=True, eq=False)
class Rates:
    """Bytes/s of links, worked out for those that are asked for: a large cluster has far more than any run uses."""

    factors: NDArray[np.float64]  # of each kind of link
    kinds: NDArray[np.int64]
    bandwidths: NDArray[np.float64]

    @overload
    def __getitem__(self, links: int) -> np.float64: ...
    @overload
    def __getitem__(self, links: NDArray[np.int64]) -> NDArray[np.float64]: ...
    def __getitem__(self, links: int | NDArray[np.int64]) -> np.float64 | NDArray[np.float64]:
        return self.factors[self.kinds[links]] * self.bandwidths[links]

    def __len__(self) -> int:
        return len(self.kinds)


@dataclass(frozen=True, eq=False)
class Cluster:
    """A network of devices. Compared and hashed by identity.

    `nodes` gives every node its kind, one of NODE_KINDS. Rank i runs on `devices[i]`. `node_of` names the server (scale-up domain) of each
    device. `slowdown` says how many times as long as it should
    a device computes (absent: 1). `price` is USD per device and hour. `description` holds the numbers it was built from, with their sources, for reports.
    """

    name: str
    accelerator: Accelerator
    nodes: Mapping[str, str]
    devices: tuple[str, ...]
    links: Sequence[Link]
    node_of: Mapping[str, str]
    router: Router = field(repr=False)
    price: float | None = None
    description: Mapping[str, Number | str] = field(default_factory=dict)
    slowdown: Mapping[str, float] = field(default_factory=dict)
    _routes: dict[tuple[str, str], tuple[int, ...]] = field(default_factory=dict, init=False, repr=False)
    _scaled: dict[tuple[float, ...], Rates] = field(default_factory=dict, init=False, repr=False)

    def route(self, a: str, b: str) -> tuple[int, ...]:
        """Indices of the links from device `a` to device `b`, in order; empty if they are the same. Raises `Unreachable` naming both."""
        known = self._routes.get((a, b))
        if known is None:
            known = self._routes[a, b] = self._find(a, b)
        return known

    def exchange(self, members: Sequence[str]) -> tuple[dict[int, int], tuple[tuple[str, str], ...]]:
        """For an exchange between all pairs of `members`: messages per link index, and pairs of devices among which is the slowest route."""
        counted = self.router.exchange(members)
        if counted is not None:
            return {self.index[edge]: n for edge, n in counted.crossings.items() if n}, counted.examples
        pairs = tuple((a, b) for a in members for b in members if a != b)
        return dict(Counter(link for a, b in pairs for link in self.route(a, b))), pairs

    def routes(self, a: Sequence[str], b: Sequence[str]) -> NDArray[np.int64]:
        """The routes from a[i] to b[i] as columns: link indices int[pairs, longest], -1 where a route is shorter. Raises as `route` does."""
        columns = self._climbs
        if columns is not None and len(a) >= MANY:
            return columns.routes(a, b)
        found = [self.route(u, v) for u, v in zip(a, b, strict=True)]
        out = np.full((len(found), max(map(len, found), default=0)), -1, dtype=np.int64)
        for i, route in enumerate(found):
            out[i, : len(route)] = route
        return out

    @cached_property
    def _climbs(self) -> Climbs | None:
        return self.router.columns(self.devices, lambda: self.index)

    @cached_property
    def alike(self) -> Alike | None:
        """Which sets of devices look alike; None where the network has no such structure."""
        if self._climbs is None:
            return None
        from .alike import alike

        return alike(self._climbs, self.servers, self.bandwidths, self.latencies, self.kinds, self.pods)

    @cached_property
    def pods(self) -> Pods | None:
        """Its pods, where they are equal and the devices in their order."""
        pods = self.links.pods if isinstance(self.links, LinkColumns) else None
        if pods is None or self._climbs is None or not np.array_equal(self._climbs.chains[0].nodes[:, 0], np.arange(pods.count * pods.devices)):
            return None
        return pods

    @cached_property
    def servers(self) -> NDArray[np.int64]:
        """Number of the server of every device, in order of first appearance; int[devices]."""
        names = list(map(self.node_of.__getitem__, self.devices))
        number = {node: i for i, node in enumerate(dict.fromkeys(names))}
        return np.fromiter(map(number.__getitem__, names), dtype=np.int64, count=len(names))

    def leaving(self, device: str) -> list[Link]:
        """The links that leave a device."""
        columns = self._climbs if isinstance(self.links, LinkColumns) else None
        if columns is not None and device in columns.place:
            return [self.links[i] for i in sorted({int(c.up[columns.place[device], 0]) for c in columns.chains})]
        return [link for link in self.links if link.a == device]

    def between(self, a: str, b: str) -> int | None:
        """Index of the link from device `a` to device `b`, None where there is none."""
        if isinstance(self.links, LinkColumns) and self._climbs is not None:  # devices are joined by switches
            return None
        return self.index.get((a, b))

    def _find(self, a: str, b: str) -> tuple[int, ...]:
        if isinstance(self.links, LinkColumns) and self._climbs is not None and a != b and {a, b} <= self._climbs.place.keys():
            return self._climbs.route(a, b)
        path = self.router.path(a, b)
        if path is None:
            raise Unreachable(f"cluster {self.name}: no route from {a} to {b}; the network is partitioned")
        return tuple(map(self.index.__getitem__, pairwise(path)))

    @cached_property
    def graph(self) -> nx.DiGraph[str]:
        """The network as a directed networkx graph: nodes with their `kind`, each edge's attribute "link" is its index in `links`."""
        import networkx as nx  # 0.15 s that most runs do without

        graph: nx.DiGraph[str] = nx.DiGraph()
        graph.add_nodes_from((node, {"kind": kind}) for node, kind in self.nodes.items())
        graph.add_edges_from((link.a, link.b, {"link": i}) for i, link in enumerate(self.links))
        return graph

    def scaled(self, factors: tuple[float, ...]) -> Rates:
        """Bytes/s of every link times the factor of its kind (in the order of LINK_KINDS), the same object for the same factors."""
        if factors not in self._scaled:
            self._scaled[factors] = Rates(np.array(factors), self.kinds, self.bandwidths)
        return self._scaled[factors]

    def paces(self, ranks: int) -> NDArray[np.float64]:
        """How many times as long each of the first `ranks` ranks computes as the accelerator should; float[ranks]."""
        if not self.slowdown:
            return np.broadcast_to(np.float64(1.0), ranks)  # in no memory
        return np.array([self.slowdown.get(device, 1.0) for device in self.devices[:ranks]])

    @cached_property
    def bandwidths(self) -> NDArray[np.float64]:
        """Bytes/s of every link; float[links]."""
        if isinstance(self.links, LinkColumns):
            return self.links.bandwidths
        return np.array([link.bandwidth for link in self.links], dtype=np.float64)

    @cached_property
    def latencies(self) -> NDArray[np.float64]:
        """Seconds of every link; float[links]."""
        if isinstance(self.links, LinkColumns):
            return self.links.latencies
        return np.array([link.latency for link in self.links], dtype=np.float64)

    @cached_property
    def kinds(self) -> NDArray[np.int64]:
        """Place in LINK_KINDS of every link's kind; int[links]."""
        if isinstance(self.links, LinkColumns):
            return self.links.kinds
        code = {kind: i for i, kind in enumerate(LINK_KINDS)}
        return np.array([code[link.kind] for link in self.links], dtype=np.int64)

    @cached_property
    def index(self) -> dict[tuple[str, str], int]:
        """Index of the link between two nodes."""
        return {(link.a, link.b): i for i, link in enumerate(self.links)}
