"""Ways out of memory: nearby layouts of a run that does not fit, tried and proven by simulation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..config import Plan, Run, vary
from ..errors import ParasimError
from ..lowering import lower
from ..memory import memory_bound, memory_peaks
from ..parallel.layout import FULL
from ..report.advice import Tried
from ..sim import simulate

ENOUGH = 1  # layouts that fit are proven one by one until this many are found
BOUNDED = ("naive", "1f1b")  # schedules with at most as many microbatches in flight as ranks


def ways_out(run: Run) -> list[Tried]:
    """Candidates with their peak in bytes: simulated where the bound from stream order fits, the bound itself where it does not.

    Mild changes come first; the search stops when enough of them fit. Layouts that are refused are skipped.
    """
    capacity = run.cluster.accelerator.memory.value
    tried: list[Tried] = []
    for overrides in _candidates(run):
        try:
            other = vary(run, overrides)
            peak = max(memory_bound(p.resolved) for p in lower(_short(other)).bound.programs)
            if peak <= capacity:
                timeline = simulate(lower(other.plan), other.cluster, other.profile)
                peak = max(p.nbytes for p in memory_peaks(timeline).values())
        except ParasimError:
            continue
        tried.append(Tried(" --set ".join(overrides), peak))
        if sum(t.peak <= capacity for t in tried) == ENOUGH:
            break
    return tried


def _short(run: Run) -> Plan:
    """The plan with few microbatches where the schedule bounds what is in flight: its memory bound is the same."""
    layout = run.plan.layout
    if layout.pipeline.schedule not in BOUNDED:
        return run.plan
    m = min(layout.batch.microbatches, 2 * layout.degrees.pp)
    return replace(run.plan, layout=replace(layout, batch=replace(layout.batch, microbatches=m)))


def _degrees(run: Run) -> Iterator[list[str]]:
    """More tensor and pipeline parallelism on the same devices, then on more of them (with as many replicas as now)."""
    now = run.plan.layout.degrees
    for tp, pp in ((2, 1), (1, 2), (2, 2), (1, 4), (2, 4), (4, 4), (4, 8), (8, 8), (8, 16)):
        yield [f"parallel.tp={now.tp * tp}", f"parallel.pp={now.pp * pp}", "parallel.dp=auto"]
    for more in (2, 4, 8, 16, 32):
        yield [f"devices={run.devices * more}", f"parallel.pp={now.pp * more}"]
        yield [f"devices={run.devices * more}", f"parallel.tp={now.tp * more}"]
        yield [f"devices={run.devices * more}", "parallel.dp=auto"]


def _candidates(run: Run) -> Iterator[list[str]]:
    """Single settings, then together, then with more tensor and pipeline parallelism."""
    layout = run.plan.layout
    stages = [[f"zero.stage={s}"] for s in range(layout.zero.stage + 1, 4)] if layout.degrees.replicas > 1 else []
    zero, more = (stages[0], stages[1:]) if stages else ([], [])
    rows = ["tensor.sequence_parallel=true"] if layout.degrees.tp > 1 and not layout.tensor.sequence_parallel else []
    core = ["recompute=selective"] if not layout.recompute.modules and layout.kernels.attention == "unfused" else []
    again = ["recompute=full"] if FULL not in layout.recompute.modules else []
    micro = [f"batch.micro={layout.batch.micro // 2}"] if layout.batch.micro > 1 else []
    singles = [s for s in (zero, rows, again, micro) if s]
    yield from [core, *singles] if core else singles
    yield from more
    every = [x for s in singles for x in s]
    if len(singles) > 1:
        yield every
        yield from [[*stage, *every[len(zero) :]] for stage in more]
    for degrees in _degrees(run):
        more_tp = any("parallel.tp" in d for d in degrees) and not layout.tensor.sequence_parallel
        yield [*degrees, *dict.fromkeys((*every, *rows, *(["tensor.sequence_parallel=true"] if more_tp else [])))]
