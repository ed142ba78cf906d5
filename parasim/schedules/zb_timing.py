"""How long an order of one stage per rank takes: what zb-auto compares its candidates by."""

from __future__ import annotations

from .actions import Orders, singles

Times = tuple[float, float, float]


def duration(kind: str, times: Times) -> float:
    """Seconds of an action."""
    f, i, w = times
    return {"F": f, "I": i, "W": w, "B": i + w}[kind]


def span_and_makespan(orders: Orders, times: Times, comm: float) -> tuple[float, float]:
    """The longest time from first start to last end of a rank, and the last end of all; every action as early as order and messages allow."""
    rows = {rank: list(singles(order)) for rank, order in orders.items()}
    ends: dict[tuple[str, int, int], float] = {}
    at, free = dict.fromkeys(rows, 0), dict.fromkeys(rows, 0.0)
    first: dict[int, float] = {}
    left = sum(map(len, rows.values()))
    while left:
        for rank, row in rows.items():
            while at[rank] < len(row):
                kind, stage, i = row[at[rank]]
                other = stage - 1 if kind == "F" else stage + 1
                start = free[rank]
                if kind != "W" and other in rows:
                    arrival = ends.get(("F" if kind == "F" else "B", other, i))
                    if arrival is None:
                        break
                    start = max(start, arrival + comm)
                first.setdefault(rank, start)
                free[rank] = start + duration(kind, times)
                ends["B" if kind in "IB" else kind, stage, i] = free[rank]
                at[rank] += 1
                left -= 1
    return max(free[r] - first[r] for r in rows), max(free.values())
