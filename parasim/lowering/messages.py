"""Where the messages of a schedule stand between its actions, when a table does not say it. Two ways, both without times."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

from ..schedules import Action, Cell, Orders, singles
from ..schedules.table import Transfer

Step = Cell | Transfer
Home = Mapping[tuple[int, int], int]  # (stage, microbatch) -> rank


class Route(NamedTuple):
    """Where the messages of a schedule stand: actions and messages of every rank in order, the rank of every (stage, microbatch), `plain` or not."""

    steps: Mapping[int, Sequence[Step]]
    home: Home
    plain: bool


def route(orders: Orders, comm: str) -> Route:
    """The route of a schedule under a communication model."""
    return Route(placed(orders, comm), home_of(orders), plain(orders))


def placed(orders: Orders, comm: str) -> Mapping[int, Sequence[Step]]:
    """Actions and messages of every rank, in order, for a communication model; beside each action where no order that all share is needed or there."""
    shared = None if comm == "async" or plain(orders) else in_one_order(orders)
    return beside(orders) if shared is None else shared


def plain(orders: Orders) -> bool:
    """One stage per rank, whole backwards, neighbours at most one forward apart before their first backward (naive, gpipe, 1f1b).

    Then each rank may place its messages by itself, in batches with their neighbours, as Megatron-LM does: the batches of two ranks meet.
    """
    rows = [list(singles(orders[r])) for r in range(len(orders))]
    ahead = [next((at for at, a in enumerate(row) if a.kind != "F"), len(row)) for row in rows]
    whole = all(a.kind in "FB" and a.stage == r for r, row in enumerate(rows) for a in row)
    return whole and all(a - b in (0, 1) for a, b in pairwise(ahead))


def home_of(steps: Mapping[int, Sequence[Step]]) -> dict[tuple[int, int], int]:
    """The rank that runs every (stage, microbatch)."""
    return {(a.stage, a.microbatch): rank for rank, row in steps.items() for cell in row if not isinstance(cell, Transfer) for a in singles([cell])}


def beside(orders: Orders) -> dict[int, list[Step]]:
    """Receive right before an action that needs it, send right after the action that made it: each rank for itself."""
    home = home_of(orders)
    return {rank: [step for cell in order for step in (*ends(cell, home, "RECV"), cell, *ends(cell, home, "SEND"))] for rank, order in orders.items()}


def in_one_order(orders: Orders) -> dict[int, list[Step]] | None:
    """Messages in an order that all ranks share, so that even a rendezvous that blocks the rank cannot cross another; None where actions wait in a circle.

    As torch does it: the ranks take turns, each runs its next action if it is ready; what that makes is sent at once and received at the end of
    what the other rank has done so far.
    """
    home, done = home_of(orders), set[tuple[str, int, int]]()
    steps: dict[int, list[Step]] = {rank: [] for rank in orders}
    at = dict.fromkeys(orders, 0)
    left = sum(map(len, orders.values()))
    last = max(stage for stage, _ in home)
    while left:
        before = left
        for rank in sorted(orders):
            if at[rank] == len(orders[rank]):
                continue
            cell = orders[rank][at[rank]]
            actions = list(singles([cell]))
            if not all(key in done for a in actions for key in _inputs(a, last)):
                continue
            steps[rank].append(cell)
            done.update(("F" if a.kind == "F" else "B", a.stage, a.microbatch) for a in actions if a.kind != "W")
            for sent in ends(cell, home, "SEND"):
                steps[rank].append(sent)
                steps[home[sent.target, sent.microbatch]].append(sent._replace(way="RECV", stage=sent.target))
            at[rank] += 1
            left -= 1
        if left == before:
            return None
    return steps


def _inputs(a: Action, last: int) -> Iterator[tuple[str, int, int]]:
    if a.kind == "F" and a.stage > 0:
        yield ("F", a.stage - 1, a.microbatch)
    elif a.kind in "IB" and a.stage < last:
        yield ("B", a.stage + 1, a.microbatch)


def ends(cell: Cell, home: Home, way: Literal["SEND", "RECV"]) -> Iterator[Transfer]:
    """The ends of the messages that a cell sends or receives: those whose other end is on another rank."""
    for a in singles([cell]):
        if a.kind != "W":
            other = a.stage + (1 if (a.kind == "F") == (way == "SEND") else -1)
            if home.get((other, a.microbatch), mine := home[a.stage, a.microbatch]) != mine:
                yield Transfer(way, "F" if a.kind == "F" else "B", a.stage, a.microbatch)
