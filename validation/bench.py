"""`python -m validation bench [--write]`: how fast the simulator is, as medians on this machine, and which goals it meets. Never part of the test suite.

Goals are judged on CPU seconds, which are what one thread takes on a machine that does nothing else; wall seconds stand beside them.
"""

from __future__ import annotations

import os
import platform
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import typer
import yaml

from parasim.api import load
from parasim.collectives.plan import plan, seconds
from parasim.config import build
from parasim.cost.profile import datasheet
from parasim.lowering import lower
from parasim.report import summarize
from parasim.sim import simulate
from parasim.topology.loader import load_cluster

from .bench_cases import DEEPSEEK, DIFFERENT, EXAMPLES, LADDER, LLAMA, REDUCE, SLOW, WIDE, Took, command, medians, rung, took
from .naive_ring import ring_seconds

PAGE = Path(__file__).parents[1] / "docs" / "background" / "performance.md"
MIB = 1e6
PATIENCE = 240.0  # wall seconds for the case of different replicas
RINGS = (16, 64, 256)


@dataclass(frozen=True)
class Goal:
    """A measured median beside the most it may be; `wall` seconds beside CPU seconds, nan where it is no time.

    Where two processes share the work their CPU seconds add up to more than anybody waits: `shared` ones are judged by the clock.
    """

    name: str
    value: float
    limit: float
    unit: str = "s"
    wall: float = float("nan")
    note: str = ""
    shared: bool = False

    @property
    def met(self) -> bool:
        """Within the limit?"""
        return (self.wall if self.shared else self.value) <= self.limit

    @property
    def row(self) -> tuple[str, ...]:
        """Name, measured, wall, goal, verdict, note."""
        wall = "" if self.wall != self.wall else f"{self.wall:.2f} s"
        return self.name, f"{self.value:.3g} {self.unit}", wall, f"{self.limit:.3g} {self.unit}", "met" if self.met else "**missed**", self.note


def cpu(job: Callable[[], object]) -> tuple[float, float]:
    """(CPU seconds, wall seconds) of one call in this process."""
    began, clock = time.process_time(), time.perf_counter()
    job()
    return time.process_time() - began, time.perf_counter() - clock


def bench(
    repeats: Annotated[int, typer.Option(min=1, help="Runs per line, of which the median counts; fewer where a run takes very long.")] = 5,
    write: Annotated[bool, typer.Option("--write", help="Also write docs/background/performance.md.")] = False,
) -> None:
    """Time the engine from 64 to 131,072 devices and the commands; say which goals are met and which are missed."""
    pieces: dict[str, str] = {}

    def show(title: str, head: Sequence[str], rows: Sequence[Sequence[str]], words: str) -> None:
        lines = [f"## {title}", "", words, "", "| " + " | ".join(head) + " |", "|" + "---|" * len(head), *("| " + " | ".join(row) + " |" for row in rows), ""]
        pieces[title] = "\n".join(lines)
        typer.echo(pieces[title])
        if write:  # after every section: one that is interrupted keeps what it has
            PAGE.write_text("\n".join([f"# How fast it is\n\n{_machine(repeats)}\n", *pieces.values()]), encoding="utf-8")

    goals = [*_large(repeats), *_commands(repeats), *_others(repeats)]
    show("Goals", GOAL, [g.row for g in goals], GOALS)
    show("From 64 to 131,072 devices", HEAD, _ladder(repeats), STEPS)
    show("A ring in plain simpy", ("ranks", "plain simpy", "messages", "parasim", "events", "ratio", "same time"), _rings(repeats), RING)
    show("One step of every example", ("run file", "devices", "load", "lowering", "engine", "report"), _examples(), EXAMPLE)
    goals += _different()
    show("Goals", GOAL, [g.row for g in goals], GOALS)


