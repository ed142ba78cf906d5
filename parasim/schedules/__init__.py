"""Pipeline schedules as pure data: one file per schedule, one row per name."""

from __future__ import annotations

from types import MappingProxyType

from .actions import Action, Kind, Orders, Schedule, ScheduleInput, peak_inflight
from .gpipe import gpipe
from .naive import naive
from .one_f_one_b import one_f_one_b

SCHEDULES: MappingProxyType[str, Schedule] = MappingProxyType({"naive": naive, "gpipe": gpipe, "1f1b": one_f_one_b})

__all__ = ["SCHEDULES", "Action", "Kind", "Orders", "Schedule", "ScheduleInput", "peak_inflight"]
