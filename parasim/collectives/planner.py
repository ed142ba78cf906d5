"""How NCCL picks an algorithm and a protocol: by its own tables (planner.yaml), not by what is fastest on the network at hand.

NCCL reckons t = latency + bytes / bandwidth for every algorithm and protocol and takes the least (src/graph/tuning.cc). It knows nothing of what
a fabric really takes, so that the pick is often not the fastest one. The pick is priced with the profile's numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any, NamedTuple

from .. import documents
from ..cost.profile import Profile
from ..provenance import Number
from ..topology.cluster import Cluster

PROTOCOLS = LL, LL128, SIMPLE = "LL", "LL128", "Simple"
ALONE = "Simple alone"  # where LL is off: small messages of rings go by it too


class Pick(NamedTuple):
    """An algorithm, a protocol and the seconds that NCCL reckons with."""

    algorithm: str
    protocol: str
    seconds: float


@dataclass(frozen=True)
class Facts:
    """What NCCL's estimate depends on: ranks, servers, bus bandwidth inside and between servers (GB/s), the profile's `planner` numbers (us)."""

    ranks: int
    servers: int
    generation: str
    inside: float
    between: float
    channels: float
    latency: float
    overhead: float
    ll: float
    ll128: float


def facts_of(members: Sequence[str], cluster: Cluster, profile: Profile) -> Facts | None:
    """The facts of a group, or None in one server, where the pick is the fastest one or near it, where the profile does not say how its NCCL
    plans, and where the accelerator has no row."""
    if profile.backend != "nccl" or "planner.network_overhead" not in profile.numbers:
        return None
    name = next((row for row in tables()["generations"] if fnmatch(cluster.accelerator.name, row)), None)
    if name is None:
        return None
    per_server: dict[str, int] = {}
    for member in members:
        per_server[cluster.node_of[member]] = per_server.get(cluster.node_of[member], 0) + 1
    inside, between, nics = _rates(cluster, name)
    if len(per_server) == 1 or not inside or not between:
        return None
    numbers = [profile.get(f"planner.{key}") for key in ("network_latency", "network_overhead", "ll_share", "ll128_share")]
    width = min(per_server.values())
    return Facts(len(members), len(per_server), name, inside, between * width, nics * width, numbers[0] * 1e6, numbers[1] * 1e6, numbers[2], numbers[3])


@lru_cache(maxsize=64)
def _rates(cluster: Cluster, generation: str) -> tuple[float, float, float]:
    """GB/s that NCCL plans with, of a port inside a server and of one device's part of the NICs; that part."""
    row = tables()["generations"][generation]
    leaving = cluster.leaving(cluster.devices[0])
    inside = max((link.bandwidth for link in leaving if link.kind == "scale_up"), default=0.0) * 1e-9
    nic, per_device = (_described(cluster, f"scale_out.{key}") for key in ("bandwidth", "nic_per_device"))
    nic *= 1e-9
    channel = next((rate for rate in row["channels"] if rate <= nic * (1 + 1e-9)), nic)
    return inside * row["port"], channel * per_device, per_device


def _described(cluster: Cluster, key: str) -> float:
    found = cluster.description.get(key, 0.0)
    return float(found.value if isinstance(found, Number) else found)


def ranked(op: str, nbytes: float, names: Sequence[str], facts: Facts) -> list[Pick]:
    """The estimates for those of `names` that NCCL's planner knows, best first. Empty for other ops than all_reduce, all_gather, reduce_scatter."""
    return sorted((pick for name in names for pick in _estimates(op, nbytes, name, facts)), key=lambda pick: pick.seconds)


def _estimates(op: str, nbytes: float, name: str, facts: Facts) -> Iterator[Pick]:
    if op not in ("all_reduce", "all_gather", "reduce_scatter") or name not in tables()["base"] or (name != "ring" and op != "all_reduce"):
        return
    allowed = (facts.ll, facts.ll128, 1.0) if name in ("ring", "tree") else (0.0, 0.0, 1.0)
    for place, protocol in enumerate(PROTOCOLS):
        if allowed[place]:
            rate = _rate(op, nbytes, name, place, facts)
            word = ALONE if protocol == SIMPLE and not facts.ll else protocol
            yield Pick(name, word, (_latency(op, nbytes, name, place, facts) + nbytes / (rate * 1e3)) * 1e-6)


