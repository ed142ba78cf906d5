"""links: how busy each kind of link is over the step."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from ..errors import Refused
from ..report import link_series, link_use, step_window
from ..timeline import Timeline
from . import style

BINS = 400


def links(timeline: Timeline, title: str = "") -> Figure:
    """One band per link kind, busiest first: the use of its busiest link (fraction of bandwidth) in each of 400 equal parts of the timeline.

    Raises Refused for a timeline without flows (a measured one has none).
    """
    window = step_window(timeline)
    uses = link_use(timeline, window)
    if not uses:
        raise Refused("the timeline holds no flows: link use is known for simulated timelines of runs that communicate")
    scale, unit = style.time_unit(timeline.makespan)
    figure = style.new_figure(12.0, 0.8 + 0.9 * len(uses))
    panels = figure.subplots(len(uses), 1, sharex=True, sharey=True, squeeze=False).ravel()
    edges = np.linspace(0.0, timeline.makespan, BINS + 1)
    for axes, use in zip(panels, uses, strict=True):
        link = next(i for i, row in enumerate(timeline.links) if row[0] == use.busiest and row[1] == use.kind)
        axes.stairs(link_series(timeline, link, edges), edges / scale, fill=True, color="#0072B2", linewidth=0)
        axes.set_ylim(0, 1)
        axes.set_yticks([0, 1], ["0", "100 %"])
        style.bare(axes, keep=("bottom", "left"))
        axes.set_title(f"{use.kind}: {use.busiest}, mean {100 * use.busiest_mean:.1f} %", loc="left", fontsize=8.5, color=style.INK)
    panels[-1].set_xlim(0, timeline.makespan / scale or 1.0)
    panels[-1].set_xlabel(f"time ({unit})", fontsize=8, color=style.INK)
    figure.suptitle(title or "use of the busiest link of each kind", x=0.01, ha="left", fontsize=11, fontweight="bold", color=style.INK)
    return figure
