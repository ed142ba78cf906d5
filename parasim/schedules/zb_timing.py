"""How long an order of one stage per rank takes: what zb-auto compares its candidates by."""

from __future__ import annotations

from collections.abc import Sequence

from .actions import Orders, ScheduleInput, Times, refused, singles


def duration(kind: str, times: Times) -> float:
    """Seconds of an action."""
    f, i, w = times
    return f if kind == "F" else i if kind == "I" else w if kind == "W" else i + w


def times_of(given: ScheduleInput) -> tuple[Times, ...]:
    """(F, I, W) of every rank; ones where none are given. Raises InvalidLayout for another number of triples than ranks."""
    times = given.times or (1.0, 1.0, 1.0)
    if not isinstance(times[0], tuple):
        return (times,) * given.ranks
    if len(times) != given.ranks:
        raise refused("times", f"({len(times)} triples)", f"must be one triple, or one for each of the {given.ranks} ranks")
    return times


def span_and_makespan(orders: Orders, times: Sequence[Times], comm: float) -> tuple[float, float]:
    """The longest time from first start to last end of a rank, and the last end of all; every action as early as order and messages allow."""
    rows = {rank: list(singles(order)) for rank, order in orders.items()}
    price = {rank: {kind: duration(kind, times[rank]) for kind in "FIWB"} for rank in rows}
    forward: dict[tuple[int, int], float] = {}
    backward: dict[tuple[int, int], float] = {}
    at, free = dict.fromkeys(rows, 0), dict.fromkeys(rows, 0.0)
    first: dict[int, float] = {}
    left = sum(map(len, rows.values()))
    while left:
        for rank, row in rows.items():
            now, k, cost = free[rank], at[rank], price[rank]
            while k < len(row):
                kind, stage, i = row[k]
                if kind != "W":
                    made, other = (forward, stage - 1) if kind == "F" else (backward, stage + 1)
                    if other in rows:
                        arrival = made.get((other, i))
                        if arrival is None:
                            break
                        now = max(now, arrival + comm)
                    first.setdefault(rank, now)
                    made[stage, i] = now + cost[kind]
                now += cost[kind]
                k += 1
            left -= k - at[rank]
            free[rank], at[rank] = now, k
    return max(free[r] - first[r] for r in rows), max(free.values())
