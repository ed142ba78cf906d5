"""Direct algorithms: every member exchanges with every other at once; few steps, all ports busy, best on a non-blocking switch."""

from __future__ import annotations

from collections.abc import Iterable

from .group import Group, Round


def all_reduce(group: Group) -> list[Round]:
    """Two shots: direct reduce-scatter, then direct all-gather; 2(n-1)/n S per rank, 2 steps."""
    return [group.everyone(), group.everyone()]


def all_gather(group: Group) -> list[Round]:
    """One step: every member sends its 1/n to all others; (n-1)/n S per rank."""
    return [group.everyone()]


def reduce_scatter(group: Group) -> list[Round]:
    """One step: every member sends each other member the part that one keeps; (n-1)/n S per rank."""
    return [group.everyone()]


def all_to_all(group: Group) -> list[Round]:
    """One step, all pairs at once: (n-1)/n S per rank, or the shares of an uneven exchange."""
    if group.shares is None:
        return [group.everyone()]
    n, shares = group.size, group.shares
    flows = [(group.members[i], group.members[j], float(shares[i, j])) for i in range(n) for j in range(n) if i != j]
    used = [(a, b) for a, b, part in flows if part]
    return [Round(1, _slowest(group, used), group.loads(flows), sum(part for _, _, part in flows) / n)]


def broadcast(group: Group) -> list[Round]:
    """The root sends S to each of the others at once: (n-1) S leave its port."""
    n, root = group.size, group.members[group.root]
    pairs = [(root, m) for m in group.members if m != root]
    return [Round(1, _slowest(group, pairs), group.loads((a, b, 1.0) for a, b in pairs), (n - 1) / n)]


def reduce(group: Group) -> list[Round]:
    """All others send S to the root at once: (n-1) S enter its port."""
    n, root = group.size, group.members[group.root]
    pairs = [(m, root) for m in group.members if m != root]
    return [Round(1, _slowest(group, pairs), group.loads((a, b, 1.0) for a, b in pairs), (n - 1) / n)]


def barrier(group: Group) -> list[Round]:
    """Every member tells every other that it is there: one latency, no bytes."""
    return [group.everyone()._replace(weights={}, sent=0.0)]


def _slowest(group: Group, pairs: Iterable[tuple[str, str]]) -> float:
    return max((group.hop(a, b) for a, b in pairs), default=0.0)
