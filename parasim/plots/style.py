"""What all pictures share: the colours of `palette`, axes in a readable unit, figures without global state."""

from __future__ import annotations

from collections.abc import Iterable

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .palette import AXIS_COLOURS as AXIS_COLOURS
from .palette import CATEGORY_COLOURS as CATEGORY_COLOURS
from .palette import IDLE_COLOUR as IDLE_COLOUR
from .palette import INK as INK
from .palette import LINK_COLOURS as LINK_COLOURS
from .palette import MUTED as MUTED
from .palette import OTHER_COLOUR as OTHER_COLOUR
from .palette import PHASE_COLOURS as PHASE_COLOURS
from .palette import PHASE_NAMES as PHASE_NAMES

_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))


def new_figure(width: float, height: float, *, constrained: bool = True) -> Figure:
    """A figure of the given inches; save it with `savefig` (png, svg, pdf). Without constrained layout give it `margins`."""
    return Figure(figsize=(width, height), layout="constrained" if constrained else None, facecolor="white")


def margins(figure: Figure, *, left: float, right: float, top: float, bottom: float, hspace: float = 0.35, wspace: float = 0.04) -> None:
    """Fixed margins in inches instead of a constrained layout, which measures every text twice."""
    width, height = figure.get_size_inches()
    figure.subplots_adjust(left=left / width, right=1 - right / width, top=1 - top / height, bottom=bottom / height, hspace=hspace, wspace=wspace)


def width(lines: Iterable[str], points: float) -> float:
    """Inches that the longest of some lines of text takes, about: letters are some 0.57 of their size wide."""
    return max(map(len, lines), default=0) * 0.57 * points / 72


def time_unit(seconds: float) -> tuple[float, str]:
    """(seconds per unit, name) of the unit in which `seconds` is a number of 2 to 2000."""
    return next(((f, name) for f, name in _UNITS if seconds >= 2 * f), _UNITS[0] if seconds == 0 else _UNITS[-1])


def bare(axes: Axes, *, keep: tuple[str, ...] = ("bottom",)) -> None:
    """No frame but the named sides; ticks and labels muted."""
    for side, spine in axes.spines.items():
        spine.set_visible(side in keep)
        spine.set_color(MUTED)
    axes.tick_params(colors=INK, labelsize=8, length=3)


def title(axes: Axes, text: str, detail: str = "") -> None:
    """A bold title at the left, and a muted line of detail under it."""
    axes.set_title(text, loc="left", y=1.0, fontsize=11, fontweight="bold", color=INK, pad=20 if detail else 6)
    if detail:
        axes.annotate(detail, (0, 1), xytext=(0, 6), xycoords="axes fraction", textcoords="offset points", fontsize=8, color=MUTED)


def dark(colour: str) -> bool:
    """Whether white text reads better on it."""
    r, g, b = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return 0.299 * r + 0.587 * g + 0.114 * b < 140


def tint(colour: str, share: float = 0.35) -> str:
    """The colour mixed with white."""
    channels = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(share * c + (1 - share) * 255):02X}" for c in channels)
