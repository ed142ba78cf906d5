"""parity: predicted over measured numbers, by source, on logarithmic axes with bands of 10 and 25 %."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from ..errors import Refused
from . import style

BANDS = (0.25, 0.1)
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#6F6F6F", "#F0E442")
MARKERS = ("o", "s", "^", "D", "v")


def parity(points: Sequence[tuple[str, float, float]], unit: str, title: str = "") -> Figure:
    """`points` are (source, measured, predicted) in `unit`, all above 0. Raises Refused where there is none."""
    shown = [(source, m, p) for source, m, p in points if m > 0 and p > 0]
    if not shown:
        raise Refused("there is nothing to draw: no row is predicted")
    figure = style.new_figure(7.5, 6.5)
    axes = figure.subplots()
    values = [v for _, *pair in shown for v in pair]
    low, high = min(values) / 1.3, max(values) * 1.3
    for band in BANDS:
        lower, upper = ([end * factor for end in (low, high)] for factor in (1 - band, 1 + band))
        axes.fill_between([low, high], lower, upper, color=style.IDLE_COLOUR, alpha=0.7, linewidth=0)
    axes.plot([low, high], [low, high], color=style.MUTED, linewidth=0.8)
    for i, source in enumerate(dict.fromkeys(s for s, *_ in shown)):
        mine = [(m, p) for s, m, p in shown if s == source]
        colour, marker = COLOURS[i % len(COLOURS)], MARKERS[i // len(COLOURS) % len(MARKERS)]
        axes.scatter([m for m, _ in mine], [p for _, p in mine], s=14, color=colour, marker=marker, label=f"{source} ({len(mine)})", linewidths=0, alpha=0.8)
    axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high), xlabel=f"measured ({unit})", ylabel=f"predicted ({unit})")
    style.bare(axes, keep=("bottom", "left"))
    axes.legend(fontsize=7.5, frameon=False, loc="upper left")
    axes.set_title(title or "predicted and measured step times; bands of 10 and 25 %", loc="left", fontsize=10, color=style.INK)
    return figure
