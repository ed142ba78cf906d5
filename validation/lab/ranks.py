"""Running a workload on gloo ranks inside a laid-out network: every repetition kept, with what disturbed it."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from parasim.cost.profile import datasheet
from parasim.cost.timing import seconds
from parasim.program.ops import Compute
from parasim.program.workload import Program, Workload
from parasim.timeline import COMPUTE, Timeline
from parasim.topology.cluster import Accelerator

from .namespaces import enter, real_time
from .networks import Network

Seconds = NDArray[np.float64]  # by instance
WAIT = 30.0  # seconds that bound every wait of a rank
START, SLACK = 60.0, 3.0  # seconds allowed for start and end; and times the expected length of a step
SLEPT = 1e-3  # seconds: shorter sleeps say little about what woke them late


@dataclass(frozen=True)
class Repetition:
    """One run of a workload: its Timeline, by how much slept ops overslept (seconds: median and largest), and the part of the processors that the
    hypervisor took away meanwhile."""

    timeline: Timeline
    overslept: float
    worst: float
    stolen: float

    @property
    def step(self) -> float:
        """Seconds until the last op of the last rank has ended."""
        return self.timeline.makespan


def entering(network: Network) -> partial[None]:
    """What a rank of `network` does first."""
    return partial(_enter, network.home)


def _enter(home: Mapping[int, str], rank: int) -> None:
    enter(home[rank])
    os.environ["GLOO_SOCKET_IFNAME"] = "e0"
    real_time()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # meant for the first process, which ends its ranks


def run_on(
    network: Network, workloads: Sequence[Workload], accelerator: Accelerator, repetitions: int, expected: float = 1.0
) -> tuple[tuple[Repetition, ...], ...]:
    """Run each of `workloads` on the ranks of `network` once to warm up and then `repetitions` times, in rounds over all of them; one after the
    other they are expected to take so many seconds.

    Raises Failed naming rank and op where one dies or is late.
    """
    from parasim.executor.launch import spawn

    timeout = START + SLACK * (repetitions + 1) * (expected + 0.2 * len(workloads))
    given = [(w, durations(w.bound, accelerator)) for w in workloads]
    found: list[list[Repetition]] = spawn(_repeated, len(network.home), given, repetitions, timeout=timeout, enter=entering(network))[0]
    return tuple(tuple(one) for one in found)


def durations(workload: Workload, accelerator: Accelerator) -> list[Seconds]:
    """What each instance of each rank sleeps: the seconds of its kernels by the datasheet, without what the machine adds by itself."""
    by_class = [_seconds(program, accelerator) for program in workload.programs]
    return [by_class[int(c)] for c in workload.class_of_rank]


def _seconds(program: Program, accelerator: Accelerator) -> Seconds:
    bare, resolved = datasheet(), program.resolved
    ops = [resolved.op(i) for i in range(len(resolved))]
    return np.array([sum(seconds(k, accelerator, bare) for k in op.kernels) if isinstance(op, Compute) else 0.0 for op in ops])


def _repeated(given: Sequence[tuple[Workload, list[Seconds]]], repetitions: int) -> list[list[Repetition]]:
    """On every rank; what was measured of all is told by the first one."""
    import torch.distributed as dist

    from parasim.executor.execution import Execution, Settings

    rank = dist.get_rank()
    executions = [Execution(workload, Settings("sleep", WAIT, slept[rank])) for workload, slept in given]  # type: ignore[arg-type]
    for execution in executions:
        execution.run()
    out: list[list[Repetition]] = [[] for _ in given]
    for _ in range(repetitions):
        for execution, (_, slept), found in zip(executions, given, out, strict=True):
            before = _processors()
            timeline = execution.run()
            stolen = _stolen(before, _processors())
            if rank == 0:
                found.append(Repetition(timeline, *oversleeping(timeline, slept), stolen))
    return out


def oversleeping(timeline: Timeline, slept: list[Seconds]) -> tuple[float, float]:
    """Median and largest of (measured - slept) over the compute ops of all ranks, seconds; zeros where none sleeps."""
    rows = timeline.ops[timeline.ops["kind"] == COMPUTE]
    due = np.array([slept[int(row["rank"])][int(row["op"])] for row in rows])
    late = (rows["end"] - rows["start"] - due)[due >= SLEPT]
    return (float(np.median(late)), float(np.max(late))) if len(late) else (0.0, 0.0)


def _processors() -> tuple[int, int]:
    """(stolen, all) ticks of this machine's processors since it started; zeros where it does not say."""
    try:
        ticks = [int(n) for n in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    except (OSError, ValueError):
        return 0, 0
    return ticks[7], sum(ticks)


def _stolen(before: tuple[int, int], after: tuple[int, int]) -> float:
    return (after[0] - before[0]) / max(after[1] - before[1], 1)
