"""ladder: bandwidth and latency of everything between a device and the far end of its cluster."""

from __future__ import annotations

import math

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..topology.cluster import Cluster
from ..topology.ladder import ladder as rungs
from ..units import format_bandwidth, format_seconds
from . import style
from .palette import LINK_COLOURS

MEMORY_COLOUR = "#222222"


def ladder(cluster: Cluster, title: str = "") -> Figure:
    """Two rows of bars on logarithmic scales, a bar per rung of `topology.ladder`, by falling bandwidth."""
    steps = rungs(cluster)
    figure = style.new_figure(9.0, 1.2 + 0.42 * len(steps))
    left, right = figure.subplots(1, 2, sharey=True)
    colours = [LINK_COLOURS.get(r.kind, MEMORY_COLOUR) for r in steps]
    _bars(left, [r.bandwidth for r in steps], colours, [format_bandwidth(r.bandwidth) for r in steps])
    _bars(right, [r.latency for r in steps], colours, [format_seconds(r.latency) if r.latency else "" for r in steps])
    left.set_yticks(range(len(steps)), [r.name for r in steps])
    left.invert_yaxis()
    left.set_xlabel("bytes/s of one device or port, per direction", fontsize=8)
    right.set_xlabel("seconds, one way", fontsize=8)
    style.title(left, title or f"{cluster.name}: from memory to the far end")
    return figure


def _bars(axes: Axes, values: list[float], colours: list[str], words: list[str]) -> None:
    known = [v for v in values if v > 0 and math.isfinite(v)]
    if known:
        floor, top = min(known) / 3, max(known) * 12
        axes.set_xscale("log")
        axes.set_xlim(floor, top)
        axes.barh(range(len(values)), [v - floor if v > 0 and math.isfinite(v) else 0 for v in values], left=floor, color=colours, height=0.62)
    for i, word in enumerate(words):
        at = values[i] if values[i] > 0 and math.isfinite(values[i]) else (axes.get_xlim()[0] if known else 0)
        axes.annotate(word, (at, i), xytext=(4, 0), textcoords="offset points", va="center", fontsize=8, color=style.INK)
    style.bare(axes, keep=("bottom",))
    axes.tick_params(axis="y", length=0)
