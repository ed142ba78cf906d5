"""Ring algorithms: every member sends to the next one only (Patarasuk and Yuan, "Bandwidth optimal all-reduce", 2009).

A ring all-reduce of S bytes over n ranks takes 2(n-1) steps of S/n: 2(n-1)/n S per port and direction.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from .group import Group, Round


def all_reduce(group: Group) -> list[Round]:
    """Reduce-scatter, then all-gather around the ring, chunk behind chunk: one round of 2(n-1) steps, 2(n-1)/n S per rank."""
    n = group.size
    return [_around(group, 2 * (n - 1))]


def all_gather(group: Group) -> list[Round]:
    """n-1 steps, (n-1)/n S per rank; S is the output."""
    return [_around(group, group.size - 1)]


def reduce_scatter(group: Group) -> list[Round]:
    """n-1 steps, (n-1)/n S per rank; S is the input."""
    return [_around(group, group.size - 1)]


def broadcast(group: Group) -> list[Round]:
    """A pipelined chain that starts at the root: S over each of n-1 hops; the fill of the pipeline is n-1 latencies."""
    return [_chain(group, [_rotated(ring, ring.index(group.members[group.root])) for ring in group.rings])]


def reduce(group: Group) -> list[Round]:
    """A pipelined chain that ends at the root: S over each of n-1 hops."""
    return [_chain(group, [_rotated(ring, ring.index(group.members[group.root]) + 1) for ring in group.rings])]


def reduce_gather(group: Group) -> list[Round]:
    """Ring reduce-scatter, then every member sends its 1/n to the root, which receives 2(n-1)/n S in all (gloo)."""
    n, root = group.size, group.members[group.root]
    others = [m for m in group.members if m != root]
    gather = Round(1, max(group.hop(m, root) for m in others), group.loads((m, root, 1 / n) for m in others), (n - 1) / n**2)
    return [_around(group, n - 1), gather]


def all_to_all(group: Group) -> list[Round]:
    """n-1 shifted steps: in step k member i sends to member i+k; every step waits for the slowest pair."""
    n, shares = group.size, group.shares
    rounds = []
    for k in range(1, n):
        pairs = [(i, (i + k) % n) for i in range(n)]
        flows = [(group.members[i], group.members[j], 1 / n if shares is None else float(shares[i, j])) for i, j in pairs]
        latency = max(group.hop(a, b) for a, b, _ in flows)
        rounds.append(Round(1, latency, group.loads(flows), sum(part for _, _, part in flows) / n))
    return rounds


def _around(group: Group, steps: int) -> Round:
    """`steps` steps around the rings, S/n per step split over the rings."""
    n, part = group.size, 1 / len(group.rings)
    flows = [(a, b, steps / n * part) for ring in group.rings for a, b in zip(ring, _rotated(ring, 1), strict=True)]
    return Round(steps, max(_walk(group, ring, steps) for ring in group.rings), group.loads(flows), steps / n)


def _walk(group: Group, ring: Sequence[str], steps: int) -> float:
    """The longest chain of dependent messages: `steps` hops in a row from any start (a chunk moves one hop per step)."""
    hops = [group.hop(a, b) for a, b in zip(ring, _rotated(ring, 1), strict=True)]
    if min(hops) == max(hops):
        return steps * hops[0]
    turns, rest = divmod(steps, len(hops))
    window = best = sum(hops[:rest])
    for start in range(len(hops)):
        window += hops[(start + rest) % len(hops)] - hops[start]
        best = max(best, window)
    return turns * sum(hops) + best


def _chain(group: Group, chains: Sequence[Sequence[str]]) -> Round:
    n, part = group.size, 1 / len(chains)
    flows = [(a, b, part) for chain in chains for a, b in pairwise(chain)]
    latency = max(sum(group.hop(a, b) for a, b in pairwise(chain)) for chain in chains)
    return Round(n - 1, latency, group.loads(flows), (n - 1) / n)


def _rotated(ring: Sequence[str], start: int) -> tuple[str, ...]:
    start %= len(ring)
    return (*ring[start:], *ring[:start])
