"""Recursive doubling: in step k every rank exchanges all it has with the rank 2^k away; log2 n steps, best for small messages.

All-reduce of whole buffers: t = log2 n (a + S/B). Other n than powers of two: the even one of each of n - 2^k pairs hands its buffer to the odd
one before and gets the result after. The dissemination barrier (Hensel, Finkel, Manber, 1988) needs ceil(log2 n) steps for any n.
"""

from __future__ import annotations

from .group import Group, Round
from .halving import places
from .messages import Message, Schedule, Steps, even, rounds


def all_reduce(group: Group) -> list[Round]:
    """log2 n steps of the whole buffer, S log2 n per rank."""
    return rounds(group, all_reduce_messages(group))


def all_reduce_messages(group: Group) -> Schedule:
    """One key: the buffer."""
    place, whole = places(group.size), ((0,),)
    pairs = group.size - len(place)
    steps: Steps = [[Message(2 * v, 2 * v + 1, whole, True) for v in range(pairs)]]
    d = 1
    while d < len(place):
        steps.append([Message(place[v], place[v ^ d], whole, True) for v in range(len(place))])
        d *= 2
    return Schedule([*steps, [Message(2 * v + 1, 2 * v, whole) for v in range(pairs)]], even(whole))


def barrier(group: Group) -> list[Round]:
    """ceil(log2 n) latencies, no bytes: in step k every rank tells the one 2^k further on."""
    n, name, out, d = group.size, group.members, [], 1
    while d < n:
        out.append(Round(1, max(group.hop(name[i], name[(i + d) % n]) for i in range(n)), {}, 0.0))
        d *= 2
    return out


def barrier_messages(group: Group) -> Schedule:
    """Keys (who is there,), of no size; a message says whom its sender has heard of."""
    n, steps, d = group.size, [], 1
    while d < n:
        steps.append([Message(i, (i + d) % n, tuple(((i - j) % n,) for j in range(d))) for i in range(n)])
        d *= 2
    return Schedule(steps, {(i,): 0.0 for i in range(n)})
