"""The public functions: from a run file to a report in four calls, and the few jobs the command line offers besides."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .collectives.catalog import MESSAGES
from .collectives.messages import Array, play
from .collectives.plan import group_of
from .collectives.table import rows as collective_rows
from .config import Plan, Run, build, load, vary
from .cost.profile import datasheet, load_profile
from .cost.timing import body_seconds, host_launch
from .cost.timing import seconds as kernel_seconds
from .errors import Deadlock, DoesNotFit, Malformed
from .executor import execute
from .lowering import lower
from .lowering.study import Study, lower_study
from .plots.artist import Artist, Picture, draw
from .program.beside import verified
from .program.ops import Compute, Op
from .program.workload import Workload
from .report import Report, summarize
from .report.advice import doesnotfit
from .report.schedules import ScheduleReport, deadlocked_report, schedule_report
from .schedules import SCHEDULES, ScheduleInput, orders_of, unpaired
from .sim import simulate
from .timeline import Timeline
from .topology.builders import ideal
from .topology.cluster import Cluster
from .topology.loader import load_cluster
from .words import known

if TYPE_CHECKING:
    from .comparison import Comparison
    from .html import Side
    from .plan.goodput_answer import Goodput
    from .plan.search import Search
    from .plan.whatif import WhatIf

RESULTS = ("report.json", "timeline.npz", "timeline.png", "memory.png", "trace.pftrace")
DPI = 120
COMM_MODELS = ("async", "stream", "blocking")
PAIRS = ("block", "sequential")
BACKWARD_ORDERS = ("increasing", "decreasing")


@dataclass(frozen=True)
class Result:
    """A simulated step: the run, its Workload, Timeline and Report (made when it is first asked for). `clocks`: what it took, in seconds by the clock."""

    run: Run
    workload: Workload
    timeline: Timeline
    clocks: Mapping[str, float]

    @cached_property
    def report(self) -> Report:
        """Where the time and the memory of the step go. Raises Refused for a timeline without ops."""
        return summarize(self.timeline.with_meta(**self.clocks), self.run)

    def write_html(self, path: Path | str, other: Result | None = None) -> Path:
        """Write the page with the interactive timeline, alone or against another result; the path. Raises Malformed where it cannot be written."""
        from .html import write

        write(Path(path), self.side, None if other is None else other.side)
        return Path(path)

    @property
    def side(self) -> Side:
        """What a page says of it."""
        from .html import Side

        return Side(self.run.name, self.timeline, self.report.to_json(), self.run, self.workload)

    def to_pandas(self) -> Any:
        """The ops of the timeline. Raises MissingExtra where pandas is not installed."""
        return self.timeline.to_pandas()

    def _repr_html_(self) -> str:
        return self.report._repr_html_()


def simulate_run(run: Run, *, fold: bool = True, beside: bool = False) -> Result:
    """Lower and simulate a run; wall-clock seconds go to the report only, so that equal inputs give equal Timelines.

    `beside`: verify the Workload in a copy of this process meanwhile.
    """
    began = time.perf_counter()
    workload = lower(run.plan, check=not beside)
    with verified(workload) if beside else nullcontext():
        lowered = time.perf_counter()
        timeline = simulate(workload, run.cluster, run.profile, fold=fold)
        clocks = {"lowering_s": lowered - began, "wall_s": time.perf_counter() - lowered}
    return Result(run, workload, timeline, clocks)


def require_fit(result: Result) -> None:
    """Raise DoesNotFit, naming the stage, the largest part and layouts that fit, when peak memory exceeds the capacity."""
    if result.report.memory is not None and not result.report.memory.fits:
        from .plan.ways_out import ways_out

        raise DoesNotFit(doesnotfit(result.report, result.run, ways_out(result.run)))


def writable(directory: Path) -> Path:
    """`directory`, made if it does not exist. Raises Malformed when nothing can be written there."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            return directory
    except OSError as e:
        raise Malformed(f"{directory}: cannot write there ({e.strerror or e})") from e


