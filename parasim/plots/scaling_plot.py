"""scaling: throughput over devices against the straight line, and where the step goes on the way."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from ..report import Report
from . import style
from .rows import COLOURS, Row, as_rows, shares, used


def scaling(reports: Sequence[Report | Row], title: str = "") -> Figure:
    """Above: tokens/s over devices, and the ideal line through the smallest run. Below: compute, exposed communication by axis, and idle as shares.

    `reports`: Reports, or `parasim.report/1` objects, of runs on different numbers of devices. Raises Refused for fewer than two.
    """
    rows = sorted(as_rows(reports), key=lambda row: row["world_size"])
    devices = np.array([row["world_size"] for row in rows])
    rate = np.array([row["tokens_per_s"] for row in rows])
    figure = style.new_figure(8.0, 6.0)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    above.plot(devices, rate[0] * devices / devices[0], color=style.MUTED, linewidth=1.0, linestyle=(0, (4, 3)), label="ideal")
    above.plot(devices, rate, color=COLOURS[0], marker="o", markersize=4, label="predicted")
    for x, y, ideal in zip(devices, rate, rate[0] * devices / devices[0], strict=True):
        above.annotate(f"{100 * y / ideal:.0f} %", (x, y), xytext=(4, -11), textcoords="offset points", fontsize=7, color=style.INK)
    above.set(xscale="log", yscale="log", ylabel="tokens/s")
    above.legend(fontsize=8, frameon=False)
    bottom = np.zeros(len(rows))
    for name, colour in used(rows):
        part = np.array([shares(row)[name] for row in rows])
        below.fill_between(devices, bottom, bottom + part, color=colour, linewidth=0, label=name)
        bottom = bottom + part
    below.set(ylim=(0, 1), ylabel="share of the step", xlabel="devices")
    below.set_yticks([0, 0.5, 1], ["0", "50 %", "100 %"])
    below.set_xticks(devices, [f"{n:,}" for n in devices])
    below.minorticks_off()
    for axes in (above, below):
        style.bare(axes, keep=("bottom", "left"))
    style.title(above, title or f"{rows[0].get('name', '')}: scaling to {devices[-1]:,} devices".removeprefix(": "))
    figure.legend(*below.get_legend_handles_labels(), loc="outside lower center", ncols=7, fontsize=8, frameon=False, handlelength=1.4)
    return figure
