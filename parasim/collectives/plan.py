"""CollectivePlan: what a collective or a message puts on the network, phase by phase; its time alone on it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..collecting import uncollected
from ..cost.profile import Profile
from ..errors import Malformed, Refused, Unreachable
from ..topology.cluster import LINK_KINDS, Cluster, Link, Rates
from . import planner
from .catalog import ALGORITHMS
from .group import Algorithm, Group, Rings, Round
from .protocols import Start, start_of
from .selection import Choice, call_of, choices, named, ring_order
from .torus import stripes


@dataclass(frozen=True)
class Phase:
    """First `latency` seconds, then `bytes` of progress: those of the link that is tightest when nothing else moves.

    Each byte of progress puts `weight` bytes on each (link index, weight) of `weights`: all links of a phase advance together.
    """

    latency: float
    bytes: float
    weights: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class CollectivePlan:
    """The phases of one call, one after the other; `wire_bytes_per_rank` is the mean over the members of what leaves them, `steps` the serial steps."""

    op: str
    algorithm: str
    reason: str
    phases: tuple[Phase, ...]
    wire_bytes_per_rank: float
    steps: int = 0


class _PerKind(dict[str, float]):
    """A number of the profile per link kind, looked up once."""

    def __init__(self, profile: Profile, prefix: str, default: float) -> None:
        super().__init__()
        self._ask = (profile, prefix, default)

    def __missing__(self, kind: str) -> float:
        profile, prefix, default = self._ask
        self[kind] = profile.get(f"{prefix}.{kind}", default)
        return self[kind]


@uncollected()
def plan(
    op: str,
    nbytes: float,
    members: Sequence[str],
    cluster: Cluster,
    profile: Profile,
    algorithm: str = "auto",
    root: int = 0,
    shares: NDArray[np.float64] | None = None,
    copies: float = 1.0,
) -> CollectivePlan:
    """The plan of one collective over the devices `members` (in axis order).

    `nbytes` is the larger of a rank's two buffers (all_gather: the output, reduce_scatter: the input, all_to_all: the whole send buffer).
    `shares[i, j]`, for an uneven all_to_all, is the part of `nbytes` that member i sends to member j. `root` is a position in `members`.
    `copies` other than 1: an all_to_all whose bytes cross the network once per server, and are copied (or, below 1, added up) there (`per_node`).
    "auto" takes what the profile's `algorithms` name, else the fastest of those the profile holds start-up times of (`contenders`), else what the
    table names; of several the one that is fastest alone on the network, leaving out those that refuse these members.
    One member, or zero bytes (but for a barrier): no phase. Raises `Malformed`, and `Unreachable` across a partition.
    """
    _check(op, nbytes, members, cluster, root, shares)
    if copies != 1 and algorithm == "auto":
        algorithm = "per-node"
    picked = choices(op, profile, call_of(members, cluster, nbytes), algorithm)
    if len(members) == 1 or (nbytes == 0 and op != "barrier"):
        return CollectivePlan(op, picked[0].name, picked[0].reason, (), 0.0)
    group = group_of(members, cluster, profile, root, shares, copies)
    rest, protocols = rivals(op, picked, nbytes, group, profile) if algorithm == "auto" else (picked, ("",))
    return fastest(_possible(op, rest, protocols, nbytes, group, profile), cluster, profile)


def rivals(op: str, picked: Sequence[Choice], nbytes: float, group: Group, profile: Profile) -> tuple[Sequence[Choice], Sequence[str]]:
    """The algorithms among which the fastest runs; or, where the profile says how its NCCL plans, those picked by it with their protocols, best first."""
    names = contenders(op, profile)
    if not picked[0].asked and len(names) > 1:
        picked = tuple(Choice(name, f"profile {profile.name} compares", named(op, name, "profile")) for name in names)
    facts = planner.facts_of(group.members, group.cluster, profile)
    best = planner.ranked(op, nbytes, [choice.name for choice in picked], facts) if facts else []
    if not best:
        return picked, ("",) * len(picked)
    by_name = {choice.name: choice for choice in picked}
    said = [f"NCCL's planner takes {p.algorithm} by {p.protocol}: {p.seconds * 1e6:.4g} us by its own tables" for p in best]
    return [by_name[p.algorithm]._replace(reason=why) for p, why in zip(best, said, strict=True)], [p.protocol for p in best]


def _possible(op: str, picked: Sequence[Choice], protocols: Sequence[str], nbytes: float, group: Group, profile: Profile) -> list[CollectivePlan]:
    """The plans of those choices that accept these members; the first one only where protocols are said.

    Raises the first refusal when none does, and `Unreachable` at once.
    """
    plans: list[CollectivePlan] = []
    refusals: list[Refused] = []
    for choice, protocol in zip(picked, protocols, strict=True):
        try:
            plans.append(price(op, choice, rounds_of(choice.run, group), nbytes, group, profile, protocol))
            if protocol:
                break
        except Unreachable:
            raise
        except Refused as error:
            refusals.append(error)
    if not plans:
        raise refusals[0]
    return plans


def rounds_of(run: Algorithm, group: Group) -> Sequence[Round]:
    """What `run` makes of a group; the last few are kept, since a sweep over sizes asks for the same ones again and again."""
    shares = None if group.shares is None else group.shares.tobytes()
    latencies = tuple(group.extra[kind] for kind in LINK_KINDS)
    return _made(run, group.members, group.cluster, group.rings, latencies, group.root, shares, group.copies)


@lru_cache(maxsize=6)
def _made(
    run: Algorithm,
    members: tuple[str, ...],
    cluster: Cluster,
    rings: Rings,
    latencies: tuple[float, ...],
    root: int,
    shares: bytes | None,
    copies: float,
) -> Sequence[Round]:
    extra = dict(zip(LINK_KINDS, latencies, strict=True))
    table = None if shares is None else np.frombuffer(shares).reshape(len(members), -1)
    return run(Group(members, cluster, rings, extra, root, table, copies))


def group_of(
    members: Sequence[str], cluster: Cluster, profile: Profile, root: int = 0, shares: NDArray[np.float64] | None = None, copies: float = 1.0
) -> Group:
    """What an algorithm sees of `members`: their rings as the profile's back end orders them, and its latencies per link."""
    names = tuple(members)
    extra = _PerKind(profile, "network.latency", 0.0)
    return Group(names, cluster, ring_order(profile.backend)(names, cluster), extra, root, shares, copies)


