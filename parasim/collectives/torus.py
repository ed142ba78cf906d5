"""Tori: rings in both directions on every axis at once (jax-ml/scaling-book, "Sharded matrices").

Over a block of chips with k axes of N_i (n in all), cables of w bytes/s per direction: all-gather and reduce-scatter V (n-1)/n / (2kw) where the
axes are rings, twice that where they are lines (the end chips have one cable); all-reduce twice as long. Each order of the axes gathers a part
of the buffer, in proportions that load all axes alike. All-to-all of D bytes per chip: max over axes of D N_i / (8w) on rings, D N_i / (4w) on
lines. Broadcast: V over the cables of the root, by trees that share none. Latency passes while bytes move: the longer of the two holds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise, product
from math import prod

import numpy as np

from ..errors import Refused, Violation
from ..topology.cluster import Cluster
from ..topology.torus import TorusRoutes
from . import direct
from .group import Group, Round


@dataclass(frozen=True)
class Block:
    """The members as a full block of a torus: `sizes` and `rings` (closed?) of its axes, the name of the chip at each place of the block."""

    sizes: tuple[int, ...]
    rings: tuple[bool, ...]
    chips: Mapping[tuple[int, ...], str]

    @property
    def axes(self) -> range:
        """Numbers of the axes."""
        return range(len(self.sizes))

    @property
    def orders(self) -> list[tuple[int, ...]]:
        """The axes in each of their rotations."""
        k = len(self.sizes)
        return [tuple((i + j) % k for j in range(k)) for i in range(k)]

    @property
    def hops(self) -> int:
        """Hops to the farthest chip."""
        return sum(n // 2 if ring else n - 1 for n, ring in zip(self.sizes, self.rings, strict=True))

    @cached_property
    def parts(self) -> tuple[float, ...]:
        """The part of the buffer that each of `orders` gathers, so that all axes are loaded alike."""
        k = len(self.sizes)
        loads = np.array([[self.tightest(axis) * self.gathered(order, axis) for order in self.orders] for axis in self.axes])
        system = np.block([[loads, -np.ones((k, 1))], [np.ones((1, k)), np.zeros((1, 1))]])
        found = np.clip(np.linalg.solve(system, np.array([0.0] * k + [1.0]))[:k], 0.0, None)
        return tuple((found / found.sum()).tolist())

    def tightest(self, axis: int) -> float:
        """Bytes on the fullest link of an axis per byte that is gathered along it: (N-1)/2N on a ring, (N-1)/N on a line."""
        n = self.sizes[axis]
        return (n - 1) / n / (2 if self.rings[axis] else 1)

    def gathered(self, order: Sequence[int], axis: int) -> float:
        """The part of an order's bytes that a chip holds after gathering along `axis`: later axes are still cut."""
        return 1 / prod(self.sizes[later] for later in order[order.index(axis) + 1 :])

    def cables(self, axis: int) -> Iterator[tuple[int, str, str]]:
        """(i, chip, next chip) of every cable along an axis; i counts from 0 at the start of its line."""
        for at, chip in self.chips.items():
            if at[axis] + 1 < self.sizes[axis] or self.rings[axis]:
                yield at[axis], chip, self.chips[(*at[:axis], (at[axis] + 1) % self.sizes[axis], *at[axis + 1 :])]


def block_of(members: Sequence[str], cluster: Cluster) -> Block | None:
    """The block that `members` fill, whatever their order; None where they are no full block of one slice, or on no torus.

    Axes on which all members agree are left out. A part of an axis must be contiguous and is a line.
    """
    torus = cluster.router
    if not isinstance(torus, TorusRoutes) or len({torus.address[m][0] for m in members}) > 1:
        return None
    at = {torus.address[m][1]: m for m in members}
    ranges = [sorted({c[axis] for c in at}) for axis in range(len(torus.shape))]
    if prod(map(len, ranges)) != len(at) or any(values[-1] - values[0] + 1 != len(values) for values in ranges):
        return None
    used = [axis for axis, values in enumerate(ranges) if len(values) > 1]
    chips = {tuple(c[axis] - ranges[axis][0] for axis in used): name for c, name in at.items()}
    sizes = tuple(len(ranges[axis]) for axis in used)
    return Block(sizes, tuple(torus.wrap[axis] and len(ranges[axis]) == torus.shape[axis] for axis in used), dict(sorted(chips.items())))


def find(group: Group) -> Block:
    """The block of a group. Raises `Refused` where there is none."""
    block = block_of(group.members, group.cluster)
    if block is None:
        raise Refused([Violation("algorithm", "torus", "needs members that fill a block of one torus", "take ring or direct")])
    return block


def stripes(cluster: Cluster, source: str, target: str) -> list[tuple[int, ...]]:
    """Links of the ways that a message uses side by side: one per axis with an offset on a torus, else its route."""
    if not isinstance(cluster.router, TorusRoutes):
        return [cluster.route(source, target)]
    adjacent = cluster.graph.adj
    return [tuple(adjacent[u][v]["link"] for u, v in pairwise(way)) for way in cluster.router.ways(source, target)] or [cluster.route(source, target)]


def all_gather(group: Group) -> list[Round]:
    """Every axis at once: V (n-1)/n / (2kw) on rings."""
    block = find(group)
    return [_round(group, block, _gathering(group, block))]


