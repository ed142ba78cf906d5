"""Large clusters of equal servers under one fat tree, as columns: what every link is follows from its number.

No object per device or link: links, chains and spines are arithmetic on the numbers of servers, devices and leaves, in the order in which
`builders` and `fat_tree` enter them. The same cluster as objects is built when somebody asks for names of many links or walks the network.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, overload

import numpy as np

from .bulk import Climb, Climbs, Ints
from .cluster import LINK_KINDS, Accelerator, Cluster, Exchange, Floats, Link, LinkColumns
from .draft import Wire
from .fat_tree import FatTree
from .pods import Pods
from .routing import UpDown

SMALLEST = 512  # devices from which columns pay


@dataclass(frozen=True)
class Shape:
    """`servers` of `size` devices, `wire` from each to the switch of its server, under `net`."""

    servers: int
    size: int
    wire: Wire
    net: FatTree
    device: str  # what names of devices begin with

    @cached_property
    def rails(self) -> int:
        """NICs of a server."""
        return min(self.nics, self.size)

    @property
    def nics(self) -> int:
        """NICs of a server as bought: several of one device count as one of their sum."""
        return round(self.net.nic_per_device * self.size)

    @property
    def port(self) -> float:
        """Bytes/s of a NIC."""
        return self.net.bandwidth * self.nics / self.rails

    @property
    def per_pod(self) -> int:
        """Leaves of a pod."""
        return self.rails if self.net.rails else 1

    @cached_property
    def leaves(self) -> int:
        """All leaves."""
        return -(-self.servers // self.net.pod_nodes) * self.per_pod

    @cached_property
    def uplinks(self) -> int:
        """Spines, of which those beyond the ports in use are left out; none above one leaf."""
        slots = min(self.servers, self.net.pod_nodes) * (1 if self.net.rails else self.rails)
        return min(self.net.uplinks(self.rails), slots) if self.leaves > 1 else 0

    @property
    def spine_bandwidth(self) -> float:
        """Bytes/s of a link between leaf and spine."""
        ports = self.net.pod_nodes * (1 if self.net.rails else self.rails)
        return ports * self.port / self.net.oversubscription / self.net.uplinks(self.rails) / self.net.slowest

    @cached_property
    def rail(self) -> Ints:
        """NIC of every device of a server."""
        return np.arange(self.size) * self.rails // self.size

    @cached_property
    def plug(self) -> Ints:
        """Place of the link from every device of a server to its NIC, among those of the server to the network."""
        return 2 * np.arange(self.size) + 2 * (self.rail + 1)

    @cached_property
    def cable(self) -> Ints:
        """Place of the link from every NIC of a server to its leaf; the first device of the NIC comes right behind."""
        first = np.unique(self.rail, return_index=True)[1]
        return self.plug[first] - 2

    @property
    def outside(self) -> tuple[int, int]:
        """Number of the first link from servers to the network, and how many every server has."""
        return 2 * self.servers * self.size, 2 * (self.size + self.rails)

    @property
    def top(self) -> int:
        """Number of the first link to a spine."""
        first, per_server = self.outside
        return first + self.servers * per_server

    @property
    def pods(self) -> Pods | None:
        """What can change places; None where the last pod has fewer servers."""
        count, rest = divmod(self.servers, self.net.pod_nodes)
        if rest or count < 2:
            return None
        first, per_server = self.outside
        inside = (0, first // count), (first, per_server * self.net.pod_nodes)
        return Pods(count, self.net.pod_nodes * self.size, (*inside, (self.top, 2 * self.per_pod * self.uplinks)))

    def __len__(self) -> int:
        return self.top + 2 * self.leaves * self.uplinks

    def link(self, i: int) -> Link:
        """Link number `i`."""
        i, back = divmod(i, 2)
        a, b, kind, bandwidth, latency = self._cable(2 * i)
        return Link(b, a, kind, bandwidth, latency) if back else Link(a, b, kind, bandwidth, latency)

    def _cable(self, i: int) -> tuple[str, str, str, float, float]:
        first, per_server = self.outside
        if i < first:
            n, d = divmod(i // 2, self.size)
            return f"node{n}.{self.device}{d}", f"node{n}.switch", *self.wire[:2], self.wire.latency / 2
        if i < self.top:
            n, at = divmod(i - first, per_server)
            pod = n // self.net.pod_nodes
            if at in self.cable:
                r = int(np.flatnonzero(self.cable == at)[0])
                return f"node{n}.nic{r}", f"pod{pod}.leaf{r if self.net.rails else 0}", "leaf", self.port, self.net.latency / 2
            d = int(np.flatnonzero(self.plug == at)[0])
            return f"node{n}.{self.device}{d}", f"node{n}.nic{int(self.rail[d])}", "nic", self.port, 0.0
        leaf, s = divmod((i - self.top) // 2, self.uplinks)
        pod, rail = divmod(leaf, self.per_pod)
        return f"pod{pod}.leaf{rail}", f"spine{s}", "spine", self.spine_bandwidth, self.net.spine_latency / 2

    def column(self, inside: float, leaf: float, nic: float, spine: float) -> Floats:
        """A number per link that is the same for all of one sort."""
        server = np.full(self.outside[1], leaf)
        server[self.plug] = server[self.plug + 1] = nic
        return np.concatenate([np.full(self.outside[0], inside), np.tile(server, self.servers), np.full(2 * self.leaves * self.uplinks, spine)])

    def climbs(self, place: Mapping[str, int]) -> Climbs:
        """What leads up from every device (see `bulk`)."""
        narrow: type[np.signedinteger[Any]] = np.int32 if len(self) < 1 << 30 else np.int64  # half of the memory: to fill it is all the work
        servers, first, per_server = np.arange(self.servers, dtype=narrow), *self.outside
        pod, slot = servers // self.net.pod_nodes, servers % self.net.pod_nodes
        n, rail, world = np.repeat(servers, self.size), np.tile(self.rail.astype(narrow), self.servers), np.arange(self.servers * self.size, dtype=narrow)
        leaf = np.repeat(pod * self.per_pod, self.size) + (rail if self.net.rails else 0)
        switch, nic = len(world) + n, len(world) + n * self.rails + rail
        near = Climb(np.stack([world, switch], axis=1), 2 * world[:, None], 2 * world[:, None] + 1)
        ups = np.add.outer(first + servers * per_server, np.stack([self.plug, self.cable[self.rail]], axis=1, dtype=narrow)).reshape(-1, 2)
        far = Climb(np.stack([world, nic, 2 * len(world) + self.servers - 1 + leaf], axis=1), ups, ups + 1)
        to_spine: Ints = self.top + 2 * np.arange(self.leaves * self.uplinks, dtype=narrow).reshape(self.leaves, self.uplinks)
        ports = slot[:, None] + np.zeros_like(rail[: self.size]) if self.net.rails else slot[:, None] * self.rails + rail[: self.size]
        spine: Ints = ports.ravel() % max(1, self.uplinks)
        return Climbs(place, (near, far), leaf, spine, to_spine, to_spine + 1)


class Links(LinkColumns):
    """The links of a Shape."""

    def __init__(self, shape: Shape, whole: Callable[[], Cluster]) -> None:
        wire, net = shape.wire, shape.net
        self.shape, self.whole, self.pods = shape, whole, shape.pods
        self.bandwidths = shape.column(wire.bandwidth, shape.port, shape.port, shape.spine_bandwidth if shape.uplinks else 0.0)
        self.latencies = shape.column(wire.latency / 2, net.latency / 2, 0.0, net.spine_latency / 2)
        self.kinds = shape.column(*(LINK_KINDS.index(kind) for kind in (wire.kind, "leaf", "nic", "spine"))).astype(np.int64)

    def __len__(self) -> int:
        return len(self.shape)

    @overload
    def __getitem__(self, i: int) -> Link: ...
    @overload
    def __getitem__(self, i: slice) -> Sequence[Link]: ...
    def __getitem__(self, i: int | slice) -> Link | Sequence[Link]:
        return self.whole().links[i] if isinstance(i, slice) else self.shape.link(range(len(self))[i])

    def __iter__(self) -> Iterator[Link]:
        return iter(self.whole().links)


class Nodes(Mapping[str, str]):
    """The kinds of all nodes, by name, when they are asked for."""

    def __init__(self, whole: Callable[[], Cluster]) -> None:
        self.whole = whole

    def __getitem__(self, name: str) -> str:
        return self.whole().nodes[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.whole().nodes)

    def __len__(self) -> int:
        return len(self.whole().nodes)


@dataclass(frozen=True)
class Ways:
    """The router: columns by arithmetic, names from the tree of the cluster as objects."""

    shape: Shape
    devices: tuple[str, ...]
    number: Mapping[str, int]
    whole: Callable[[], Cluster]

    @property
    def tree(self) -> UpDown:
        """The same routes by names."""
        tree = self.whole().router
        assert isinstance(tree, UpDown)
        return tree

    def path(self, a: str, b: str) -> tuple[str, ...] | None:
        """As `UpDown.path`."""
        return self.tree.path(a, b)

    def exchange(self, members: Sequence[str]) -> Exchange | None:
        """As `UpDown.exchange`."""
        return self.tree.exchange(members)

    def columns(self, devices: Sequence[str], index: Callable[[], Mapping[tuple[str, str], int]]) -> Climbs | None:
        """The columns of `devices`, in any order."""
        if devices is self.devices:
            return self.shape.climbs(self.number)
        order = np.fromiter(map(self.number.__getitem__, devices), dtype=np.int64, count=len(devices))
        if np.array_equal(order, np.arange(len(self.number))):
            return self.shape.climbs(self.number)
        return self.shape.climbs(self.number).chosen({d: i for i, d in enumerate(devices)}, order)


def regular(shape: Shape, accelerator: Accelerator, whole: Callable[[], Cluster], name: str, price: float | None, description: Mapping[str, object]) -> Cluster:
    """The cluster of a Shape; `whole` makes the same of objects."""
    devices = tuple(f"node{n}.{shape.device}{d}" for n in range(shape.servers) for d in range(shape.size))
    node_of = dict(zip(devices, (server for n in range(shape.servers) for server in [f"node{n}"] * shape.size), strict=True))
    number = {d: i for i, d in enumerate(devices)}
    made: list[Cluster] = []

    def once() -> Cluster:
        if not made:
            made.append(whole())
        return made[0]

    router = Ways(shape, devices, number, once)
    cluster = Cluster(name, accelerator, Nodes(once), devices, Links(shape, once), node_of, router, price, dict(description))  # type: ignore[arg-type]
    cluster.__dict__["servers"] = np.repeat(np.arange(shape.servers), shape.size)
    return cluster
