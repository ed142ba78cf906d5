"""Algorithms as explicit messages, and what they do to values: the obvious twin of the Rounds that are priced.

A Schedule is a list of steps; the messages of a step travel at once and carry values as they were before it. Values are parts of buffers,
named by keys; places 0..n-1 are the members in axis order, n and above are switches that reduce and copy. `play` runs a schedule on numpy
arrays; `rounds` prices one: so a small algorithm is written once, and a large one is compared with its schedule in the tests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, zip_longest
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .group import Group, Round

Key = tuple[int, ...]
Keys = tuple[Key, ...]
Array = NDArray[Any]


class Message(NamedTuple):
    """Parts `keys` from place `source` to place `target`, which adds them to its own, or takes them as they are."""

    source: int
    target: int
    keys: Keys
    adds: bool = False


Steps = list[list[Message]]


class Schedule(NamedTuple):
    """`steps` of messages, and `sizes`: the part of the collective's buffer that each key stands for."""

    steps: Steps
    sizes: Mapping[Key, float]


Plotter = Callable[[Group], Schedule]


def even(keys: Iterable[Key]) -> dict[Key, float]:
    """Keys that cut the buffer into equal parts."""
    named = list(keys)
    return dict.fromkeys(named, 1 / len(named))


def together(*parts: Steps) -> Steps:
    """Schedules that run side by side: their first steps at once, then their second."""
    return [list(chain.from_iterable(step)) for step in zip_longest(*parts, fillvalue=[])]


def backwards(steps: Steps) -> Steps:
    """A gathering played backwards is a reduction: every message returns, to be added."""
    return [[Message(m.target, m.source, m.keys, True) for m in step] for step in reversed(steps)]


def rounds(group: Group, schedule: Schedule) -> list[Round]:
    """One Round per step of a schedule without switches."""
    name, size = group.members, schedule.sizes
    flows = [[(name[m.source], name[m.target], sum(size[k] for k in m.keys)) for m in step] for step in schedule.steps]
    return [group.round(step) for step in flows if step]


# ---- values


def play(op: str, schedule: Schedule, inputs: Sequence[Array | None], root: int = 0) -> list[Array | None]:
    """The outputs of `op` when the ranks hold `inputs` (None: nothing) and send the messages of `schedule`; None where nothing is due.

    Inputs are as in `reference`: a whole buffer each for reductions, the rank's own part for all_gather and gather, the root's value for
    broadcast and scatter; lengths are multiples of the number of keys that cut them. A barrier answers the number of ranks heard of.
    """
    n = len(inputs)
    ordered = sorted(schedule.sizes)
    held: list[dict[Key, Array]] = [_cut(op, r, inputs[r], ordered) for r in range(n)]
    for step in schedule.steps:
        held += [{} for _ in range(max((m.target for m in step), default=0) + 1 - len(held))]
        arriving = [(m, [held[m.source][k] for k in m.keys]) for m in step]
        for message, values in arriving:
            into = held[message.target]
            for key, value in zip(message.keys, values, strict=True):
                into[key] = into[key] + value if message.adds and key in into else value
    return [_due(op, r, held[r], ordered, root) for r in range(n)]


def _cut(op: str, rank: int, value: Array | None, ordered: Sequence[Key]) -> dict[Key, Array]:
    """What a rank holds at first: its part of every key, or of those that it owns (first number of the key)."""
    if op == "barrier":
        return {(rank,): np.ones(1)}
    if value is None:
        return {}
    mine = [k for k in ordered if k[0] == rank] if op in ("all_gather", "gather", "all_to_all") else ordered
    return dict(zip(mine, np.split(value, len(mine)), strict=True))


def _due(op: str, rank: int, held: Mapping[Key, Array], ordered: Sequence[Key], root: int) -> Array | None:
    """What a rank has to hold at last, in the order of the keys."""
    if op in ("reduce", "gather") and rank != root:
        return None
    if op == "all_to_all":
        ordered = [k for k in ordered if k[1] == rank]
    elif op in ("reduce_scatter", "scatter"):
        ordered = [k for k in ordered if k[0] == rank]
    return np.concatenate([held[k] for k in ordered])
