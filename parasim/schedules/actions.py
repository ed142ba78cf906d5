"""Actions: what a pipeline schedule is made of. A schedule is a pure function ScheduleInput -> {rank: [Action, ...]}."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

Kind = Literal["F", "I", "W", "B"]


class Action(NamedTuple):
    """F forward, I input gradient, W weight gradient, B = I and W fused, of one stage and microbatch. Printed `2F0`."""

    kind: Kind
    stage: int
    microbatch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.microbatch}"


@dataclass(frozen=True)
class ScheduleInput:
    """What a schedule may depend on. `group` is the microbatch group size, `times` (F, I, W), `memory_cap` in microbatches in flight."""

    ranks: int
    microbatches: int
    chunks: int = 1
    group: int | None = None
    times: tuple[float, float, float] | None = None
    memory_cap: float | None = None


Orders = dict[int, list[Action]]
Schedule = Callable[[ScheduleInput], Orders]


def peak_inflight(order: list[Action], release: tuple[str, ...] = ("B", "W")) -> int:
    """Most (stage, microbatch) pairs whose F has started and whose release action (B or W by default) has not ended, in list order."""
    alive = peak = 0
    for action in order:
        alive += action.kind == "F"
        peak = max(peak, alive)
        alive -= action.kind in release
    return peak