def contenders(op: str, profile: Profile) -> tuple[str, ...]:
    """The algorithms of `op` that the profile holds a start-up time of (`algorithm.<name>.latency`), in the order of the table."""
    return tuple(name for name in ALGORITHMS.get(op, ()) if f"algorithm.{name}.latency" in profile.numbers)


def fastest(plans: Sequence[CollectivePlan], cluster: Cluster, profile: Profile) -> CollectivePlan:
    """The plan that takes least time alone on the network; its reason names the others and their times."""
    if len(plans) == 1:
        return plans[0]
    timed = sorted(((seconds(p, cluster, profile), i) for i, p in enumerate(plans)))
    best = plans[timed[0][1]]
    others = ", ".join(f"{plans[i].algorithm} {time * 1e6:.4g} us" for time, i in timed[1:])
    return replace(best, reason=f"{best.reason}; fastest by profile {profile.name}: {timed[0][0] * 1e6:.4g} us, not {others}")


def phases_of(op: str, algorithm: str, rounds: Sequence[Round], group: Group, profile: Profile) -> tuple[tuple[Phase, ...], Start]:
    """The phases of `rounds` for one byte, with the profile's numbers of the op and the algorithm, and what starting them costs."""
    at = f"algorithm.{algorithm}"
    step = profile.get(f"collective.{op}.step_latency", 0.0) + profile.get(f"{at}.step_latency", 0.0)
    factor = profile.get(f"collective.{op}.bandwidth_factor", 1.0) * profile.get(f"{at}.bandwidth_factor", 1.0)
    capacities = capacity(group.cluster, profile)
    shapes = [shape_of(r, capacities) for r in rounds]
    phases = tuple(Phase(r.latency + r.steps * step, s.tightest / factor, s.weights) for r, s in zip(rounds, shapes, strict=True))
    per_byte = sum(s.seconds for s in shapes) / factor
    fastest = profile.get(f"{at}.bandwidth", 0.0)
    if algorithm == "tree" and (facts := planner.facts_of(group.members, group.cluster, profile)):
        fastest = planner.tree_rate(op, fastest, facts)
    if fastest and 0 < per_byte < 1 / fastest:
        phases = tuple(replace(phase, bytes=phase.bytes / (fastest * per_byte)) for phase in phases)
        per_byte = 1 / fastest
    return phases, start_of(op, algorithm, rounds, sum(phase.latency for phase in phases), per_byte, group, profile)


