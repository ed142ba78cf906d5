"""In-network reduction: switches add what their ports send and copy the sum to all of them (NVLS on NVSwitch, SHARP on InfiniBand).

All-reduce through one NVSwitch: every rank is the head of S/n; the switch reads that part from all and hands the head the sum, which the head
writes to all: S(1+1/n) per port and direction, 2 steps: t = 2a + S(1+1/n)/B. With SHARP the sum climbs a tree of switches and comes back:
S per port and direction, t = 2a + S/B. A step's a is the latency of the slowest route between two members.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..errors import Refused, Violation
from .group import Group, Round
from .messages import Message, Schedule, Steps, even


def all_reduce(group: Group) -> list[Round]:
    """Through the one switch of a server (NVLS): S(1+1/n) per port and direction."""
    return all_reduces(group, [group.members])


def all_reduces(group: Group, parts: Sequence[Sequence[str]]) -> list[Round]:
    """All-reduces of S among the members of each of `parts`, equally many and each through a switch of its own, side by side."""
    part = 1 / len(parts[0])
    return [_through(group, parts, 2, 1 + part, 1 + part)]


def reduce_scatter(group: Group) -> list[Round]:
    """The switch reads S from every rank and gives each its S/n of the sum."""
    return [_through(group, [group.members], 1, 1.0, 1 / group.size)]


def all_gather(group: Group) -> list[Round]:
    """Every rank writes its S/n to the switch, which copies it to all."""
    return [_through(group, [group.members], 1, 1 / group.size, 1.0)]


def sharp(group: Group) -> list[Round]:
    """Up a tree of switches and down again (SHARP): S on each of its links in both directions."""
    edges = _branches(group)
    weights = {group.cluster.graph.adj[u][v]["link"]: 1.0 for a, b in edges for u, v in ((a, b), (b, a))}
    return [Round(2, 2 * _slowest(group), weights, 1.0)]


def _through(group: Group, parts: Sequence[Sequence[str]], steps: int, up: float, down: float) -> Round:
    """Raises `Refused` unless the ways between the first member of a part and the others are two links that meet in one switch."""
    heads, others = [part[0] for part in parts for _ in part[1:]], [m for part in parts for m in part[1:]]
    there, back = group.cluster.routes(heads, others), group.cluster.routes(others, heads)
    shape = (len(parts), len(parts[0]) - 1)
    straight = all(((ways >= 0).sum(axis=1) == 2).all() for ways in (there, back))
    if not straight or any(np.ptp(ends.reshape(shape), axis=1).any() for ends in (there[:, 0], back[:, 1])):
        raise Refused([Violation("algorithm", "nvls", "needs members whose ports meet in one switch", "take ring, or hierarchical across servers")])
    weights = dict.fromkeys([*there[:, 0].tolist(), *back[:, 0].tolist()], up) | dict.fromkeys([*back[:, 1].tolist(), *there[:, 1].tolist()], down)
    return Round(steps, steps * max(group.hops(list(zip(heads, others, strict=True)))), weights, up)


def _slowest(group: Group) -> float:
    return max(group.hop(group.members[0], m) for m in group.members[1:])


def _branches(group: Group) -> list[tuple[str, str]]:
    """The links (child, parent) of the tree of switches over the members, the leaves first; it never passes through a device.

    Its root is the middle of the longest route from the first member.
    """
    cluster, first = group.cluster, group.members[0]
    route = max((cluster.route(first, m) for m in group.members[1:]), key=len)
    root = cluster.links[route[len(route) // 2]].a
    parent, front = {root: root}, [root]
    while front:
        found = [(v, u) for u in front for v in sorted(cluster.graph.adj[u]) if v not in parent]
        parent.update(reversed(found))  # of several parents the first holds
        front = [v for v in dict.fromkeys(v for v, _ in found) if v not in cluster.node_of]
    lost = [m for m in group.members if m not in parent]
    if lost:
        raise Refused([Violation("algorithm", "sharp", f"needs switches that join all members; {lost[0]} is not below {root}", "take members of one rail")])
    levels: dict[str, int] = {}
    for m in group.members:
        way = [m]
        while way[-1] != root:
            way.append(parent[way[-1]])
        levels.update((node, len(way) - 1 - i) for i, node in enumerate(way))
    return [(node, parent[node]) for node in sorted(levels, key=lambda v: -levels[v]) if node != root]


# ---- the same as messages; place n and above are switches


def all_reduce_messages(group: Group) -> Schedule:
    """Keys (owner,): the sum goes to the head first."""
    scattering, gathering = reduce_scatter_messages(group), all_gather_messages(group)
    return Schedule(scattering.steps + gathering.steps, scattering.sizes)


def reduce_scatter_messages(group: Group) -> Schedule:
    """Keys (owner,)."""
    n = group.size
    keys = tuple((i,) for i in range(n))
    return Schedule([[Message(i, n, keys, i > 0) for i in range(n)], [Message(n, i, (keys[i],)) for i in range(n)]], even(keys))


def all_gather_messages(group: Group) -> Schedule:
    """Keys (owner,)."""
    n = group.size
    keys = tuple((i,) for i in range(n))
    return Schedule([[Message(i, n, (keys[i],)) for i in range(n)], [Message(n, i, keys) for i in range(n)]], even(keys))


def sharp_messages(group: Group) -> Schedule:
    """One key; the places above n are the nodes of the tree between the members and its root."""
    edges, whole = _branches(group), ((0,),)
    place = {name: i for i, name in enumerate(dict.fromkeys([*group.members, *(end for edge in edges for end in edge)]))}
    levels = _levels(edges)
    up: Steps = [[Message(place[a], place[b], whole, True) for a, b in level] for level in levels]
    down: Steps = [[Message(place[b], place[a], whole) for a, b in level] for level in reversed(levels)]
    return Schedule(up + down, even(whole))


def _levels(edges: Sequence[tuple[str, str]]) -> list[list[tuple[str, str]]]:
    """Edges by depth, the deepest first."""
    parent = dict(edges)

    def depth(node: str) -> int:
        return 1 + depth(parent[node]) if node in parent else 0

    out: dict[int, list[tuple[str, str]]] = {}
    for a, b in edges:
        out.setdefault(depth(a), []).append((a, b))
    return [out[d] for d in sorted(out, reverse=True)]
