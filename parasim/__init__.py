"""parasim: a discrete-event simulator of parallel training of large models.

>>> import parasim as ps
>>> run = ps.load("run.yaml")
>>> timeline = ps.simulate(ps.lower(run.plan), run.cluster, run.profile)
>>> print(ps.summarize(timeline, run))

Names are loaded at first use: importing the package loads neither torch nor matplotlib.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

__all__ = [
    "Plan",
    "Report",
    "Result",
    "Run",
    "Timeline",
    "Workload",
    "__version__",
    "build",
    "compare",
    "execute",
    "goodput",
    "load",
    "load_cluster",
    "lower",
    "play_collective",
    "plots",
    "search",
    "simulate",
    "simulate_run",
    "summarize",
    "time_collective",
    "time_schedule",
    "vary",
    "whatif",
]

if TYPE_CHECKING:
    from . import plots
    from .api import (
        Plan,
        Report,
        Result,
        Run,
        Timeline,
        Workload,
        build,
        compare,
        execute,
        goodput,
        load,
        load_cluster,
        lower,
        play_collective,
        search,
        simulate,
        simulate_run,
        summarize,
        time_collective,
        time_schedule,
        vary,
        whatif,
    )


def __getattr__(name: str) -> Any:
    if name == "plots":
        return import_module(".plots", __name__)
    if name in __all__:
        return getattr(import_module(".api", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has: {', '.join(__all__)}")


def __dir__() -> list[str]:
    return sorted(__all__)
