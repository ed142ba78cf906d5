"""Routers by structure: up to a common switch and down (`UpDown`), servers of any inside under such a tree (`Nested`), and around what failed.

All are deterministic. Any other graph is routed by `shortest.ShortestPaths`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from .bulk import Climbs, climbs
from .cluster import Exchange
from .shortest import ShortestPaths

Chain = tuple[str, ...]
Crossings = Counter[tuple[str, str]]


@dataclass(frozen=True)
class UpDown:
    """Routes of a tree of switches: climb until a common node, or over a spine, then descend.

    `chains[device]` are the ways up, tried in order (first the scale-up switch, then the network); each starts with the device.
    Two devices whose last chains do not meet cross a spine: the one of the receiver's `slot` (its port on its leaf), so that the devices
    of one leaf never share an uplink when they send to distinct ports, and shifts and all-to-alls spread evenly (D-mod-k routing of
    InfiniBand fat trees; Zahavi, "D-Mod-K routing providing non-blocking traffic for shift permutations", 2010).
    `spines[z]` join the leaves of zone z (`zone[leaf]`, 0 where it is not said). Spine s of one zone and spine s of another meet in `cores[s]`.
    """

    chains: Mapping[str, tuple[Chain, ...]]
    spines: tuple[tuple[str, ...], ...] = ()
    slot: Mapping[str, int] = field(default_factory=dict)
    zone: Mapping[str, int] = field(default_factory=dict)
    cores: tuple[str, ...] = ()

    def path(self, a: str, b: str) -> tuple[str, ...] | None:
        """Node names from `a` to `b`; None for a name that is no device or trees that never meet."""
        if a != b and a in self.chains and b in self.chains:
            for up, down in zip(self.chains[a], self.chains[b], strict=True):
                if up[-1] == down[-1] and len(up) == len(down):  # the usual case, without generators: they meet at the top or below it
                    height = len(up) - 1
                    while up[height - 1] == down[height - 1]:
                        height -= 1
                    return up[: height + 1] + down[:height][::-1]
        return next(self.ways(a, b), None)

    def ways(self, a: str, b: str) -> Iterator[tuple[str, ...]]:
        """Every way this tree offers from `a` to `b`, the preferred one first."""
        if a == b:
            yield (a,)
        elif a in self.chains and b in self.chains:
            for up, down in zip(self.chains[a], self.chains[b], strict=True):
                height = next((i for i, node in enumerate(up) if node in down), None)
                if height is not None:
                    yield up[: height + 1] + down[: down.index(up[height])][::-1]
            first = self.slot.get(b, 0)
            up, down = self.chains[a][-1], self.chains[b][-1]
            for i in range(len(self.spines[0]) if self.spines else 0):
                yield (*up, *self._over(up[-1], down[-1], first + i), *down[::-1])

    def _over(self, a: str, b: str, slot: int) -> tuple[str, ...]:
        """The switches above leaves `a` and `b` that a message to a device of `slot` crosses."""
        here, there = self.zone.get(a, 0), self.zone.get(b, 0)
        s = slot % len(self.spines[here])
        return (self.spines[here][s],) if here == there else (self.spines[here][s], self.cores[s], self.spines[there][s])

    def exchange(self, members: Sequence[str]) -> Exchange | None:
        """All pairs at once by counting who is under which switch, without walking the pairs. Equal to the sum of `path` over them.

        Member a uses the link above its ancestor at height h for every b that is neither its neighbour on the scale-up switch nor under
        that ancestor. Links of one sort are alike in the clusters built here, so that one pair per sort of route has its latency.
        """
        if len(members) < 2 or any(m not in self.chains or len(self.chains[m]) > 2 for m in members):
            return None
        near = {m: self.chains[m][0][-1] if len(self.chains[m]) == 2 else m for m in members}
        far = {m: self.chains[m][-1] for m in members}
        if len({len(chain) for chain in far.values()}) > 1 or (not self.spines and len({chain[-1] for chain in far.values()}) > 1):
            return None
        above = {m: (*far[m], f"zone {self.zone.get(far[m][-1], 0)}") for m in members} if self.cores else far
        away = _outside(members, near, above)
        neighbours = Counter(near.values())
        crossings: Crossings = Counter()
        for m in members:
            if near[m] != m:
                _both(crossings, m, near[m], neighbours[near[m]] - 1)
            for height, (node, parent) in enumerate(pairwise(far[m])):
                _both(crossings, node, parent, away[height][m])
        self._over_spines(crossings, members, near, far)
        return Exchange(crossings, tuple(_examples(members, near, above, away)))

    def columns(self, devices: Sequence[str], index: Callable[[], Mapping[tuple[str, str], int]]) -> Climbs | None:
        """Routes as columns, where all devices climb alike under one set of spines."""
        return None if self.cores else climbs(self.chains, self.spines[0] if self.spines else (), self.slot, devices, index())

    def _over_spines(self, crossings: Crossings, members: Sequence[str], near: Mapping[str, str], far: Mapping[str, Chain]) -> None:
        """Add the messages that leave their leaf: per receiver on its spine, from every sender outside its leaf and its node."""
        if not self.spines:
            return
        leaves = Counter(far[m][-1] for m in members)
        inside = Counter((far[m][-1], near[m]) for m in members)
        for m in members:
            home = far[m][-1]
            for leaf, senders in leaves.items():
                if leaf != home and (count := senders - inside[leaf, near[m]]):
                    for edge in pairwise((leaf, *self._over(leaf, home, self.slot[m]), home)):
                        crossings[edge] += count


@dataclass(frozen=True)
class Nested:
    """Servers whose devices are wired in any way, under a tree: `outside` routes between servers, `inside` the pairs of one server.

    `inside[i, j]` are the names of the nodes from device i to device j of a server without the name of the server. `place[device]` is the
    server and the name there. The first chain of a device in `outside` leads to the name of its server, which is no node: it only counts
    who is beside whom.
    """

    inside: Mapping[tuple[str, str], tuple[str, ...]]
    place: Mapping[str, tuple[str, str]]
    outside: UpDown

    def path(self, a: str, b: str) -> tuple[str, ...] | None:
        """Node names from `a` to `b`; None for a name that is no device or servers without a network."""
        return next(self.ways(a, b), None)

    def ways(self, a: str, b: str) -> Iterator[tuple[str, ...]]:
        """Every way the tree offers, or the one inside the server."""
        if a == b:
            yield (a,)
        elif a in self.place and b in self.place:
            (server, i), (other, j) = self.place[a], self.place[b]
            if server == other:
                yield tuple(f"{server}.{name}" for name in self.inside[i, j])
            else:
                yield from self.outside.ways(a, b)

    def exchange(self, members: Sequence[str]) -> Exchange | None:
        """As `UpDown.exchange`, the pairs of one server walked one by one."""
        counted = self.outside.exchange(members)
        if counted is None:
            return None
        servers: dict[str, list[str]] = {}
        for m in members:
            servers.setdefault(self.place[m][0], []).append(m)
        crossings: Crossings = Counter({edge: n for edge, n in counted.crossings.items() if servers.keys().isdisjoint(edge)})
        examples: dict[tuple[str, str], tuple[str, str]] = {}
        for a, b in ((a, b) for beside in servers.values() for a in beside for b in beside if a != b):
            examples.setdefault((self.place[a][1], self.place[b][1]), (a, b))
            crossings.update(pairwise(self.path(a, b) or ()))
        away = (pair for pair in counted.examples if self.place[pair[0]][0] != self.place[pair[1]][0])
        return Exchange(crossings, (*examples.values(), *away))

    def columns(self, devices: Sequence[str], index: Callable[[], Mapping[tuple[str, str], int]]) -> None:
        """No short cut: routes are found one by one."""
        return


@dataclass(frozen=True)
class Detour:
    """A tree that lost links: its preferred way that is still whole, else the shortest way left."""

    tree: UpDown | Nested
    rest: ShortestPaths

    def path(self, a: str, b: str) -> tuple[str, ...] | None:
        """Node names from `a` to `b`; None where there is no way left."""
        whole = (way for way in self.tree.ways(a, b) if all(edge in self.rest.edges for edge in pairwise(way)))
        return next(whole, None) or self.rest.path(a, b)

    def exchange(self, members: Sequence[str]) -> Exchange | None:
        """No short cut: pairs are walked one by one."""
        return None

    def columns(self, devices: Sequence[str], index: Callable[[], Mapping[tuple[str, str], int]]) -> None:
        """No short cut: routes are found one by one."""
        return


def _both(crossings: Crossings, a: str, b: str, count: int) -> None:
    crossings[a, b] += count
    crossings[b, a] += count


def _outside(members: Sequence[str], near: Mapping[str, str], far: Mapping[str, Chain]) -> list[dict[str, int]]:
    """For every height and member a: how many members are neither neighbours of a nor under its ancestor there."""
    out, neighbours = [], Counter(near.values())
    for height in range(len(far[members[0]])):
        under = Counter(far[m][height] for m in members)
        shared = Counter((far[m][height], near[m]) for m in members)
        total = len(members)
        out.append({m: total - neighbours[near[m]] - under[far[m][height]] + shared[far[m][height], near[m]] for m in members})
    return out


def _examples(members: Sequence[str], near: Mapping[str, str], far: Mapping[str, Chain], away: Sequence[Mapping[str, int]]) -> Iterator[tuple[str, str]]:
    """One pair per sort of route: neighbours, chains that meet at each height, chains that never meet."""

    def sort(a: str, b: str) -> int:
        return -1 if near[a] == near[b] else sum(u != v for u, v in zip(far[a], far[b], strict=True))

    neighbours, top = Counter(near.values()), len(away)
    for wanted in (-1, *range(1, top + 1)):
        for a in members:
            met = neighbours[near[a]] - 1 if wanted < 0 else away[wanted - 1][a] - (away[wanted][a] if wanted < top else 0)
            if met:
                yield a, next(b for b in members if b != a and sort(a, b) == wanted)
                break
