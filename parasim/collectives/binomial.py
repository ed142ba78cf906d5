"""Binomial trees over the members, counted from the root.

Broadcast as gloo does it: whole messages, a sender serves its children at once. With n = 2^L and equal ports the time is L(L+1)/2 S/B: the root
serves L children over one port, then its first child L-1, and so on. Scatter, gather and reduce go one level per step: L steps; scatter and
gather move half of what is left in each, (n-1)/n S over the root's port; reduce moves S in each.
"""

from __future__ import annotations

from .group import Group, Round
from .messages import Message, Schedule, Steps, backwards, even, rounds


def broadcast(group: Group) -> list[Round]:
    """One round per level: those who have the message send it on to their children, all at once."""
    return rounds(group, broadcast_messages(group))


def scatter(group: Group) -> list[Round]:
    """ceil(log2 n) steps; each hands on the parts of the other half of its subtree."""
    return rounds(group, scatter_messages(group))


def gather(group: Group) -> list[Round]:
    """ceil(log2 n) steps, scatter backwards."""
    return rounds(group, gather_messages(group))


def reduce(group: Group) -> list[Round]:
    """ceil(log2 n) steps of the whole buffer, each added on arrival."""
    return rounds(group, reduce_messages(group))


def broadcast_messages(group: Group) -> Schedule:
    """One key: the buffer."""
    n, steps, level = group.size, [], [0]
    while level:
        edges = [(i, child) for i in level for child in _children(i, n)]
        if edges:
            steps.append([Message(_place(group, i), _place(group, child), ((0,),)) for i, child in edges])
        level = [child for _, child in edges]
    return Schedule(steps, even([(0,)]))


def scatter_messages(group: Group) -> Schedule:
    """Keys (owner,): a subtree's parts travel together."""
    n, steps = group.size, []
    for bit in reversed(_bits(n)):
        senders = [i for i in range(0, n, 2 * bit) if i + bit < n]
        steps.append([_parcel(group, i, i + bit, min(i + 2 * bit, n)) for i in senders])
    return Schedule(steps, even((i,) for i in range(n)))


def gather_messages(group: Group) -> Schedule:
    """Keys (owner,)."""
    scattered = scatter_messages(group)
    return Schedule([[m._replace(adds=False) for m in step] for step in backwards(scattered.steps)], scattered.sizes)


def reduce_messages(group: Group) -> Schedule:
    """One key: the buffer."""
    steps: Steps = backwards(scatter_messages(group).steps)
    return Schedule([[m._replace(keys=((0,),)) for m in step] for step in steps], even([(0,)]))


def _parcel(group: Group, sender: int, first: int, stop: int) -> Message:
    return Message(_place(group, sender), _place(group, first), tuple((_place(group, i),) for i in range(first, stop)))


def _place(group: Group, i: int) -> int:
    return (group.root + i) % group.size


def _bits(n: int) -> list[int]:
    return [1 << k for k in range((n - 1).bit_length())]


def _children(i: int, n: int) -> list[int]:
    """Children of place i: i + 2^k for every 2^k below the lowest set bit of i (below n for the root)."""
    limit = (i & -i) if i else n
    return [i + (1 << k) for k in range(n.bit_length()) if (1 << k) < limit and i + (1 << k) < n]
