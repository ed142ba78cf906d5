"""`python -m validation bench`: the timing goals, as medians and ratios on this machine. Never part of the test suite."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from parasim.api import build, load, lower, simulate, vary
from parasim.collectives.plan import plan, seconds
from parasim.cost.profile import datasheet
from parasim.errors import Refused
from parasim.topology.loader import load_cluster


@dataclass(frozen=True)
class Goal:
    """A measured median beside the most it may be (seconds)."""

    name: str
    median: float
    limit: float

    @property
    def met(self) -> bool:
        """Within the limit?"""
        return self.median <= self.limit

    def __str__(self) -> str:
        return f"{self.name:<58}{self.median:>9.3f} s   at most {self.limit:g} s   {'met' if self.met else 'MISSED'}"


def median(job: Callable[[], object], repeats: int) -> float:
    """Median wall seconds of `repeats` runs."""
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        job()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def command(*arguments: str) -> Callable[[], object]:
    """A fresh process of the command line."""
    return lambda: subprocess.run([sys.executable, "-m", "parasim", *arguments], check=True, capture_output=True, timeout=120)


def bench(repeats: Annotated[int, typer.Option(min=1, help="Runs per line; the median is printed.")] = 5) -> None:
    """Time the command line and the stages of the engine; exit 1 if a goal is missed."""
    with tempfile.TemporaryDirectory() as folder:
        goals = [
            Goal("parasim --help", median(command("--help"), repeats), 0.4),
            Goal("parasim run: the default run and its five files", median(command("run", "--out", str(Path(folder) / "out")), repeats), 3.0),
        ]
        goals.append(Goal("lower, verify, simulate DeepSeek-V3, 2,048 GPUs, DualPipe", median(_deepseek, repeats), 5.0))
    goals += [_collective(op, ranks, repeats) for op, ranks in (("all_to_all", 1024), ("all_reduce", 16384))]
    for goal in goals:
        typer.echo(str(goal))
    for line in _stages(repeats):
        typer.echo(line)
    missed = [g.name for g in goals if not g.met]
    if missed:
        raise Refused(f"missed: {'; '.join(missed)}")


def _deepseek() -> None:
    """A step of DeepSeek-V3 as reported (arXiv 2412.19437, section 3): 16 stages by DualPipe, experts over 64 ranks; 120 microbatches per replica."""
    run = build(
        {
            "model": "deepseek-v3",
            "cluster": "h100-hgx-ib400",
            "devices": 2048,
            "batch": {"global": 15360, "micro": 1, "sequence": 4096},
            "parallel": {"pp": 16, "ep": 64},
            "pipeline": {"schedule": "dualpipe", "layers": {"first": 3, "last": 2}},
            "zero": {"stage": 1},
        }
    )
    simulate(lower(run.plan), run.cluster, run.profile)


def _collective(op: str, ranks: int, repeats: int) -> Goal:
    """One collective on a rail-optimised fat tree, from the cluster's name to its seconds; nothing is kept from run to run."""

    def job() -> None:
        cluster, profile = load_cluster("h100-hgx-ib400", ranks), datasheet()
        seconds(plan(op, 1e9, cluster.devices, cluster, profile), cluster, profile)

    return Goal(f"{op} over {ranks} ranks, from the cluster's name", median(job, repeats), 0.5)


def _stages(repeats: int) -> list[str]:
    """Seconds of lowering and simulation of the default run over microbatches, and what they come to per op."""
    base = load(None)
    lines = []
    for factor in (1, 2, 4):
        run = vary(base, [f"batch.global={base.plan.layout.batch.global_ * factor}"])
        workload = lower(run.plan)
        ops = sum(len(p.resolved) for p in workload.programs)
        lowering = median(lambda run=run: lower(run.plan), repeats)  # type: ignore[misc]
        simulating = median(lambda run=run, w=workload: simulate(w, run.cluster, run.profile), repeats)  # type: ignore[misc]
        m = run.plan.layout.batch.microbatches
        lines.append(
            f"{m:>4} microbatches, {ops:>7} ops: lower and verify {lowering:.3f} s, simulate {simulating:.3f} s, "
            f"{1e6 * simulating / ops:.1f} us per op, lowering over simulation {lowering / simulating:.2f}"
        )
    return lines
