"""Metrics of a schedule study: makespan, bubbles, spans and activations in flight of bare schedules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..errors import Deadlock, Waiting
from ..schedules import Orders, peak_inflight
from ..timeline import COMPUTE, Timeline


@dataclass(frozen=True)
class ScheduleReport:
    """Seconds and fractions; `orders` and the peaks (in chunk activations) by rank. `deadlock` is what is stuck, else None.

    Bubbles as in parasim.report: ideal is the largest compute time of a rank. `busy` is the share of the makespan that each rank computes,
    `comm_s` what messages add to the makespan, `over` the makespan and the bubble (seconds) over those of another schedule.
    """

    orders: Orders
    peak_inflight: list[int]
    peak_inflight_to_input_grad: list[int]
    makespan: float | None = None
    bubble_makespan: float | None = None
    bubble_span: float | None = None
    bubble_over_ideal: float | None = None
    bubble: float | None = None
    ideal_over_makespan: float | None = None
    busy: tuple[float, ...] = ()
    comm_s: float | None = None
    over: dict[str, float | None] | None = None
    rank_start: tuple[float, ...] = ()
    rank_end: tuple[float, ...] = ()
    deadlock: dict[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """The object that `parasim schedule --json` prints."""
        return {
            "schema": "parasim.schedule/1",
            "makespan": self.makespan,
            "bubble_s": self.bubble,
            "ideal_over_makespan": self.ideal_over_makespan,
            "busy": list(self.busy),
            "comm_s": self.comm_s,
            "over": self.over,
            "bubble_makespan": self.bubble_makespan,
            "bubble_span": self.bubble_span,
            "bubble_over_ideal": self.bubble_over_ideal,
            "rank_start": list(self.rank_start),
            "rank_end": list(self.rank_end),
            "peak_inflight": self.peak_inflight,
            "peak_inflight_to_input_grad": self.peak_inflight_to_input_grad,
            "orders": [[str(a) for a in self.orders[r]] for r in sorted(self.orders)],
            "deadlock": self.deadlock,
        }

    def __str__(self) -> str:
        if self.deadlock is not None:
            stuck = ", ".join(f"rank {r} at {op}" for r, op in zip(self.deadlock["ranks"], self.deadlock["ops"], strict=True))
            return f"deadlock: {self.deadlock['cycle']}\nstuck: {stuck}"
        lines = [
            f"makespan {self.makespan:g} s",
            f"bubble {100 * (self.bubble_makespan or 0):.1f} % of the makespan, {100 * (self.bubble_span or 0):.1f} % of the longest rank, "
            f"{100 * (self.bubble_over_ideal or 0):.1f} % over the ideal",
        ]
        for r in sorted(self.orders):
            peak = f"peak {self.peak_inflight[r]} in flight"
            lines.append(f"rank {r}: {self.rank_start[r]:g} to {self.rank_end[r]:g} s, {peak}: {' '.join(map(str, self.orders[r]))}")
        return "\n".join(lines)


def _peaks(orders: Orders) -> tuple[list[int], list[int]]:
    ranks = sorted(orders)
    return [peak_inflight(orders[r]) for r in ranks], [peak_inflight(orders[r], ("B", "I")) for r in ranks]


def schedule_report(orders: Orders, timeline: Timeline) -> ScheduleReport:
    """Metrics of a simulated study (one kept row set per rank)."""
    starts, ends, work = [], [], []
    for rank in sorted(orders):
        rows = timeline.of(rank)
        rows = rows[rows["kind"] == COMPUTE]
        starts.append(float(rows["start"].min()) if len(rows) else 0.0)
        ends.append(float(rows["end"].max()) if len(rows) else 0.0)
        work.append(float((rows["end"] - rows["start"]).sum()))
    makespan, ideal = max(ends), max(work)
    span = max(e - s for s, e in zip(starts, ends, strict=True))
    return ScheduleReport(
        orders,
        *_peaks(orders),
        makespan=makespan,
        bubble=makespan - ideal,
        ideal_over_makespan=ideal / makespan if makespan else None,
        busy=tuple(w / makespan if makespan else 0.0 for w in work),
        bubble_makespan=1 - ideal / makespan if makespan else 0.0,
        bubble_span=1 - ideal / span if span else 0.0,
        bubble_over_ideal=makespan / ideal - 1 if ideal else 0.0,
        rank_start=tuple(starts),
        rank_end=tuple(ends),
    )


def deadlocked_report(orders: Orders, deadlock: Deadlock) -> ScheduleReport:
    """A study that cannot end: who is stuck where, and the circle of waits.

    Stuck are the ops that have the turn in a queue of their rank: a message with a stream of its own is named only when it is in the circle.
    """
    circle = deadlock.circle
    stuck = [w for w in deadlock.waiting if w in circle or not w.stream.startswith("pp.")]
    text = ", ".join(f"rank {a.rank} at {_op(a)} waits for rank {b.rank} at {_op(b)}" for a, b in zip(circle, (*circle[1:], *circle[:1]), strict=True))
    missing = "; ".join(f"rank {w.rank} at {_op(w)} waits for what never comes" for w in stuck if not w.waits_for)
    named = {"ranks": [w.rank for w in stuck], "ops": [_op(w) for w in stuck], "cycle": text or missing}
    return ScheduleReport(orders, *_peaks(orders), deadlock=named)


def _op(waiting: Waiting) -> str:
    """The action, without kernels and streams."""
    return waiting.text.partition(" ")[0]
