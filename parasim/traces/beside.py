"""A traced step beside a predicted one: seconds by kind of kernel and by collective, what is exposed, what is idle, the step.

A trace and a Program name their kernels differently, so that they are compared by what they do, not op by op.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from io import StringIO
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..comparison import WIDTH
from ..cost.pricing import PRICES
from ..program.ops import P2P, Collective, Compute
from ..report import rank_times, step_window
from ..timeline import FIXED, FLOWS, NO_LIVES, OPS, Part, Script, Timeline
from ..timeline import KINDS as OP_KINDS
from ..units import format_seconds
from .kinds import WORDS
from .kineto import Activity, Traced
from .shares import Simulated

SCHEMA = "parasim.beside/1"
MESSAGES = "messages"
COMPUTE_STREAM = "compute"
STATES = ("compute", "exposed communication", "idle")


@dataclass(frozen=True)
class Row:
    """Seconds of one rank and step in kernels of a kind, or in calls of a collective; `calls` on each side."""

    kind: str
    predicted: float
    measured: float
    predicted_calls: int
    measured_calls: int

    @property
    def error(self) -> float | None:
        """predicted / measured - 1; None where nothing was measured."""
        return self.predicted / self.measured - 1.0 if self.measured else None


@dataclass(frozen=True)
class Beside:
    """Errors are signed: above zero the prediction is too slow. The `states` of a side sum to its step."""

    trace: str
    rank: int
    predicted_step: float
    measured_step: float
    states: tuple[Row, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """`parasim.beside/1`."""
        step = Row("step", self.predicted_step, self.measured_step, 1, 1)
        return {
            "schema": SCHEMA,
            "trace": self.trace,
            "rank": self.rank,
            "predicted_step_s": self.predicted_step,
            "measured_step_s": self.measured_step,
            "step_error": step.error,
            "states": [{"state": r.kind, "predicted_s": r.predicted, "measured_s": r.measured, "error": r.error} for r in self.states],
            "kinds": [
                {
                    "kind": r.kind,
                    "predicted_s": r.predicted,
                    "measured_s": r.measured,
                    "error": r.error,
                    "predicted_calls": r.predicted_calls,
                    "measured_calls": r.measured_calls,
                }
                for r in self.rows
            ],
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        out = StringIO()
        console = Console(file=out, width=WIDTH, color_system=None, highlight=False)
        step = Row("step", self.predicted_step, self.measured_step, 1, 1)
        said = f"step of rank {self.rank}: predicted {format_seconds(step.predicted)}, measured {format_seconds(step.measured)}, error {_signed(step.error)}"
        console.print(Text(said, style="bold"))
        for title, rows in (("where the step goes", self.states), ("by kind of kernel", self.rows)):
            table = Table(box=None, padding=(0, 2, 0, 0), title=title, title_justify="left", title_style="bold")
            for i, column in enumerate(("", "predicted", "measured", "error", *(("calls", "measured calls") if rows is self.rows else ()))):
                table.add_column(column, justify="right" if i else "left")
            for r in rows:
                calls = (f"{r.predicted_calls:,}", f"{r.measured_calls:,}") if rows is self.rows else ()
                table.add_row(r.kind, format_seconds(r.predicted), format_seconds(r.measured), _signed(r.error), *calls)
            console.print()
            console.print(table)
        lines = [line.rstrip() for line in out.getvalue().rstrip().splitlines()]
        return "\n".join([*lines, *(["", *(f"note: {n}" for n in self.notes)] if self.notes else [])])


def _signed(x: float | None) -> str:
    return "-" if x is None else f"{100 * x:+.1f} %"


def lay_beside(run: Simulated, traced: Traced) -> Beside:
    """The last simulated step of the rank that the trace is of (rank 0 where the run has fewer) beside the traced step of median length."""
    world = run.workload.world
    rank = traced.rank if traced.rank < world else 0
    ours, theirs = _predicted(run, rank), _measured(traced)
    names = sorted({*ours, *theirs}, key=lambda n: -max(ours.get(n, (0.0, 0))[0], theirs.get(n, (0.0, 0))[0]))
    pairs = [(name, ours.get(name, (0.0, 0)), theirs.get(name, (0.0, 0))) for name in names]
    rows = [Row(name, a[0], b[0], a[1], b[1]) for name, a, b in pairs]
    window = step_window(run.timeline)
    times = rank_times(run.timeline, window)[run.part(rank).rank]
    predicted = (times.compute, float(times.exposed.sum()), times.idle)
    measured = _states(traced)
    states = tuple(Row(name, a, b, 0, 0) for name, a, b in zip(STATES, predicted, measured, strict=True))
    low, high = traced.step
    return Beside(traced.name, rank, window.length, high - low, states, tuple(rows), tuple(_notes(run, traced, rank)))


def _notes(run: Simulated, traced: Traced, rank: int) -> Iterable[str]:
    steps = len(traced.steps)
    yield f"{steps} steps are marked in the trace; the one of median length counts" if steps else "the trace marks no step (profiler.step()): all of it counts"
    if rank != traced.rank:
        yield f"the trace is of rank {traced.rank}, the run has {run.workload.world}: rank 0 stands beside it"
    if not traced.on_gpu:
        yield "the trace is of a processor: ops of torch stand for kernels, what lies between them counts as idle"


def _predicted(run: Simulated, rank: int) -> dict[str, tuple[float, int]]:
    """Seconds and calls by kind in the last step of a rank."""
    resolved, part = run.workload.program_of(rank).resolved, run.part(rank)
    out: dict[str, tuple[float, int]] = {}

    def add(name: str, seconds: float) -> None:
        before = out.get(name, (0.0, 0))
        out[name] = before[0] + seconds, before[1] + 1

    step, lengths = part["step"], (part.end - part.start).tolist()
    for i in np.flatnonzero(step == step.max(initial=0)).tolist():
        match resolved.op(i):
            case Compute() as op:
                for kernel, share in run.kernels(op):
                    kind = PRICES[kernel.name].kind
                    add(WORDS.get("host" if kind == "link" else kind, kind), share * lengths[i])
            case Collective() as op:
                add(op.op, lengths[i])
            case P2P():
                add(MESSAGES, lengths[i])
    return out


def _measured(traced: Traced) -> dict[str, tuple[float, int]]:
    out: dict[str, tuple[float, int]] = {}
    for a in traced.within(traced.step):
        name = a.op if a.kind == "transfer" else WORDS[a.kind]
        before = out.get(name, (0.0, 0))
        out[name] = before[0] + a.seconds, before[1] + 1
    return out


def _states(traced: Traced) -> tuple[float, float, float]:
    """Seconds in which something computes, in which there are transfers only, in which there is nothing."""
    low, high = traced.step
    within = traced.within(traced.step)
    computes, anything = (_union([a for a in within if every or a.kind != "transfer"], high) for every in (False, True))
    return computes, anything - computes, high - low - anything


def _union(activities: Iterable[Activity], until: float) -> float:
    total, reached = 0.0, -np.inf
    for a in sorted(activities, key=lambda a: a.start):
        end = min(a.end, until)
        total += max(0.0, end - max(a.start, reached))
        reached = max(reached, end)
    return total


def timeline_of(traced: Traced) -> Timeline:
    """The traced step as a measured Timeline of one rank: its streams, phases F, B and S, no memory, no dependencies. Seconds from its start.

    The stream that computes longest is called `compute`; a transfer's phase is its op.
    """
    low, high = traced.step
    within = traced.within(traced.step)
    busy: dict[str, float] = {}
    for a in within:
        busy[a.stream] = busy.get(a.stream, 0.0) + (a.seconds if a.kind != "transfer" else 0.0)
    first = max(busy, key=lambda s: (busy[s], s))
    streams = (COMPUTE_STREAM, *sorted(s for s in busy if s != first))
    number = {first: 0, **{s: i for i, s in enumerate(streams) if i}}
    words = [a.op if a.kind == "transfer" else a.phase for a in within]
    phases = tuple(dict.fromkeys(words))
    rows = np.zeros(len(within), dtype=OPS)
    rows["op"] = np.arange(len(within))
    rows["kind"] = [OP_KINDS.index(_op_kind(a)) for a in within]
    rows["stream"] = [number[a.stream] for a in within]
    rows["phase"] = [phases.index(w) for w in words]
    rows["bytes"] = [a.nbytes for a in within]
    for name in ("axis", "stage", "layer", "microbatch"):
        rows[name] = -1
    start, end = np.array([a.start - low for a in within]), np.array([min(a.end, high) - low for a in within])
    none = np.zeros(0, dtype=np.int32)
    script = Script({name: rows[name] for name in FIXED}, none, none, NO_LIVES)
    meta = {"source": "measured", "trace": traced.name, "step_s": high - low}
    names: dict[str, Any] = {"streams": streams, "phases": phases, "buffers": (), "links": (), "meta": meta}
    flows = np.zeros(0, dtype=FLOWS)
    return Timeline.of_parts([Part(0, script, start, start, end)], flows=flows, representative=np.zeros(1, dtype=np.int64), **names)


def _op_kind(activity: Activity) -> str:
    if activity.kind != "transfer":
        return "compute"
    return "p2p" if activity.op == MESSAGES else "collective"
