"""Many routes at once, as columns: for trees of switches whose devices all climb alike, without walking the pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.signedinteger[Any]]
Chain = tuple[str, ...]


@dataclass(frozen=True)
class Climb:
    """One chain of every device, heights in columns: `nodes` int[devices, heights], `up` and `down` links int[devices, heights - 1]."""

    nodes: Ints
    up: Ints
    down: Ints


@dataclass(frozen=True)
class Climbs:
    """The chains of all devices, and what joins their tops: `to_spine`, `from_spine` int[tops, spines] by `top` and `spine` of a device."""

    place: Mapping[str, int]
    chains: tuple[Climb, ...]
    top: Ints
    spine: Ints
    to_spine: Ints
    from_spine: Ints

    def chosen(self, place: Mapping[str, int], rows: Ints) -> Climbs:
        """Those of some devices: `rows` of these, by `place`."""
        chains = tuple(Climb(c.nodes[rows], c.up[rows], c.down[rows]) for c in self.chains)
        return Climbs(place, chains, self.top[rows], self.spine[rows], self.to_spine, self.from_spine)

    def route(self, a: str, b: str) -> tuple[int, ...]:
        """The links from `a` to another device, in order."""
        start, end = self.place[a], self.place[b]
        for climb in self.chains:
            if climb.nodes[start, -1] == climb.nodes[end, -1]:
                height = int(np.argmax(climb.nodes[start] == climb.nodes[end]))
                return (*climb.up[start, :height].tolist(), *climb.down[end, :height][::-1].tolist())
        last, spine = self.chains[-1], self.spine[end]
        over = int(self.to_spine[self.top[start], spine]), int(self.from_spine[self.top[end], spine])
        return (*last.up[start].tolist(), *over, *last.down[end][::-1].tolist())

    def routes(self, a: Sequence[str], b: Sequence[str]) -> Ints:
        """Links from a[i] to b[i], int[pairs, longest], -1 where a route is shorter; equal to the router's `path` for each pair."""
        ends = [np.fromiter(map(self.place.__getitem__, names), dtype=np.int64, count=len(names)) for names in (a, b)]
        width = 2 * max(c.up.shape[1] for c in self.chains) + 2
        out = np.full((len(a), width), -1, dtype=np.int64)
        todo = np.nonzero(ends[0] != ends[1])[0]
        for climb in self.chains:
            start, end = ends[0][todo], ends[1][todo]
            same = climb.nodes[start] == climb.nodes[end]
            met = same[:, -1]  # trees: below a common top they may meet earlier, elsewhere never
            height = np.argmax(same, axis=1)
            for h in range(climb.up.shape[1]):
                used = met & (h < height)
                out[todo[used], 2 * h] = climb.up[start[used], h]
                out[todo[used], 2 * h + 1] = climb.down[end[used], h]
            todo = todo[~met]
        if len(todo):
            start, end, last = ends[0][todo], ends[1][todo], self.chains[-1]
            for h in range(last.up.shape[1]):
                out[todo, 2 * h], out[todo, 2 * h + 1] = last.up[start, h], last.down[end, h]
            out[todo, -2] = self.to_spine[self.top[start], self.spine[end]]
            out[todo, -1] = self.from_spine[self.top[end], self.spine[end]]
        return out


def climbs(
    ways_up: Mapping[str, tuple[Chain, ...]], spines: Sequence[str], slot: Mapping[str, int], devices: Sequence[str], index: Mapping[tuple[str, str], int]
) -> Climbs | None:
    """Columns of a tree (see `routing.UpDown` for its parts); `index` finds a link by its ends.

    None where the devices do not climb alike, or where tops without a spine never meet.
    """
    chains = [ways_up.get(d, ()) for d in devices]
    shapes = {tuple(map(len, c)) for c in chains}
    if len(shapes) != 1 or not shapes or min(next(iter(shapes)), default=0) < 2:
        return None
    columns = tuple(_climb([c[k] for c in chains], index) for k in range(len(chains[0])))
    tops = list(dict.fromkeys(c[-1][-1] for c in chains))
    if not spines and len(tops) > 1:
        return None
    places = {top: i for i, top in enumerate(tops)}
    shape = (len(tops), len(spines))
    to_spine = np.array([index.get((u, v), -1) for u in tops for v in spines], dtype=np.int64).reshape(shape)
    from_spine = np.array([index.get((v, u), -1) for u in tops for v in spines], dtype=np.int64).reshape(shape)
    if len(tops) > 1 and (to_spine.min() < 0 or from_spine.min() < 0):
        return None
    top = np.array([places[c[-1][-1]] for c in chains], dtype=np.int64)
    spine = np.array([slot.get(d, 0) % max(1, len(spines)) for d in devices], dtype=np.int64)
    return Climbs({d: i for i, d in enumerate(devices)}, columns, top, spine, to_spine, from_spine)


def _climb(chains: Sequence[tuple[str, ...]], index: Mapping[tuple[str, str], int]) -> Climb:
    shape, find = (len(chains), -1), index.__getitem__
    number = {node: i for i, node in enumerate(dict.fromkeys(chain.from_iterable(chains)))}
    nodes = np.array(list(map(number.__getitem__, chain.from_iterable(chains))), dtype=np.int64)
    up = np.array(list(map(find, chain.from_iterable(map(pairwise, chains)))), dtype=np.int64)
    down = np.array(list(map(find, chain.from_iterable(pairwise(c[::-1]) for c in chains))), dtype=np.int64)
    return Climb(nodes.reshape(shape), up.reshape(shape), down.reshape(shape)[:, ::-1])
