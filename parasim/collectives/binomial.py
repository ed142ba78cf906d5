"""Binomial tree: whole messages, a sender serves its children at once (gloo's broadcast).

With n = 2^L and equal ports the time is L(L+1)/2 S/B: the root serves L children over one port, then its first child L-1, and so on.
"""

from __future__ import annotations

from .group import Group, Round


def broadcast(group: Group) -> list[Round]:
    """One round per level: those who have the message send it on to their children, all at once."""
    n = group.size
    place = [group.members[(group.root + i) % n] for i in range(n)]
    rounds, level = [], [0]
    while level:
        edges = [(i, child) for i in level for child in _children(i, n)]
        if edges:
            flows = [(place[i], place[child], 1.0) for i, child in edges]
            rounds.append(Round(1, max(group.hop(a, b) for a, b, _ in flows), group.loads(flows), len(edges) / n))
        level = [child for _, child in edges]
    return rounds


def _children(i: int, n: int) -> list[int]:
    """Children of place i: i + 2^k for every 2^k below the lowest set bit of i (below n for the root)."""
    limit = (i & -i) if i else n
    return [i + (1 << k) for k in range(n.bit_length()) if (1 << k) < limit and i + (1 << k) < n]
