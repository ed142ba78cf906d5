"""The report: where the time and the memory of a step go, and what binds it."""

from .accounting import NAMES, Gap, RankTimes, Window, rank_gaps, rank_times, step_window
from .advice import Tried, doesnotfit
from .network import LinkUse, link_series, link_use
from .summary import summarize
from .values import Engine, MemorySummary, Report, Stage, StepTimes

__all__ = [
    "NAMES",
    "Engine",
    "Gap",
    "LinkUse",
    "MemorySummary",
    "RankTimes",
    "Report",
    "Stage",
    "StepTimes",
    "Tried",
    "Window",
    "doesnotfit",
    "link_series",
    "link_use",
    "rank_gaps",
    "rank_times",
    "step_window",
    "summarize",
]
