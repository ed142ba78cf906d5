"""Folding: ranks that provably behave alike are simulated once. One pass in (here), one pass out (`record`).

Colour refinement to an equitable partition: ranks start with the colour of their Program; a link's signature is its kind, capacity and the
load each kind of transfer puts on it; a rank's new colour adds the signatures of all links its transfers touch. At the fixed point ranks of
one colour have the same programs, partners and links under every combination of simultaneous transfers, so max-min sharing gives them equal
rates and simulating one of them is exact. Whatever differs (a slow link, a spine shared by chance) splits the colours. Links that can never be
what holds a transfer up (`slack`) are not compared.

Multisets are compared by sums of 64-bit hashes of their members, so that numpy can refine hundreds of thousands of transfers at once; what
the partition is used for, equal loads on the links of one colour, is checked on the numbers themselves at the end.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import ParasimError
from ..hashes import DIGITS, Hashes, distinct, floats, mix, numbered
from ..program.workload import IntArray, Workload
from ..topology.cluster import Cluster, Rates
from .instances import Instances, Uneven, instances, turning
from .traffic import Traffic
from .turns import Turns

LinkColour = int
LoadKey = tuple[Hashable, int]  # (transfer kind, phase)
Entries = tuple[IntArray, IntArray, Hashes]  # instance, link, hash of weight and phase


@dataclass(frozen=True)
class Fold:
    """Colours of ranks (int[world]), representative rank of each rank, and for the network: the used links by colour as (name of one, kind,
    capacity in bytes/s, how many), and per (transfer kind, phase) the bytes per byte of progress on one link of each colour. Links of the colours in
    `slack` hold nothing up."""

    colour: IntArray
    representative: IntArray
    links: tuple[tuple[str, str, float, int], ...]
    loads: Mapping[LoadKey, Mapping[LinkColour, float]]
    reasons: tuple[str, ...]
    slack: frozenset[LinkColour] = frozenset()

    @property
    def representatives(self) -> list[int]:
        """One rank per colour, ascending."""
        found: list[int] = distinct(self.representative).tolist()
        return found


def counted(colours: IntArray) -> tuple[tuple[int, int], ...]:
    """The colours of the ranks of a collective, each with how many of them have it: with a structure, the kind of a transfer."""
    found, counts = np.unique(colours, return_counts=True)
    return tuple(zip(found.tolist(), counts.tolist(), strict=True))


def fold(workload: Workload, cluster: Cluster, traffic: Traffic, capacity: Rates, *, enabled: bool = True) -> Fold:
    """The coarsest equitable partition, or every rank alone when folding is off."""
    refinement = _refinement(workload, cluster, traffic, capacity, enabled=enabled)
    domain, paces = refinement.domain, cluster.paces(workload.world)
    colour = _renumbered(mix(workload.class_of_rank[domain], paces[domain].view(np.uint64)) if enabled else domain)
    reasons = []
    if enabled and (slow := int((paces != 1).sum())):
        reasons.append(f"{slow} ranks compute at another pace")
    while (before := int(colour.max()) + 1) < len(domain):  # where each has a colour of its own nothing splits
        refined = refinement.refine(colour)
        after = int(refined.max()) + 1
        if after == before:
            break
        reasons.append(f"{before} classes of ranks became {after}: their transfers meet links of other capacity or load")
        colour = refined
    links, loads, idle = refinement.network(colour)
    first = domain[np.unique(colour, return_index=True)[1]]
    everyone = colour[refinement.homes]
    return Fold(everyone, first[everyone], links, loads, tuple(reasons), idle)


def _refinement(workload: Workload, cluster: Cluster, traffic: Traffic, capacity: Rates, *, enabled: bool) -> _Refinement:
    """Over one rank of each orbit where turns leave all as it is, over all ranks elsewhere."""
    around = turning(traffic) if enabled else None
    if around is not None:
        try:
            return _Refinement(instances(traffic, around), cluster, capacity, workload.world, around[0])
        except Uneven:
            pass
    return _Refinement(instances(traffic), cluster, capacity, workload.world, None)


class Loaded(NamedTuple):
    """Summed load of every (link, kind and phase): link, hash of kind and phase, load, and an entry that belongs to it."""

    link: IntArray
    key: Hashes
    load: NDArray[np.float64]
    entry: IntArray


class _Refinement:
    """The entries of all structures in one set of columns, and one step of refinement over them."""

    def __init__(self, instances: list[Instances], cluster: Cluster, capacity: Rates, world: int, turns: Turns | None) -> None:
        self.all, self.cluster, self.capacity = instances, cluster, capacity
        self.domain = np.arange(world) if turns is None else turns.domain
        self.homes = self.domain if turns is None else turns.homes()  # of each rank what stands for it, as a place in `domain`
        self.order = 1 if turns is None else turns.order
        self.members = [self.homes[x.members] for x in instances]
        counts = [len(x.sets) for x in instances]
        self.base = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        self.instance = _joined([x.instance + b for x, b in zip(instances, self.base, strict=False)]).astype(np.int64, copy=False)
        self.phase = _joined([x.phase for x in instances]).astype(np.int64, copy=False)
        self.weight = _joined([x.weight for x in instances]).astype(np.float64)
        links = _joined([x.link for x in instances]).astype(np.int64, copy=False)
        homes, phases = (links, np.zeros(len(links), dtype=np.int64)) if turns is None else turns.homes_of(links)
        self.used, self.link = numbered(homes, len(capacity))
        self.slack = self._slack(phases)
        self.plain = mix(floats(capacity[self.used]), cluster.kinds[self.used], self.slack)
        self.entry = mix(floats(self.weight), self.phase)
        tight = np.flatnonzero(~self.slack[self.link])  # the entries that are compared
        self.entries = self.instance, self.link, self.entry
        self.tight = self.instance[tight], self.link[tight], self.entry[tight]
        self.latency = [_latencies(x) for x in instances]
        self._kinds: tuple[IntArray | None, Hashes] = None, np.zeros(0, dtype=np.uint64)  # of the colours asked for last

    def _slack(self, phases: IntArray) -> NDArray[np.bool_]:
        """Which links can never be what holds a transfer up: all that one of them carries goes over one first or last link of a message, too, and takes
        as much of that one's capacity, or more. `phases` of the entries: how many turns each is from the link that stands for its."""
        slack = np.zeros(len(self.used), dtype=bool)
        each = [np.full(len(x.sets), x.ordered) for x in self.all], [np.full(len(x.sets), self.order // x.turns) for x in self.all]
        ordered, length = _joined(each[0]).astype(bool), _joined(each[1]).astype(np.int64)
        sent = np.flatnonzero(ordered[self.instance]) if len(ordered) else np.zeros(0, dtype=np.int64)
        if not len(sent):
            return slack
        new = np.append(True, np.diff(self.instance[sent]) != 0)
        ends = sent[new], sent[np.append(np.flatnonzero(new)[1:], len(sent)) - 1]  # of every message the entries of its first and its last link
        outer = np.zeros(len(self.used), dtype=bool)
        outer[self.link[np.concatenate(ends)]] = True
        message = np.cumsum(new) - 1
        first = np.full(len(self.used), -1, dtype=np.int64)
        first[self.link[sent[::-1]]] = np.arange(len(sent))[::-1]  # of a place written twice the last value stays
        inner = np.flatnonzero((first >= 0) & ~outer)
        at = first[inner]
        place = np.full(len(self.used), -1, dtype=np.int64)
        place[inner] = np.arange(len(inner))
        turn = phases % length[self.instance]
        key = (self.instance * (int(self.phase.max()) + 1) + self.phase) * self.order + turn  # which transfer, seen from the link
        filled = self.weight / self.capacity[self.used[self.link]]
        theirs = np.flatnonzero(outer[self.link])
        theirs = theirs[np.argsort(key[theirs] * len(self.used) + self.link[theirs])]
        known = key[theirs] * len(self.used) + self.link[theirs]
        mine = np.flatnonzero(place[self.link] >= 0)
        of = place[self.link[mine]]
        for end in (entries[message[at]] for entries in ends):
            wanted = key[mine] * len(self.used) + self.link[end][of]
            found = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
            fails = (known[found] != wanted) | (filled[theirs[found]] < filled[mine])
            slack[inner] |= (np.bincount(of, weights=fails, minlength=len(inner)) == 0) & (phases[end] == phases[sent[at]])
        return slack

    def kinds(self, colour: IntArray) -> Hashes:
        """A hash per instance: its structure and the colours of its ranks (in order for messages)."""
        if self._kinds[0] is colour:
            return self._kinds[1]
        out = []
        before = 0
        for x, members in zip(self.all, self.members, strict=True):
            seen = colour[members].astype(np.uint64)
            if x.ordered:
                seen = mix(seen, np.arange(seen.shape[1], dtype=np.uint64)[None, :])
            out.append(mix(mix(seen).sum(axis=1, dtype=np.uint64), x.which + before, np.uint64(x.turns)))
            before += len(x.structures)
        self._kinds = colour, np.concatenate(out) if out else np.zeros(0, dtype=np.uint64)
        return self._kinds[1]

    def link_loads(self, kinds: Hashes) -> Loaded:
        """What every transfer kind puts on every link."""
        phases = np.arange(max((x.latency.shape[1] for x in self.all), default=0), dtype=np.uint64)
        key = mix(kinds[:, None], phases[None])[self.instance, self.phase]
        order, first = _runs(mix(key, self.link))
        load = np.add.reduceat(self.weight[order], first) if len(first) else np.zeros(0)
        entry = order[first]
        return Loaded(self.link[entry], key[entry], load, entry)

    def signatures(self, kinds: Hashes, entries: Entries) -> Hashes:
        """A hash per used link: kind, capacity, and what every transfer of every kind puts on it in these entries."""
        instance, link, entry = entries
        return mix(self.plain, _summed(mix(kinds[instance], entry), link, len(self.used)))

    def refine(self, colour: IntArray) -> IntArray:
        """New colours: the old one and what each transfer of the rank looks like on the links."""
        kinds = self.kinds(colour)
        instance, link, entry = self.tight
        looks = mix(kinds, _summed(mix(self.signatures(kinds, self.tight)[link], entry), instance, len(kinds)))
        total = np.zeros(len(self.domain), dtype=np.uint64)
        for x, members, base, latency in zip(self.all, self.members, self.base.tolist(), self.latency, strict=False):
            look = looks[base : base + len(members)]
            if latency is not None:
                look = mix(look, latency)
            for position in range(members.shape[1]) if x.ordered else ():
                np.add.at(total, members[:, position], mix(look, np.uint64(position + 1)))
            if not x.ordered:
                np.add.at(total, members, look[:, None])
        return _renumbered(mix(colour.astype(np.uint64), total))

    def network(self, colour: IntArray) -> tuple[tuple[tuple[str, str, float, int], ...], dict[LoadKey, dict[int, float]], frozenset[int]]:
        """The links by colour, the loads of every kind on them, checked to be equal on all links of a colour, and the colours that are slack."""
        kinds, everyone = self.kinds(colour), colour[self.homes]
        _, first, of_link = np.unique(self.signatures(kinds, self.entries), return_index=True, return_inverse=True)
        turn = np.argsort(np.argsort(first))  # colours in order of their first link
        of_link, first = turn[of_link], np.sort(first)
        counts = np.bincount(of_link, minlength=len(first)) * self.order
        links = []
        for at, n in zip(self.used[first].tolist(), counts.tolist(), strict=True):
            link = self.cluster.links[at]
            links.append((f"{link.a}>{link.b}", link.kind, float(self.capacity[at]), n))
        loads: dict[LoadKey, dict[int, float]] = {}
        named: dict[int, list[Hashable]] = {}
        for x, base in zip(self.all, self.base.tolist(), strict=False):
            for i in np.sort(np.unique(kinds[base : base + len(x.sets)], return_index=True)[1]).tolist():
                colours = everyone[x.sets[i]]
                who: Hashable = tuple(colours.tolist()) if x.ordered else counted(colours)
                found: list[Hashable] = [(structure, who) for structure in x.structures[x.which[i]]]
                named[int(kinds[base + i])] = found
                loads |= {(kind, p): {} for kind in found for p in range(x.latency.shape[1])}
        link, key, load, entry = self.link_loads(kinds)
        colours = of_link[link]
        order, first = _runs(mix(key, colours))
        least, most = (f.reduceat(load[order], first) if len(first) else load for f in (np.minimum, np.maximum))
        entry, colours = entry[order[first]], colours[order[first]]
        turn = np.lexsort((colours, self.phase[entry], self.instance[entry]))
        for c, low, high, e in zip(*(column[turn].tolist() for column in (colours, least, most, entry)), strict=True):
            if high - low > 10.0**-DIGITS * max(1.0, high):
                raise ParasimError(f"folding: links of colour {c} carry {low} and {high}: the partition is not equitable; use --no-fold")
            for kind in named[int(kinds[self.instance[e]])]:
                loads[kind, int(self.phase[e])][c] = low
        return tuple(links), loads, frozenset(np.flatnonzero(np.bincount(of_link, weights=self.slack)).tolist())


def _latencies(x: Instances) -> Hashes | None:
    """A hash per instance of the latencies of its phases; None where it has no phase."""
    if not x.latency.size:
        return None
    return np.asarray(mix(floats(x.latency), np.arange(x.latency.shape[1], dtype=np.uint64)[None, :]).sum(axis=1, dtype=np.uint64))


def _joined(parts: list[NDArray[np.generic]]) -> NDArray[np.generic]:
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)


def _summed(hashes: Hashes, at: IntArray, n: int) -> Hashes:
    """Sums of hashes by place: a hash of the multiset there."""
    out = np.zeros(n, dtype=np.uint64)
    np.add.at(out, at, hashes)
    return out


def _runs(hashes: Hashes) -> tuple[IntArray, IntArray]:
    """An order in which equal hashes stand together, and where each run of them begins in it."""
    order = np.argsort(hashes)
    ordered = hashes[order]
    return order, np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1])) if len(order) else order


def _renumbered(colour: NDArray[np.generic]) -> IntArray:
    """Colours as 0, 1, 2, ... in order of their first rank."""
    _, first, inverse = np.unique(colour, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[inverse]