class Shape(NamedTuple):
    """What a Round does to the links, free of sizes: `weights` per byte of progress as in a Phase, `tightest` bytes of progress and `seconds` alone on the
    network per byte of the buffer."""

    weights: tuple[tuple[int, float], ...]
    tightest: float
    seconds: float


def shape_of(r: Round, capacities: Rates) -> Shape:
    """Progress counts the bytes of one flow of a Round on the link that is tightest when the network is free.

    So flows that share a link they are held up by get equal bytes/s there: a collective as many shares as it has messages on it at once, however
    many bytes it puts on it per byte of buffer. The last few are kept, with what they are of: other sizes ask for the same.
    """
    known = _SHAPES.get(id(r))
    if known is not None and known[0] is r and known[1] is capacities:
        return known[2]
    while len(_SHAPES) >= KEPT:
        del _SHAPES[next(iter(_SHAPES))]
    shape = _shape(r, capacities)
    _SHAPES[id(r)] = r, capacities, shape
    return shape


KEPT = 16
_SHAPES: dict[int, tuple[Round, Rates, Shape]] = {}


def _shape(r: Round, capacities: Rates) -> Shape:
    if not r.weights:
        return Shape((), 0.0, 0.0)
    index = np.fromiter(r.weights, dtype=np.int64, count=len(r.weights))
    weights = np.fromiter(r.weights.values(), dtype=np.float64, count=len(r.weights))
    order = np.argsort(index)
    index, weights = index[order], weights[order]
    busy = weights / capacities[index]
    at = int(np.argmax(busy)) if busy.any() else int(np.argmax(weights))
    tightest = float(weights[at]) / max(1.0, r.flows.get(int(index[at]), 1.0))
    return Shape(tuple(zip(index.tolist(), (weights / tightest).tolist(), strict=True)), tightest, float(busy[at]))


def price(op: str, choice: Choice, rounds: Sequence[Round], nbytes: float, group: Group, profile: Profile, protocol: str = "") -> CollectivePlan:
    """The plan of `rounds` for `nbytes`, by a protocol or by the better one.

    What the start costs is latency of the first phase, so that no byte is counted twice on a link.
    """
    phases, start = phases_of(op, choice.name, rounds, group, profile)
    waiting = start.waiting(nbytes, protocol)
    share = min(1.0, waiting / start.latency) if start.latency else 0.0
    sized = [replace(phase, bytes=phase.bytes * nbytes, latency=phase.latency * share) for phase in phases]
    sized[0] = replace(sized[0], latency=sized[0].latency + start.started(nbytes) + max(0.0, waiting - start.latency))
    return CollectivePlan(op, choice.name, choice.reason, tuple(sized), nbytes * sum(r.sent for r in rounds), sum(r.steps for r in rounds))


