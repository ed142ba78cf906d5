"""compare: two timelines of one program, laid over each other op by op."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from io import StringIO
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from rich.text import Text

from .errors import Refused
from .program.ops import AXES
from .report import NAMES, RankTimes, Window, rank_times, step_window
from .report.keys import row_keys
from .report.labels import op_names
from .timeline import KINDS, Timeline
from .units import format_seconds

SCHEMA = "parasim.comparison/1"
WIDTH = 110
_NUMBERS = ("op", "kind", "axis", "stage", "layer", "microbatch", "step")


@dataclass(frozen=True)
class Part:
    """Mean seconds per rank in one state (compute, optimizer, exposed <axis>, idle). The parts of a side sum to its step."""

    name: str
    predicted: float
    measured: float


@dataclass(frozen=True)
class Group:
    """All ops of one kind, axis and phase: how many (over all ranks) and their mean duration in seconds on each side."""

    kind: str
    axis: str
    phase: str
    ops: int
    predicted: float
    measured: float

    @property
    def error(self) -> float | None:
        """predicted / measured - 1; None where nothing was measured."""
        return _error(self.predicted, self.measured)


@dataclass(frozen=True)
class Starts:
    """Differences of start times in seconds, predicted - measured, each since the start of its own step. `worst` names the op of the largest."""

    bias: float
    mean: float
    largest: float
    worst: str


@dataclass(frozen=True)
class Comparison:
    """Errors are signed: above zero the prediction is too slow."""

    predicted_step: float
    measured_step: float
    parts: tuple[Part, ...]
    groups: tuple[Group, ...]
    starts: Starts

    @property
    def step_error(self) -> float | None:
        """predicted / measured - 1."""
        return _error(self.predicted_step, self.measured_step)

    def to_json(self) -> dict[str, Any]:
        """`parasim.comparison/1`. The `error_share`s of the parts are fractions of the measured step and sum to step_error."""
        step = self.measured_step
        return {
            "schema": SCHEMA,
            "predicted_step_s": self.predicted_step,
            "measured_step_s": step,
            "step_error": self.step_error,
            "parts": [
                {
                    "part": p.name,
                    "predicted_s": p.predicted,
                    "measured_s": p.measured,
                    "error_share": (p.predicted - p.measured) / step if step else None,
                }
                for p in self.parts
            ],
            "ops": [
                {
                    "kind": g.kind,
                    "axis": g.axis or None,
                    "phase": g.phase,
                    "ops": g.ops,
                    "predicted_s": g.predicted,
                    "measured_s": g.measured,
                    "error": g.error,
                }
                for g in self.groups
            ],
            "starts": {
                "bias_s": self.starts.bias,
                "mean_s": self.starts.mean,
                "max_s": self.starts.largest,
                "mean_over_step": self.starts.mean / step if step else None,
                "max_over_step": self.starts.largest / step if step else None,
                "worst": self.starts.worst,
            },
        }

    def render(self, console: Console) -> None:
        """Print it as tables."""
        step = f"step: predicted {format_seconds(self.predicted_step)}, measured {format_seconds(self.measured_step)}"
        console.print(Text(f"{step}, error {_signed(self.step_error)}", style="bold"))
        console.print()
        parts = _table("where the error comes from (mean rank)", "part", "predicted", "measured", "of the step")
        for p in self.parts:
            share = (p.predicted - p.measured) / self.measured_step if self.measured_step else None
            parts.add_row(p.name, format_seconds(p.predicted), format_seconds(p.measured), _signed(share))
        console.print(parts)
        console.print()
        ops = _table("durations (mean op)", "ops", "count", "predicted", "measured", "error")
        for g in self.groups:
            name = " ".join(w for w in (g.kind, g.axis, g.phase) if w)
            ops.add_row(name, f"{g.ops:,}", format_seconds(g.predicted), format_seconds(g.measured), _signed(g.error))
        console.print(ops)
        console.print()
        s = self.starts
        console.print(f"starts differ by {format_seconds(s.mean)} on average, by {format_seconds(s.largest)} at most ({s.worst})")

    def __str__(self) -> str:
        out = StringIO()
        self.render(Console(file=out, width=WIDTH, color_system=None, highlight=False))
        return "\n".join(line.rstrip() for line in out.getvalue().rstrip().splitlines())


def compare(predicted: Timeline, measured: Timeline) -> Comparison:
    """Lay the last step of two timelines over each other, op by op (same rank, same op number).

    A rank that one side folded is compared through its representative. Raises Refused when the worlds or the ops differ, naming the first
    difference.
    """
    windows = step_window(predicted), step_window(measured)
    pairs = list(_pairs(predicted, measured))
    for pair in pairs:
        _check(predicted, measured, pair)
    rows = np.concatenate([p for _, p, _ in pairs]), np.concatenate([m for _, _, m in pairs])
    weights = np.concatenate([np.full(len(p), count, dtype=np.float64) for (_, count), p, _ in pairs])
    last = predicted.ops["step"][rows[0]] == windows[0].step
    ops = predicted.ops[rows[0][last]], measured.ops[rows[1][last]]
    return Comparison(
        predicted_step=windows[0].length,
        measured_step=windows[1].length,
        parts=_parts(predicted, measured, windows),
        groups=_groups(predicted, ops[0], ops[1], weights[last]),
        starts=_starts(predicted, rows[0][last], ops[1], weights[last], windows),
    )


_Pair = tuple[tuple[int, int], NDArray[np.int64], NDArray[np.int64]]  # (a rank, how many ranks like it), its rows on each side


def _pairs(predicted: Timeline, measured: Timeline) -> Iterator[_Pair]:
    """One entry per distinct pair of representatives."""
    worlds = len(predicted.representative), len(measured.representative)
    if worlds[0] != worlds[1]:
        raise Refused(f"the timelines differ in ranks: predicted has {worlds[0]}, measured has {worlds[1]}; compare runs of the same layout")
    both = np.stack((predicted.representative, measured.representative), axis=1)
    distinct, first, counts = np.unique(both, axis=0, return_index=True, return_counts=True)
    for i in np.argsort(first):
        yield (int(first[i]), int(counts[i])), _rows(predicted, distinct[i, 0]), _rows(measured, distinct[i, 1])


def _rows(timeline: Timeline, rank: int) -> NDArray[np.int64]:
    low, high = np.searchsorted(timeline.ops["rank"], rank, "left"), np.searchsorted(timeline.ops["rank"], rank, "right")
    return np.arange(low, high)


def _check(predicted: Timeline, measured: Timeline, pair: _Pair) -> None:
    """Refuse unless both sides hold the same ops."""
    (rank, _), p, m = pair
    n = min(len(p), len(m))
    a, b = predicted.ops[p[:n]], measured.ops[m[:n]]
    differ = np.zeros(n, dtype=bool)
    for name in _NUMBERS:
        differ |= a[name] != b[name]
    for field, ours, theirs in (("stream", predicted.streams, measured.streams), ("phase", predicted.phases, measured.phases)):
        differ |= np.array(ours, dtype=object)[a[field]] != np.array(theirs, dtype=object)[b[field]]
    if not differ.any() and len(p) == len(m):
        return
    at = int(np.argmax(differ)) if differ.any() else n
    texts = _describe(predicted, p, at), _describe(measured, m, at)
    raise Refused(f"the timelines are of different programs: rank {rank}, op {at}: predicted {texts[0]}, measured {texts[1]}")


def _describe(timeline: Timeline, rows: NDArray[np.int64], at: int) -> str:
    if at >= len(rows):
        return f"has no more ops ({len(rows)} in all)"
    op = timeline.ops[rows[at]]
    stage = f", stage {op['stage']}" if op["stage"] >= 0 else ""
    return f"has {op_names(timeline)[int(rows[at])]} (step {op['step']}{stage}) on stream {timeline.streams[op['stream']]}"


def _parts(predicted: Timeline, measured: Timeline, windows: tuple[Window, Window]) -> tuple[Part, ...]:
    means = [_means(t, rank_times(t, w)) for t, w in zip((predicted, measured), windows, strict=True)]
    used = [n for n in means[0] if not n.startswith("exposed ") or means[0][n] or means[1][n]]
    return tuple(Part(name, means[0][name], means[1][name]) for name in used)


def _means(timeline: Timeline, times: Mapping[int, RankTimes]) -> dict[str, float]:
    counts = timeline.multiplicity
    weights = np.array([counts.get(r, 0) for r in times], dtype=np.float64) / len(timeline.representative)
    accounts = list(times.values())
    exposed = weights @ np.array([t.exposed for t in accounts])
    return {
        "compute": float(weights @ [t.compute - t.optimizer for t in accounts]),
        "optimizer": float(weights @ [t.optimizer for t in accounts]),
        **{f"exposed {name}": float(x) for name, x in zip(NAMES, exposed, strict=True)},
        "idle": float(weights @ [t.idle for t in accounts]),
    }


def _groups(timeline: Timeline, ours: NDArray[Any], theirs: NDArray[Any], weights: NDArray[np.float64]) -> tuple[Group, ...]:
    """Mean durations per kind, axis and phase, longest in all first."""
    _, first, index = np.unique(row_keys(ours, ("kind", "axis", "phase")), return_index=True, return_inverse=True)
    count = np.bincount(index, weights=weights)
    sums = [np.bincount(index, weights=weights * (rows["end"] - rows["start"])) for rows in (ours, theirs)]
    out = [
        Group(
            kind=KINDS[row["kind"]],
            axis=AXES[row["axis"]] if row["axis"] >= 0 else "",
            phase=timeline.phases[row["phase"]],
            ops=round(float(count[i])),
            predicted=float(sums[0][i] / count[i]),
            measured=float(sums[1][i] / count[i]),
        )
        for i, row in enumerate(ours[first])
    ]
    return tuple(sorted(out, key=lambda g: -g.ops * max(g.predicted, g.measured)))


def _starts(timeline: Timeline, rows: NDArray[np.int64], theirs: NDArray[Any], weights: NDArray[np.float64], windows: tuple[Window, Window]) -> Starts:
    ours = timeline.ops[rows]
    differences = (ours["start"] - windows[0].start) - (theirs["start"] - windows[1].start)
    at = int(np.argmax(np.abs(differences)))
    return Starts(
        bias=float(np.average(differences, weights=weights)),
        mean=float(np.average(np.abs(differences), weights=weights)),
        largest=float(np.abs(differences[at])),
        worst=f"rank {theirs['rank'][at]}, {op_names(timeline)[int(rows[at])]}",
    )


def _error(predicted: float, measured: float) -> float | None:
    return predicted / measured - 1.0 if measured else None


def _signed(x: float | None) -> str:
    return "-" if x is None else f"{100 * x:+.1f} %"


def _table(title: str, *columns: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), title=title, title_justify="left", title_style="bold")
    for i, column in enumerate(columns):
        table.add_column(column, justify="left" if i == 0 else "right")
    return table
