"""explain: why a step takes as long as it does. Its critical path, what it would gain from a better machine, who waits for whom."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..config import Run
from ..lowering import lower
from ..report import Report, summarize
from ..sim import simulate
from ..timeline import Timeline
from ..units import format_seconds
from .binding import binding, link, overhead
from .critical_path import CriticalPath, Segment, blame, critical_path, steps_of, total
from .sensitivity import Sensitivity, sensitivities

SCHEMA = "parasim.explain/1"
SHOWN = 24  # runs of the path in the text, half from each end
NAMED = 8  # rows of blame in the text


@dataclass(frozen=True)
class Explanation:
    """A step explained. `blame`: (waiting stage, stage waited for, axis) -> seconds over the kept ranks."""

    report: Report
    timeline: Timeline
    path: CriticalPath
    sensitivities: tuple[Sensitivity, ...]
    blame: dict[tuple[int, int, str], float]

    def to_json(self) -> dict[str, Any]:
        """The object `parasim.explain/1`."""
        path = self.path
        return {
            "schema": SCHEMA,
            "step_time_s": self.report.step_time,
            "binding": binding(self.report),
            "critical_path": {
                "by_kind_s": path.by(_what),
                "by_stage_s": {str(k): v for k, v in path.by(lambda s: s.stage).items()},
                "by_rank_s": {str(k): v for k, v in path.by(lambda s: s.rank).items()},
                "ops": [_segment_json(s, self.timeline) for s in path.segments],
            },
            "sensitivities": [
                {"parameter": s.name, "unit": s.unit, "value": s.value, "d_step_d_parameter": s.derivative, "elasticity": s.elasticity}
                for s in self.sensitivities
            ],
            "blame": [{"stage": a, "waits_for": b, "axis": axis, "seconds": s} for (a, b, axis), s in self.blame.items()],
        }

    def __str__(self) -> str:
        step = self.report.step_time or 1.0
        then = overhead(self.report)
        head = f"{self.report.name}: {format_seconds(self.report.step_time)}, bound by {binding(self.report)}" + (f", then {then}" if then else "")
        if link(self.report):
            head += f"; busiest links: {link(self.report)}"
        shares = [f"  {what:<16} {format_seconds(s):>10}  {100 * s / step:5.1f} %" for what, s in self.path.by(_what).items()]
        stages = ", ".join(f"{k}: {100 * s / step:.1f} %" for k, s in self.path.by(lambda s: s.stage).items())
        return "\n".join(
            [
                head,
                "critical path",
                *shares,
                f"  by stage: {stages}",
                *_runs(self.path, self.timeline),
                "what the step would gain (elasticity: per cent of the step per per cent of the number)",
                *(f"  {s.name:<28} {s.elasticity:+.4f}   d(step)/d({_unit(s)}) = {s.derivative:.4g}" for s in self.sensitivities),
                *_waits(self.blame),
            ]
        )


def explain(run: Run) -> Explanation:
    """Simulate `run` and explain the step. Raises what lowering and simulation raise."""
    workload = lower(run.plan)
    timeline = simulate(workload, run.cluster, run.profile)
    return Explanation(summarize(timeline, run), timeline, critical_path(timeline), tuple(sensitivities(run, workload)), blame(timeline))


def _what(s: Segment) -> str:
    return "compute" if s.kind == "compute" else f"{s.kind} {s.axis}".strip()


def _unit(s: Sensitivity) -> str:
    return "factor" if s.value is None else s.unit


def _segment_json(s: Segment, timeline: Timeline) -> dict[str, Any]:
    op = timeline.ops[s.row]
    return {
        "kind": s.kind,
        "axis": s.axis or None,
        "phase": timeline.phases[int(op["phase"])],
        "rank": s.rank,
        "stage": s.stage,
        "layer": int(op["layer"]),
        "microbatch": int(op["microbatch"]),
        "start_s": s.start,
        "end_s": s.end,
    }


def _runs(path: CriticalPath, timeline: Timeline) -> list[str]:
    lines = [
        f"  {format_seconds(mine[0].start):>10}  {words}: " + ", ".join(f"{what} {format_seconds(s)}" for what, s in total(mine, _what).items())
        for words, mine in steps_of(path, timeline)
    ]
    if len(lines) <= SHOWN:
        return lines
    half = SHOWN // 2
    return [*lines[:half], f"  ... {len(lines) - 2 * half} more (--json has all)", *lines[-half:]]


def _waits(found: dict[tuple[int, int, str], float]) -> list[str]:
    if not found:
        return ["nobody's compute waits for a late partner"]
    rows = [f"  stage {a} for stage {b} ({axis}): {format_seconds(s)}" for (a, b, axis), s in list(found.items())[:NAMED]]
    return ["who waits for whom (seconds of the kept ranks' compute streams)", *rows]
