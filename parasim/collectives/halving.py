"""Recursive halving and doubling (Thakur, Rabenseifner, Gropp, "Optimization of collective communication operations in MPICH", 2005).

With n = 2^k ranks: all-reduce in 2k steps of S/2, S/4, ..., S/n and back, 2(n-1)/n S per rank, t = 2ka + 2S(n-1)/(nB); each half is a
reduce-scatter or an all-gather. Other n: the first 2r of them (r = n - 2^k) work in pairs, of which the even one hands its data to the odd one
before and gets the result after: right values, two steps more, and the pairs' ports carry up to twice the bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .group import Group, Round
from .messages import Key, Message, Schedule, Steps, even


class _Cut(NamedTuple):
    """Keys low..high-1 (in the order of the virtual ranks) from one place to another."""

    source: int
    target: int
    low: int
    high: int
    adds: bool


def all_reduce(group: Group) -> list[Round]:
    """Halving, then doubling: 2 log2 n steps, 2(n-1)/n S per rank."""
    return _rounds(group, _all_reduce(group.size), _power(group.size))


def reduce_scatter(group: Group) -> list[Round]:
    """Halving: log2 n steps, (n-1)/n S per rank."""
    return _rounds(group, _reduce_scatter(group.size), group.size)


def all_gather(group: Group) -> list[Round]:
    """Doubling: log2 n steps, (n-1)/n S per rank."""
    return _rounds(group, _all_gather(group.size), group.size)


def all_reduce_messages(group: Group) -> Schedule:
    """Keys (chunk,), one per virtual rank."""
    keys = [(i,) for i in range(_power(group.size))]
    return Schedule(_messages(_all_reduce(group.size), keys), even(keys))


def reduce_scatter_messages(group: Group) -> Schedule:
    """Keys (owner,)."""
    keys = [(i,) for i in range(group.size)]  # a pair's two owners are neighbours, so owners are in the order of the virtual ranks
    return Schedule(_messages(_reduce_scatter(group.size), keys), even(keys))


def all_gather_messages(group: Group) -> Schedule:
    """Keys (owner,)."""
    keys = [(i,) for i in range(group.size)]
    return Schedule(_messages(_all_gather(group.size), keys), even(keys))


def places(n: int) -> list[int]:
    """Place of each virtual rank: the odd one of every pair, then those without a pair."""
    pairs = n - _power(n)
    return [2 * v + 1 if v < pairs else v + pairs for v in range(_power(n))]


def _power(n: int) -> int:
    return 1 << (n.bit_length() - 1)


def _all_reduce(n: int) -> list[list[_Cut]]:
    p = _power(n)
    give = [_Cut(2 * v, 2 * v + 1, 0, p, True) for v in range(n - p)]
    back = [_Cut(2 * v + 1, 2 * v, 0, p, False) for v in range(n - p)]
    starts = list(range(p + 1))
    return [give, *_halving(n, starts), *_doubling(n, starts), back]


def _reduce_scatter(n: int) -> list[list[_Cut]]:
    pairs = n - _power(n)
    give = [_Cut(2 * v, 2 * v + 1, 0, n, True) for v in range(pairs)]
    back = [_Cut(2 * v + 1, 2 * v, 2 * v, 2 * v + 1, False) for v in range(pairs)]
    return [give, *_halving(n, _starts(n)), back]


def _all_gather(n: int) -> list[list[_Cut]]:
    pairs = n - _power(n)
    give = [_Cut(2 * v, 2 * v + 1, 2 * v, 2 * v + 1, False) for v in range(pairs)]
    back = [_Cut(2 * v + 1, 2 * v, low, high, False) for v in range(pairs) for low, high in ((0, 2 * v), (2 * v + 1, n)) if low < high]
    return [give, *_doubling(n, _starts(n)), back]


def _starts(n: int) -> list[int]:
    """Where the keys of every virtual rank begin when each owns those of its pair."""
    pairs = n - _power(n)
    return [2 * v if v < pairs else v + pairs for v in range(_power(n) + 1)]


def _halving(n: int, starts: Sequence[int]) -> list[list[_Cut]]:
    """Distance p/2, ..., 1: send the partner the keys of its half, to be added."""
    place, out, d = places(n), [], _power(n) // 2
    while d:
        out.append([_Cut(place[v], place[v ^ d], *_block(starts, v ^ d, d), True) for v in range(len(place))])
        d //= 2
    return out


def _doubling(n: int, starts: Sequence[int]) -> list[list[_Cut]]:
    """Distance 1, ..., p/2: send the partner all keys gathered so far."""
    place, out, d = places(n), [], 1
    while d < len(place):
        out.append([_Cut(place[v], place[v ^ d], *_block(starts, v, d), False) for v in range(len(place))])
        d *= 2
    return out


def _block(starts: Sequence[int], v: int, d: int) -> tuple[int, int]:
    first = v // d * d
    return starts[first], starts[first + d]


def _rounds(group: Group, steps: Sequence[Sequence[_Cut]], keys: int) -> list[Round]:
    name = group.members
    return [group.round([(name[c.source], name[c.target], (c.high - c.low) / keys) for c in step]) for step in steps if step]


def _messages(steps: Sequence[Sequence[_Cut]], keys: Sequence[Key]) -> Steps:
    return [[Message(c.source, c.target, tuple(keys[c.low : c.high]), c.adds) for c in step] for step in steps if step]
