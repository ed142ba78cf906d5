"""pareto: step time and memory of layouts, and those that no other one beats in both."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from ..errors import Refused
from ..units import format_memory
from . import style
from .rows import COLOURS

GB = 10**9


def pareto(points: Sequence[tuple[str, float, float]], capacity: float | None = None, title: str = "") -> Figure:
    """`points` are (name, seconds of a step, peak bytes). The staircase joins those that none beats in both; only they are named.

    `capacity`: bytes of a device, drawn as a line. Raises Refused where there is no point.
    """
    if not points:
        raise Refused("there is nothing to draw: no layout was simulated")
    scale, unit = style.time_unit(max(step for _, step, _ in points))
    figure = style.new_figure(8.0, 5.5)
    axes = figure.subplots()
    front = frontier(points)
    axes.scatter([s / scale for _, s, _ in points], [b / GB for *_, b in points], s=18, color=style.OTHER_COLOUR, linewidths=0, label="layout")
    axes.step([s / scale for _, s, _ in front], [b / GB for *_, b in front], where="post", color=COLOURS[0], linewidth=1.0)
    axes.scatter([s / scale for _, s, _ in front], [b / GB for *_, b in front], s=28, color=COLOURS[0], linewidths=0, label="not beaten in both", zorder=3)
    for name, step, nbytes in front:
        axes.annotate(name, (step / scale, nbytes / GB), xytext=(5, 4), textcoords="offset points", fontsize=7, color=style.INK)
    if capacity is not None:
        axes.axhline(capacity / GB, color="#C00000", linewidth=1.0, linestyle=(0, (5, 3)))
        axes.annotate(f"device memory {format_memory(capacity)}", (1, capacity / GB), xycoords=axes.get_yaxis_transform(), ha="right", va="bottom", fontsize=7)
    axes.margins(x=0.12)
    axes.set(xlabel=f"step ({unit})", ylabel="peak memory (GB)")
    axes.set_ylim(bottom=0)
    style.bare(axes, keep=("bottom", "left"))
    axes.legend(fontsize=8, frameon=False, loc="upper right")
    style.title(axes, title or "time and memory of layouts")
    return figure


def frontier(points: Sequence[tuple[str, float, float]]) -> list[tuple[str, float, float]]:
    """The points that no other one beats in time and memory, fastest first."""
    out: list[tuple[str, float, float]] = []
    for point in sorted(points, key=lambda p: (p[1], p[2])):
        if not out or point[2] < out[-1][2]:
            out.append(point)
    return out
