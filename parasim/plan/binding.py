"""What binds a step: the largest of compute, exposed communication of an axis, and bubble; memory where it does not fit."""

from __future__ import annotations

from ..report import Report

MEMORY = "memory"


def shares(report: Report) -> dict[str, float]:
    """Parts of the step, means over ranks: compute, exposed <axis>, bubble (blocked while nothing that is waited for is in flight); they sum to 1."""
    times, step = report.times, report.step_time
    seconds = {"compute": times.compute, **{f"exposed {axis}": s for axis, s in times.exposed.items()}, "bubble": times.idle}
    return {name: s / step if step else 0.0 for name, s in seconds.items()}


def binding(report: Report) -> str:
    """`memory` where the run does not fit, else the name of the largest share."""
    if not report.memory.fits:
        return MEMORY
    parts = shares(report)
    return max(parts, key=parts.__getitem__)


def overhead(report: Report) -> str:
    """The largest share beside compute: what to look at next. Empty where the whole step is compute."""
    parts = {name: s for name, s in shares(report).items() if name != "compute" and s > 0}
    return max(parts, key=parts.__getitem__) if parts else ""


def link(report: Report) -> str | None:
    """The kind of link that is used most, by its busiest link."""
    use = report.binding_link
    return None if use is None else use.kind
