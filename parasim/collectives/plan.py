"""CollectivePlan: what a collective or a message puts on the network, phase by phase; its time alone on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..cost.profile import Profile
from ..errors import Malformed
from ..topology.cluster import Cluster, Link
from .group import Group, Round
from .selection import ring_order, select


@dataclass(frozen=True)
class Phase:
    """First `latency` seconds, then `bytes` of progress.

    Each byte of progress puts `weight` bytes on each (link index, weight) of `weights`: all links of a phase advance together.
    """

    latency: float
    bytes: float
    weights: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class CollectivePlan:
    """The phases of one call, one after the other; `wire_bytes_per_rank` is the mean over the members of what leaves them."""

    op: str
    algorithm: str
    reason: str
    phases: tuple[Phase, ...]
    wire_bytes_per_rank: float


class _PerKind(dict[str, float]):
    """A number of the profile per link kind, looked up once."""

    def __init__(self, profile: Profile, prefix: str, default: float) -> None:
        super().__init__()
        self._ask = (profile, prefix, default)

    def __missing__(self, kind: str) -> float:
        profile, prefix, default = self._ask
        self[kind] = profile.get(f"{prefix}.{kind}", default)
        return self[kind]


def plan(
    op: str,
    nbytes: float,
    members: Sequence[str],
    cluster: Cluster,
    profile: Profile,
    algorithm: str = "auto",
    root: int = 0,
    shares: NDArray[np.float64] | None = None,
) -> CollectivePlan:
    """The plan of one collective over the devices `members` (in axis order).

    `nbytes` is the larger of a rank's two buffers (all_gather: the output, reduce_scatter: the input, all_to_all: the whole send buffer).
    `shares[i, j]`, for an uneven all_to_all, is the part of `nbytes` that member i sends to member j. `root` is a position in `members`.
    One member, or zero bytes (but for a barrier): no phase. Raises `Malformed`, and `Unreachable` across a partition.
    """
    _check(op, nbytes, members, cluster, root, shares)
    nodes = {cluster.node_of[m] for m in members}
    choice = select(op, profile.backend, "node" if len(nodes) == 1 else "nodes", nbytes, algorithm)
    if len(members) == 1 or (nbytes == 0 and op != "barrier"):
        return CollectivePlan(op, choice.name, choice.reason, (), 0.0)
    names = tuple(members)
    extra = _PerKind(profile, "network.latency", 0.0)
    group = Group(names, cluster, ring_order(profile.backend)(names, cluster), extra, root, shares)
    rounds = choice.run(group)
    phases = _phases(op, nbytes, rounds, profile)
    return CollectivePlan(op, choice.name, choice.reason, phases, nbytes * sum(r.sent for r in rounds))


def _phases(op: str, nbytes: float, rounds: Sequence[Round], profile: Profile) -> tuple[Phase, ...]:
    """Rounds with the profile's latency per call and per step and its bandwidth factor."""
    call = profile.get(f"collective.{op}.latency", 0.0)
    step = profile.get(f"collective.{op}.step_latency", 0.0)
    factor = profile.get(f"collective.{op}.bandwidth_factor", 1.0)
    return tuple(
        Phase(
            latency=r.latency + r.steps * step + (call if i == 0 else 0.0),
            bytes=nbytes if r.weights else 0.0,
            weights=tuple(sorted((link, weight / factor) for link, weight in r.weights.items())),
        )
        for i, r in enumerate(rounds)
    )


def send(nbytes: float, source: str, target: str, cluster: Cluster, profile: Profile) -> CollectivePlan:
    """One message: its route's latency, then its bytes over every link of the route. Zero bytes, or to itself: no phase."""
    if nbytes < 0:
        raise Malformed(f"bytes={nbytes:g} is negative; a message has 0 bytes or more")
    if nbytes == 0 or source == target:
        return CollectivePlan("send", "route", "nothing to move", (), 0.0)
    route = cluster.route(source, target)
    extra = _PerKind(profile, "network.latency", 0.0)
    latency = sum(cluster.links[i].latency + extra[cluster.links[i].kind] for i in route) + profile.get("p2p.latency", 0.0)
    weight = 1 / profile.get("p2p.bandwidth_factor", 1.0)
    phase = Phase(latency, nbytes, tuple((i, weight) for i in route))
    return CollectivePlan("send", "route", "point to point", (phase,), nbytes)


def capacity(cluster: Cluster, profile: Profile) -> NDArray[np.float64]:
    """Effective bytes/s of every link of the cluster: its bandwidth times the profile's factor for its kind; float[links]."""
    factor = _PerKind(profile, "network.bandwidth_factor", 1.0)
    return np.array([_effective(link, factor) for link in cluster.links], dtype=np.float64)


def seconds(plan: CollectivePlan, cluster: Cluster, profile: Profile) -> float:
    """The time of `plan` alone on the network: the sum over phases of latency + bytes / rate of the tightest link."""
    factor = _PerKind(profile, "network.bandwidth_factor", 1.0)
    total = 0.0
    for phase in plan.phases:
        slowest = max((weight / _effective(cluster.links[link], factor) for link, weight in phase.weights), default=0.0)
        total += phase.latency + phase.bytes * slowest
    return total


def _effective(link: Link, factor: Mapping[str, float]) -> float:
    return link.bandwidth * factor[link.kind]


def _check(op: str, nbytes: float, members: Sequence[str], cluster: Cluster, root: int, shares: NDArray[np.float64] | None) -> None:
    unknown = [m for m in members if m not in cluster.node_of]
    if unknown:
        raise Malformed(f"members: {unknown[0]!r} is no device of cluster {cluster.name}, which has {len(cluster.devices)}")
    if not members or len(set(members)) < len(members):
        raise Malformed(f"members: {len(members)} devices, {len(set(members))} different; a group has each member once, one or more")
    if not nbytes >= 0:
        raise Malformed(f"bytes={nbytes:g} is not legal; {op} has 0 bytes or more")
    if not 0 <= root < len(members):
        raise Malformed(f"root={root} is no position in a group of {len(members)}; 0 to {len(members) - 1}")
    if shares is not None and (op != "all_to_all" or shares.shape != (len(members),) * 2):
        raise Malformed(f"shares {shares.shape} belong to an all_to_all and are {len(members)} x {len(members)} here, not to {op}")
