"""Pictures and traces of a Timeline, a picture of a cluster. Each is loaded at first use, so that importing parasim loads neither matplotlib nor perfetto."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .bars_plot import bars
    from .cluster_plot import cluster
    from .gantt_plot import gantt
    from .links_plot import links
    from .memory_plot import memory
    from .memory_snapshot import write as write_memory_snapshot
    from .parity_plot import parity
    from .perfetto_export import write as write_perfetto

_WHERE = {
    "bars": ("bars_plot", "bars"),
    "cluster": ("cluster_plot", "cluster"),
    "gantt": ("gantt_plot", "gantt"),
    "links": ("links_plot", "links"),
    "memory": ("memory_plot", "memory"),
    "write_memory_snapshot": ("memory_snapshot", "write"),
    "parity": ("parity_plot", "parity"),
    "write_perfetto": ("perfetto_export", "write"),
}
__all__ = ["bars", "cluster", "gantt", "links", "memory", "parity", "write_memory_snapshot", "write_perfetto"]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has: {', '.join(sorted(_WHERE))}")
    module, function = _WHERE[name]
    return getattr(import_module(f".{module}", __name__), function)


def __dir__() -> list[str]:
    return sorted(__all__)
