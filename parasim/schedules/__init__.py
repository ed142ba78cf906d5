"""Pipeline schedules as pure data: one file per schedule, one row per name."""

from __future__ import annotations

from .actions import Action, Cell, Kind, Order, Orders, Pair, Schedule, ScheduleInput, Times, peak_inflight, singles, unpaired
from .catalog import SCHEDULES, orders_of
from .placement import BIDIRECTIONAL, LOOP, PLACEMENTS, VEE, Placement

__all__ = [
    "BIDIRECTIONAL",
    "LOOP",
    "PLACEMENTS",
    "SCHEDULES",
    "VEE",
    "Action",
    "Cell",
    "Kind",
    "Order",
    "Orders",
    "Pair",
    "Placement",
    "Schedule",
    "ScheduleInput",
    "Times",
    "orders_of",
    "peak_inflight",
    "singles",
    "unpaired",
]
