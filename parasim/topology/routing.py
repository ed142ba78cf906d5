"""Two routers: by structure (up to a common switch and down) and by shortest paths on any graph. Both are deterministic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .cluster import Link

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
        if a == b:
            return (a,)
        if a not in self.chains or b not in self.chains:
            return None
        for up, down in zip(self.chains[a], self.chains[b], strict=True):
            for height, node in enumerate(up):
                if node in down:
                    return up[: height + 1] + down[: down.index(node)][::-1]
        if not self.spines:
            return None
        spine = self.spines[self.slot[b] % len(self.spines)]
        return (*self.chains[a][-1], spine, *self.chains[b][-1][::-1])


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