GOAL = ("what", "CPU", "wall", "at most", "", "")
GOALS = (
    "Seconds of CPU, which on an idle machine are those of the clock (not where two processes share the work). What is missed is missed on this machine, "
    "and stands here until it is not."
)
HEAD = ("devices", "classes", "ranks per class", "events", "events, op by op", "lowering", "engine", "engine, op by op", "lowering's share", "events/s", "peak")
STEPS = (
    "Llama 3 70B on H100, tensor parallel 8, pipeline 8, the rest replicas; 32 microbatches each. Seconds of CPU. *Op by op*: nothing fused. "
    "Lowering's share is of lowering and engine; the peak is of a process that loads, simulates and reports."
)
RING = (
    "An all-reduce of 1 GB in a ring, 2 (n - 1) steps: a simpy process per rank and a message per step, beside the same collective here, where like "
    "ranks are folded and the steps are one fluid. *Same time*: what both predict, over each other."
)
EXAMPLE = "The run files of `docs/examples`, as they are."


def _machine(repeats: int) -> str:
    cores, load_average = os.cpu_count() or 0, os.getloadavg()[0]
    return (
        f"Written by `python -m validation bench --write`: medians of {repeats} runs (fewer where one takes over 20 s), {cores} cores, load average "
        f"{load_average:.1f} while it ran, Python {platform.python_version()}, numpy {version('numpy')}, simpy {version('simpy')}."
    )


def _large(repeats: int) -> list[Goal]:
    """Llama 3 405B on 16,384 devices, as it is, eight times as wide, and disturbed."""
    base, wide, slow = took(LLAMA, repeats), took(WIDE, repeats), took(SLOW, repeats)
    reduce = took(REDUCE, repeats)
    what = "Llama 3 405B, 16,384 devices"
    return [
        Goal(f"{what}: engine", base.engine, 0.25, wall=base.wall, note=f"{base.events:,} events, {base.classes} classes"),
        Goal(f"{what}: lowering, engine and report", base.lowering + base.engine + base.report, 2.0, note="inside a process"),
        Goal("131,072 devices: engine over that", wide.engine / base.engine, 1.2, "x", note=f"{wide.engine:.2f} s, {wide.rss / MIB:.0f} MB"),
        Goal("one GPU of 16,384 a fifth slower: engine", slow.engine, 1.0, wall=slow.wall, note=slow.blamed),
        Goal("all-reduce over 4,096 ranks: lowering and engine", reduce.lowering + reduce.engine, 1.0, wall=reduce.wall),
    ]


def _different() -> list[Goal]:
    """Every replica of 128 slower than the one before: nothing to fold but the ranks of a tensor-parallel group. Once, and not for ever."""
    what = "128 different replicas: engine"
    try:
        made = took(DIFFERENT, 1, seconds=PATIENCE)
    except subprocess.TimeoutExpired:
        return [Goal(what, PATIENCE, 15.0, wall=PATIENCE, note="stopped, loading and report too")]
    return [Goal(what, made.engine, 15.0, wall=made.wall, note=f"{made.events:,} events, {made.classes:,} classes, {made.rss / MIB:,.0f} MB")]


