"""The slept jobs: predict three steps from a calibration sweep, then run them on real gloo processes over loopback, and compare.

Compute is slept, communication is real. The prediction is written before anything of the job runs; the numbers it uses come from a sweep of
other programs. Two shared cores make single runs noisy: the median of five counts. What the default profile says is printed beside.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
import typer

from parasim.comparison import Comparison, compare
from parasim.config.loading import build
from parasim.config.run import Run
from parasim.cost.profile import Profile, save_profile
from parasim.cost.timing import seconds
from parasim.errors import Malformed, Refused
from parasim.lowering import lower
from parasim.program.ops import Compute
from parasim.report.labels import op_names
from parasim.sim import simulate
from parasim.timeline import COMPUTE, Timeline
from parasim.topology.cluster import Accelerator

RANKS = 4
RUNS = 5
WORST, MEDIAN = 0.2, 0.1  # of the measured step: of every job, of the jobs' median error
SHARE = (0.1, 0.7)  # of the predicted step during which a transfer of the busiest rank is in flight
SWEEP_OPS = ("all_reduce", "all_gather", "reduce_scatter", "p2p")
SWEEP_SIZES = tuple(n << 20 for n in (1, 2, 4, 8))  # bytes: around the messages of the jobs

FIXED = {"kind": "fixed", "optimizer": "0 s"}


def jobs(ranks: int) -> dict[str, Mapping[str, Any]]:
    """The jobs by name for so many ranks: two microbatches per rank of a pipeline of one layer each, and one per replica, whole and sharded."""
    pipeline = {**FIXED, "layers": ranks, "forward": "20 ms", "input_grad": "10 ms", "weight_grad": "10 ms", "parameters": 4096, "boundary": "8 MiB"}
    replica = {**FIXED, "layers": 8, "forward": "20 ms", "input_grad": "10 ms", "weight_grad": "10 ms", "parameters": 12 << 20, "boundary": "4 kB"}
    sharded = {**FIXED, "layers": 4, "forward": "40 ms", "input_grad": "20 ms", "weight_grad": "20 ms", "parameters": 6 << 20, "boundary": "4 kB"}
    return {
        f"pp{ranks}-1f1b": {
            "model": pipeline,
            "batch": {"global": 2 * ranks, "micro": 1},
            "parallel": {"pp": ranks},
            "pipeline": {"schedule": "1f1b", "comm": "async"},
        },
        f"dp{ranks}-bucketed": {
            "model": replica,
            "batch": {"global": ranks, "micro": 1},
            "parallel": {"dp": ranks},
            "dp": {"mode": "bucketed", "bucket": "6 MiB"},
        },
        f"dp{ranks}-zero3": {"model": sharded, "batch": {"global": ranks, "micro": 1}, "parallel": {"dp": ranks}, "zero": {"stage": 3}},
    }


JOBS = jobs(RANKS)
COMMON = {"precision": "fp32", "optimizer": {"gradient_dtype": "fp32"}}


@dataclass(frozen=True)
class Priced:
    """Durations for the executor: the seconds of an op's kernels, without the overhead that the machine adds by itself."""

    accelerator: Accelerator
    profile: Profile

    def __call__(self, rank: int, op: Compute) -> float:
        """Seconds to sleep."""
        return sum(seconds(kernel, self.accelerator, self.profile) for kernel in op.kernels)


@dataclass(frozen=True)
class Verdict:
    """One job: the predicted and the measured Timeline, all measured step times, what the default profile predicts (s)."""

    name: str
    predicted: Timeline
    measured: Timeline
    steps: tuple[float, ...]
    default: float

    @property
    def comparison(self) -> Comparison:
        """Op by op."""
        return compare(self.predicted, self.measured)

    @property
    def measured_step(self) -> float:
        """The median step, seconds."""
        return float(np.median(self.steps))

    @property
    def error(self) -> float:
        """predicted / median measured - 1."""
        return self.predicted.makespan / self.measured_step - 1

    @property
    def share(self) -> float:
        """Part of the predicted step during which a transfer of the busiest rank is in flight."""
        return communication_share(self.predicted)

    @property
    def holds(self) -> bool:
        """Within the tolerance, and with enough communication to mean something."""
        return abs(self.error) <= WORST and SHARE[0] <= self.share <= SHARE[1]


def communication_share(timeline: Timeline) -> float:
    """Largest over ranks: the union of a rank's transfers' intervals, over the makespan."""
    busy = []
    for rank in range(len(timeline.representative)):
        ops = timeline.of(rank)
        total, reached = 0.0, 0.0
        for op in np.sort(ops[ops["kind"] != COMPUTE], order="start"):
            total += max(0.0, float(op["end"]) - max(reached, float(op["start"])))
            reached = max(reached, float(op["end"]))
        busy.append(total)
    return max(busy) / timeline.makespan


def judge(name: str, profile: Path, folder: Path, runs: int = RUNS) -> Verdict:
    """Predict the job `name` and write the prediction into `folder`, then run it `runs` times (and once before, to warm up)."""
    from parasim.executor.launch import spawn

    run = job_run(name, profile)
    workload = lower(run.plan)
    predicted = simulate(workload, run.cluster, run.profile)
    predicted.save(folder / f"{name}-predicted.npz")
    durations = Priced(run.cluster.accelerator, run.profile)
    measured = spawn(measure, RANKS, workload, durations, runs + 1, timeout=60.0)[0]
    measured.save(folder / f"{name}-measured.npz")
    return Verdict(name, predicted, measured, tuple(measured.meta["makespans_s"][1:]), by_default(name))


