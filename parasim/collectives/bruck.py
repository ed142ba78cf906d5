"""Bruck's algorithms (Bruck et al., "Efficient algorithms for all-to-all communications in multiport message-passing systems", 1997).

ceil(log2 n) steps for any n. All-to-all: in step k every block whose distance to go has bit k set moves 2^k places on, in one message per rank of
n/2 slots: t = ceil(log2 n) (a + S/(2B)), more bytes than the direct way but few messages. Where n is no power of two some slots stay empty and
travel all the same; an uneven exchange packs its messages. All-gather: in step k everyone fetches up to 2^k parts from
2^k places on: (n-1)/n S per rank.
"""

from __future__ import annotations

import numpy as np

from .direct import shares_of
from .group import Group, Round
from .messages import Message, Schedule, even


def all_to_all(group: Group) -> list[Round]:
    """ceil(log2 n) steps of S/2 each, or of the shares of an uneven exchange."""
    n, name, shares = group.size, group.members, group.shares
    if shares is None:
        return [group.round([(name[i], name[(i + bit) % n], 0.5) for i in range(n)]) for bit in _bits(n)]
    ranks, out = np.arange(n), []
    for bit in _bits(n):
        sent = np.zeros(n)
        for o in range(n):
            if o & bit:
                source = (ranks - o % bit) % n  # the block from here, o places to go in all, stands at `ranks` after its lower bits
                sent += shares[source, (source + o) % n]
        out.append(group.round([(name[i], name[(i + bit) % n], float(sent[i])) for i in range(n)]))
    return out


def all_to_all_messages(group: Group) -> Schedule:
    """Keys (from, to)."""
    n, steps = group.size, []
    for bit in _bits(n):
        steps.append([Message(i, (i + bit) % n, tuple(((i - o % bit) % n, (i - o % bit + o) % n) for o in range(n) if o & bit)) for i in range(n)])
    return Schedule(steps, shares_of(group))


def all_gather(group: Group) -> list[Round]:
    """ceil(log2 n) steps, (n-1)/n S per rank."""
    n, name = group.size, group.members
    return [group.round([(name[i], name[(i - bit) % n], min(bit, n - bit) / n) for i in range(n)]) for bit in _bits(n)]


def all_gather_messages(group: Group) -> Schedule:
    """Keys (owner,)."""
    n = group.size
    steps = [[Message(i, (i - bit) % n, tuple(((i + j) % n,) for j in range(min(bit, n - bit)))) for i in range(n)] for bit in _bits(n)]
    return Schedule(steps, even((i,) for i in range(n)))


def _bits(n: int) -> list[int]:
    return [1 << k for k in range((n - 1).bit_length())]
