"""Turns: a workload that stays as it is when equal pods of its network change places in a circle.

Ranks that such a turn takes into each other do the same at the same time, so that folding looks at one of each orbit and at the links of its
pod. A turn is kept only where programs, paces, peers and groups are found to be unchanged by it; that plans of collectives are is found when they
are made (`instances`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..hashes import distinct, mix, row_hashes
from ..program.workload import IntArray, Workload
from ..topology.cluster import Cluster
from ..topology.pods import Pods

SAMPLE = 16  # ranks of a pod by which turns are chosen that are looked at in full


class Orbits(NamedTuple):
    """Of the sets of ranks of one group name: a row of each orbit, and how many turns take it into itself again, in another order of its ranks if
    they are fewer than `Turns.order`."""

    rows: IntArray
    length: int


@dataclass(frozen=True)
class Turns:
    """The first `used` pods lie in circles of `ring` pods; a turn takes every pod `step` pods on in its circle."""

    pods: Pods
    used: int
    ring: int
    step: int

    @property
    def order(self) -> int:
        """Turns after which all is as before."""
        return self.ring // self.step

    @property
    def domain(self) -> IntArray:
        """One rank of every orbit, the first of each, ascending."""
        pods = np.arange(self.used)
        return self._ranks(pods[pods % self.ring < self.step])

    def turned(self, times: int = 1) -> IntArray:
        """Where each rank is after so many turns; int[ranks]."""
        return self._once if times == 1 else self._ranks(self.turned_pods(times))

    @cached_property
    def _once(self) -> IntArray:
        return self._ranks(self.turned_pods())

    def turned_pods(self, times: int = 1) -> IntArray:
        """Where each pod in use is after so many turns."""
        return self._turned(np.arange(self.used), times)

    def homes(self) -> IntArray:
        """The place in `domain` of what stands for each rank; int[ranks]."""
        circle, phase = np.divmod(np.arange(self.used), self.ring)
        return self._ranks(circle * self.step + phase % self.step)

    def rank_phases(self, ranks: IntArray) -> IntArray:
        """How many turns away each rank is from the one that stands for it."""
        return self._phases(ranks // self.pods.devices)

    def phases(self, links: IntArray) -> IntArray:
        """How many turns away each link is from the one that stands for it."""
        return self._phases(self.pods.placed(links)[0])

    def homes_of(self, links: IntArray) -> tuple[IntArray, IntArray]:
        """The links that stand for these, and how many turns away each is from it."""
        pod, link = self.pods.placed(links)
        phase = pod % self.ring
        return self.pods.moved(link, pod - phase + phase % self.step), phase // self.step

    def turned_links(self, links: IntArray, times: int) -> IntArray:
        """Where links are after so many turns."""
        pod, link = self.pods.placed(links)
        return self.pods.moved(link, self._turned(pod, times))

    def _ranks(self, pods: IntArray) -> IntArray:
        return np.asarray((pods[:, None] * self.pods.devices + np.arange(self.pods.devices)).ravel())

    def _phases(self, pods: IntArray) -> IntArray:
        return np.asarray(pods % self.ring // self.step)

    def _turned(self, pods: IntArray, times: int) -> IntArray:
        phase = pods % self.ring
        return pods - phase + (phase + times * self.step) % self.ring

    def orbits(self, table: IntArray, row_of: IntArray) -> Orbits | None:
        """Those of disjoint sets of ranks int[k, n], `row_of[rank]` the row that holds it; None where turns change the sets, or their orders within an
        orbit."""
        if (row_of >= 0).sum() != table.size:
            return None  # a rank in several
        turned = self.turned()
        after = row_of[turned[table]]
        if (after != after[:, :1]).any() or (after < 0).any():
            return None
        after, held = after[:, 0], row_of[self.domain]
        rows = distinct(held[held >= 0])
        at, least, length = after[rows], rows.copy(), 1
        while (at != rows).any():
            if (at == rows).any() or length > self.order:
                return None  # orbits of several lengths
            least, at, length = np.minimum(least, at), after[at], length + 1
        rows = rows[least == rows]
        at, ranks = rows, table[rows]
        for _ in range(length - 1):
            at, ranks = after[at], turned[ranks]
            if not np.array_equal(table[at], ranks):
                return None
        return Orbits(rows, length)

    def places(self, members: IntArray, length: int) -> IntArray:
        """Sets that `length` turns take into themselves: where each of their members is then, as a place in the set; int[k, n]."""
        where = np.zeros(self.used * self.pods.devices, dtype=np.int64)
        where[members] = np.arange(members.shape[1])
        return np.asarray(where[self.turned(length)[members]])

    def keep(self, workload: Workload, paces: NDArray[np.float64], peers: Iterable[str]) -> bool:
        """Are programs, paces and peers the same after a turn?"""
        if not self._turns(workload.class_of_rank) or not (paces.strides == (0,) or self._turns(paces)):
            return False
        for name in peers:
            peer = workload.peers[name]
            after = self.turned()[peer]
            after[peer < 0] = -1
            if not self._turns(peer, after):
                return False
        return True

    def _turns(self, values: NDArray[Any], after: NDArray[Any] | None = None) -> bool:
        """Is what each rank has after a turn what was `values` (or `after`) where it comes from?"""
        have, had = (x.reshape(-1, self.ring, self.pods.devices) for x in (values, values if after is None else after))
        on = self.step
        return np.array_equal(have[:, on:], had[:, :-on]) and np.array_equal(have[:, :on], had[:, -on:])


def turns(workload: Workload, cluster: Cluster, groups: Iterable[str], peers: Iterable[str]) -> tuple[Turns, dict[str, Orbits]] | None:
    """The turn of the highest order that changes nothing of the ranks, with the orbits of the sets of ranks of each of `groups`; None: no such turn."""
    pods = cluster.pods
    if pods is None or workload.world % pods.devices or workload.world < 2 * pods.devices:
        return None
    used, paces = workload.world // pods.devices, cluster.paces(workload.world)
    rings = [ring for ring in range(used, 1, -1) if used % ring == 0]
    found = [Turns(pods, used, ring, step) for ring in rings for step in range(1, ring) if ring % step == 0]
    looks = row_hashes(workload.class_of_rank.reshape(used, -1)[:, :: max(1, pods.devices // SAMPLE)])
    if (paces != paces[0]).any():
        looks = mix(looks, row_hashes(paces.view(np.uint64).reshape(used, -1)))
    for one in sorted(found, key=lambda t: -t.order):
        if np.array_equal(looks[one.turned_pods()], looks) and one.keep(workload, paces, peers):
            orbits = {name: one.orbits(workload.groups[name], workload.rows(name)) for name in groups}
            if all(o is not None for o in orbits.values()):
                return one, {name: o for name, o in orbits.items() if o is not None}
    return None