def _latency(op: str, nbytes: float, name: str, place: int, facts: Facts) -> float:
    """us."""
    table, servers = tables(), facts.servers
    base, step = (float(table[key][name][place]) for key in ("base", "inside"))
    hop = float(table["between"]["tree" if facts.ranks == servers else name][place])
    hop += facts.latency * (2 if place == 2 else 1)
    depth = int(math.log2(servers))
    if name == "tree":
        return base + 2 * ((facts.ranks // servers - 1) * step + depth * hop)
    if name == "nvls-tree":
        return base + step + 2 * depth * hop
    steps, across = _steps(op, facts.ranks), _steps(op, servers)
    seconds: float = base + (steps - across) * max(step, facts.overhead * table["posting"][place]) + across * hop
    slow = op == "all_reduce" and place == 2 and nbytes >= table["plateau_bytes"] * facts.ranks * (facts.ranks // servers)
    return seconds * (float(table["generations"][facts.generation]["plateau"]) if slow else 1.0)


def _rate(op: str, nbytes: float, name: str, place: int, facts: Facts) -> float:
    """GB/s of the buffer."""
    table, two = tables(), facts.servers == 2
    row, count = table["generations"][facts.generation], _paths(facts)
    caps = {key: count * float(row[key][0 if two else 1]) for key in ("tree", "tree_ll128", "nvls_tree")}
    if name == "nvls-tree":
        switch = facts.inside * row["nvls"] * (1 - 1 / table["nvls_channels"]) * 2
        return max(1e-9, float(min(switch, facts.between * (2 if two else 1), caps["nvls_tree"]))) / _part(op, facts)
    most = next(float(few if two else many) for upto, few, many in table["ll_between"] if facts.overhead <= upto)
    if name == "ring":
        by_ll128 = min(facts.ll128 * facts.between, count * float(row["ring_ll128"]))
        return (min(most, facts.ll * facts.between), by_ll128, facts.between)[place] / _part(op, facts)
    rules = table["tree"]
    bus = min(rules["share"] * (min(facts.inside, 2 * facts.between) if two else facts.between), caps["tree"])
    bus = (min(bus * rules["ll"], most), min(bus * rules["ll128"], caps["tree_ll128"]), bus)[place]
    factors = table["tree_correction"][place]
    size = int(math.log2(nbytes / 64)) if nbytes >= 64 else len(factors)
    return float(bus / 2 * (factors[size] if size < len(factors) else 1.0))


def _paths(facts: Facts) -> float:
    """Channels as the planner counts them: one per NIC of a server, or per device where they have several."""
    return max(1, min(facts.ranks // facts.servers, facts.channels))


def channels(facts: Facts) -> int:
    """Channels that run between servers."""
    return int(tables()["chunks"]["per_nic"] * _paths(facts))


def reach(op: str, name: str, protocol: str, facts: Facts) -> float:
    """Bytes of the buffer per second that the channels of a tree, or of a ring by LL128, carry at most, however fast the NICs are: as many channels as NICs,
    each at the rate of planner.yaml. inf for what has no such rate."""
    key = {("tree", SIMPLE): "tree", ("tree", LL128): "tree_ll128", ("ring", LL128): "ring_ll128"}.get((name, protocol))
    if key is None or op not in ("all_reduce", "all_gather", "reduce_scatter"):
        return math.inf
    rates = tables()["generations"][facts.generation][key]
    rate = rates[0 if facts.servers == 2 else 1] if isinstance(rates, list) else rates
    return max(1.0, facts.channels) * float(rate) * 1e9 / (2 if name == "tree" else _part(op, facts))


def tree_rate(op: str, fitted: float, facts: Facts) -> float:
    """Bytes of the buffer per second of a tree by Simple: what the profile holds (B/s; 0: nothing) is that of two servers, and falls on more of them, where
    a server inside the tree has two children, as NCCL's rates do."""
    here = reach(op, "tree", SIMPLE, facts)
    if not fitted or facts.servers <= 2 or math.isinf(here):
        return fitted or here
    return fitted * here / reach(op, "tree", SIMPLE, replace(facts, servers=2))


def _steps(op: str, places: int) -> int:
    return (2 if op == "all_reduce" else 1) * (places - 1)


def _part(op: str, facts: Facts) -> float:
    """Bytes over the bus per byte of the buffer."""
    return _steps(op, facts.ranks) / facts.ranks


class Middle(NamedTuple):
    """What LL128 takes beyond LL: seconds per call, per step inside and between servers."""

    call: float
    step: float
    across: float


@cache
def middle(name: str) -> Middle | None:
    """By NCCL's own figures; None for an algorithm that has no LL128."""
    table = tables()
    if name not in ("ring", "tree"):
        return None
    return Middle(*((table[key][name][1] - table[key][name][0]) * 1e-6 for key in ("base", "inside", "between")))


@cache
def tables() -> dict[str, Any]:
    """planner.yaml."""
    path = files(__package__).joinpath("planner.yaml")
    return dict(documents.parse(path.read_bytes(), path.name).mapping())
