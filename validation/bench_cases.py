"""What `bench` times, and how: every run of a case in a process of its own; medians count.

python -m validation.bench_cases '{"keys": {...}, "fuse": true, "folding": true}'
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from parasim.config import build
from parasim.lowering import lower
from parasim.report import Report, summarize
from parasim.sim import simulate

LLAMA = {
    "model": "llama3-405b",
    "cluster": "h100-hgx-ib400",
    "batch": {"global": 16384, "micro": 1, "sequence": 8192},
    "devices": 16384,
    "parallel": {"tp": 8, "pp": 16, "dp": "auto"},
    "tensor": {"sequence_parallel": True},
    "zero": {"stage": 1},
}
WIDE = LLAMA | {"devices": 131072, "batch": {"global": 131072, "micro": 1, "sequence": 8192}}
SLOW = LLAMA | {"perturb": [{"rank": 5000, "slowdown": 1.2}]}
DIFFERENT = LLAMA | {"perturb": [{"rank": 8 * i + t, "slowdown": 1.0 + 0.001 * (i + 1)} for i in range(128) for t in range(8)]}  # each replica its own
REDUCE = {
    "model": {"kind": "fixed", "layers": 1, "forward": "1 ms", "input_grad": "1 ms", "weight_grad": "1 ms", "parameters": 1e9},
    "cluster": "h100-hgx-ib400",
    "devices": 4096,
    "batch": {"global": 4096, "micro": 1},
    "dp": {"mode": "flat"},
}
DEEPSEEK = {
    "model": "deepseek-v3",
    "cluster": "h100-hgx-ib400",
    "devices": 2048,
    "batch": {"global": 15360, "micro": 1, "sequence": 4096},
    "parallel": {"pp": 16, "ep": 64},
    "pipeline": {"schedule": "dualpipe", "layers": {"first": 3, "last": 2}},
    "zero": {"stage": 1},
}
LONG = 30.0  # seconds after which a case is not run again
LADDER = (64, 512, 4096, 16384, 131072)
EXAMPLES = Path(__file__).parents[1] / "docs" / "examples"


def rung(devices: int) -> dict[str, Any]:
    """Llama 3 70B on so many H100: tensor parallel 8, pipeline 8, the rest replicas of 32 microbatches each."""
    return LLAMA | {
        "model": "llama3-70b",
        "devices": devices,
        "batch": {"global": devices // 64 * 32, "micro": 1, "sequence": 8192},
        "parallel": {"tp": 8, "pp": 8},
    }


@dataclass(frozen=True)
class Took:
    """Medians of one case over `runs` runs, in CPU seconds: cluster and plan made (`load`), Workload lowered and verified, engine, report; `wall` the
    wall seconds of the engine.

    `events` of the engine, `ranks` of the run and `classes` simulated, `rss` bytes at the peak of the process, `step` what is predicted (s);
    `blamed` whom the report names.
    """

    runs: int
    load: float
    lowering: float
    engine: float
    report: float
    wall: float
    events: int
    ranks: int
    classes: int
    rss: int
    step: float
    blamed: str


def took(keys: Mapping[str, Any], repeats: int, *, fuse: bool = True, folding: bool = True, seconds: float = 1200.0) -> Took:
    """Medians over `repeats` fresh processes, as a command is one, each for so many wall seconds at most (`subprocess.TimeoutExpired`); fewer where
    they take long."""
    asked = json.dumps({"keys": keys, "fuse": fuse, "folding": folding})
    rows: list[Took] = []
    began = time.monotonic()
    while len(rows) < repeats and (not rows or time.monotonic() - began < LONG):
        out = subprocess.run([sys.executable, "-m", __name__, asked], check=True, capture_output=True, text=True, timeout=seconds, env=environment())
        rows.append(Took(**json.loads(out.stdout)))
    middle = {name: statistics.median(getattr(row, name) for row in rows) for name in ("load", "lowering", "engine", "report", "wall", "rss")}
    return replace(rows[0], runs=len(rows), **{**middle, "rss": int(middle["rss"])})


def environment() -> dict[str, str]:
    """The environment of a user: compiled modules are kept."""
    return {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}


def command(*arguments: str) -> tuple[float, float, int]:
    """(wall seconds, CPU seconds, bytes at the peak) of a fresh `parasim` process."""
    began = time.perf_counter()
    child = subprocess.Popen([sys.executable, "-m", "parasim", *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment())
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise subprocess.CalledProcessError(child.returncode, ["parasim", *arguments])
    return time.perf_counter() - began, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024


def medians(job: Callable[[], tuple[float, ...]], repeats: int) -> tuple[float, ...]:
    """Medians of what `repeats` runs measure, one by one."""
    return tuple(statistics.median(column) for column in zip(*(job() for _ in range(repeats)), strict=True))


def measure(keys: Mapping[str, Any], *, fuse: bool, folding: bool) -> Took:
    """The case in this process, once."""
    marks = [time.process_time()]
    run = build(keys)
    marks.append(time.process_time())
    workload = lower(run.plan)
    marks.append(time.process_time())
    clock = time.perf_counter()
    timeline = simulate(workload, run.cluster, run.profile, fold=folding, fuse=fuse)
    wall = time.perf_counter() - clock
    marks.append(time.process_time())
    report = summarize(timeline, run)
    marks.append(time.process_time())
    load, lowering, engine, reporting = (b - a for a, b in pairwise(marks))
    return Took(
        1, load, lowering, engine, reporting, wall, events=int(timeline.meta["events"]), ranks=report.world, classes=int(timeline.meta["classes"]),
        rss=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, step=report.step_time, blamed=_blamed(report),
    )  # fmt: skip


def _blamed(report: Report) -> str:
    """Whom the report names as slow and as waited for, and for how long."""
    slow, blame = report.straggler, report.blame
    more = 0.0 if slow is None else slow.compute - slow.others
    words = [f"rank {slow.rank} computes {more:.3g} s ({100 * more / slow.others:.1f} %) longer than the others of its stage"] if slow else []
    words += [f"{blame[0].waiting:,} ranks idle for rank {blame[0].rank}, up to {blame[0].idle:.3g} s"] if blame else []
    return "; ".join(words)


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    sys.stdout.write(json.dumps(vars(measure(asked["keys"], fuse=asked["fuse"], folding=asked["folding"]))))