def job_run(name: str, profile: Path, ranks: int = RANKS, cluster: str = "loopback") -> Run:
    """The resolved run of a job on so many ranks."""
    return _run(name, ranks, cluster, {"profile": str(profile.resolve())})


def by_default(name: str, ranks: int = RANKS, cluster: str = "loopback") -> float:
    """Seconds of a job's step by the profile that a run without one has."""
    run = _run(name, ranks, cluster, {})
    return simulate(lower(run.plan), run.cluster, run.profile).makespan


def _run(name: str, ranks: int, cluster: str, more: Mapping[str, Any]) -> Run:
    return build({"name": name, "cluster": cluster, "devices": ranks, **COMMON, **jobs(ranks)[name], **more})


def measure(workload: Any, durations: Priced, repetitions: int, timeout: float = 20.0) -> Timeline:
    """Run a slept Workload in this process group."""
    from parasim.executor.execution import Execution, Settings

    return Execution(workload, Settings("sleep", timeout, durations)).run(repetitions)


def sweep_profile(path: Path) -> None:
    """Calibrate on this machine and write the Profile."""
    from parasim.executor.calibrate import calibrate_collectives

    found = calibrate_collectives(RANKS, SWEEP_SIZES, ops=SWEEP_OPS)
    for row in found.rows:
        typer.echo(f"  {row.op:10s} {row.nbytes / 2**20:5.2f} MiB  measured {row.seconds * 1e3:6.2f} ms  fitted {row.fitted * 1e3:6.2f} ms")
    save_profile(found.profile("loopback-sweep"), path)


def verdicts(names: tuple[str, ...], profile: Path, folder: Path, runs: int) -> Iterator[Verdict]:
    """One after the other."""
    for name in names:
        yield judge(name, profile, folder, runs)


def job(
    case: Annotated[list[str] | None, typer.Option(help="Jobs to run (repeatable); all if none is given.")] = None,
    profile: Annotated[Path | None, typer.Option(help="A fitted Profile; made by a sweep if not given.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the timelines; a temporary one if not given.")] = None,
    runs: Annotated[int, typer.Option(min=1, help="Measured runs; the median counts.")] = RUNS,
    launcher: Annotated[str | None, typer.Option(help="torchrun or srun: run on the processes that it started, of which this is one; needs --out.")] = None,
    backend: Annotated[str, typer.Option(help="gloo or nccl; with --launcher.")] = "gloo",
    cluster: Annotated[str, typer.Option(help="What they run on, a catalog name or a file; with --launcher.")] = "loopback",
) -> None:
    """Predict a pipeline, a data-parallel and a sharded step, run each on four gloo processes (or those of --launcher) with slept compute, compare."""
    if launcher is not None:
        from .launched import launched

        if out is None or profile is not None:
            raise Malformed("--launcher needs --out, and fits a profile of its own: leave --profile out")
        launched(launcher, backend, cluster, case, out, runs)
        return
    names = tuple(case or JOBS)
    unknown = [n for n in names if n not in JOBS]
    if unknown:
        raise Malformed(f"case={unknown[0]} must be one of {', '.join(JOBS)}")
    with TemporaryDirectory() as scratch:
        folder = out or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        if profile is None:
            profile = folder / "profile.yaml"
            sweep_profile(profile)
        found = [(v, _told(v)) for v in verdicts(names, profile, folder, runs)]
    median = float(np.median([abs(v.error) for v, _ in found]))
    typer.echo(f"median |error| {median:.1%} of {len(found)} jobs; at most {MEDIAN:.0%}, none above {WORST:.0%}")
    missed = [v.name for v, held in found if not held]
    if missed:
        raise Refused(f"{', '.join(missed)}: beyond {WORST:.0%} of the measured step, or communication outside {SHARE[0]:.0%} to {SHARE[1]:.0%}")
    if median > MEDIAN:
        raise Refused(f"median |error| {median:.1%} is above {MEDIAN:.0%}")


def _told(v: Verdict) -> bool:
    """Print a verdict; does it hold?"""
    default = v.default / v.measured_step - 1
    spread = (max(v.steps) - min(v.steps)) / v.measured_step
    typer.echo(
        f"{'ok  ' if v.holds else 'MISS'} {v.name}: predicted {v.predicted.makespan * 1e3:.1f} ms, median of {len(v.steps)} measured "
        f"{v.measured_step * 1e3:.1f} ms (spread {spread:.1%}), error {v.error:+.1%} (default profile {default:+.1%}),"
        f" communication {v.share:.0%} of the predicted step"
    )
    typer.echo(str(v.comparison))
    typer.echo("start of every op, predicted - measured, ms:")
    for line in start_errors(v):
        typer.echo(line)
    return v.holds


def start_errors(v: Verdict) -> Iterator[str]:
    """One line per rank: every op with the error of its start in milliseconds."""
    names = op_names(v.measured)
    for rank in range(len(v.measured.representative)):
        rows = np.flatnonzero(v.measured.ops["rank"] == rank)
        errors = (v.predicted.of(rank)["start"] - v.measured.ops["start"][rows]) * 1e3
        yield f"  rank {rank}: " + ", ".join(f"{names[int(row)]} {error:+.1f}" for row, error in zip(rows, errors, strict=True))
