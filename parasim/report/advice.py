"""What to say when a layout does not fit: the stage, the largest part, and ways out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from ..units import format_memory
from .values import Report

if TYPE_CHECKING:
    from ..config import Run
    from ..parallel.layout import Layout


class Tried(NamedTuple):
    """A candidate that the caller simulated: its settings as on the command line (`zero.stage=3`) and its peak in bytes."""

    settings: str
    peak: float


def doesnotfit(report: Report, run: Run, tried: Sequence[Tried] = ()) -> str:
    """The message of a DoesNotFit: rank, stage, peak and capacity, the largest part with its buffers, and the way out.

    `tried` are candidate layouts with their simulated peaks; those that fit are named first, the best of the others only if none does. Without
    any, the settings that shrink the largest part are named unproven.
    """
    memory, peak = report.memory, report.memory.peak
    category, nbytes = max(peak.by_category.items(), key=lambda item: item[1])
    largest = ", ".join(f"{name} {format_memory(round(size))}" for name, size in peak.largest[:3])
    short = format_memory(round(max(-memory.headroom, 0.0)))
    lines = [
        f"stage {memory.stage} (rank {peak.rank}) needs {format_memory(round(peak.nbytes))}, "
        f"{run.cluster.accelerator.name} has {format_memory(memory.capacity)}: {short} too much",
        f"largest part: {category} {format_memory(round(nbytes))}" + (f"; largest single buffers: {largest}" if largest else ""),
        _way_out(memory.capacity, category, run.plan.layout, tried),
    ]
    return "\n".join(line for line in lines if line)


def _way_out(capacity: float, category: str, layout: Layout, tried: Sequence[Tried]) -> str:
    fitting = sorted((t for t in tried if t.peak <= capacity), key=lambda t: -t.peak)
    if fitting:
        return "fits with: " + "; ".join(f"--set {t.settings} ({format_memory(round(t.peak))})" for t in fitting[:3])
    if tried:
        best = min(tried, key=lambda t: t.peak)
        return f"none of {len(tried)} candidates fits; nearest: --set {best.settings} needs {format_memory(round(best.peak))}"
    ideas = _ideas(category, layout)
    return "would shrink it (not tried): " + "; ".join(ideas) if ideas else ""


def _ideas(category: str, layout: Layout) -> list[str]:
    """Settings that shrink a category, those with most effect first."""
    degrees, zero, batch = layout.degrees, layout.zero, layout.batch
    shards = degrees.replicas > 1
    stage = {"optimizer": 1, "gradients": 2, "parameters": 3}.get(category)
    ideas = []
    if stage is not None and zero.stage < stage and shards:
        ideas.append(f"zero.stage={stage} (shards {category} over {degrees.replicas} replicas)")
    if category == "gathered" and zero.prefetch:
        ideas.append("zero.prefetch=0 (fewer layers gathered at once)")
    if category in ("activations", "buffers"):
        if not layout.recompute.modules and layout.kernels.attention == "unfused":
            ideas.append("recompute=selective (keeps no scores of unfused attention)")
        if "full" not in layout.recompute.modules:
            ideas.append("recompute=full (keeps one input per layer)")
        if batch.micro > 1:
            ideas.append(f"batch.micro={batch.micro // 2} (now {batch.micro})")
        if degrees.tp > 1 and not layout.tensor.sequence_parallel:
            ideas.append("tensor.sequence_parallel=true")
    ideas.append(f"parallel.tp={2 * degrees.tp} or parallel.pp={2 * degrees.pp} (now {degrees.tp}, {degrees.pp}; more devices or less dp)")
    return ideas