def write_results(result: Result, directory: Path, artist: Artist | None = None, meanwhile: Callable[[], object] = bool) -> list[Path]:
    """Write RESULTS into `directory`; each file replaces the old one only when all are whole. `artist` draws while the others are written.

    `meanwhile` is called before it is waited for. Raises Malformed where the disk is full or cannot be written.
    """
    from .plots import write_perfetto

    writable(directory)
    try:
        with tempfile.TemporaryDirectory(dir=directory, prefix=".parasim-") as name:
            scratch = Path(name)
            pictures = [Picture("gantt", scratch / "timeline.png", result.run.name), Picture("memory", scratch / "memory.png")]
            if artist is not None:
                artist.begin(result.timeline, scratch / "timeline.pickle", pictures, DPI)
            (scratch / "report.json").write_text(as_json(result.report.to_json()) + "\n", encoding="utf-8")
            result.timeline.save(scratch / "timeline.npz")
            write_perfetto(result.timeline, scratch / "trace.pftrace")
            meanwhile()
            artist.finish() if artist is not None else draw(result.timeline, pictures, DPI)
            for file in RESULTS:
                os.replace(scratch / file, directory / file)
    except OSError as e:
        raise Malformed(f"{directory}: cannot write there ({e.strerror or e})") from e
    return [directory / file for file in RESULTS]


def as_json(value: Any) -> str:
    """Strict JSON (no NaN, no infinity)."""
    import json

    return json.dumps(value, allow_nan=False, indent=1)


def time_schedule(
    name: str,
    ranks: int,
    microbatches: int,
    *,
    chunks: int | None = None,
    times: Sequence[float] = (1.0, 1.0, 1.0),
    scale: Sequence[float] = (),
    comm: float = 0.0,
    comm_model: str = "async",
    pairs: str = "block",
    backward_order: str | None = None,
    group: int | None = None,
    memory_cap: float | Sequence[float] | None = None,
) -> tuple[ScheduleReport, Timeline | None]:
    """A bare schedule under given seconds (F, I, W of one microbatch over 1/ranks of the depth), with `comm` seconds per message.

    `chunks`: stages per rank (default: what the schedule has). `pairs`: overlapped pairs as one "block" or "sequential". `group`: microbatches
    per group; `memory_cap`: microbatches in flight. Returns its report and Timeline (None where it deadlocks). Raises Malformed for an unknown
    name or word, InvalidLayout for sizes that the schedule does not allow.
    """
    row = SCHEDULES[known(name, SCHEDULES, "schedule")]
    for word, words, what in ((pairs, PAIRS, "pairs"), (comm_model, COMM_MODELS, "communication model"), (backward_order, BACKWARD_ORDERS, "backward order")):
        known(word or words[0], words, what)
    f, i, w = times
    cap = tuple(memory_cap) if isinstance(memory_cap, Sequence) else memory_cap
    given = ScheduleInput(ranks, microbatches, row.chunks if chunks is None else chunks, group, (f, i, w), cap, comm)
    orders = orders_of(name, given, backward_order)
    shares = given.chunks if row.placement.shares else 1
    return time_study(Study(unpaired(orders) if pairs == "sequential" else orders, shares, (f, i, w), scale, comm_model), comm)


def time_study(study: Study, comm: float) -> tuple[ScheduleReport, Timeline | None]:
    """A schedule study with `comm` seconds per message: its report and Timeline (None where it deadlocks)."""
    try:
        timeline = simulate(lower_study(study), ideal(len(study.orders), comm), datasheet(), fold=False)
    except Deadlock as e:
        return deadlocked_report(study.orders, e), None
    return schedule_report(study.orders, timeline), timeline


