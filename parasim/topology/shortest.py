"""Shortest paths on any graph: fewest hops, then lowest latency, then widest narrowest link, then names in alphabetical order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from .cluster import Exchange, Link


@dataclass(frozen=True)
class ShortestPaths:
    """Routes over directed `links`; one tree of best paths per source, kept."""

    links: Sequence[Link]
    _trees: dict[str, dict[str, tuple[str, ...]]] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def edges(self) -> frozenset[tuple[str, str]]:
        """Every pair of nodes that a link joins, in its direction."""
        return frozenset((link.a, link.b) for link in self.links)

    @cached_property
    def _leaving(self) -> Mapping[str, list[Link]]:
        out: dict[str, list[Link]] = {}
        for link in self.links:
            out.setdefault(link.a, []).append(link)
        return out

    def path(self, a: str, b: str) -> tuple[str, ...] | None:
        """Node names from `a` to `b`; None where there is no way."""
        if a not in self._trees:
            self._trees[a] = self._tree(a)
        return self._trees[a].get(b)

    def exchange(self, members: Sequence[str]) -> Exchange | None:
        """No short cut: pairs are walked one by one."""
        return None

    def columns(self, devices: Sequence[str], index: Callable[[], Mapping[tuple[str, str], int]]) -> None:
        """No short cut: routes are found one by one."""
        return

    def _tree(self, source: str) -> dict[str, tuple[str, ...]]:
        """Best paths from `source` to every node, one hop more per round; a rank is (latency, -narrowest bandwidth, names)."""
        best: dict[str, tuple[str, ...]] = {source: (source,)}
        front: dict[str, tuple[float, float, tuple[str, ...]]] = {source: (0.0, float("-inf"), (source,))}
        while front:
            reached: dict[str, tuple[float, float, tuple[str, ...]]] = {}
            for node, (latency, width, names) in front.items():
                for link in self._leaving.get(node, ()):
                    if link.b in best:
                        continue
                    rank = (latency + link.latency, max(width, -link.bandwidth), (*names, link.b))
                    if link.b not in reached or rank < reached[link.b]:
                        reached[link.b] = rank
            best.update((node, names) for node, (_, _, names) in reached.items())
            front = reached
        return best


def islands(nodes: Iterable[str], pairs: Iterable[tuple[str, str]]) -> dict[str, int]:
    """Which of the parts that `pairs` join every node is in; parts are numbered by their first node."""
    beside: dict[str, list[str]] = {node: [] for node in nodes}
    for a, b in pairs:
        beside[a].append(b)
        beside[b].append(a)
    out: dict[str, int] = {}
    for part, node in enumerate(beside):
        if node not in out:
            out.update((found, part) for found in _reach(node, beside))
    return out


def _reach(start: str, beside: Mapping[str, Sequence[str]]) -> Iterator[str]:
    seen, front = {start}, [start]
    while front:
        node = front.pop()
        yield node
        fresh = [other for other in dict.fromkeys(beside[node]) if other not in seen]
        seen.update(fresh)
        front += fresh
