"""Two routers: by structure (up to a common switch and down) and by shortest paths on any graph. Both are deterministic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from .bulk import Climbs, climbs
from .cluster import Exchange, Link

if TYPE_CHECKING:
    import networkx as nx

Chain = tuple[str, ...]


@dataclass(frozen=True)
class UpDown:
    """Routes of a tree of switches: climb until a common node, or over a spine, then descend.

    `chains[device]` are the ways up, tried in order (first the scale-up switch, then the network); each starts with the device.
    Two devices whose last chains do not meet cross one of `spines`: the one of the receiver's `slot` (its port on its leaf), so that the
    devices of one leaf never share an uplink when they send to distinct ports, and shifts and all-to-alls spread evenly (D-mod-k routing
    of InfiniBand fat trees; Zahavi, "D-Mod-K routing providing non-blocking traffic for shift permutations", 2010).
    """

    chains: Mapping[str, tuple[Chain, ...]]
    spines: tuple[str, ...] = ()
    slot: Mapping[str, int] = field(default_factory=dict)

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
            for i in range(len(self.spines)):
                yield (*self.chains[a][-1], self.spines[(first + i) % len(self.spines)], *self.chains[b][-1][::-1])

    def _spine(self, receiver: str) -> str:
        return self.spines[self.slot[receiver] % len(self.spines)]

    def exchange(self, members: Sequence[str]) -> Exchange | None:
        """All pairs at once by counting who is under which switch, without walking the pairs. Equal to the sum of `path` over them.

        Member a uses the link above its ancestor at height h for every b that is neither its neighbour on the scale-up switch nor under
        that ancestor. Links of one sort are alike in the clusters built here, so that one pair per sort of route has its latency.
        """
        if len(members) < 2 or any(m not in self.chains or len(self.chains[m]) > 2 for m in members):
            return None
        near = {m: self.chains[m][0][-1] if len(self.chains[m]) == 2 else m for m in members}
        far = {m: self.chains[m][-1] for m in members}
        if not self.spines and len({far[m][-1] for m in members}) > 1:
            return None
        away = _outside(members, near, far)
        neighbours = Counter(near.values())
        crossings: Counter[tuple[str, str]] = Counter()
        for m in members:
            if near[m] != m:
                _both(crossings, m, near[m], neighbours[near[m]] - 1)
            for height, (node, above) in enumerate(pairwise(far[m])):
                _both(crossings, node, above, away[height][m])
        self._over_spines(crossings, members, near, far)
        return Exchange(crossings, tuple(_examples(members, near, far, away)))

    def columns(self, devices: Sequence[str], index: Mapping[tuple[str, str], int]) -> Climbs | None:
        """Routes as columns, where all devices climb alike."""
        return climbs(self.chains, self.spines, self.slot, devices, index)

    def _over_spines(self, crossings: Counter[tuple[str, str]], members: Sequence[str], near: Mapping[str, str], far: Mapping[str, Chain]) -> None:
        """Add the messages that leave their leaf: per receiver on its spine, from every sender outside its leaf and its node."""
        if not self.spines:
            return
        leaves = Counter(far[m][-1] for m in members)
        inside = Counter((far[m][-1], near[m]) for m in members)
        for m in members:
            spine, home = self._spine(m), far[m][-1]
            for leaf, senders in leaves.items():
                if leaf != home and (count := senders - inside[leaf, near[m]]):
                    crossings[leaf, spine] += count
                    crossings[spine, home] += count


@dataclass(frozen=True)
class Detour:
    """A tree that lost links: its preferred way that is still whole, else the shortest way left."""

    tree: UpDown
    rest: ShortestPaths

    def path(self, a: str, b: str) -> tuple[str, ...] | None:
        """Node names from `a` to `b`; None where there is no way left."""
        graph = self.rest.graph
        whole = (way for way in self.tree.ways(a, b) if all(graph.has_edge(u, v) for u, v in pairwise(way)))
        return next(whole, None) or self.rest.path(a, b)

    def exchange(self, members: Sequence[str]) -> Exchange | None:
        """No short cut: pairs are walked one by one."""
        return None

    def columns(self, devices: Sequence[str], index: Mapping[tuple[str, str], int]) -> None:
        """No short cut: routes are found one by one."""
        return


@dataclass(frozen=True)
class ShortestPaths:
    """Routes of any graph: fewest hops, then lowest latency, then widest narrowest link, then names in alphabetical order."""

    graph: nx.DiGraph[str]
    links: Sequence[Link]
    _trees: dict[str, dict[str, tuple[str, ...]]] = field(default_factory=dict, init=False, repr=False)

    def path(self, a: str, b: str) -> tuple[str, ...] | None:
        """Node names from `a` to `b`; None where there is no way."""
        if a not in self._trees:
            self._trees[a] = self._tree(a) if a in self.graph else {}
        return self._trees[a].get(b)

    def exchange(self, members: Sequence[str]) -> Exchange | None:
        """No short cut: pairs are walked one by one."""
        return None

    def columns(self, devices: Sequence[str], index: Mapping[tuple[str, str], int]) -> None:
        """No short cut: routes are found one by one."""
        return

    def _tree(self, source: str) -> dict[str, tuple[str, ...]]:
        """Best paths from `source` to every node, one hop more per round; a rank is (latency, -narrowest bandwidth, names)."""
        best: dict[str, tuple[str, ...]] = {source: (source,)}
        front: dict[str, tuple[float, float, tuple[str, ...]]] = {source: (0.0, float("-inf"), (source,))}
        while front:
            reached: dict[str, tuple[float, float, tuple[str, ...]]] = {}
            for node, (latency, width, names) in front.items():
                for neighbour, edge in self.graph.adj[node].items():
                    if neighbour in best:
                        continue
                    link = self.links[edge["link"]]
                    rank = (latency + link.latency, max(width, -link.bandwidth), (*names, neighbour))
                    if neighbour not in reached or rank < reached[neighbour]:
                        reached[neighbour] = rank
            best.update((node, names) for node, (_, _, names) in reached.items())
            front = reached
        return best


def _both(crossings: Counter[tuple[str, str]], a: str, b: str, count: int) -> None:
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