def send(nbytes: float, source: str, target: str, cluster: Cluster, profile: Profile, ranks: int = 2) -> CollectivePlan:
    """One message: its route's latency, then its bytes over every link of the route. Zero bytes, or to itself: no phase.

    On a torus it is cut into as many parts as axes have an offset; they take ways that share no link (`torus.stripes`).
    `ranks` of the communicator share the channels of each device, where the profile limits them.
    """
    if nbytes < 0:
        raise Malformed(f"bytes={nbytes:g} is negative; a message has 0 bytes or more")
    if nbytes == 0 or source == target:
        return CollectivePlan("send", "route", "nothing to move", (), 0.0)
    ways = stripes(cluster, source, target)
    route = ways[0]
    extra = _PerKind(profile, "network.latency", 0.0)
    latency = sum(cluster.links[i].latency + extra[cluster.links[i].kind] for i in route) + profile.get("p2p.latency", 0.0)
    slower = 1 / profile.get("p2p.bandwidth_factor", 1.0)
    factor = _PerKind(profile, "network.bandwidth_factor", 1.0)
    limit = channel_rate(nbytes, ranks, profile)
    weights = {i: max(slower, _effective(cluster.links[i], factor) / limit) for i in route}
    least = min(weights.values())  # the narrowest link of the route decides; the wider ones carry the bytes as they are
    phase = Phase(latency, nbytes, tuple((i, least / len(ways)) for way in ways for i in way))
    return CollectivePlan("send", "route", "point to point", (phase,), nbytes)


def channel_rate(nbytes: float, ranks: int, profile: Profile) -> float:
    """Bytes/s at which one message can be fed: channels it gets times the rate of one (NCCL: src/enqueue.cc, src/graph/paths.cc).

    With c channels and n ranks a message starts on c/n of them and takes twice as many, up to 4 c/n, while each would carry more than
    `p2p.channel_bytes`. inf where the profile has no limit.
    """
    channels, rate, most = (profile.get(f"p2p.{key}", 0.0) for key in ("channels", "channel_bandwidth", "channel_bytes"))
    if not channels or not rate:
        return math.inf
    used, ceiling = (max(1.0, 2.0 ** math.floor(math.log2(max(1.0, share)))) for share in (channels / ranks, min(channels, 4 * channels / ranks)))
    while most and used < ceiling and nbytes / used > most:
        used *= 2
    return used * rate


def capacity(cluster: Cluster, profile: Profile) -> Rates:
    """Effective bytes/s of every link of the cluster: its bandwidth times the profile's factor for its kind."""
    return cluster.scaled(tuple(profile.get(f"network.bandwidth_factor.{kind}", 1.0) for kind in LINK_KINDS))


def seconds(plan: CollectivePlan, cluster: Cluster, profile: Profile) -> float:
    """The time of `plan` alone on the network: the sum over phases of latency + bytes / rate of the tightest link."""
    capacities = capacity(cluster, profile)
    return sum(phase.latency + _moving(phase, capacities) for phase in plan.phases)


def _moving(phase: Phase, capacities: Rates) -> float:
    """Seconds in which the bytes of `phase` move, alone on the network: those of its tightest link."""
    if not phase.weights or not phase.bytes:
        return 0.0
    index, weights = np.array([i for i, _ in phase.weights]), np.array([weight for _, weight in phase.weights])
    return phase.bytes * float(np.max(weights / capacities[index]))


def _effective(link: Link, factor: Mapping[str, float]) -> float:
    return link.bandwidth * factor[link.kind]


def _check(op: str, nbytes: float, members: Sequence[str], cluster: Cluster, root: int, shares: NDArray[np.float64] | None) -> None:
    different = set(members)
    if not different <= cluster.node_of.keys():
        unknown = next(m for m in members if m not in cluster.node_of)
        raise Malformed(f"members: {unknown!r} is no device of cluster {cluster.name}, which has {len(cluster.devices)}")
    if not members or len(different) < len(members):
        raise Malformed(f"members: {len(members)} devices, {len(different)} different; a group has each member once, one or more")
    if not nbytes >= 0:
        raise Malformed(f"bytes={nbytes:g} is not legal; {op} has 0 bytes or more")
    if not 0 <= root < len(members):
        raise Malformed(f"root={root} is no position in a group of {len(members)}; 0 to {len(members) - 1}")
    if shares is not None and (op != "all_to_all" or shares.shape != (len(members),) * 2):
        raise Malformed(f"shares {shares.shape} belong to an all_to_all and are {len(members)} x {len(members)} here, not to {op}")
