"""Pairwise all-to-all: n-1 shifted steps; in step k every member sends to the one k places on and receives from the one k places back.

t = (n-1)a + S(n-1)/(nB). With uneven shares every step waits for its slowest pair.
"""

from __future__ import annotations

from .direct import shares_of
from .group import Group, Round
from .messages import Message, Schedule


def all_to_all(group: Group) -> list[Round]:
    """n-1 steps of S/n, or of the shares of an uneven exchange."""
    n, shares, name = group.size, group.shares, group.members
    return [group.round([(name[i], name[(i + k) % n], 1 / n if shares is None else float(shares[i, (i + k) % n])) for i in range(n)]) for k in range(1, n)]


def all_to_all_messages(group: Group) -> Schedule:
    """Keys (from, to)."""
    n = group.size
    return Schedule([[Message(i, (i + k) % n, ((i, (i + k) % n),)) for i in range(n)] for k in range(1, n)], shares_of(group))
