"""Sets of devices that look alike: a relabelling of the network that keeps kind, bandwidth and latency of every link takes one into the other.

What is planned on one of them (routes, rings, trees) holds for the others with their links in place of its own, so that a plan is made
once per look and not once per set. Only for trees of switches whose devices all climb alike (`bulk.Climbs`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..hashes import Hashes, mix, row_hashes
from .bulk import Climbs, Ints
from .pods import Pods

SMALL = 64  # members up to which all pairs of a set are compared at once


@dataclass(frozen=True)
class Alike:
    """`levels[l][d]` is the node above device d at level l, `look[d]` numbers the links of its chains by what they are.

    `crossing[top, spine]` numbers the links between them alike, or is empty where all are the same.
    """

    climbs: Climbs
    levels: tuple[Ints, ...]
    look: Ints
    crossing: Ints

    def looks(self, members: Ints) -> Hashes:
        """A hash per row of devices int[k, n]; rows of one hash are alike, member by member."""
        parts = [row_hashes(_first_places(level[members])) for level in (*self.levels, self.climbs.spine)]
        parts.append(row_hashes(self.look[members]))
        if self.crossing.size:
            parts.append(self._crossings(members))
        return mix(*parts)

    def _crossings(self, members: Ints) -> Hashes:
        if members.shape[1] > SMALL:
            return np.arange(len(members), dtype=np.uint64)  # each by itself
        tops, spines = self.climbs.top[members], self.climbs.spine[members]
        return row_hashes(self.crossing[tops[:, :, None], spines[:, None, :]].reshape(len(members), -1))

    def translate(self, links: Ints, example: Ints, rows: Ints) -> Ints | None:
        """The links int[k, e] of every row of `rows` int[k, n] that `links` int[e] are of `example` int[n], a set alike; None where one has no name."""
        climbs = self.climbs
        tables = [t for c in climbs.chains for t in (c.up, c.down)]
        found = np.full(len(links), False)
        out = np.empty((len(rows), len(links)), dtype=np.int64)
        for table in tables:
            at, where = _lookup(table[example].ravel(), links)
            member, height = np.divmod(at[where], table.shape[1])
            out[:, where] = table[rows[:, member], height]
            found |= where
        for table in (climbs.to_spine, climbs.from_spine):
            if found.all() or not table.size:
                break
            tops, first_top = np.unique(climbs.top[example], return_index=True)
            spines, first_spine = np.unique(climbs.spine[example], return_index=True)
            at, where = _lookup(table[tops][:, spines].ravel(), links)
            i, j = np.divmod(at[where], len(spines))
            out[:, where] = table[climbs.top[rows[:, first_top[i]]], climbs.spine[rows[:, first_spine[j]]]]
            found |= where
        return out if found.all() else None


def _lookup(candidates: Ints, links: Ints) -> tuple[Ints, NDArray[np.bool_]]:
    """The place of every link in `candidates`, and whether it is there."""
    order = np.argsort(candidates, kind="stable")
    at = np.minimum(np.searchsorted(candidates[order], links), max(0, len(candidates) - 1))
    place = order[at]
    return place, candidates[place] == links


def _first_places(ids: Ints) -> Ints:
    """Per row of int[k, n], the first place of each entry's value: what is equal to what, whatever the values."""
    if ids.shape[1] <= SMALL:
        return np.asarray(np.argmax(ids[:, :, None] == ids[:, None, :], axis=2))
    places, ordered = np.arange(ids.shape[1]), ids
    order = None
    if (ids[:, 1:] < ids[:, :-1]).any():
        order = np.argsort(ids, axis=1, kind="stable")
        ordered = np.take_along_axis(ids, order, axis=1)
    new = np.ones(ids.shape, dtype=bool)
    new[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    first = np.maximum.accumulate(np.where(new, places, 0), axis=1)
    if order is None:
        return first
    out = np.empty(ids.shape, dtype=np.int64)
    np.put_along_axis(out, order, np.take_along_axis(order, first, axis=1), axis=1)
    return out


def alike(climbs: Climbs, nodes: Ints, bandwidths: NDArray[np.float64], latencies: NDArray[np.float64], kinds: Ints, pods: Pods | None = None) -> Alike:
    """The comparison for a tree: `nodes[d]` numbers the server of device d; the rest are columns over links. Of equal `pods` the first is looked at."""
    devices, tops = slice(None if pods is None else pods.devices), slice(None if pods is None else int(climbs.top[pods.devices - 1]) + 1)

    def sort(links: Ints) -> Hashes:
        return mix(bandwidths[links].view(np.uint64), latencies[links].view(np.uint64), kinds[links])

    tables = [t[devices] for c in climbs.chains for t in (c.up, c.down)]
    look = np.unique(row_hashes(np.concatenate([sort(t) for t in tables], axis=1)), return_inverse=True)[1]
    crossing: Ints = np.zeros((0, 0), dtype=np.int64)
    if climbs.to_spine.size:
        names, number = np.unique(mix(sort(climbs.to_spine[tops]), sort(climbs.from_spine[tops])).ravel(), return_inverse=True)
        if len(names) > 1:
            crossing = number.astype(np.int64).reshape(-1, climbs.to_spine.shape[1])
    if pods is not None:
        look, crossing = np.tile(look, pods.count), np.tile(crossing, (pods.count, 1))
    levels = (nodes, *(column for c in climbs.chains for column in c.nodes.T[1:]), climbs.top)
    return Alike(climbs, levels, look, crossing)