def _commands(repeats: int) -> list[Goal]:
    """Whole commands: CPU of the process and of what it starts."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "llama.yaml"
        file.write_text(yaml.safe_dump(LLAMA), encoding="utf-8")
        out = str(Path(folder) / "out")
        wall, used, peak = medians(lambda: command("run", str(file), "--json"), repeats)
        files_wall, files_used, _ = medians(lambda: command("run", str(file), "--out", out), repeats)
        help_wall, help_used, _ = medians(lambda: command("--help"), repeats)
        default_wall, default_used, _ = medians(lambda: command("run", "--out", out), repeats)
    what = "parasim run, Llama 3 405B, 16,384 devices"
    return [
        Goal(f"{what}, --json", used, 2.0, wall=wall),
        Goal(f"{what}, five files", files_used, 2.0, wall=files_wall, note="two processes, one draws: by the clock", shared=True),
        Goal(f"{what}: peak", peak / MIB, 350.0, "MB"),
        Goal(
            "parasim run: the default run and its five files", default_used, 3.0, wall=default_wall, note="two processes, one draws: by the clock", shared=True
        ),
        Goal("parasim --help", help_used, 0.4, wall=help_wall),
    ]


def _others(repeats: int) -> list[Goal]:
    deepseek = took(DEEPSEEK, repeats)
    goals = [Goal("DeepSeek-V3, 2,048 devices, DualPipe: lowering and engine", deepseek.lowering + deepseek.engine, 5.0, wall=deepseek.wall)]
    for op, ranks in (("all_to_all", 1024), ("all_reduce", 16384)):
        used, wall = medians(lambda op=op, ranks=ranks: cpu(lambda: _collective(op, ranks)), repeats)  # type: ignore[misc]
        goals.append(Goal(f"{op} over {ranks:,} ranks, from the cluster's name", used, 0.5, wall=wall))
    return goals


def _collective(op: str, ranks: int) -> float:
    """One collective on a rail-optimised fat tree; nothing is kept from run to run."""
    cluster, profile = load_cluster("h100-hgx-ib400", ranks), datasheet()
    return seconds(plan(op, 1e9, cluster.devices, cluster, profile), cluster, profile)


def _ladder(repeats: int) -> list[tuple[str, ...]]:
    rows = []
    for devices in LADDER:
        fast, plain = took(rung(devices), repeats), took(rung(devices), repeats, fuse=False)
        rows.append(_rung(devices, fast, plain))
    return rows


def _rung(devices: int, fast: Took, plain: Took) -> tuple[str, ...]:
    share = fast.lowering / (fast.lowering + fast.engine)
    return (
        f"{devices:,}", f"{fast.classes}", f"{devices / fast.classes:,.0f}", f"{fast.events:,}", f"{plain.events:,}", f"{fast.lowering:.2f} s",
        f"{fast.engine:.2f} s", f"{plain.engine:.2f} s", f"{100 * share:.0f} %", f"{fast.events / fast.engine:,.0f}", f"{fast.rss / MIB:.0f} MB",
    )  # fmt: skip


def _rings(repeats: int) -> list[tuple[str, ...]]:
    """The naive ring beside the same collective on one ideal switch."""
    rows: list[tuple[str, ...]] = []
    for ranks in RINGS:
        keys = {
            "model": {"kind": "fixed", "layers": 1, "forward": "0 s", "input_grad": "0 s", "weight_grad": "0 s", "parameters": 5e8},
            "cluster": {"name": "switch", "accelerator": "h100-sxm", "node": {"devices": ranks, "scale_up": SWITCH}},
            "devices": ranks,
            "batch": {"global": ranks, "micro": 1},
            "dp": {"mode": "flat"},
        }
        run = build(keys)
        workload = lower(run.plan)
        here, _ = medians(lambda run=run, w=workload: cpu(lambda: simulate(w, run.cluster, run.profile)), repeats)  # type: ignore[misc]
        timeline = simulate(workload, run.cluster, run.profile)
        there, _ = medians(lambda n=ranks: cpu(lambda: ring_seconds(n, 1e9, 50e9, 1e-6)), repeats)  # type: ignore[misc]
        naive, messages = ring_seconds(ranks, 1e9, 50e9, 1e-6)
        events, same = timeline.meta["events"], timeline.makespan / naive
        rows.append((f"{ranks}", f"{there:.3f} s", f"{messages:,}", f"{here:.4f} s", f"{events}", f"{there / here:,.0f}", f"{same:.6f}"))
    return rows


SWITCH = {"kind": "switch", "bandwidth": "50 GB/s", "latency": "1 us"}


def _examples() -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for path in sorted(EXAMPLES.glob("*.yaml")):
        if "cluster" not in path.name:
            marks = [time.process_time()]
            run = load(path)
            marks.append(time.process_time())
            workload = lower(run.plan)
            marks.append(time.process_time())
            timeline = simulate(workload, run.cluster, run.profile)
            marks.append(time.process_time())
            summarize(timeline, run)
            marks.append(time.process_time())
            rows.append((f"`{path.name}`", f"{run.devices:,}", *(f"{end - start:.2f} s" for start, end in pairwise(marks))))
    return rows
