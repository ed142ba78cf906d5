"""A Report for notebooks: small HTML tables, and its stages as a pandas DataFrame."""

from __future__ import annotations

from typing import Any

from ..frames import data_frame
from ..markup import table
from ..units import format_memory, format_seconds
from .values import Report


def as_html(report: Report) -> str:
    """The headline and the stages."""
    p = report.provenance
    peak = report.memory.peak.nbytes
    facts = [("step time", format_seconds(report.step_time))]
    facts += [("tokens/s", f"{report.tokens_per_s:,.4g}")] if report.tokens_per_s is not None else []
    facts += [(name, f"{x:.1%}") for name, x in (("MFU", report.mfu), ("HFU", report.hfu), ("bubble", report.bubble_makespan)) if x is not None]
    facts += [("compute", format_seconds(report.times.compute))]
    facts += [(f"exposed {axis}", format_seconds(x)) for axis, x in report.times.exposed.items() if x > 0]
    facts += [("idle", format_seconds(report.times.idle))]
    facts += [("peak memory", f"{format_memory(round(peak))} of {format_memory(report.memory.capacity)}")] if report.memory.known else []
    head = ("stage", "rank", "compute", "idle", "peak memory")
    rows = [
        (s.stage, s.rank, format_seconds(s.compute), format_seconds(s.idle), format_memory(round(m.nbytes)) if report.memory.known else "-")
        for s, m in zip(report.stages, report.memory.per_stage, strict=True)
    ]
    title = f"{p['model']} on {report.world} x {p['accelerator']} ({p['cluster']}), {p['source']}"
    return f"<div>{table(title, facts)}{table('Stages', rows, head)}</div>"


def frame(report: Report) -> Any:
    """A pandas DataFrame with a row per stage. Raises MissingExtra."""
    axes = list(report.times.exposed)
    return data_frame(
        {
            "stage": [s.stage for s in report.stages],
            "rank": [s.rank for s in report.stages],
            "compute_s": [s.compute for s in report.stages],
            **{f"exposed_{a}_s": [s.exposed.get(a, 0.0) for s in report.stages] for a in axes},
            "idle_s": [s.idle for s in report.stages],
            "slack_s": [s.slack for s in report.stages],
            "peak_bytes": [m.nbytes for m in report.memory.per_stage],
        }
    )
