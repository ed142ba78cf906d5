"""gantt: ranks by time, laid out by the times of the Timeline, never by slots of the schedule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.image import PcolorImage
from matplotlib.patches import Patch
from matplotlib.path import Path
from numpy.typing import NDArray

from ..errors import Malformed
from ..program.ops import COMPUTE as COMPUTE_STREAM
from ..report import NAMES, step_window
from ..report.accounting import gap_columns
from ..report.keys import row_keys
from ..report.lanes import lane_of, rank_per_stage, runs
from ..timeline import COMPUTE, OPS, Timeline
from ..units import format_seconds
from . import style

WIDTH = 14.0  # inches
ABOVE, BELOW = 0.62, 0.78  # room for the title, and for the scale and the legend
MAIN = 0.36  # height of the compute lane, in inches, as all heights
LANE = 0.085  # of the lane of another stream
SPACE = 0.13  # between ranks
TALLEST = 30.0  # the whole picture; more ranks get less each
OUTLINE = 0.4  # points
STRIP = 0.35  # of a box, for the transfers that interrupt it
DENSE = 4000  # boxes of one look beyond which they are drawn as strips: what share of each of COLUMNS moments they cover
COLUMNS = 1600  # about one per pixel
MOST_NUMBERS = 3000
MOST_LANE_NAMES = 12  # ranks
MERGED = 200  # rectangles per path: agg still snaps a path of 1024 points to pixels
POINTS = 6.5  # size of the numbers in the boxes
DRAWN = ("kind", "stream", "phase", "axis", "stage", "microbatch", "step", "start", "end")

Columns = Mapping[str, NDArray[Any]]


def gantt(timeline: Timeline, ranks: Sequence[int] | None = None, title: str = "") -> Figure:
    """A row per rank (default: the lowest kept rank of each stage): its compute stream, under it a thin lane per kind of transfer.

    Boxes hold the microbatch where it fits. Grey: idle; pale: blocked by a transfer in flight, in the tint of its axis. The line under
    the title gives the durations of the ops. Raises Malformed for a rank that is not in the timeline, Refused for one without ops.
    """
    window = step_window(timeline)
    shown = {r: _ops(timeline, r) for r in (rank_per_stage(timeline) if ranks is None else _checked(timeline, ranks))}
    scale, unit = style.time_unit(timeline.makespan)
    lanes = _lanes(timeline, shown)
    pitch = MAIN + LANE * len(lanes) + SPACE
    tops = [pitch * i for i in range(len(shown))]
    figure = style.new_figure(WIDTH, min(ABOVE + BELOW + pitch * len(shown), TALLEST), constrained=False)
    axes = figure.add_subplot()
    bars = _Bars(scale, timeline.makespan / scale or 1.0)
    for top, (rank, ops) in zip(tops, shown.items(), strict=True):
        _draw_rank(timeline, rank, ops, top, lanes, bars)
    bars.draw(axes)
    axes.set_xlim(0, timeline.makespan / scale or 1.0)
    axes.set_ylim(pitch * len(shown) - SPACE / 2, -SPACE / 2)
    _number(timeline, shown, tops, axes, scale)
    names = _names(shown)
    axes.set_yticks(np.array(tops) + MAIN / 2, names)
    style.bare(axes)
    axes.tick_params(axis="y", length=0)
    named = lanes if len(tops) <= MOST_LANE_NAMES else []
    _label_lanes(named, tops, axes)
    axes.set_xlabel(f"time ({unit})", fontsize=8, color=style.INK)
    if window.start > 0:
        axes.axvline(window.start / scale, color=style.INK, linewidth=0.8, linestyle=(0, (4, 3)))
    style.title(axes, f"{title or 'one step'}: {format_seconds(window.length)}", _caption(timeline))
    _legend(figure, bars)
    left = 0.15 + style.width((line for name in names for line in name.split("\n")), 8)
    style.margins(figure, left=left, right=0.15 + style.width(named, 5), top=ABOVE, bottom=BELOW)
    return figure


def _checked(timeline: Timeline, ranks: Sequence[int]) -> list[int]:
    world = len(timeline.representative)
    wrong = [r for r in ranks if not 0 <= r < world]
    if wrong or not ranks:
        raise Malformed(f"ranks={list(ranks)}: name at least one rank, each of 0 to {world - 1}")
    return [int(r) for r in ranks]


def _ops(timeline: Timeline, rank: int) -> Columns:
    """What is drawn of the ops of a rank."""
    part = timeline.part(rank)
    return {name: np.zeros(0, dtype=OPS[name]) if part is None else part[name] for name in DRAWN}


def _of(ops: Columns, rows: NDArray[Any]) -> Columns:
    """Some of its rows, by a mask."""
    chosen = np.flatnonzero(rows)
    return {name: column[chosen] for name, column in ops.items()}


def _lanes(timeline: Timeline, shown: Mapping[int, Columns]) -> list[str]:
    """Kinds of streams beside the compute stream: `pp.send` holds every channel of `pp.send.*`."""
    used = np.flatnonzero(np.bincount(np.concatenate([ops["stream"] for ops in shown.values()])))
    return sorted({lane_of(timeline.streams[s]) for s in used} - {COMPUTE_STREAM})


@dataclass(frozen=True)
class _Style:
    """One entry of the legend: bars of one look."""

    name: str
    colour: str


IDLE = _Style("idle", style.IDLE_COLOUR)


class _Bars:
    """Collects rectangles by look and draws each look as one collection."""

    def __init__(self, scale: float, until: float) -> None:
        self.scale, self.until = scale, until
        self.boxes: dict[tuple[_Style, str], list[NDArray[np.float64]]] = {}

    def add(self, look: _Style, starts: Any, ends: Any, top: float, height: float, outline: str = "white") -> None:
        """Rectangles from `starts` to `ends` (seconds), from `top` down; with an empty outline they cover no more than their seconds."""
        if len(starts):
            box = np.empty((len(starts), 4))
            box[:, 0], box[:, 1], box[:, 2], box[:, 3] = np.asarray(starts) / self.scale, np.asarray(ends) / self.scale, top, top + height
            self.boxes.setdefault((look, outline), []).append(box)

    def draw(self, axes: Axes) -> None:
        """Add them to `axes`, those of few boxes as collections and those of many as strips."""
        strips: list[Strip] = []
        for (look, outline), parts in self.boxes.items():
            if sum(map(len, parts)) >= DENSE:
                strips += self._strips(look, parts)
            else:
                boxes = _outlines(np.concatenate(parts))
                width, snap = (OUTLINE, None) if outline else (0.0, False)
                collection = PathCollection(boxes, facecolors=look.colour, edgecolors=outline or "none", linewidths=width, snap=snap)
                axes.add_collection(collection, autolim=False)
        if strips:
            axes.add_image(_image(axes, self.until, strips))

    def _strips(self, look: _Style, parts: list[NDArray[np.float64]]) -> list[Strip]:
        """One for each lane, as opaque at every moment as the share of it that is covered."""
        lanes: dict[tuple[float, float], list[NDArray[np.float64]]] = {}
        for part in parts:
            lanes.setdefault((part[0, 2], part[0, 3]), []).append(part[:, :2])
        spans = {lane: np.concatenate(found).T / self.until for lane, found in lanes.items()}
        return [Strip(top, bottom, to_rgb(look.colour), covered(starts, ends, COLUMNS)) for (top, bottom), (starts, ends) in spans.items()]


class Strip(NamedTuple):
    """A lane from `top` down to `bottom` in one colour, with its opacity at each of COLUMNS moments."""

    top: float
    bottom: float
    colour: tuple[float, float, float]
    opacity: NDArray[np.float64]


def _image(axes: Axes, until: float, strips: Sequence[Strip]) -> PcolorImage:
    """Strips from 0 to `until`, later ones over earlier ones: one image, whose rows are as high as the lanes."""
    edges = np.unique([edge for strip in strips for edge in (strip.top, strip.bottom)])
    colour, opacity = np.zeros((len(edges) - 1, COLUMNS, 3)), np.zeros((len(edges) - 1, COLUMNS, 1))
    for strip in strips:
        rows = slice(*np.searchsorted(edges, (strip.top, strip.bottom)))
        over, under = strip.opacity[:, None], opacity[rows] * (1 - strip.opacity[:, None])
        whole = over + under
        colour[rows] = (colour[rows] * under + np.array(strip.colour) * over) / np.where(whole > 0, whole, 1.0)
        opacity[rows] = whole
    pixels = np.rint(255 * np.concatenate((colour, opacity), axis=2)).astype(np.uint8)
    return PcolorImage(axes, np.linspace(0.0, until, COLUMNS + 1), edges, pixels, zorder=1)


def covered(starts: NDArray[np.float64], ends: NDArray[np.float64], columns: int) -> NDArray[np.float64]:
    """The share of each of `columns` equal parts of [0, 1] that the intervals from `starts` to `ends` cover, if no two of them overlap; float[columns]."""
    grid = np.arange(columns + 1) / columns
    passed = np.zeros(columns + 1)
    for edges, sign in ((np.sort(starts), 1.0), (np.sort(ends), -1.0)):
        before = np.searchsorted(edges, grid)
        passed += sign * (before * grid - np.concatenate([[0.0], np.cumsum(edges)])[before])
    return np.clip(np.diff(passed) * columns, 0.0, 1.0)


def _outlines(box: NDArray[np.float64]) -> list[Path]:
    """Rectangles (x0, x1, y0, y1) as paths of up to MERGED rectangles each: drawn far faster than one path per rectangle."""
    x0, x1, y0, y1 = box.T
    corners = np.stack((np.stack((x0, x1, x1, x0, x0), 1), np.stack((y0, y0, y1, y1, y0), 1)), axis=2)
    codes = np.array([Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY], dtype=Path.code_type)
    pieces = (corners[i : i + MERGED] for i in range(0, len(corners), MERGED))
    return [Path(piece.reshape(-1, 2), np.tile(codes, len(piece))) for piece in pieces]


def _draw_rank(timeline: Timeline, rank: int, ops: Columns, top: float, lanes: list[str], bars: _Bars) -> None:
    main = ops["stream"] == (timeline.streams.index(COMPUTE_STREAM) if COMPUTE_STREAM in timeline.streams else -1)
    _draw_gaps(timeline, rank, top, bars)
    _draw_compute(timeline, _of(ops, main), top, bars)
    places = {lane: k for k, lane in enumerate(lanes)}
    place = np.array([places.get(lane_of(name), -1) for name in timeline.streams])
    for look, rows in _transfers(_of(ops, ~main)):
        lane = place[rows["stream"]]
        for k in np.unique(lane):
            bars.add(look, rows["start"][lane == k], rows["end"][lane == k], top + MAIN + LANE * (k + 0.15), 0.85 * LANE, look.colour)


def _draw_compute(timeline: Timeline, queue: Columns, top: float, bars: _Bars) -> None:
    """Runs of the compute stream that work on one microbatch without a gap are one box; transfers inside a run are a strip at its foot."""
    if not len(queue["start"]):
        return
    first, starts, ends, computes, run = runs(queue)
    phases = queue["phase"][first]
    for phase in np.unique(phases[computes]):
        mine = computes & (phases == phase)
        bars.add(_phase(timeline.phases[phase]), starts[mine], ends[mine], top, MAIN)
    for look, rows, inside in _transfers(queue, computes[run]):
        bars.add(look, rows["start"][inside], rows["end"][inside], top + (1 - STRIP) * MAIN, STRIP * MAIN, "")
        bars.add(look, rows["start"][~inside], rows["end"][~inside], top, MAIN)


def _draw_gaps(timeline: Timeline, rank: int, top: float, bars: _Bars) -> None:
    gaps = gap_columns(timeline, rank)
    for cause in np.flatnonzero(np.bincount(gaps.cause)).tolist():
        starts, ends = gaps.start[gaps.cause == cause], gaps.end[gaps.cause == cause]
        waits = _Style(f"waits for {NAMES[cause]}", style.tint(style.AXIS_COLOURS[NAMES[cause]])) if cause < len(NAMES) else IDLE
        bars.add(waits, starts, ends, top, MAIN)


def _phase(name: str) -> _Style:
    return _Style(style.PHASE_NAMES.get(name, name), style.PHASE_COLOURS.get(name, style.OTHER_COLOUR))


def _transfers(ops: Columns, *columns: NDArray[np.bool_]) -> list[Any]:
    """(look, rows, their entries in `columns`) of the transfers of each axis."""
    transfer = ops["kind"] != COMPUTE
    chosen = [(axis, transfer & (ops["axis"] == axis)) for axis in (np.flatnonzero(np.bincount(ops["axis"] + np.int8(1))) - 1).tolist()]
    looks = [(_Style(f"{NAMES[axis]} transfer", style.AXIS_COLOURS[NAMES[axis]]), mine) for axis, mine in chosen]
    return [(look, _of(ops, mine), *(c[mine] for c in columns)) for look, mine in looks]


def _number(timeline: Timeline, shown: Mapping[int, Columns], tops: Sequence[float], axes: Axes, scale: float) -> None:
    """The microbatch in the middle of its work, where the box is wide enough for the digits."""
    inch = (timeline.makespan / scale or 1.0) / (0.9 * WIDTH)
    placed = []
    main = timeline.streams.index(COMPUTE_STREAM) if COMPUTE_STREAM in timeline.streams else -1
    for top, ops in zip(tops, shown.values(), strict=True):
        foot = STRIP if ((ops["stream"] == main) & (ops["kind"] != COMPUTE)).any() else 0.0
        ops = _of(ops, (ops["kind"] == COMPUTE) & (ops["microbatch"] >= 0))
        if not len(ops["start"]):
            continue
        key = row_keys(ops, ("step", "phase", "stage", "microbatch"))
        first = np.flatnonzero(np.append(True, key[1:] != key[:-1]))
        starts, ends = ops["start"][first] / scale, np.maximum.reduceat(ops["end"], first) / scale
        wide = ends - starts >= (0.64 + 0.2) * POINTS / 72 * inch
        for a, b, i in zip(starts[wide].tolist(), ends[wide].tolist(), first[wide].tolist(), strict=True):
            text = str(ops["microbatch"][i])
            if b - a >= (0.64 * len(text) + 0.2) * POINTS / 72 * inch:
                placed.append(((a + b) / 2, top + MAIN * (1 - foot) / 2, text, timeline.phases[ops["phase"][i]]))
    for x, y, text, phase in placed if len(placed) <= MOST_NUMBERS else ():
        ink = "white" if style.dark(style.PHASE_COLOURS.get(phase, style.OTHER_COLOUR)) else style.INK
        axes.text(x, y, text, ha="center", va="center_baseline", fontsize=POINTS, color=ink, clip_on=True)


def _names(shown: Mapping[int, Columns]) -> list[str]:
    """Every rank and its stages."""
    stages = {rank: np.flatnonzero(np.bincount(ops["stage"] + 1)[1:]).tolist() for rank, ops in shown.items()}
    return [f"rank {rank}" + (f"\nstage {', '.join(map(str, held))}" if held else "") for rank, held in stages.items()]


def _label_lanes(lanes: list[str], tops: Sequence[float], axes: Axes) -> None:
    """Names of the thin lanes, small, at the right edge."""
    for top in tops:
        for k, lane in enumerate(lanes):
            at = (1.0, top + MAIN + LANE * (k + 0.58))
            axes.annotate(lane, at, xytext=(4, 0), xycoords=axes.get_yaxis_transform(), textcoords="offset points", fontsize=5, va="center", color=style.MUTED)


def _caption(timeline: Timeline) -> str:
    """Durations: compute per microbatch (per step for work of no microbatch) of a rank's stage, transfers each; a range where they differ."""
    phases: dict[int, list[float]] = {}
    axes: dict[int, list[float]] = {}
    for part in timeline.parts:
        columns = {name: part[name] for name in ("phase", "step", "stage", "microbatch")}
        length, computes = part.end - part.start, part["kind"] == COMPUTE
        for phase in np.unique(columns["phase"][computes]).tolist():
            mine = computes & (columns["phase"] == phase)
            rows = {name: columns[name][mine] for name in ("step", "stage", "microbatch")}
            _, index = np.unique(row_keys(rows, tuple(rows)), return_inverse=True)
            _widen(phases, phase, np.bincount(index, weights=length[mine]).astype(np.float64))
        for axis in np.unique(part["axis"][~computes]).tolist():
            _widen(axes, axis, length[~computes & (part["axis"] == axis)])
    order = [timeline.phases.index(p) for p in dict.fromkeys([*(p for p in style.PHASE_COLOURS if p in timeline.phases), *timeline.phases])]
    words = [f"{timeline.phases[phase]} {_range(phases[phase])}" for phase in order if phase in phases]
    words += [f"{NAMES[axis]} transfer {_range(axes[axis])}" for axis in sorted(axes)]
    return "per stage and microbatch:  " + "  ·  ".join(words)


def _widen(ranges: dict[int, list[float]], key: int, values: NDArray[np.float64]) -> None:
    """Take the smallest and the largest of `values` into the range of `key`."""
    ranges[key] = [min([*ranges.get(key, []), float(values.min())]), max([*ranges.get(key, []), float(values.max())])]


def _range(ends: Sequence[float]) -> str:
    low, high = (format_seconds(float(f"{end:.3g}")) for end in (min(ends), max(ends)))
    return low if low == high else f"{low} to {high}"


def _legend(figure: Figure, bars: _Bars) -> None:
    order = [*style.PHASE_NAMES.values()]
    looks = sorted({look for look, _ in bars.boxes}, key=lambda s: (order.index(s.name) if s.name in order else len(order), s == IDLE, s.name))
    handles = [Patch(facecolor=s.colour, label=s.name) for s in looks]
    columns = min(len(handles), 11)
    figure.legend(handles=handles, loc="lower center", ncols=columns, fontsize=8, frameon=False, handlelength=1.4, columnspacing=1.6)
