"""phases: which sharding computes longer than it communicates, over the tokens that one device gets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from matplotlib.figure import Figure

from ..errors import Refused
from . import style
from .rows import COLOURS

Points = Sequence[tuple[float, float]]


def phases(ratios: Mapping[str, Points], thresholds: Mapping[str, float], title: str = "") -> Figure:
    """Lines of communication over compute seconds by tokens per device, one for each way to shard; below 1 communication can hide.

    `thresholds`: tokens per device from which a way is bound by compute, by its words; the regions between them are tinted. Raises Refused for none.
    """
    shown = {name: points for name, points in ratios.items() if points}
    if not shown:
        raise Refused("there is nothing to draw: every series is empty")
    figure = style.new_figure(8.0, 4.8)
    axes = figure.subplots()
    tokens = [t for points in shown.values() for t, _ in points]
    low, high = min(tokens), max(tokens)
    for i, (name, points) in enumerate(shown.items()):
        axes.plot(*zip(*points, strict=True), color=COLOURS[i % len(COLOURS)], marker="o", markersize=3, linewidth=1.4, label=name)
    axes.set(xscale="log", yscale="log", xlim=(low, high), xlabel="tokens per device", ylabel="communication over compute")
    axes.axhline(1, color=style.INK, linewidth=0.8)
    edges = [low, *sorted(v for v in thresholds.values() if low < v < high), high]
    for i, (a, b) in enumerate(pairwise(edges)):
        axes.axvspan(a, b, color=style.tint("#E69F00", 0.35 - 0.15 * i) if i < 2 else style.tint("#009E73", 0.18), linewidth=0, zorder=0)
    for words, value in thresholds.items():
        axes.axvline(value, color=style.MUTED, linewidth=0.8, linestyle=(0, (4, 3)))
        axes.annotate(
            f"{words}: {value:,.0f}", (value, 0.02), xycoords=axes.get_xaxis_transform(), xytext=(3, 0), textcoords="offset points", rotation=90, fontsize=7.5
        )
    style.bare(axes, keep=("bottom", "left"))
    axes.legend(fontsize=8, frameon=False, loc="upper right")
    style.title(axes, title or "when communication hides, by tokens per device")
    return figure