def reduce_scatter(group: Group) -> list[Round]:
    """All-gather backwards."""
    block = find(group)
    return [_round(group, block, _turned(group, _gathering(group, block)))]


def all_reduce(group: Group) -> list[Round]:
    """Reduce-scatter, then all-gather."""
    return [*reduce_scatter(group), *all_gather(group)]


def all_to_all(group: Group) -> list[Round]:
    """Axis after axis, the short way around, chunk behind chunk; an uneven one follows the routes of its pairs."""
    if group.shares is not None:
        return direct.all_to_all(group)
    block = find(group)
    weights: dict[int, float] = {}
    for axis in block.axes:
        n = block.sizes[axis]
        for i, a, b in block.cables(axis):
            weights |= dict.fromkeys(_ends(group, a, b), (n * n // 4) / (2 * n) if block.rings[axis] else (i + 1) * (n - 1 - i) / n)
    return [Round(block.hops, block.hops * _hop(group, block), weights, (group.size - 1) / group.size, hidden=True)]


def broadcast(group: Group) -> list[Round]:
    """Trees that share no link, one per cable of the root: V/(2k) on every link but those into the root. Raises `Refused` on lines."""
    block = find(group)
    if not all(block.rings):
        rule = f"needs rings on all axes for a broadcast, not {'x'.join(map(str, block.sizes))} with open ends"
        raise Refused([Violation("algorithm", "torus", rule, "take ring")])
    part = 1 / (2 * len(block.sizes))
    weights = {
        link: part for axis in block.axes for _, a, b in block.cables(axis) for link in _ends(group, a, b) if group.cluster.links[link].b != group.root_member
    }
    return [_round(group, block, weights)]


def scatter(group: Group) -> list[Round]:
    """The orders of `all_gather` backwards, from the root's cables outwards."""
    return [_round(group, find(group), _rooted(group, outwards=True), group.size)]


def gather(group: Group) -> list[Round]:
    """The orders of `all_gather`, towards the root's cables."""
    return [_round(group, find(group), _rooted(group, outwards=False), group.size)]


def _gathering(group: Group, block: Block) -> dict[int, float]:
    """Bytes on every link of an all-gather: on a ring half goes each way, on a line link i carries what lies behind it."""
    weights: dict[int, float] = {}
    for axis in block.axes:
        n = block.sizes[axis]
        along = sum(part * block.gathered(order, axis) for part, order in zip(block.parts, block.orders, strict=True))
        for i, a, b in block.cables(axis):
            up, down = _ends(group, a, b)
            weights[up] = along * ((n - 1) / 2 if block.rings[axis] else i + 1) / n
            weights[down] = along * ((n - 1) / 2 if block.rings[axis] else n - 1 - i) / n
    return weights


def _turned(group: Group, weights: Mapping[int, float]) -> dict[int, float]:
    """The loads of the same way backwards."""
    links = group.cluster.links
    return {_ends(group, links[i].a, links[i].b)[1]: weight for i, weight in weights.items()}


def _rooted(group: Group, *, outwards: bool) -> dict[int, float]:
    """Bytes on every link when each member's part goes from or to the root, in every order of the axes; a tie goes both ways."""
    block = find(group)
    place = {name: at for at, name in block.chips.items()}
    weights: dict[int, float] = {}
    root = place[group.root_member]
    for name in group.others:
        for part, order in zip(block.parts, block.orders, strict=True):
            for way, share in _walks(block, root, place[name], order[::-1]):
                for at, to in pairwise(way):
                    up, down = _ends(group, block.chips[at], block.chips[to])
                    link = up if outwards else down
                    weights[link] = weights.get(link, 0.0) + part * share / group.size
    return weights


def _walks(block: Block, start: tuple[int, ...], end: tuple[int, ...], order: Sequence[int]) -> Iterator[tuple[list[tuple[int, ...]], float]]:
    """The shortest ways from `start` to `end` along the axes in `order`, with the part that takes each."""
    choices = []
    for axis in order:
        n, up = block.sizes[axis], end[axis] - start[axis]
        if block.rings[axis]:
            up %= n
            choices.append([up] if 2 * up < n else [up - n] if 2 * up > n else [up, -up])
        else:
            choices.append([up])
    for moves in product(*choices):
        at, way = list(start), [start]
        for axis, move in zip(order, moves, strict=True):
            for _ in range(abs(move)):
                at[axis] = (at[axis] + (1 if move > 0 else -1)) % block.sizes[axis]
                way.append(tuple(at))
        yield way, 1 / prod(map(len, choices))


def _round(group: Group, block: Block, weights: Mapping[int, float], share: int = 0) -> Round:
    """One Round; what leaves a rank is on its own links, or (`share` members) 1/n of every other member from or to the root."""
    sent = (share - 1) / share**2 if share else sum(weights.values()) / group.size
    return Round(block.hops, block.hops * _hop(group, block), weights, sent, hidden=True)


def _hop(group: Group, block: Block) -> float:
    """The slowest hop of the block."""
    return max(group.hop(a, b) for axis in block.axes for _, a, b in block.cables(axis))


def _ends(group: Group, a: str, b: str) -> tuple[int, int]:
    """Both links of a cable."""
    adjacent = group.cluster.graph.adj
    return adjacent[a][b]["link"], adjacent[b][a]["link"]
