"""All-to-all over rails (NCCL's PXN): a message for another server goes first to the neighbour on the rail of its receiver, then along the rail.

With g members per server and m servers: S(g-1)/g inside, then S(m-1)/m on the rail, each in one step of all pairs at once; nothing crosses a spine.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .direct import shares_of
from .group import Group, Round
from .hierarchical import rails_of
from .messages import Message, Schedule, Steps


def all_to_all(group: Group) -> list[Round]:
    """Inside every server to the rail of the receiver, then along the rails."""
    n, name = group.size, group.members
    shares = np.full((n, n), 1 / n) if group.shares is None else group.shares
    block, rail = _addresses(group)
    via = _relays(group)
    inside = [(name[i], name[j], float(shares[i][rail == rail[j]].sum())) for i in range(n) for j in range(n) if block[i] == block[j] and i != j]
    along = [(name[j], name[d], float(shares[np.asarray(via[j]), d].sum())) for j in range(n) for d in range(n) if rail[j] == rail[d] and j != d]
    return [part for flows in (inside, along) if (part := group.round(flows)).weights]


def all_to_all_messages(group: Group) -> Schedule:
    """Keys (from, to)."""
    n = group.size
    block, rail = _addresses(group)
    via = _relays(group)
    inside = [Message(i, j, tuple((i, d) for d in range(n) if rail[d] == rail[j])) for i in range(n) for j in range(n) if block[i] == block[j] and i != j]
    along = [Message(j, d, tuple((i, d) for i in via[j])) for j in range(n) for d in range(n) if rail[j] == rail[d] and j != d]
    steps: Steps = [inside, along]
    return Schedule(steps, shares_of(group))


def _addresses(group: Group) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Server and rail of every place; int[n] both."""
    place = {m: i for i, m in enumerate(group.members)}
    block, rail = np.zeros(group.size, dtype=np.int64), np.zeros(group.size, dtype=np.int64)
    for r, members in enumerate(rails_of(group)):
        for b, m in enumerate(members):
            block[place[m]], rail[place[m]] = b, r
    return block, rail


def _relays(group: Group) -> list[list[int]]:
    """For every place, all of its server: those whose messages it relays."""
    block, _ = _addresses(group)
    return [np.nonzero(block == block[i])[0].tolist() for i in range(group.size)]
