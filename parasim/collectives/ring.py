"""Ring algorithms: every member sends to the next one only (Patarasuk and Yuan, "Bandwidth optimal all-reduce", 2009).

A ring all-reduce of S bytes over n ranks takes 2(n-1) steps of S/n: 2(n-1)/n S per port and direction.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import chain, pairwise

import numpy as np

from .group import Group, Round
from .messages import Key, Keys, Message, Schedule, Steps, even, together


def all_reduce(group: Group) -> list[Round]:
    """Reduce-scatter, then all-gather around the ring, chunk behind chunk: one round of 2(n-1) steps, 2(n-1)/n S per rank."""
    n = group.size
    return [_around(group, 2 * (n - 1))]


def all_gather(group: Group) -> list[Round]:
    """n-1 steps, (n-1)/n S per rank; S is the output."""
    return [_around(group, group.size - 1)]


reduce_scatter = all_gather  # the same messages, added up on their way; S is the input


def broadcast(group: Group) -> list[Round]:
    """A pipelined chain that starts at the root: S over each of n-1 hops; the fill of the pipeline is n-1 latencies."""
    return [_chain(group, [_rotated(ring, ring.index(group.root_member)) for ring in group.rings])]


def reduce(group: Group) -> list[Round]:
    """A pipelined chain that ends at the root: S over each of n-1 hops."""
    return [_chain(group, [_rotated(ring, ring.index(group.root_member) + 1) for ring in group.rings])]


def reduce_gather(group: Group) -> list[Round]:
    """Ring reduce-scatter, then every member sends its 1/n to the root, which receives 2(n-1)/n S in all (gloo)."""
    n = group.size
    return [_around(group, n - 1), group.round([(m, group.root_member, 1 / n) for m in group.others])]


def _around(group: Group, steps: int) -> Round:
    """`steps` steps around the rings, S/n per step split over the rings."""
    n, part = group.size, steps / group.size / len(group.rings)
    rings = [list(zip(ring, _rotated(ring, 1), strict=True)) for ring in group.rings]
    pairs = Counter(chain.from_iterable(rings))
    hops = dict(zip(pairs, group.hops(list(pairs)), strict=True))
    latency = max(_walk([hops[pair] for pair in ring], steps) for ring in rings)
    loads = group.loads((a, b, times * part) for (a, b), times in pairs.items())
    return Round(steps, latency, loads, steps / n, across=_crossings(group, steps))


def _crossings(group: Group, steps: int) -> int:
    """How often a chunk changes servers in `steps` steps around a ring that passes each server once, at most."""
    servers = len(group.blocks())
    turns, rest = divmod(steps, group.size)
    return servers * turns + min(rest, servers) if servers > 1 else 0


def _walk(hops: Sequence[float], steps: int) -> float:
    """The longest chain of dependent messages: `steps` hops in a row from any start (a chunk moves one hop per step)."""
    if min(hops) == max(hops):
        return steps * hops[0]
    turns, rest = divmod(steps, len(hops))
    sums = np.concatenate([[0.0], np.cumsum([*hops, *hops])])
    return float(turns * sums[len(hops)] + np.max(sums[rest : rest + len(hops)] - sums[: len(hops)]))


def _chain(group: Group, chains: Sequence[Sequence[str]]) -> Round:
    n, part = group.size, 1 / len(chains)
    flows = [(a, b, part) for chain in chains for a, b in pairwise(chain)]
    latency = max(sum(group.hop(a, b) for a, b in pairwise(chain)) for chain in chains)
    return Round(n - 1, latency, group.loads(flows), (n - 1) / n, across=len(group.blocks()) - 1)


def _rotated(ring: Sequence[str], start: int) -> tuple[str, ...]:
    start %= len(ring)
    return (*ring[start:], *ring[:start])


# ---- the same as messages


def gather_steps(order: Sequence[int], owned: Sequence[Keys]) -> Steps:
    """All-gather around the places `order`; the i-th of them starts with `owned[i]`. In step s place i passes on what is s places old."""
    n = len(order)
    return [[Message(order[i], order[(i + 1) % n], owned[(i - s) % n]) for i in range(n)] for s in range(n - 1)]


def scatter_steps(order: Sequence[int], owned: Sequence[Keys]) -> Steps:
    """Reduce-scatter around the places `order`; the i-th of them ends with the sum of `owned[i]`."""
    n = len(order)
    return [[Message(order[i], order[(i + 1) % n], owned[(i - s - 1) % n], True) for i in range(n)] for s in range(n - 1)]


def all_reduce_messages(group: Group) -> Schedule:
    """Keys (owner, ring): the rings work side by side on their own parts."""
    scattering, gathering = reduce_scatter_messages(group), all_gather_messages(group)
    return Schedule(scattering.steps + gathering.steps, scattering.sizes)


def all_gather_messages(group: Group) -> Schedule:
    """Keys (owner, ring)."""
    return Schedule(together(*(gather_steps(order, owned) for order, owned in _orders(group))), _keys(group))


def reduce_scatter_messages(group: Group) -> Schedule:
    """Keys (owner, ring)."""
    return Schedule(together(*(scatter_steps(order, owned) for order, owned in _orders(group))), _keys(group))


def broadcast_messages(group: Group, chunks: int = 2) -> Schedule:
    """Keys (chunk, ring), chunk behind chunk down the chain."""
    orders = [_placed(group, _rotated(ring, ring.index(group.root_member))) for ring in group.rings]
    return _pipelined(orders, chunks, adds=False)


def reduce_messages(group: Group, chunks: int = 2) -> Schedule:
    """Keys (chunk, ring), chunk behind chunk down the chain, summed on the way."""
    orders = [_placed(group, _rotated(ring, ring.index(group.root_member) + 1)) for ring in group.rings]
    return _pipelined(orders, chunks, adds=True)


def reduce_gather_messages(group: Group) -> Schedule:
    """Keys (owner, ring)."""
    scattered = reduce_scatter_messages(group)
    last = [Message(i, group.root, tuple(k for k in scattered.sizes if k[0] == i)) for i in range(group.size) if i != group.root]
    return Schedule([*scattered.steps, last], scattered.sizes)


def _pipelined(orders: Sequence[Sequence[int]], chunks: int, *, adds: bool) -> Schedule:
    steps = [
        together(
            *([[Message(a, b, ((s - hop, r),), adds)] for hop, (a, b) in enumerate(pairwise(order)) if 0 <= s - hop < chunks] for r, order in enumerate(orders))
        )
        for s in range(len(orders[0]) - 2 + chunks)
    ]
    flat = [[m for part in step for m in part] for step in steps]
    return Schedule(flat, even((c, r) for c in range(chunks) for r in range(len(orders))))


def _orders(group: Group) -> list[tuple[list[int], list[Keys]]]:
    placed = [_placed(group, ring) for ring in group.rings]
    return [(order, [((i, r),) for i in order]) for r, order in enumerate(placed)]


def _placed(group: Group, ring: Sequence[str]) -> list[int]:
    place = {m: i for i, m in enumerate(group.members)}
    return [place[m] for m in ring]


def _keys(group: Group) -> dict[Key, float]:
    return even((i, r) for i in range(group.size) for r in range(len(group.rings)))
