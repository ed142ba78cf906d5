"""search: the best layouts of a run. Bounds for all of them, a replay of the schedule for those that may win, the engine for finalists.

Branch and bound, the lowest bound first: a layout whose bound is above what has been simulated cannot win. The winner is *proven* when no
layout is left whose bound is below its score; else the gap says how much better one of them could be at most.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np

from ..config import Run, vary
from ..errors import InvalidLayout, Malformed, Refused, Violation
from ..lowering import lower
from ..memory import memory_bound
from ..model.layers import model_flops
from ..report import Report, summarize
from ..sim import simulate
from .bounds import Bounds
from .objective import Limits, Objective
from .settings import sweep
from .space import AXES, Candidate, Group, Space, Way, axes, space, template

MOST_OPS = 600_000  # ops that the engine replays for finalists, unless a number of runs is given
EARLY = 64  # layouts looked at for one that is soon simulated
MEMORY = "memory"
# layouts of a group, bounded together; a layout without its gradients; by the whole closed form; by a replay of its schedule
ALIKE, QUICK, CLOSED, SIMULATED_NEXT = range(4)


@dataclass(frozen=True)
class Found:
    """A simulated layout."""

    candidate: Candidate
    report: Report
    bound: float
    score: float
    fits: bool


@dataclass(frozen=True)
class NearMiss:
    """A layout that does not fit: by `excess` bytes at least."""

    candidate: Candidate
    excess: float


@dataclass
class Search:
    """What was looked at, and what came out. `lowest`: the smallest bound of a layout that was not simulated (inf: none)."""

    name: str
    devices: int
    objective: Objective
    space: Space
    asked: Mapping[str, list[Any]]
    found: list[Found] = field(default_factory=list)
    misses: list[NearMiss] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    bounded: int = 0
    lowest: float = float("inf")
    top: int = 10

    @property
    def best(self) -> list[Found]:
        """Simulated layouts that fit and meet the constraints, best first."""
        return sorted((f for f in self.found if f.fits), key=lambda f: (f.score, f.candidate.name))

    @property
    def proven(self) -> bool:
        """Can no layout that was not simulated beat the winner?"""
        return bool(self.best) and self.lowest >= self.best[0].score * (1 - 1e-9)

    @property
    def gap(self) -> float:
        """How much better than the winner the best layout could be at most, as a part of its score."""
        return 0.0 if self.proven else 1 - self.lowest / self.best[0].score if self.best else 1.0

    @property
    def pareto(self) -> list[Found]:
        """Simulated layouts that fit and than which none is both faster and smaller, fastest first."""
        out: list[Found] = []
        for f in sorted(self.best, key=lambda f: (f.report.step_time, f.report.memory.peak.nbytes)):
            if not out or f.report.memory.peak.nbytes < out[-1].report.memory.peak.nbytes:
                out.append(f)
        return out


def search(
    path: Path | None,
    overrides: Sequence[str],
    devices: int,
    *,
    varied: Sequence[str] = (),
    objective: str = "step",
    constraints: Sequence[str] = (),
    top: int = 10,
    runs: int | None = None,
    critical_batch: float | None = None,
    seconds: float = float("inf"),
) -> Search:
    """The `top` best layouts of the run at `path` on `devices` devices.

    A key set by an override is not varied. `varied` are `key=values` as in sweeps; `constraints` are as in `objective.Limits`. The engine runs until
    the top is proven, has run `runs` times (default: as often as MOST_OPS allow), or `seconds` have passed, and at least for one layout that fits.
    Raises Malformed, Unparsable as `load` does; Refused where no layout is legal, fits and meets the constraints.
    """
    if devices < 1 or top < 1:
        raise Malformed(f"--devices {devices} and --top {top} must be at least 1")
    asked = dict(sweep(text, "--vary") for text in varied)
    pinned = {k.strip(): v for k, _, v in (o.partition("=") for o in overrides) if k.strip() in AXES}
    start = template(path, overrides)
    if start.plan.layout.pipeline.vocabulary != "ends":
        rule = "has no bound: those of a search have embedding and head on the first and the last stage"
        raise Refused([Violation("pipeline.vocabulary", start.plan.layout.pipeline.vocabulary, rule, "legal in a search: ends (compare with whatif)")])
    values = axes(start, devices, asked, pinned)
    limits = Limits.of(constraints)
    legal = space(start, devices, values)
    out = Search(start.name, devices, Objective.of(objective, critical_batch or start.critical_batch), legal, values, refused=Counter(legal.refused), top=top)
    if not legal.groups:
        why = "; ".join(legal.example.values()) or "no combination of the values to vary uses all devices"
        raise Refused(f"none of {legal.enumerated} layouts is legal: {why}")
    run = _first(start, legal)
    _Searcher(out, run, limits, runs, seconds).go()
    if not out.best:
        raise Refused(_nothing(out, run))
    return out


def _first(start: Run, found: Space) -> Run:
    """The run of the first candidate that resolves: it holds the cluster."""
    errors: list[str] = []
    for candidate in islice((found.candidate(group, way) for group in found.groups for way in group.ways), 64):
        try:
            return vary(start, candidate.overrides)
        except InvalidLayout as error:
            errors.append(str(error))
    raise Refused(f"no layout resolves: {errors[0]}")


def _nothing(out: Search, run: Run) -> str:
    reasons = ", ".join(f"{why}: {n}" for why, n in out.refused.most_common())
    near = min(out.misses, key=lambda m: m.excess, default=None)
    capacity = run.cluster.accelerator.memory.value
    miss = f"; nearest: {near.candidate.name} lacks {near.excess / 1e9:.2f} GB of {capacity / 1e9:.1f} GB" if near else ""
    return f"none of {out.space.enumerated} layouts is legal, fits and meets the constraints ({reasons}){miss}"


@dataclass(frozen=True)
class Rest:
    """What is left of a group: its ways, the lowest bound first, and their bounds; those from `at` on."""

    group: Group
    ways: tuple[Way, ...]
    bounds: tuple[float, ...]
    at: int = 0


class _Searcher:
    """One search under way."""

    def __init__(self, out: Search, run: Run, limits: Limits, runs: int | None, seconds: float) -> None:
        self.out, self.run, self.limits, self.runs = out, run, limits, runs
        self.bounds = Bounds(run)
        self.capacity = min(run.cluster.accelerator.memory.value, limits.memory)
        self.heap: list[tuple[float, int, int, Any]] = []
        self.pushed = self.ops = self.ran = 0
        self.until = monotonic() + seconds
        batch = run.plan.layout.batch
        self.flops = model_flops(run.plan.model, batch.global_ * max(batch.sequence, 1), batch.sequence)
        self.peak = float(run.cluster.accelerator.peak(run.plan.layout.compute_dtype)) * out.devices

    def go(self) -> None:
        """Bound all, then simulate the most promising until the top is proven or the means are used up."""
        for group in self.out.space.groups:
            self._group(group)
        if self.until < float("inf"):
            self._early()
        while self.heap:
            bound, tier, _, what = self.heap[0]
            if bound >= self._worst_of_top() or (self._spent() and self.out.best):
                break
            heapq.heappop(self.heap)
            self._next(tier, what, bound)
        self._finish()

    def _early(self) -> None:
        """Simulate what is soon simulated, the most promising of 1f1b without ZeRO 2 and 3 and, if there is such, without context parallelism and with
        tensor parallelism that stays in a server, so that there is an answer when time is up."""
        rests: list[Rest] = [what for *_, what in self.heap]
        near = self.bounds.pieces.server or self.out.devices

        def far(rest: Rest) -> bool:
            return bool(rest.group.settings["parallel.cp"] > 1 or rest.group.settings["parallel.tp"] > near)

        plain = sorted(
            (far(r), b, n, i) for n, r in enumerate(rests) for i, (w, b) in enumerate(zip(r.ways, r.bounds, strict=True)) if w.schedule == "1f1b" and w.zero < 2
        )
        for _, bound, n, i in plain[:EARLY]:
            candidate = self.out.space.candidate(rests[n].group, rests[n].ways[i])
            if self.bounds.refined_memory(candidate.layout) > self.capacity:
                continue
            self._simulate(candidate, bound)
            kept = [k for k in range(len(rests[n].ways)) if k != i]
            rests[n] = Rest(rests[n].group, tuple(rests[n].ways[k] for k in kept), tuple(rests[n].bounds[k] for k in kept))
            break
        self.heap = [(rest.bounds[0], ALIKE, n, rest) for n, rest in enumerate(rests) if rest.ways]
        heapq.heapify(self.heap)

    def _finish(self) -> None:
        """Better bounds for the first of those that were not simulated, as long as they matter for the gap and time is left; then count what is left."""
        best = self.out.best[0].score if self.out.best else float("inf")
        while self.heap and self.heap[0][1] != SIMULATED_NEXT and self.heap[0][0] < best and monotonic() < self.until:
            bound, tier, _, what = heapq.heappop(self.heap)
            self._next(tier, what, bound)
        self.out.bounded = sum(len(what.ways) - what.at if isinstance(what, Rest) else 1 for *_, what in self.heap)
        self.out.lowest = self.heap[0][0] if self.heap else float("inf")

    def _next(self, tier: int, what: Any, bound: float) -> None:
        """What comes after a bound of `tier`: a better one, or the engine."""
        steps: dict[int, Callable[[Any, float], None]] = {ALIKE: self._first_of, QUICK: self._closed, CLOSED: self._replayed, SIMULATED_NEXT: self._simulate}
        steps[tier](what, bound)

    def _add(self, bound: float, tier: int, what: Rest | Candidate) -> None:
        self.pushed += 1
        heapq.heappush(self.heap, (bound, tier, self.pushed, what))

    def _group(self, group: Group) -> None:
        """Bounds for all ways of a group at once."""
        first = self.out.space.candidate(group, group.ways[0])
        ways = [way for way in group.ways if self.limits.layout(first, chunks=way.chunks)]
        if len(ways) < len(group.ways):
            self.out.refused["constraint"] += len(group.ways) - len(ways)
        if not ways:
            return
        steps, nbytes = self.bounds.ways(first.layout, ways)
        large = nbytes > self.capacity
        if large.any():
            least = int(np.where(large, nbytes, np.inf).argmin())
            self._miss(self.out.space.candidate(group, ways[least]), float(nbytes[least]), int(large.sum()))
        score = self.out.objective.score
        rows = []
        for i in np.flatnonzero(~large).tolist():
            if self.limits.reachable(float(steps[i]), self.flops, self.peak):
                rows.append((score(float(steps[i]), float(nbytes[i]), first.layout), ways[i]))
            else:
                self.out.refused["constraint"] += 1
        if rows:
            rows.sort(key=lambda row: row[0])
            self._add(rows[0][0], ALIKE, Rest(group, tuple(way for _, way in rows), tuple(bound for bound, _ in rows)))

    def _first_of(self, rest: Rest, bound: float) -> None:
        """The first layout of a group apart from the others."""
        if rest.at + 1 < len(rest.ways):
            self._add(rest.bounds[rest.at + 1], ALIKE, replace(rest, at=rest.at + 1))
        candidate = self.out.space.candidate(rest.group, rest.ways[rest.at])
        memory = self.bounds.memory(candidate.layout)
        if memory > self.capacity:
            self._miss(candidate, memory)
        else:
            self._add(max(bound, self.out.objective.score(self.bounds.quick(candidate.layout), memory, candidate.layout)), QUICK, candidate)

    def _closed(self, candidate: Candidate, bound: float) -> None:
        layout = candidate.layout
        step, memory = self.bounds.step(layout), self.bounds.memory(layout)
        if not self.limits.reachable(step, self.flops, self.peak):
            self.out.refused["constraint"] += 1
        else:
            self._add(max(bound, self.out.objective.score(step, memory, layout)), CLOSED, candidate)

    def _replayed(self, candidate: Candidate, bound: float) -> None:
        layout = candidate.layout
        try:
            memory = self.bounds.refined_memory(layout)
        except InvalidLayout as error:
            self.out.refused[f"pipeline.schedule ({error.violations[0].field})"] += 1
            return
        if memory > self.capacity:
            self._miss(candidate, memory)
        else:
            self._add(max(bound, self.out.objective.score(self.bounds.refined(layout), memory, layout)), SIMULATED_NEXT, candidate)

    def _miss(self, candidate: Candidate, memory: float, number: int = 1) -> None:
        self.out.refused[MEMORY] += number
        self.out.misses.append(NearMiss(candidate, memory - self.capacity))

    def _worst_of_top(self) -> float:
        best = self.out.best
        return best[self.out.top - 1].score if len(best) >= self.out.top else float("inf")

    def _spent(self) -> bool:
        return monotonic() >= self.until or (self.ran >= self.runs if self.runs is not None else self.ops >= MOST_OPS)

    def _simulate(self, candidate: Candidate, bound: float) -> None:
        try:
            run = vary(self.run, candidate.overrides)
            workload = lower(run.plan, check=False)
            memory = max(memory_bound(p.resolved) for p in workload.bound.programs)
            if memory > self.capacity:
                self._miss(candidate, memory)
                return
            timeline = simulate(workload, run.cluster, run.profile)
        except Refused as error:
            self.out.refused[error.violations[0].field if error.violations else "engine"] += 1
            return
        report = summarize(timeline, run, allocator=False)
        self.ran, self.ops = self.ran + 1, self.ops + sum(map(len, timeline.parts))
        score = self.out.objective.score(report.step_time, report.memory.peak.nbytes, candidate.layout)
        excess = report.memory.peak.nbytes - self.capacity
        self.out.found.append(Found(candidate, report, bound, score, excess <= 0 and self.limits.met(report)))
        if excess > 0:
            self.out.misses.append(NearMiss(candidate, excess))


def spread(found: Sequence[Found]) -> float:
    """Largest part by which a bound was below what the engine said, over the simulated layouts."""
    return float(np.max([1 - f.bound / f.score for f in found if f.score])) if found else 0.0
