"""Actions: what a pipeline schedule is made of. A schedule is a pure function ScheduleInput -> {rank: [Action or Pair, ...]}."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from ..errors import InvalidLayout, Violation
from .placement import LOOP, Placement

Kind = Literal["F", "I", "W", "B"]


class Action(NamedTuple):
    """F forward, I input gradient, W weight gradient, B = I and W fused, of one stage and microbatch. Printed `2F0`."""

    kind: Kind
    stage: int
    microbatch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.microbatch}"


class Pair(NamedTuple):
    """A forward and a backward of two microbatches run as one overlapped block: it starts when both inputs are there, its end releases both outputs."""

    forward: Action
    backward: Action

    def __str__(self) -> str:
        return f"({self.forward};{self.backward})OVERLAP_F_B"


Times = tuple[float, float, float]
Cell = Action | Pair
Order = Sequence[Cell]
Orders = dict[int, Order]


@dataclass(frozen=True)
class ScheduleInput:
    """What a schedule may depend on.

    `group` is the microbatch group size; `times` (F, I, W) seconds of a rank's share of one microbatch, of every rank or one triple per rank;
    `comm` seconds per message; `memory_cap` microbatches in flight (F start to W end), of every rank or one number per rank.
    """

    ranks: int
    microbatches: int
    chunks: int = 1
    group: int | None = None
    times: Times | tuple[Times, ...] | None = None
    memory_cap: float | tuple[float, ...] | None = None
    comm: float = 0.0


@dataclass(frozen=True)
class Schedule:
    """A row of SCHEDULES: the generator, where its stages sit, how many a rank holds (`chunks`: what is usual, `fixed`: nothing else), its knobs.

    `knobs` are the fields of ScheduleInput beyond sizes that it reads. `backward` is the order of microbatches in its backward pass where
    all forwards of a rank precede all its backwards, so that the order may be turned; otherwise empty.
    """

    orders: Callable[[ScheduleInput], Orders]
    placement: Placement = LOOP
    chunks: int = 1
    fixed: bool = True
    knobs: tuple[str, ...] = ()
    backward: Literal["increasing", "decreasing", ""] = ""

    def __call__(self, given: ScheduleInput) -> Orders:
        """The orders of all ranks. Raises InvalidLayout naming the rule and the nearest legal values."""
        for field in ("ranks", "microbatches", "chunks"):
            if getattr(given, field) < 1:
                raise refused(field, getattr(given, field), "must be at least 1", "nearest legal: 1")
        if self.fixed and given.chunks != self.chunks:
            why = f"{self.chunks} stage{'s' if self.chunks > 1 else ''} per rank"
            raise refused("chunks", given.chunks, f"is not what this schedule has, {why}", f"legal: {self.chunks}")
        return self.orders(given)


def refused(field: str, value: object, rule: str, legal: str = "") -> InvalidLayout:
    """The refusal of one value, to be raised."""
    return InvalidLayout([Violation(field, str(value), rule, legal)])


def singles(cells: Iterable[Cell]) -> Iterator[Action]:
    """The actions of some cells; a pair is its forward, then its backward."""
    for cell in cells:
        if isinstance(cell, Pair):
            yield from cell
        else:
            yield cell


def unpaired(orders: Orders) -> Orders:
    """The same orders with every pair run as its forward, then its backward."""
    return {rank: list(singles(order)) for rank, order in orders.items()}


def turned(orders: Orders, microbatches: int) -> Orders:
    """The same orders with the microbatches of all backwards in opposite order (see `Schedule.backward`)."""
    last = microbatches - 1
    return {rank: [a if a.kind == "F" else a._replace(microbatch=last - a.microbatch) for a in singles(order)] for rank, order in orders.items()}


def peak_inflight(order: Order, release: tuple[str, ...] = ("B", "W")) -> int:
    """Most (stage, microbatch) pairs whose F has started and whose release action (B or W by default) has not ended, in list order."""
    alive = peak = 0
    for action in singles(order):
        alive += action.kind == "F"
        peak = max(peak, alive)
        alive -= action.kind in release
    return peak
