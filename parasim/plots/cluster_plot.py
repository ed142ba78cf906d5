"""cluster: a picture of a network: devices, NICs, switches and what joins them."""

from __future__ import annotations

import math
from collections.abc import Iterable

from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from ..topology.cluster import Cluster
from ..units import format_bandwidth
from . import style
from .cluster_layout import Box, Sketch, Wire, arc, sketch

NODE_COLOURS = {"gpu": "#D7EFE6", "chip": "#D7EFE6", "cpu": "#F6EBCF", "nic": "#DCEEF9", "pcie": "#FBEBCB", "switch": "#E6E6E6"}
HEIGHT, TALL = 0.5, 0.72  # of a box in the width of a device; inches of that width at most
POINTS = 5.2  # width of a character at font size 8 in points


def cluster(cluster: Cluster, title: str = "") -> Figure:
    """Servers in a row with their inside below and the network above; chips of a torus as a grid.

    Lines are coloured by the kind of link and as wide as the logarithm of their bandwidth; several between the same two boxes are one line.
    Large clusters are folded: one server of each sort, one box for the many switches of a level; words say how many there are.
    """
    made = sketch(cluster)
    left, right, bottom, top = _limits(made)
    inches = min(TALL, 15.0 / (right - left))
    figure = style.new_figure(max(6.0, (right - left) * inches + 0.6), max(2.6, (top - bottom) * inches + 1.5), constrained=False)
    style.margins(figure, left=0.3, right=0.3, top=0.75, bottom=0.7)
    axes = figure.subplots()
    axes.set_xlim(left, right)
    axes.set_ylim(bottom, top)
    axes.set_aspect("equal")
    axes.set_axis_off()
    _wires(axes, made)
    _boxes(axes, made, inches)
    name = title or f"{cluster.name}: {len(cluster.devices)} x {cluster.accelerator.name}"
    style.title(axes, name, "; ".join(made.notes))
    used = {wire.kind for wire in made.wires}
    figure.legend(handles=_legend(cluster, used), loc="lower left", bbox_to_anchor=(0.01, 0.0), ncols=4, fontsize=7.5, frameon=False)
    return figure


def _limits(made: Sketch) -> tuple[float, float, float, float]:
    edges = [(b.x - b.width / 2, b.x + b.width / 2, b.y, b.y) for b in made.boxes.values()] + [f[:4] for f in made.frames]
    left, right, bottom, top = min(e[0] for e in edges), max(e[1] for e in edges), min(e[2] for e in edges), max(e[3] for e in edges)
    return left - 0.3, max(right, left + 4.0) + 0.3, bottom - 0.6, top + 0.6


def _boxes(axes: Axes, made: Sketch, inches: float) -> None:
    for x0, x1, y0, y1, words in made.frames:
        axes.add_patch(Rectangle((x0, y0), x1 - x0, y1 - y0, facecolor="#FAFAFA", edgecolor="#CFCFCF", linewidth=0.8, zorder=0))
        axes.text((x0 + x1) / 2, y0 - 0.05, words, ha="center", va="top", fontsize=7.5, color=style.INK, zorder=4)
    for box in made.boxes.values():
        axes.add_patch(
            Rectangle(
                (box.x - box.width / 2, box.y - HEIGHT / 2), box.width, HEIGHT, facecolor=NODE_COLOURS[box.kind], edgecolor="#777777", linewidth=0.7, zorder=3
            )
        )
        size = min(8.0, 8.0 * box.width * inches * 72 / (POINTS * max(1, len(box.text))))
        if size > 3.0:
            axes.text(box.x, box.y, box.text, ha="center", va="center_baseline", fontsize=size, color=style.INK, zorder=4)


def _wires(axes: Axes, made: Sketch) -> None:
    """Straight lines between rows, arcs within one, parted by kind so that each has one colour."""
    kinds: dict[str, list[Wire]] = {}
    for wire in made.wires:
        kinds.setdefault(wire.kind, []).append(wire)
    for kind, wires in kinds.items():
        paths = [_path(made.boxes[w.a], made.boxes[w.b]) for w in wires]
        axes.add_collection(LineCollection(paths, colors=style.LINK_COLOURS[kind], linewidths=[_width(w.bandwidth) for w in wires], alpha=0.8, zorder=2))
    for wire in made.wires:
        if wire.count > 1:
            path = _path(made.boxes[wire.a], made.boxes[wire.b])
            x, y = ((u + v) / 2 for u, v in zip(path[0], path[-1], strict=True))
            axes.text(
                x, y, f"{wire.count} x", fontsize=6.5, ha="center", va="center", color=style.INK, zorder=4,
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6, "alpha": 0.8},
            )  # fmt: skip


def _path(a: Box, b: Box) -> list[tuple[float, float]]:
    """A line from the middle of the narrower box straight to the wider one, or an arc below their row."""
    if a.y != b.y:
        narrow, wide = sorted((a, b), key=lambda box: box.width)
        reach = max(0.0, wide.width / 2 - 0.15)
        met = min(max(narrow.x, wide.x - reach), wide.x + reach)
        side = HEIGHT / 2 if narrow.y < wide.y else -HEIGHT / 2
        return [(narrow.x, narrow.y + side), (met, wide.y - side)]
    left, right = sorted((a.x, b.x))
    depth = arc(right - left)
    if not depth:
        return [(left, a.y), (right, a.y)]
    steps = [i / 16 for i in range(17)]
    return [(left + t * (right - left), a.y - HEIGHT / 2 - depth * math.sin(math.pi * t)) for t in steps]


def _width(bandwidth: float) -> float:
    """Points: 0.6 at 1 GB/s and below, 0.9 more for every factor of 10, 5 at most."""
    if math.isinf(bandwidth):
        return 3.0
    return min(5.0, 0.6 + 0.9 * max(0.0, math.log10(bandwidth) - 9.0))


def _legend(cluster: Cluster, used: Iterable[str]) -> list[Line2D]:
    rates: dict[str, set[float]] = {}
    for link in cluster.links:
        rates.setdefault(link.kind, set()).add(link.bandwidth)
    out = []
    for kind in style.LINK_COLOURS:
        if kind in used:
            low, high = min(rates[kind]), max(rates[kind])
            words = _rate(low) if low == high else f"{_rate(low)} to {_rate(high)}"
            out.append(Line2D([], [], color=style.LINK_COLOURS[kind], linewidth=_width(high), label=f"{kind}: {words}"))
    return out


def _rate(bandwidth: float) -> str:
    return "unlimited" if math.isinf(bandwidth) else format_bandwidth(bandwidth)
