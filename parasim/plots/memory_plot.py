"""memory: bytes by category over time, under the line of what the device has."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from numpy.typing import NDArray

from ..errors import Malformed
from ..memory import MemoryPeak, memory_curve, memory_peaks, thinned
from ..program.ops import CATEGORIES
from ..report.lanes import stages_of
from ..timeline import Timeline
from ..units import format_memory, format_seconds
from . import style

MOST_PANELS = 8
POINTS = 750  # per curve, as many as a panel has pixels; where there are more they are thinned to the highest of their neighbours and the last
TICKS = 7  # at most, along each axis
GB = 10**9

Floats = NDArray[np.float64]


def memory(timeline: Timeline, ranks: Sequence[int] | None = None, title: str = "") -> Figure:
    """One panel per rank: exact memory stacked by category, its peak marked, the capacity of the device (meta `capacity_bytes`) as a line.

    Default: the heaviest rank of each stage, the heaviest eight where there are more. Raises Malformed for a rank that is not in the timeline.
    """
    peaks = memory_peaks(timeline)
    shown = _default_ranks(timeline, peaks) if ranks is None else _checked(timeline, ranks)
    columns = 1 if len(shown) == 1 else 2
    rows = -(-len(shown) // columns)
    figure = style.new_figure(9.0 if columns == 1 else 13.0, 1.1 + (3.2 if rows == 1 else 2.3 * rows), constrained=False)
    panels = [figure.add_subplot(rows, columns, i + 1) for i in range(len(shown))]
    scale, unit = style.time_unit(timeline.makespan)
    capacity = timeline.meta.get("capacity_bytes")
    highest = max((peaks[int(timeline.representative[r])].nbytes for r in shown), default=0.0)
    for i, (axes, rank) in enumerate(zip(panels, shown, strict=True)):
        axes.set_xlim(0, timeline.makespan / scale or 1.0)
        axes.set_ylim(0, _top(capacity, highest) / GB)
        axes.locator_params(nbins=TICKS)
        _panel(axes, timeline, rank, peaks[int(timeline.representative[rank])], scale)
        _capacity_line(axes, capacity, highest)
        axes.xaxis.set_visible(i >= len(shown) - columns)
        axes.yaxis.set_visible(i % columns == 0)
    for axes in panels[max(len(shown) - columns, 0) :]:
        axes.set_xlabel(f"time ({unit})", fontsize=8, color=style.INK)
    for axes in panels[::columns]:
        axes.set_ylabel("GB", fontsize=8, color=style.INK)
    figure.suptitle(title or _headline(peaks, shown, timeline), x=0.01, ha="left", fontsize=11, fontweight="bold", color=style.INK)
    used = [c for c in CATEGORIES if any(peaks[int(timeline.representative[r])].by_category[c] > 0 for r in shown)]
    handles = [Patch(facecolor=style.CATEGORY_COLOURS[c], label=c) for c in used]
    style.margins(figure, left=0.55, right=0.15, top=0.6, bottom=0.75)
    figure.legend(handles=handles, loc="lower center", ncols=len(CATEGORIES), fontsize=8, frameon=False, handlelength=1.4)
    return figure


def _default_ranks(timeline: Timeline, peaks: dict[int, MemoryPeak]) -> list[int]:
    """The heaviest kept rank of each stage, each once, in order of depth."""
    holders: dict[int, list[int]] = {}
    for part in timeline.parts:
        for stage in stages_of(part):
            holders.setdefault(stage, []).append(part.rank)
    if not holders:
        return [max(peaks, key=lambda r: (peaks[r].nbytes, -r))]
    heaviest = [max(holders[s], key=lambda r: (peaks[r].nbytes, -r)) for s in sorted(holders)]
    once = list(dict.fromkeys(heaviest))
    kept = set(sorted(once, key=lambda r: -peaks[r].nbytes)[:MOST_PANELS])
    return [r for r in once if r in kept]


def _checked(timeline: Timeline, ranks: Sequence[int]) -> list[int]:
    world = len(timeline.representative)
    if not ranks or any(not 0 <= r < world for r in ranks):
        raise Malformed(f"ranks={list(ranks)}: name at least one rank, each of 0 to {world - 1}")
    return [int(r) for r in ranks]


def _panel(axes: Axes, timeline: Timeline, rank: int, peak: MemoryPeak, scale: float) -> None:
    curve = memory_curve(timeline, rank)
    style.bare(axes, keep=("bottom", "left"))
    stages = [int(s) for s in np.unique(timeline.of(rank)["stage"]) if s >= 0]
    name = f"rank {rank}" + (f", stage {', '.join(map(str, stages))}" if stages else "")
    axes.set_title(f"{name}: peak {format_memory(round(peak.nbytes))} at {format_seconds(peak.time)}", loc="left", y=1.0, fontsize=8.5, color=style.INK)
    if not len(curve.times):
        return
    at = thinned(curve.total, POINTS)
    times = np.append(curve.times[at], timeline.makespan) / scale
    stacked = np.cumsum(np.vstack((np.zeros(len(at)), curve.by_category[at].T)), axis=0) / GB
    stacked = np.hstack((stacked, stacked[:, -1:]))
    used = np.flatnonzero(curve.by_category.any(axis=0)).tolist()
    areas = [_area(times, stacked[i], stacked[i + 1]) for i in used]
    axes.add_collection(PolyCollection(areas, facecolors=[style.CATEGORY_COLOURS[CATEGORIES[i]] for i in used], linewidths=0), autolim=False)
    axes.plot(peak.time / scale, peak.nbytes / GB, marker="v", markersize=5, color=style.INK, clip_on=False)


def _area(times: Floats, low: Floats, high: Floats) -> Floats:
    """The outline, [n, 2], of what lies between two bounds that change in steps."""
    kept = np.flatnonzero(np.concatenate([[True], (np.diff(low) != 0) | (np.diff(high) != 0)]))
    kept = np.append(kept, len(times) - 1)
    x = np.repeat(times[kept], 2)[1:]
    upper, lower = (np.column_stack((x, np.repeat(bound[kept], 2)[:-1])) for bound in (high, low))
    return np.concatenate((upper, lower[::-1]))


def _top(capacity: float | None, highest: float) -> float:
    """Upper end of the scale, in bytes: room for the capacity line unless the memory is far below it."""
    return 1.12 * (capacity if capacity is not None and highest >= 0.2 * capacity and np.isfinite(capacity) and capacity >= highest else highest or 1.0)


def _capacity_line(axes: Axes, capacity: float | None, highest: float) -> None:
    if capacity is None or not np.isfinite(capacity):
        return
    if capacity <= _top(capacity, highest):
        axes.axhline(capacity / GB, color="#C00000", linewidth=1.0, linestyle=(0, (5, 3)))
        where = (0.995, capacity / GB)
        text, kind = f"device memory {format_memory(capacity)}", axes.get_yaxis_transform()
    else:
        where, text, kind = (0.995, 0.97), f"device memory {format_memory(capacity)}, above the scale", axes.transAxes
    axes.text(*where, text, transform=kind, ha="right", va="bottom" if kind is not axes.transAxes else "top", fontsize=6.5, color="#C00000")


def _headline(peaks: dict[int, MemoryPeak], ranks: Sequence[int], timeline: Timeline) -> str:
    top = max((peaks[int(timeline.representative[r])] for r in ranks), key=lambda p: p.nbytes)
    return f"memory: heaviest rank {top.rank}, {format_memory(round(top.nbytes))}"
