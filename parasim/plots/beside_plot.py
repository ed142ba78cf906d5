"""beside: a predicted step and a traced one on one time axis, and their seconds by kind of kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from numpy.typing import NDArray

from ..report import NAMES
from ..report.lanes import lane_of
from ..timeline import COMPUTE, Timeline
from ..traces.beside import Beside
from ..units import format_seconds
from . import style

Lanes = list[tuple[str, NDArray[Any]]]  # name of a kind of stream, its ops
WIDTH, LANE = 12.0, 0.34  # inches
SIDES = (("predicted", style.PHASE_COLOURS["I"]), ("measured", style.AXIS_COLOURS["tp"]))


def beside(comparison: Beside, predicted: Timeline, measured: Timeline) -> Figure:
    """The streams of the compared rank in both timelines (the first row of each side is what computes), below them a pair of bars per kind."""
    lanes = [_lanes(predicted, comparison.rank), _lanes(measured, 0)]
    heights = [LANE * sum(map(len, lanes)) + 0.5, 0.3 * len(comparison.rows) + 0.6]
    figure = style.new_figure(WIDTH, sum(heights) + 1.3)
    top, below = figure.subplots(2, 1, height_ratios=heights)
    longest = max(comparison.predicted_step, comparison.measured_step)
    scale, unit = style.time_unit(longest)
    _timelines(top, comparison, list(zip((predicted, measured), lanes, strict=True)), scale)
    top.set_xlim(0, longest / scale)
    top.set_xlabel(f"time ({unit})", fontsize=8, color=style.INK)
    _kinds(below, comparison)
    return figure


def _lanes(timeline: Timeline, rank: int) -> Lanes:
    """(name, ops of the step) by kind of stream, the compute stream first."""
    ops = timeline.of(rank)
    ops = ops[ops["step"] == ops["step"].max(initial=0)]
    names = np.array([lane_of(s) for s in timeline.streams], dtype=object)[ops["stream"]]
    return [(name, ops[names == name]) for name in sorted(set(names), key=lambda n: (n != "compute", n))]


def _timelines(axes: Axes, comparison: Beside, sides: list[tuple[Timeline, Lanes]], scale: float) -> None:
    used: dict[str, str] = {}
    labels, row = [], 0.0
    for (side, _), (timeline, mine) in zip(SIDES, sides, strict=True):
        begin = min((float(ops["start"].min()) for _, ops in mine), default=0.0)
        for name, ops in mine:
            for colour, label, chosen in _looks(timeline, ops):
                starts, lengths = (chosen["start"] - begin) / scale, (chosen["end"] - chosen["start"]) / scale
                spans = list(zip(starts.tolist(), lengths.tolist(), strict=True))
                axes.broken_barh(spans, (row, 0.8), facecolors=colour, linewidth=0, rasterized=len(spans) > 5000)
                used[label] = colour
            labels.append((row + 0.4, f"{side}\n{name}" if name == "compute" else name))
            row += 1.0
        row += 0.5
    axes.set_yticks([y for y, _ in labels], [text for _, text in labels], fontsize=7)
    axes.set_ylim(row - 0.4, -0.2)
    style.bare(axes)
    axes.tick_params(axis="y", length=0)
    patches = [Patch(facecolor=colour, label=name) for name, colour in used.items()]
    axes.legend(handles=patches, loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=8, fontsize=7, frameon=False)
    error = comparison.predicted_step / comparison.measured_step - 1 if comparison.measured_step else 0.0
    said = f"predicted {format_seconds(comparison.predicted_step)}, measured {format_seconds(comparison.measured_step)} ({100 * error:+.1f} %)"
    style.title(axes, f"step of rank {comparison.rank}: {said}")


def _looks(timeline: Timeline, ops: NDArray[Any]) -> list[tuple[str, str, NDArray[Any]]]:
    """(colour, entry of the legend, ops): phases of what computes, axes of what is transferred."""
    out = []
    for phase in np.unique(ops["phase"][ops["kind"] == COMPUTE]).tolist():
        name = timeline.phases[phase]
        look = style.PHASE_COLOURS.get(name, style.OTHER_COLOUR), style.PHASE_NAMES.get(name, name)
        out.append((*look, ops[(ops["kind"] == COMPUTE) & (ops["phase"] == phase)]))
    for axis in np.unique(ops["axis"][ops["kind"] != COMPUTE]).tolist():
        out.append((style.AXIS_COLOURS[NAMES[axis]], f"{NAMES[axis]} transfer", ops[(ops["kind"] != COMPUTE) & (ops["axis"] == axis)]))
    return out


def _kinds(axes: Axes, comparison: Beside) -> None:
    rows = comparison.rows
    scale, unit = style.time_unit(max((max(r.predicted, r.measured) for r in rows), default=0.0))
    at = np.arange(len(rows))
    for k, (side, colour) in enumerate(SIDES):
        axes.barh(at + 0.38 * k - 0.19, [getattr(r, side) / scale for r in rows], height=0.36, color=colour, label=side)
    axes.set_yticks(at, [r.kind for r in rows], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel(f"seconds of the step by kind of kernel ({unit})", fontsize=8, color=style.INK)
    axes.legend(loc="lower right", fontsize=7, frameon=False)
    style.bare(axes, keep=("bottom", "left"))
