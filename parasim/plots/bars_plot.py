"""bars: where the step goes, a stacked bar per row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from . import style

COLOURS = {
    "compute": style.PHASE_COLOURS["F"],
    "bubble": style.IDLE_COLOUR,
    **{f"exposed {axis}": colour for axis, colour in style.AXIS_COLOURS.items()},
}


def bars(rows: Sequence[tuple[str, Mapping[str, float], bool]], title: str = "") -> Figure:
    """One bar per (name, seconds by part, fits); names of what does not fit in memory say so."""
    scale, unit = style.time_unit(max((sum(parts.values()) for _, parts, _ in rows), default=0.0))
    figure = style.new_figure(10.0, 1.2 + 0.35 * max(len(rows), 1))
    axes = figure.subplots()
    names = [name if fits else f"{name}\n(does not fit)" for name, _, fits in rows]
    left = [0.0] * len(rows)
    for part in dict.fromkeys(p for _, parts, _ in rows for p in parts):
        widths = [parts.get(part, 0.0) / scale for _, parts, _ in rows]
        if any(widths):
            axes.barh(range(len(rows)), widths, left=left, color=COLOURS.get(part, style.OTHER_COLOUR), label=part, height=0.7)
            left = [a + w for a, w in zip(left, widths, strict=True)]
    axes.set_yticks(range(len(rows)), names, fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel(f"step ({unit}), mean over ranks", fontsize=8, color=style.INK)
    style.bare(axes, keep=("bottom", "left"))
    figure.legend(loc="outside lower right", ncols=6, fontsize=7, frameon=False)
    style.title(axes, title or "where the step goes")
    return figure
