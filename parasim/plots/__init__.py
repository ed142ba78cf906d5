"""Pictures of a Timeline, of several runs and of a cluster; traces. Each is loaded at first use, so that importing parasim loads no matplotlib."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .bars_plot import bars
    from .beside_plot import beside
    from .chrome_export import write as write_chrome
    from .cliff_plot import cliff
    from .cluster_plot import cluster
    from .csv_export import write as write_csv
    from .curves_plot import bubble, bucket_sweep, curves
    from .gantt_plot import gantt
    from .ladder_plot import ladder
    from .links_plot import links
    from .memory_plot import memory
    from .memory_snapshot import write as write_memory_snapshot
    from .pareto_plot import pareto
    from .parity_plot import parity
    from .perfetto_export import write as write_perfetto
    from .phases_plot import phases
    from .scaling_plot import scaling

_WHERE = {
    "bars": ("bars_plot", "bars"),
    "beside": ("beside_plot", "beside"),
    "bubble": ("curves_plot", "bubble"),
    "bucket_sweep": ("curves_plot", "bucket_sweep"),
    "cliff": ("cliff_plot", "cliff"),
    "cluster": ("cluster_plot", "cluster"),
    "curves": ("curves_plot", "curves"),
    "gantt": ("gantt_plot", "gantt"),
    "ladder": ("ladder_plot", "ladder"),
    "links": ("links_plot", "links"),
    "memory": ("memory_plot", "memory"),
    "pareto": ("pareto_plot", "pareto"),
    "parity": ("parity_plot", "parity"),
    "phases": ("phases_plot", "phases"),
    "scaling": ("scaling_plot", "scaling"),
    "write_chrome": ("chrome_export", "write"),
    "write_csv": ("csv_export", "write"),
    "write_memory_snapshot": ("memory_snapshot", "write"),
    "write_perfetto": ("perfetto_export", "write"),
}
__all__ = [
    "bars",
    "beside",
    "bubble",
    "bucket_sweep",
    "cliff",
    "cluster",
    "curves",
    "gantt",
    "ladder",
    "links",
    "memory",
    "pareto",
    "parity",
    "phases",
    "scaling",
    "write_chrome",
    "write_csv",
    "write_memory_snapshot",
    "write_perfetto",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has: {', '.join(sorted(_WHERE))}")
    module, function = _WHERE[name]
    return getattr(import_module(f".{module}", __name__), function)


def __dir__() -> list[str]:
    return sorted(__all__)
