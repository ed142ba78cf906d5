"""curves: lines over a number that is varied; bucket_sweep and bubble are two that have a form of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from ..errors import Refused
from ..units import format_bytes
from . import style
from .rows import COLOURS

Points = Sequence[tuple[float, float]]
MARKERS = ("o", "s", "^", "D", "v", "P", "X")


def curves(series: Mapping[str, Points], x: str, y: str, title: str = "", *, logx: bool = False, logy: bool = False, lines: Sequence[str] = ()) -> Figure:
    """A line with markers for each of `series`, name -> (x, y); those of `lines` are dashed and grey, as bounds and closed forms are.

    `x` and `y` name the axes, with units. Raises Refused where there is nothing to draw.
    """
    shown = {name: points for name, points in series.items() if points}
    if not shown:
        raise Refused("there is nothing to draw: every series is empty")
    figure = style.new_figure(8.0, 4.5)
    axes = figure.subplots()
    for i, (name, points) in enumerate((n, p) for n, p in shown.items() if n not in lines):
        axes.plot(*zip(*points, strict=True), color=COLOURS[i % len(COLOURS)], marker=MARKERS[i % len(MARKERS)], markersize=4, linewidth=1.3, label=name)
    for name in lines:
        if name in shown:
            axes.plot(*zip(*shown[name], strict=True), color=style.MUTED, linewidth=1.0, linestyle=(0, (4, 3)), label=name, zorder=1)
    axes.set(xlabel=x, ylabel=y)
    if logx:
        axes.set_xscale("log")
    if logy:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=min(0.0, *(v for points in shown.values() for _, v in points)))
    ticks = sorted({a for points in shown.values() for a, _ in points})
    if len(ticks) <= 14 and all(a == int(a) and a < 1e5 for a in ticks):
        axes.set_xticks(ticks, [f"{int(a):,}" for a in ticks])
        axes.minorticks_off()
    style.bare(axes, keep=("bottom", "left"))
    if len(shown) > 1:
        axes.legend(fontsize=8, frameon=False)
    style.title(axes, title or f"{y} over {x}")
    return figure


def bucket_sweep(points: Points, best: tuple[float, float] | None = None, title: str = "") -> Figure:
    """Exposed seconds over bytes of a bucket, its minimum marked; `best`: (bytes, seconds) where a closed form has it."""
    if not points:
        raise Refused("there is nothing to draw: no bucket was simulated")
    scale, unit = style.time_unit(max(s for _, s in points))
    figure = curves(
        {"exposed": [(b, s / scale) for b, s in points]}, "bucket", f"exposed ({unit})", title or "exposed time over the size of a bucket", logx=True
    )
    (axes,) = figure.axes
    low = min(points, key=lambda p: p[1])
    axes.annotate(f"least: {format_bytes(round(low[0]))}", (low[0], low[1] / scale), xytext=(0, -14), textcoords="offset points", ha="center", fontsize=8)
    if best is not None:
        axes.plot(best[0], best[1] / scale, marker="*", markersize=11, color=COLOURS[1], linestyle="none", label="closed form")
        axes.legend(fontsize=8, frameon=False)
    ticks = sorted({b for b, _ in points})[:: max(len(points) // 8, 1)]
    axes.set_xticks(ticks, [format_bytes(round(b)) for b in ticks], fontsize=7)
    axes.minorticks_off()
    return figure


def bubble(series: Mapping[str, Points], title: str = "", ideal: int | None = None) -> Figure:
    """Bubble over the ideal by microbatches, a line per schedule; `ideal`: ranks p of the closed form (p - 1) / m, drawn as a dashed line."""
    shown = dict(series)
    name = ""
    if ideal is not None:
        name = f"({ideal} - 1) / m"
        shown[name] = [(m, (ideal - 1) / m) for m in sorted({m for points in series.values() for m, _ in points})]
    return curves(shown, "microbatches", "bubble over the ideal", title or "bubble by microbatches", logx=True, lines=[name] if name else ())