def time_collective(
    cluster: Cluster | str | Path | Mapping[str, Any],
    op: str,
    ranks: int | Sequence[int],
    sizes: int | Sequence[int],
    *,
    algorithm: str = "auto",
    profile: str | None = None,
) -> list[dict[str, Any]]:
    """One collective alone on a cluster, as `parasim collective` times it: a row per size, in the words of nccl-tests.

    `ranks`: the first so many devices, or these. `sizes`: bytes of the larger buffer of a rank. A row has op, bytes, ranks, algorithm, time_s,
    algbw_Bps, busbw_Bps, wire_bytes_per_rank, reason. Raises Malformed, Refused, Unreachable.
    """
    members = range(ranks) if isinstance(ranks, int) else ranks
    where = cluster if isinstance(cluster, Cluster) else load_cluster(cluster, max(members) + 1)
    return collective_rows(where, load_profile(profile), op, list(members), [sizes] if isinstance(sizes, int) else sizes, algorithm)


def play_collective(op: str, inputs: Sequence[Array | None], algorithm: str, root: int = 0) -> list[Array | None]:
    """What an algorithm does to values: its messages, played on one numpy array per rank (sums); the outputs, None where nothing is due.

    Inputs: a whole buffer each for reductions, the rank's own part for all_gather and gather, the root's value (None elsewhere) for broadcast and
    scatter; lengths are multiples of the parts that the algorithm makes. Raises Malformed for an unknown op or algorithm, Refused for sizes.
    """
    ways = MESSAGES[known(op, MESSAGES, "collective")]
    cluster = ideal(len(inputs), 0.0)
    group = group_of(cluster.devices, cluster, datasheet(), root)
    return play(op, ways[known(algorithm, ways, "algorithm")](group), inputs, root)


def compare(predicted: Timeline, measured: Timeline) -> Comparison:
    """Two timelines of one program, laid over each other op by op. Raises Refused where they are of different ranks or programs."""
    from .comparison import compare as beside

    return beside(predicted, measured)


def whatif(run: Run, variants: Sequence[str] = (), sweeps: Sequence[str] = ()) -> WhatIf:
    """Variants ("zero.stage=2,batch.micro=2") and sweeps ("parallel.tp=1..8:2x") of a run beside the run as written. Raises Malformed."""
    from .plan.whatif import asked
    from .plan.whatif import whatif as beside

    return beside(run, asked(variants, sweeps))


def search(path: Path | str | None, devices: int, overrides: Sequence[str] = (), **more: Any) -> Search:
    """The best layouts of a run file (None: the default run) on `devices`; `more` as in `parasim search`: varied, objective, constraints, top, runs.

    Raises Malformed; Refused where no layout is legal, fits and meets the constraints.
    """
    from .plan.search import search as found

    return found(None if path is None else Path(path), overrides, devices, **more)


def goodput(run: Run, **asked: Any) -> Goodput:
    """Effective training time under failures and checkpoints; `asked` are the flags of `parasim goodput`, with the texts that it takes."""
    from .plan.goodput_ask import Asked
    from .plan.goodput_ask import goodput as answer

    return answer(run, Asked(**asked))


def op_seconds(run: Run, workload: Workload) -> Callable[[int, Compute], float]:
    """Predicted seconds of a Compute op of `workload`, the run's, on any rank: what the executor sleeps."""
    paces = run.cluster.paces(run.devices).tolist()
    chip, profile, degrees = run.cluster.accelerator, run.profile, run.plan.layout.degrees
    launch = host_launch(profile, degrees.tp, degrees.pp, run.devices, len({run.cluster.node_of[d] for d in run.cluster.devices[: run.devices]}))
    found: dict[Op, float] = {}
    for body in (body for program in workload.bound.programs for body in program.bodies.values()):
        found.update(zip(body, body_seconds(body, lambda k: kernel_seconds(k, chip, profile), profile, launch), strict=True))
    return lambda rank, op: float(paces[rank] * found[op])


__all__ = [
    "Plan",
    "Report",
    "Result",
    "Run",
    "Timeline",
    "Workload",
    "build",
    "compare",
    "execute",
    "goodput",
    "load",
    "load_cluster",
    "lower",
    "play_collective",
    "search",
    "simulate",
    "simulate_run",
    "summarize",
    "time_collective",
    "time_schedule",
    "vary",
    "whatif",
]
