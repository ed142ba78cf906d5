"""Folding: ranks that provably behave alike are simulated once. One pass in (here), one pass out (`record`).

Colour refinement to an equitable partition: ranks start with the colour of their Program; a link's signature is its capacity, latency and
the load each kind of transfer puts on it; a rank's new colour adds the signatures of all links its transfers touch. At the fixed point
ranks of one colour have the same programs, partners and links under every combination of simultaneous transfers, so max-min sharing gives
them equal rates and simulating one of them is exact. Whatever differs (a slow link, a spine shared by chance) splits the colours.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..program.workload import IntArray, Workload
from ..topology.cluster import Cluster
from .traffic import Instance, Traffic, link_loads

LinkColour = int
LoadKey = tuple[Hashable, int]  # (transfer kind, phase)
SEND = "send"  # the op name of a message's plan: its two ends are told apart


@dataclass(frozen=True)
class Fold:
    """Colours of ranks (int[world]), representative rank of each rank, and for the network: the colour of every used link, their capacities
    (bytes/s), how many links share each, and per (transfer kind, phase) the bytes per byte of progress on one link of each colour."""

    colour: IntArray
    representative: IntArray
    link_colour: Mapping[int, LinkColour]
    links: tuple[tuple[str, str, float, int], ...]
    loads: Mapping[LoadKey, Mapping[LinkColour, float]]
    reasons: tuple[str, ...]

    @property
    def representatives(self) -> list[int]:
        """One rank per colour, ascending."""
        return sorted({int(r) for r in self.representative})


def fold(workload: Workload, cluster: Cluster, traffic: Traffic, capacity: NDArray[np.float64], *, enabled: bool = True) -> Fold:
    """The coarsest equitable partition, or every rank alone when folding is off."""
    instances = traffic.instances()
    colour = np.asarray(workload.class_of_rank if enabled else np.arange(workload.world))
    reasons = []
    while True:
        kinds = _by_colour(instances, colour)
        loads = link_loads(kinds)
        signatures = _link_signatures(cluster, capacity, loads)
        refined = _refine(workload.world, colour, kinds, signatures)
        if len(np.unique(refined)) == len(np.unique(colour)):
            break
        reasons.append(f"{len(np.unique(colour))} classes of ranks became {len(np.unique(refined))}: their transfers meet links of other capacity or load")
        colour = refined
    first: dict[int, int] = {}
    for rank, c in enumerate(colour.tolist()):
        first.setdefault(c, rank)
    numbers = {s: i for i, s in enumerate(dict.fromkeys(signatures.values()))}
    link_colour = {link: numbers[s] for link, s in signatures.items()}
    return Fold(
        colour=colour,
        representative=np.array([first[c] for c in colour.tolist()], dtype=np.int64),
        link_colour=link_colour,
        links=_link_table(cluster, capacity, link_colour, len(numbers)),
        loads=_loads(kinds, loads, link_colour),
        reasons=tuple(reasons),
    )


def kind_of(key: Hashable, ranks: tuple[int, ...], colour: IntArray) -> Hashable:
    """The transfer kind of one instance: its key and the colours of its ranks."""
    if len(ranks) == 2:
        return key, (int(colour[ranks[0]]), int(colour[ranks[1]]))
    return key, tuple(sorted(Counter(colour[list(ranks)].tolist()).items()))


def _by_colour(instances: Mapping[Hashable, list[Instance]], colour: IntArray) -> dict[Hashable, list[Instance]]:
    out: dict[Hashable, list[Instance]] = {}
    for key, sets in instances.items():
        for instance in sets:
            out.setdefault(kind_of(key, instance.ranks, colour), []).append(instance)
    return out


def _link_signatures(cluster: Cluster, capacity: NDArray[np.float64], loads: Mapping[int, Mapping[LoadKey, float]]) -> dict[int, Hashable]:
    return {
        link: (cluster.links[link].kind, float(capacity[link]), tuple(sorted(((repr(k), round(v, 12)) for k, v in row.items()))))
        for link, row in sorted(loads.items())
    }


def _refine(world: int, colour: IntArray, kinds: Mapping[Hashable, list[Instance]], signatures: Mapping[int, Hashable]) -> IntArray:
    """New colours: old colour plus, per kind, what its transfers look like on the links."""
    numbers = {s: i for i, s in enumerate(dict.fromkeys(signatures.values()))}
    seen: list[list[Hashable]] = [[] for _ in range(world)]
    for n, sets in enumerate(kinds.values()):
        for instance in sets:
            look = (
                n,
                tuple((p.latency, p.bytes, tuple(sorted((numbers[signatures[link]], round(w, 12)) for link, w in p.weights))) for p in instance.plan.phases),
            )
            for position, rank in enumerate(instance.ranks):
                seen[rank].append((look, position if instance.plan.op == SEND else -1))
    ids: dict[Hashable, int] = {}
    return np.array([ids.setdefault((int(colour[r]), tuple(sorted(map(repr, seen[r])))), len(ids)) for r in range(world)], dtype=np.int64)


def _link_table(cluster: Cluster, capacity: NDArray[np.float64], link_colour: Mapping[int, int], n: int) -> tuple[tuple[str, str, float, int], ...]:
    members: list[list[int]] = [[] for _ in range(n)]
    for link, c in link_colour.items():
        members[c].append(link)
    return tuple((f"{cluster.links[m[0]].a}>{cluster.links[m[0]].b}", cluster.links[m[0]].kind, float(capacity[m[0]]), len(m)) for m in members)


def _loads(
    kinds: Mapping[Hashable, list[Instance]], loads: Mapping[int, Mapping[LoadKey, float]], link_colour: Mapping[int, int]
) -> dict[LoadKey, dict[int, float]]:
    out: dict[LoadKey, dict[int, float]] = {(k, p): {} for k, sets in kinds.items() for p in range(max(len(i.plan.phases) for i in sets))}
    for link, row in loads.items():
        for key, load in row.items():
            out[key][link_colour[link]] = load
    return out
