"""What an algorithm sees (Group) and what it answers (Rounds): routes, latencies, rings; no byte counts, no back ends."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..hashes import numbered
from ..topology.cluster import LINK_KINDS, MANY, Cluster
from ..topology.rings import rings

Rings = tuple[tuple[str, ...], ...]


NONE: Mapping[int, float] = MappingProxyType({})


class Round(NamedTuple):
    """A part of a collective that moves all its bytes at one pace.

    `steps` serial steps of the algorithm, `across` of them between servers, `latency` the sum of the route latencies on its longest
    chain of dependent messages (s), `weights[link]` bytes on that link and `sent` mean bytes leaving a rank, both per byte of the
    collective's buffer. `hidden`: the latency passes while bytes move, so that the longer of the two holds instead of their sum.
    `flows[link]`: messages that cross a link at once, where they are more than one; links are shared by flows, not by collectives.
    """

    steps: int
    latency: float
    weights: Mapping[int, float]
    sent: float
    hidden: bool = False
    across: int = 0
    flows: Mapping[int, float] = NONE


@dataclass(frozen=True)
class Group:
    """The members of one collective, in axis order, on their cluster.

    `extra[kind]` are seconds added per link crossed of that kind; `rings` the ring orders, each carrying an equal part of the bytes;
    `root` is a position in `members`; `shares[i, j]` the part of its buffer that member i sends to member j (None: all alike);
    `copies` how many times a server holds a byte that crossed the network once (below 1: what it adds up before it sends).
    """

    members: tuple[str, ...]
    cluster: Cluster
    rings: Rings
    extra: Mapping[str, float]
    root: int = 0
    shares: NDArray[np.float64] | None = None
    copies: float = 1.0
    _hops: dict[tuple[int, ...], float] = field(default_factory=dict, init=False, repr=False)

    @property
    def size(self) -> int:
        """Number of members."""
        return len(self.members)

    def hop(self, a: str, b: str) -> float:
        """Seconds for the first byte from `a` to `b`: link latencies of the route plus those of the profile."""
        route = self.cluster.route(a, b)
        known = self._hops.get(route)
        if known is None:
            latencies, kinds, extra = self.cluster.latencies, self.cluster.kinds, self.extra
            known = self._hops[route] = sum([float(latencies[i]) + extra[LINK_KINDS[kinds[i]]] for i in route])
        return known

    def loads(self, flows: Iterable[tuple[str, str, float]]) -> dict[int, float]:
        """Bytes per link of messages (from, to, bytes)."""
        used = [flow for flow in flows if flow[2]]
        if len(used) < MANY:
            out: defaultdict[int, float] = defaultdict(float)
            for a, b, nbytes in used:
                for link in self.cluster.route(a, b):
                    out[link] += nbytes
            return dict(out)
        routes = self.cluster.routes([a for a, _, _ in used], [b for _, b, _ in used])
        crossed = routes >= 0
        links, place = numbered(routes[crossed], len(self.cluster.links))
        sums = np.bincount(place, weights=np.repeat([nbytes for _, _, nbytes in used], crossed.sum(axis=1)))
        return dict(zip(links.tolist(), sums.tolist(), strict=True))

    def hops(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        """`hop` of many pairs."""
        if len(pairs) < MANY:
            return [self.hop(a, b) for a, b in pairs]
        routes, extra = self.cluster.routes([a for a, _ in pairs], [b for _, b in pairs]), np.array([self.extra[kind] for kind in LINK_KINDS])
        crossed = np.where(routes >= 0, self.cluster.latencies[routes] + extra[self.cluster.kinds[routes]], 0.0)
        found: list[float] = crossed.sum(axis=1).tolist()
        return found

    @property
    def root_member(self) -> str:
        """The device at `root`."""
        return self.members[self.root]

    @property
    def others(self) -> list[str]:
        """All members but the root."""
        return [m for m in self.members if m != self.root_member]

    def round(self, flows: Sequence[tuple[str, str, float]]) -> Round:
        """One step in which the messages (from, to, part of the buffer) travel at once."""
        used = [(a, b) for a, b, part in flows if part]
        latency, sent = max(self.hops(used), default=0.0), sum(part for _, _, part in flows) / self.size
        return Round(1, latency, self.loads(flows), sent, flows=self.loads((a, b, 1.0) for a, b in used))

    def everyone(self) -> Round:
        """One step in which every member sends 1/n to every other: (n-1)/n per rank."""
        n = self.size
        crossings, pairs = self.cluster.exchange(self.members)
        weights = {link: count / n for link, count in crossings.items()}
        return Round(1, max(self.hop(a, b) for a, b in pairs), weights, (n - 1) / n, flows=crossings)

    def blocks(self) -> list[list[str]]:
        """The members by server, servers in order of first appearance, axis order inside."""
        return blocks(self.members, self.cluster)


Algorithm = Callable[[Group], Sequence[Round]]
RingOrder = Callable[[tuple[str, ...], Cluster], Rings]


@lru_cache(maxsize=6)  # few: each holds its cluster
def blocks(members: tuple[str, ...], cluster: Cluster) -> list[list[str]]:
    """`members` by server, servers in order of first appearance."""
    out: dict[str, list[str]] = {}
    for member in members:
        out.setdefault(cluster.node_of[member], []).append(member)
    return list(out.values())


def rank_order(members: tuple[str, ...], cluster: Cluster) -> Rings:
    """One ring in the order given, wherever the members live (gloo)."""
    return (members,)


@lru_cache(maxsize=6)  # few: each holds its cluster
def rails(members: tuple[str, ...], cluster: Cluster) -> Rings:
    """Rings that pass each server once: as many as the least populated server has members, each leaving it by another member's port.

    A ring enters a server where it left the one before (the same position in both, hence the same rail), and leaves it elsewhere, so
    that R rings load R network ports alike and once per direction, as NCCL's channels do. One server: one ring, or over direct cables as many
    as share none (a hybrid cube mesh, xGMI).
    """
    parts = blocks(members, cluster)
    if len(parts) == 1 and (direct := _direct(members, cluster)):
        return direct
    count = min(len(part) for part in parts) if len(parts) > 1 else 1
    offsets = [i % 2 for i in range(len(parts))]
    if len(parts) % 2 and len(parts) > 1:
        offsets[-1] = 2
    return tuple(_ring(parts, [(r + offset) % count for offset in offsets]) for r in range(count))


@lru_cache(maxsize=64)
def _direct(members: tuple[str, ...], cluster: Cluster) -> Rings:
    """Rings over the direct cables of one server; the search is kept, since every call of a group asks for the same."""
    return rings(cluster, members)


def _ring(parts: list[list[str]], crossings: list[int]) -> tuple[str, ...]:
    """One ring; `crossings[i]` is the position of the member that leaves part i and of the one that enters part i + 1."""
    out: list[str] = []
    for i, part in enumerate(parts):
        enter, leave = crossings[i - 1], crossings[i]
        if enter == leave:
            leave = (enter + 1) % len(part)
        around = part[enter:] + part[:enter]
        last = part[leave]
        out += [m for m in around if m != last or len(part) == 1] + [last] * (len(part) > 1)
    return tuple(out)
