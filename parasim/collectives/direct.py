"""Direct algorithms: every member exchanges with every other at once; few steps, all ports busy, best on a non-blocking switch."""

from __future__ import annotations

from .group import Group, Round
from .messages import Message, Schedule, even


def all_reduce(group: Group) -> list[Round]:
    """Two shots: direct reduce-scatter, then direct all-gather; 2(n-1)/n S per rank, 2 steps."""
    return [group.everyone(), group.everyone()]


def one_shot(group: Group) -> list[Round]:
    """Everyone sends its whole buffer to everyone and adds up what arrives: one step, (n-1) S per rank; for small messages only."""
    n, each = group.size, group.everyone()
    return [Round(1, each.latency, {link: weight * n for link, weight in each.weights.items()}, n - 1.0)]


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
    n, shares, name = group.size, group.shares, group.members
    return [group.round([(name[i], name[j], float(shares[i, j])) for i in range(n) for j in range(n) if i != j])]


def broadcast(group: Group) -> list[Round]:
    """The root sends S to each of the others at once: (n-1) S leave its port."""
    return [group.round([(group.root_member, m, 1.0) for m in group.others])]


def reduce(group: Group) -> list[Round]:
    """All others send S to the root at once: (n-1) S enter its port."""
    return [group.round([(m, group.root_member, 1.0) for m in group.others])]


def scatter(group: Group) -> list[Round]:
    """The root sends each of the others its 1/n at once: (n-1)/n S leave its port."""
    return [group.round([(group.root_member, m, 1 / group.size) for m in group.others])]


def gather(group: Group) -> list[Round]:
    """All others send their 1/n to the root at once: (n-1)/n S enter its port."""
    return [group.round([(m, group.root_member, 1 / group.size) for m in group.others])]


def barrier(group: Group) -> list[Round]:
    """Every member tells every other that it is there: one latency, no bytes."""
    return [group.everyone()._replace(weights={}, sent=0.0)]


# ---- the same as messages


def all_reduce_messages(group: Group) -> Schedule:
    """Keys (owner,)."""
    return Schedule([*reduce_scatter_messages(group).steps, *all_gather_messages(group).steps], _owners(group))


def one_shot_messages(group: Group) -> Schedule:
    """One key."""
    return Schedule([[Message(i, j, ((0,),), True) for i, j in _pairs(group)]], even([(0,)]))


def all_gather_messages(group: Group) -> Schedule:
    """Keys (owner,)."""
    return Schedule([[Message(i, j, ((i,),)) for i, j in _pairs(group)]], _owners(group))


def reduce_scatter_messages(group: Group) -> Schedule:
    """Keys (owner,)."""
    return Schedule([[Message(i, j, ((j,),), True) for i, j in _pairs(group)]], _owners(group))


def all_to_all_messages(group: Group) -> Schedule:
    """Keys (from, to)."""
    return Schedule([[Message(i, j, ((i, j),)) for i, j in _pairs(group)]], shares_of(group))


def broadcast_messages(group: Group) -> Schedule:
    """One key."""
    return Schedule([[Message(group.root, j, ((0,),)) for j in _away(group)]], even([(0,)]))


def reduce_messages(group: Group) -> Schedule:
    """One key."""
    return Schedule([[Message(i, group.root, ((0,),), True) for i in _away(group)]], even([(0,)]))


def scatter_messages(group: Group) -> Schedule:
    """Keys (owner,)."""
    return Schedule([[Message(group.root, j, ((j,),)) for j in _away(group)]], _owners(group))


def gather_messages(group: Group) -> Schedule:
    """Keys (owner,)."""
    return Schedule([[Message(i, group.root, ((i,),)) for i in _away(group)]], _owners(group))


def barrier_messages(group: Group) -> Schedule:
    """Keys (who is there,), of no size."""
    return Schedule([[Message(i, j, ((i,),)) for i, j in _pairs(group)]], dict.fromkeys(_owners(group), 0.0))


def shares_of(group: Group) -> dict[tuple[int, ...], float]:
    """Keys (from, to) of an all-to-all with the part of a rank's buffer that each is."""
    n, shares = group.size, group.shares
    return {(i, j): 1 / n if shares is None else float(shares[i, j]) for i in range(n) for j in range(n)}


def _owners(group: Group) -> dict[tuple[int, ...], float]:
    return even((i,) for i in range(group.size))


def _pairs(group: Group) -> list[tuple[int, int]]:
    return [(i, j) for i in range(group.size) for j in range(group.size) if i != j]


def _away(group: Group) -> list[int]:
    return [i for i in range(group.size) if i != group.root]
