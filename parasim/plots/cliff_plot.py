"""cliff: what every further cut of a layer costs, as bars of lost throughput, and where the step goes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from ..report import Report
from . import style
from .rows import COLOURS, Row, as_rows, shares, used


def cliff(reports: Sequence[tuple[str, Report | Row]], title: str = "") -> Figure:
    """Above: throughput per device of each (name, report), relative to the first, with the loss from bar to bar. Below: shares of the step.

    Raises Refused for fewer than two.
    """
    names = [name for name, _ in reports]
    rows = as_rows([report for _, report in reports])
    rate = np.array([row["tokens_per_s_per_device"] for row in rows])
    relative = rate / rate[0]
    figure = style.new_figure(8.0, 5.5)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    places = np.arange(len(rows))
    above.bar(places, relative, color=COLOURS[0], width=0.65)
    for i, value in enumerate(relative):
        said = "" if i == 0 else f"\n{100 * (value / relative[i - 1] - 1):+.0f} %"
        above.annotate(f"{100 * value:.0f} %{said}", (i, value), xytext=(0, 3), textcoords="offset points", ha="center", fontsize=8, color=style.INK)
    above.set(ylim=(0, 1.25 * relative.max()), ylabel="throughput per device")
    above.set_yticks([0, 0.5, 1], ["0", "50 %", "100 %"])
    bottom = np.zeros(len(rows))
    for name, colour in used(rows):
        part = np.array([shares(row)[name] for row in rows])
        below.bar(places, part, bottom=bottom, color=colour, width=0.65, label=name)
        bottom = bottom + part
    below.set(ylim=(0, 1), ylabel="share of the step")
    below.set_yticks([0, 0.5, 1], ["0", "50 %", "100 %"])
    below.set_xticks(places, names)
    for axes in (above, below):
        style.bare(axes, keep=("bottom", "left"))
    style.title(above, title or "throughput per device, relative to the first")
    figure.legend(*below.get_legend_handles_labels(), loc="outside lower center", ncols=7, fontsize=8, frameon=False, handlelength=1.4)
    return figure
