"""Both timelines of a case in one picture: predicted above, measured below, over the same seconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from parasim.timeline import Timeline

from .judging import Verdict


def draw(verdict: Verdict, out: Path) -> None:
    """Write `out` (PNG)."""
    from matplotlib.image import imsave

    predicted, measured = verdict.predicted, verdict.measured.timeline
    longest = max(predicted.makespan, measured.makespan)
    parts = [_pixels(t, f"{verdict.case.name}, {what}", longest) for what, t in (("predicted", predicted), ("measured", measured))]
    width = max(p.shape[1] for p in parts)
    imsave(out, np.concatenate([np.pad(p, ((0, 0), (0, width - p.shape[1]), (0, 0)), constant_values=255) for p in parts]))


def _pixels(timeline: Timeline, title: str, longest: float) -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    from parasim.plots import gantt

    ranks = sorted({int(r) for r in timeline.representative})
    figure = gantt(timeline, ranks, title=title)
    axes = figure.axes[0]
    axes.set_xlim(0, axes.get_xlim()[1] * longest / timeline.makespan)
    canvas: Any = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())
