"""From a case to predicted numbers: load its run file, lower it once, simulate it with as many profiles as are asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from parasim.config import Run, build
from parasim.cost.profile import Profile
from parasim.errors import ParasimError
from parasim.lowering import lower
from parasim.program.workload import Workload
from parasim.report import Report, summarize
from parasim.sim import simulate
from parasim.timeline import Timeline
from parasim.topology.cluster import Cluster

from .row_model import NotModelled

DATA = Path(__file__).parent / "data"
Simulate = Callable[[Workload, Cluster, Profile], Timeline]


class Predictor(Protocol):
    """What a row is predicted with."""

    def values(self, profile: Profile, by: Simulate = simulate) -> dict[str, float]:
        """Every quantity that rows publish, by its name, in SI; `by` replays the step."""
        ...


@dataclass(frozen=True)
class Fastest:
    """Runs that differ in what is not published: the fastest of those that fit in memory, or of all where none does."""

    runs: tuple[Prepared, ...]

    def values(self, profile: Profile, by: Simulate = simulate) -> dict[str, float]:
        """Those of the fastest."""
        found = [run.values(profile, by) for run in self.runs]
        fit = [f for f, run in zip(found, self.runs, strict=True) if f.get("peak_memory_bytes", 0.0) <= run.capacity]
        return min(fit or found, key=lambda f: f["step_time_s"])


@dataclass(frozen=True)
class Prepared:
    """A run file that is loaded and lowered once; profiles only change its simulation.

    A step of many microbatches repeats itself: it is simulated with two smaller numbers of them, and its time is that of the larger one plus
    `more` times what the difference takes. `parts` are (run, workload), the larger one last.
    """

    parts: tuple[tuple[Run, Workload], ...]
    more: float

    @property
    def capacity(self) -> float:
        """Bytes of memory that a device has."""
        return float(self.parts[-1][0].cluster.accelerator.memory.value)

    def values(self, profile: Profile, by: Simulate = simulate) -> dict[str, float]:
        """Every quantity that rows publish, by its name, in SI."""
        found = [_simulated(run, workload, profile, by) for run, workload in self.parts]
        timeline, report = found[-1]
        step = report.step_time + self.more * (report.step_time - found[0][1].step_time)
        out = {"step_time_s": step, "layer_forward_s": _layer(timeline, "F"), "layer_backward_s": _layer(timeline, "RBIW")}
        if report.memory is not None:
            peak = float(report.memory.peak.nbytes)
            replayed = report.memory.reserved.total if report.memory.reserved else peak
            out |= {"peak_memory_bytes": peak, "reserved_memory_bytes": report.memory.fitted_reserved or replayed}
        grown = (self.more + 1) * (report.tokens - found[0][1].tokens) + found[0][1].tokens if self.more else report.tokens
        return out | ({"mfu": report.mfu * grown / report.tokens * report.step_time / step} if report.mfu is not None else {})


def _simulated(run: Run, workload: Workload, profile: Profile, by: Simulate) -> tuple[Timeline, Report]:
    timed = replace(run, profile=profile)
    timeline = by(workload, run.cluster, profile)
    return timeline, summarize(timeline, timed)


def prepare(run: Mapping[str, Any]) -> Predictor:
    """Load and lower the tree of a run file, whose `batch.micro` may be a list to choose from. Raises `NotModelled` where parasim refuses the run (or
    every one of the list), with its reasons."""
    micro = run["batch"]["micro"]
    if not isinstance(micro, list):
        return _prepared(run)
    made, reasons = [], []
    for n in micro:
        try:
            made.append(_prepared({**run, "batch": {**run["batch"], "micro": n}}))
        except NotModelled as error:
            reasons.append(str(error))
    if not made:
        raise NotModelled(reasons[0])
    return Fastest(tuple(made))


def _prepared(run: Mapping[str, Any]) -> Prepared:
    try:
        trees, more = _shortened(run)
        loaded = [build(dict(tree)) for tree in trees]
        if more:
            build(dict(run))  # what is refused is refused
        return Prepared(tuple((r, lower(r.plan)) for r in loaded), more)
    except ParasimError as error:
        raise NotModelled(" / ".join(str(error).splitlines())) from error


def _shortened(run: Mapping[str, Any]) -> tuple[list[Mapping[str, Any]], float]:
    """`run` alone, or it with two smaller numbers of microbatches, and how many times their difference is missing from its own number."""
    degrees, batch = run["parallel"], run["batch"]
    one = batch["micro"] * degrees["dp"]
    count, rest = divmod(batch["global"], one)
    unit = degrees["pp"] * run["pipeline"].get("chunks", 1)
    small = 2 * unit + count % unit
    large = small + unit
    if rest or 2 * (large + small) >= count:
        return [run], 0.0
    return [{**run, "batch": {**batch, "global": n * one}} for n in (small, large)], (count - large) / unit


def _layer(timeline: Timeline, phases: str) -> float:
    """Seconds from the first to the last op of the second layer in these phases of the first microbatch, on the first rank; 0 where it has none."""
    wanted = [number for number, name in enumerate(timeline.phases) if name in phases]
    ops = timeline.ops[timeline.ops["rank"] == timeline.ops["rank"][0]]
    ops = ops[(ops["layer"] == 1) & (ops["microbatch"] == 0) & np.isin(ops["phase"], wanted)]
    return float(ops["end"].max() - ops["start"].min()) if len(ops) else 0.0
