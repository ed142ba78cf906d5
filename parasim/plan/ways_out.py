"""Ways out of memory: nearby layouts of a run that does not fit, tried and proven by simulation."""

from __future__ import annotations

from collections.abc import Iterator

from ..config import Run, vary
from ..errors import ParasimError
from ..lowering import lower
from ..memory import memory_bound, memory_peaks
from ..report.advice import Tried
from ..sim import simulate

ENOUGH = 2  # layouts that fit are proven one by one until this many are found


def ways_out(run: Run) -> list[Tried]:
    """Candidates with their peak in bytes: simulated where the bound from stream order fits, the bound itself where it does not.

    Mild changes come first; the search stops when enough of them fit. Layouts that are refused are skipped.
    """
    capacity = run.cluster.accelerator.memory.value
    tried: list[Tried] = []
    for overrides in _candidates(run):
        try:
            other = vary(run, overrides)
            workload = lower(other.plan)
        except ParasimError:
            continue
        peak = max(memory_bound(p.resolved) for p in workload.programs)
        if peak <= capacity:
            timeline = simulate(workload, other.cluster, other.profile)
            peak = max(p.nbytes for p in memory_peaks(timeline).values())
        tried.append(Tried(" --set ".join(overrides), peak))
        if sum(t.peak <= capacity for t in tried) == ENOUGH:
            break
    return tried


def _candidates(run: Run) -> Iterator[list[str]]:
    """Single settings, then together, then with more tensor and pipeline parallelism."""
    layout = run.plan.layout
    zero = ["zero.stage=1"] if layout.zero.stage == 0 and layout.degrees.dp > 1 else []
    rows = ["tensor.sequence_parallel=true"] if layout.degrees.tp > 1 and not layout.tensor.sequence_parallel else []
    again = ["recompute=full"] if layout.recompute == "none" else []
    micro = [f"batch.micro={layout.batch.micro // 2}"] if layout.batch.micro > 1 else []
    singles = [s for s in (zero, rows, again, micro) if s]
    yield from singles
    every = [x for s in singles for x in s]
    if len(singles) > 1:
        yield every
    for tp, pp in ((2, 1), (1, 2), (2, 2), (1, 4), (2, 4), (4, 4), (4, 8), (8, 8), (8, 16)):
        degrees = [f"parallel.tp={layout.degrees.tp * tp}", f"parallel.pp={layout.degrees.pp * pp}", "parallel.dp=auto"]
        more = ["tensor.sequence_parallel=true"] if layout.degrees.tp * tp > 1 and not layout.tensor.sequence_parallel else []
        yield [*degrees, *dict.fromkeys((*every, *more))]
