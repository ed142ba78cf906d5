"""The jobs of the command line beside `api`: checks, tables, drawings, real runs. Each returns data or text; none prints."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .api import COMM_MODELS, DPI, PAIRS, execute, load, lower, op_seconds, time_schedule, time_study, writable
from .collectives.table import MOST_RANKS, compared, parse_ranks, parse_sizes, rows, spreads
from .config import Run, build
from .config.imported import Imported
from .config.megatron import from_megatron
from .config.torchtitan import from_torchtitan
from .cost.profile import load_profile
from .documents import write
from .errors import Failed, Malformed, Refused
from .files import whole
from .lowering.study import Study
from .memory import memory_bound
from .model.spec import Fixed
from .report.schedules import ScheduleReport
from .schedules import SCHEDULES
from .schedules.table import Table, read_table
from .schedules.validate import placement_of, sizes, violations
from .timeline import Timeline
from .topology.cluster import Cluster
from .topology.loader import load_cluster
from .units import format_bandwidth, format_bytes, format_memory, format_seconds, parse
from .words import known

if TYPE_CHECKING:
    from .plan.search import Search
    from .plan.waits import Waits
    from .plan.whatif import WhatIf

OF_TIMELINES = ("gantt", "memory", "links")
OF_CLUSTERS = ("cluster", "ladder")
OF_RESULTS = ("scaling", "cliff", "buckets", "pareto")
RUN_FORMS: Mapping[str, Callable[[str, str, str, int | None], Imported]] = {"megatron": from_megatron, "torchtitan": from_torchtitan}
FORMATS = (".png", ".svg", ".pdf")
SHOWN_AT_MOST = 12  # violations of one table


MOST_ACTIONS = 2**18  # forwards of a study: beyond that a typo is likelier than a schedule
LONGEST = 1e6  # seconds, or a factor: beyond that sums of durations lose what they are made of


def number_list(flag: str, text: str, count: int) -> tuple[float, ...]:
    """`count` comma-separated numbers, none negative. Raises Malformed."""
    try:
        values = tuple(float(x) for x in text.split(","))
    except ValueError:
        values = ()
    if len(values) != count or any(not 0 <= v <= LONGEST for v in values):
        raise Malformed(f"{flag} {text!r} must be {count} numbers from 0 to {LONGEST:g} with commas between them, such as {','.join(['1'] * count)}")
    return values


def time_named(
    name: str, ranks: int, microbatches: int, *, chunks: int | None, times: str, scale: str, cap: str, **more: Any
) -> tuple[ScheduleReport, Timeline | None]:
    """`time_schedule` with the numbers of --times, --stage-scale (one per stage) and --memory-cap (one, or one per rank) as text. Raises Malformed."""
    row = SCHEDULES[known(name, SCHEDULES, "schedule")]
    if ranks * microbatches > MOST_ACTIONS:
        raise Malformed(f"--ranks {ranks} x --microbatches {microbatches} is too much for one study; at most {MOST_ACTIONS} together")
    stages = row.placement.stages(ranks, row.chunks if chunks is None else max(chunks, 1))
    factors = number_list("--stage-scale", scale, stages) if scale else ()
    caps = number_list("--memory-cap", cap, ranks if "," in cap else 1) if cap else ()
    limit = caps if len(caps) > 1 else caps[0] if caps else None
    return time_schedule(name, ranks, microbatches, chunks=chunks, times=number_list("--times", times, 3), scale=factors, memory_cap=limit, **more)


def beside(
    report: ScheduleReport, name: str, ranks: int, microbatches: int, versus: str | None, versus_microbatches: int | None, versus_times: str | None, **more: Any
) -> ScheduleReport:
    """The report with what its messages cost (another study with free ones), and over that of `versus`, whose chunks are its own; that may have
    other microbatches and times, too. Raises Malformed."""
    if report.makespan is None:
        return report
    free = report if not more["comm"] else time_named(name, ranks, microbatches, **{**more, "comm": 0.0})[0]
    comm_s = None if free.makespan is None else report.makespan - free.makespan
    if versus is None and versus_microbatches is None and versus_times is None:
        return replace(report, comm_s=comm_s)
    theirs = microbatches if versus_microbatches is None else versus_microbatches
    changed = {"chunks": None if versus is not None else more["chunks"], "times": more["times"] if versus_times is None else versus_times}
    other = time_named(versus or name, ranks, theirs, **{**more, **changed})[0]
    pairs = {"makespan": (report.makespan, other.makespan), "bubble_s": (report.bubble, other.bubble)}
    over = {k: a / b if a is not None and b else None for k, (a, b) in pairs.items()}
    faster = microbatches / theirs / over["makespan"] if over["makespan"] else None
    return replace(report, comm_s=comm_s, over={**over, "throughput": faster, "throughput_gain": None if faster is None else faster - 1})


def time_table(path: Path, *, times: str, scale: str, comm: float, comm_model: str, pairs: str) -> tuple[ScheduleReport, Timeline | None, Table]:
    """Time the schedule of a CSV file in torch's form; with SEND and RECV cells its transfers stand where the file says. Also returns the table.

    Raises Malformed (no such file), Unparsable (line and column), Refused (every rule that the table breaks).
    """
    known(pairs, PAIRS, "pairs")
    known(comm_model, COMM_MODELS, "communication model")
    table = read_table(path)
    found = violations(table)
    if any(v.field != "cycle" for v in found):
        raise Refused([replace(v, field=f"{path} {v.field}") for v in found[:SHOWN_AT_MOST]])
    stages, _ = sizes(table.orders)
    shares = stages // len(table.rows) if placement_of(table.orders).shares else 1
    if pairs == "sequential":
        table = table.unpaired()
    factors = number_list("--stage-scale", scale, stages) if scale else ()
    study = Study(table.orders, shares, number_list("--times", times, 3), factors, comm_model, table.steps if table.has_transfers else None)
    return *time_study(study, comm), table


def write_table(table: Table, path: Path) -> None:
    """Write a table in torch's form; the file appears only when it is whole. Raises Malformed."""
    writable(path.parent)
    with whole(path, "--write-csv ") as draft:
        draft.write_bytes(table.text().encode())


@dataclass(frozen=True)
class Checked:
    """A run that may be simulated: a lower bound of peak bytes per stage, and the capacity of the accelerator."""

    run: Run
    bounds: tuple[float, ...]
    capacity: float

    @property
    def fits(self) -> bool:
        """No stage needs more than there is, by the bound."""
        return max(self.bounds) <= self.capacity

    @property
    def heaviest(self) -> int:
        """The stage with the largest bound."""
        return max(range(len(self.bounds)), key=self.bounds.__getitem__)

    def bound(self, stage: int) -> str:
        """The bound of a stage in words."""
        return format_memory(self.bounds[stage])

    def to_json(self) -> dict[str, Any]:
        """The object that `parasim check --json` prints."""
        return {
            "schema": "parasim.check/1",
            "violations": [],
            "memory_bound_bytes": list(self.bounds),
            "capacity_bytes": self.capacity,
            "fits": self.fits,
            "assumptions": list(self.run.plan.assumptions),
        }

    def __str__(self) -> str:
        lines = [f"{self.run.name}: {'no violations' if self.fits else 'does not fit'}"]
        lines += [f"stage {s}: at least {self.bound(s)} of {format_memory(self.capacity)}" for s in range(len(self.bounds))]
        return "\n".join([*lines, *(f"assumed: {a}" for a in self.run.plan.assumptions)])


def refusal(error: Refused) -> dict[str, Any]:
    """The object that `parasim check --json` prints of a run that breaks rules: each with its field, value, rule, legal values and facts."""
    rows = [{"field": v.field, "value": v.value, "rule": v.rule, "legal": v.legal, **v.facts} for v in error.violations]
    return {"schema": "parasim.check/1", "violations": rows, "memory_bound_bytes": None, "capacity_bytes": None, "fits": None, "assumptions": []}


def check_run(path: Path | None, overrides: Sequence[str]) -> Checked:
    """Load, lower and verify a run without simulating it. Raises what `load` and `lower` raise."""
    run = load(path, overrides)
    bounds = tuple(memory_bound(p.resolved) for p in lower(run.plan).bound.programs)
    return Checked(run, bounds, run.cluster.accelerator.memory.value)


def plot_file(kind: str, source: str, out: Path, devices: int) -> None:
    """Draw the timeline, the cluster (of `devices` where its count is auto), or the JSON of `whatif` or `search` that `source` names.

    Raises Malformed, Unparsable; Refused where there is nothing to draw.
    """
    from .plots.results import picture

    known(kind, (*OF_TIMELINES, *OF_CLUSTERS, *OF_RESULTS), "plot")
    if kind in OF_RESULTS:
        write_figure(picture(kind, Path(source)), out)
    else:
        draw(kind, load_cluster(source, devices) if kind in OF_CLUSTERS else Timeline.load(Path(source)), out)


def import_topology(path: Path, kind: str, out: Path, **more: Any) -> str:
    """Write the cluster of a file about real machines as a cluster file; what to say. Raises Malformed, Unparsable."""
    from .topology.importers import import_cluster

    found = import_cluster(path, kind, **more)  # type: ignore[arg-type]
    writable(out.parent)
    write(found.mapping, out)
    cluster = found.cluster
    servers = len(set(cluster.node_of.values()))
    return "\n".join([f"{len(cluster.devices)} x {cluster.accelerator.name} in {servers} servers", *(f"note: {n}" for n in found.notes), f"wrote {out}"])


def import_run(path: Path, kind: str, cluster: str, devices: int | None, out: Path) -> str:
    """Write the run that arguments of Megatron-LM or a config of torchtitan ask for as a run file; what to say.

    Raises Malformed, Unparsable, InvalidLayout.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as e:
        raise Malformed(f"{path}: cannot be read ({e})") from e
    keys, left_out, assumed = RUN_FORMS[kind](text, str(path), cluster, devices)
    run = build(keys)
    writable(out.parent)
    write(keys, out)
    notes = [f"note: {a}" for a in (*assumed, *([f"not used: {', '.join(left_out)}"] if left_out else []))]
    degrees = run.plan.layout.degrees
    return "\n".join([f"tp {degrees.tp} x cp {degrees.cp} x pp {degrees.pp} x dp {degrees.dp} on {cluster}", *notes, f"wrote {out}"])


def draw(kind: str, subject: Timeline | Cluster, out: Path) -> None:
    """Draw a timeline or a cluster into a PNG, SVG or PDF file, which appears only when it is whole. Raises Malformed."""
    from . import plots

    write_figure(getattr(plots, kind)(subject), out)


def write_figure(figure: Any, out: Path) -> None:
    """Write a picture as PNG, SVG or PDF; the file appears only when it is whole. Raises Malformed."""
    if out.suffix not in FORMATS:
        raise Malformed(f"--out {out}: the ending must be one of {', '.join(FORMATS)}")
    writable(out.parent)
    with whole(out, "--out ") as draft:
        figure.savefig(draft, dpi=DPI)


def what_if(path: Path | None, overrides: Sequence[str], variants: Sequence[str], sweeps: Sequence[str]) -> WhatIf:
    """The variants and sweeps of the flags beside the run as written. Raises Malformed, and what `load` raises."""
    from .plan.whatif import asked, whatif

    rows = asked(variants, sweeps)
    if not rows:
        raise Malformed("nothing to compare: give --variant k=v,k=v or --sweep k=a..b:2x, such as --variant zero.stage=2 or --sweep batch.micro=1..4:2x")
    return whatif(load(path, overrides), rows)


def search_layouts(path: Path | None, overrides: Sequence[str], devices: int | None, **more: Any) -> Search:
    """The best layouts on `devices` (default: those of the run file). Raises Malformed, Refused where none is legal, fits and meets the constraints."""
    from .plan.search import search

    return search(path, overrides, load(path, overrides).devices if devices is None else devices, **more)


def draw_rows(found: WhatIf, out: Path) -> None:
    """Draw where the step of every row goes. Raises Malformed."""
    from . import plots
    from .plan.binding import shares

    bars = [("as written", found.baseline), *((v.name, v.report) for v in found.variants if v.report is not None)]
    picture = [(name, {part: share * report.step_time for part, share in shares(report).items()}, report.memory.fits) for name, report in bars]
    write_figure(plots.bars(picture, found.name), out)


def collective_rows(
    cluster: str,
    op: str,
    *,
    ranks: str | None,
    rank_list: str | None,
    sizes: str,
    algorithm: str = "auto",
    profile: str | None = None,
    measured: str | None = None,
) -> list[dict[str, Any]]:
    """Rows of `parasim collective` over the first `ranks` devices (each of several numbers) or those of `rank_list`.

    `cluster`, `op` and `profile` may be several with commas: a row for each. `measured`: a time that takes the place of the predicted one.
    Raises Malformed, Refused, Unreachable.
    """
    if (ranks is None) == (rank_list is None):
        raise Malformed("give either --ranks N or --rank-list 0-7,16")
    groups = [parse_ranks(f"0-{n - 1}") for n in _counts(ranks)] if ranks is not None else [parse_ranks(rank_list or "")]
    time = None if measured is None else parse(measured, "seconds")
    most = max(max(members) for members in groups) + 1
    machines = [load_cluster(name, most) for name in cluster.split(",")]
    profiles = [load_profile(name) for name in (profile.split(",") if profile else [None])]
    each = ((m, p, one, members) for m in machines for p in profiles for one in op.split(",") for members in groups)
    return compared([row for m, p, one, members in each for row in rows(m, p, one, members, parse_sizes(sizes), algorithm, time)])


def waits(cluster: str, op: str, arrivals: str, size: str, profile: str | None = None) -> Waits:
    """Who waits how long where the ranks come to a collective at `arrivals` (times with commas); `size` in the last of its values. Raises Malformed."""
    from .plan.waits import waits as simulated

    times = [parse(text, "seconds") for text in arrivals.split(",")]
    return simulated(load_cluster(cluster, len(times)), load_profile(profile), op, parse_sizes(size)[-1], times)


def _counts(text: str) -> list[int]:
    """Numbers of ranks: one, several with commas, or a range as of a sweep. Raises Malformed."""
    from .plan.settings import sweep

    values = sweep(f"ranks={text}", "--ranks")[1]
    if any(not v.isdecimal() or not 1 <= int(v) < MOST_RANKS for v in values):
        raise Malformed(f"--ranks {text} must be whole numbers from 1 to at most {MOST_RANKS - 1}, such as 8, or 2,4,8, or 2..8")
    return [int(v) for v in values]


def collective_json(table: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The contract `parasim.collective/1`; `sums`: wire bytes per rank and seconds of all rows, as if one came after the other."""
    sums = {key: sum(row[key] for row in table) for key in ("wire_bytes_per_rank", "time_s")}
    return {"schema": "parasim.collective/1", "count": len(table), "rows": list(table), "spreads": spreads(table), "sums": sums}


def collective_table(table: Sequence[dict[str, Any]]) -> str:
    """The rows as text."""
    head = f"{'op':<16}{'bytes':>14}{'ranks':>7}  {'algorithm':<14}{'time':>12}{'algbw':>14}{'busbw':>14}"

    def rate(value: float | None) -> str:
        return "-" if value is None else format_bandwidth(value)

    lines = [
        f"{r['op']:<16}{format_bytes(r['bytes']):>14}{r['ranks']:>7}  {r['algorithm']:<14}{format_seconds(r['time_s']):>12}"
        f"{rate(r['algbw_Bps']):>14}{rate(r['busbw_Bps']):>14}"
        for r in table
    ]
    reasons = dict.fromkeys(f"{r['algorithm']}: {r['reason'].partition('; fastest')[0]}" for r in table)
    return "\n".join([head, *lines, *reasons])


def execute_run(path: Path | None, overrides: Sequence[str], *, backend: str, compute: str, steps: int, timeout: float, out: Path) -> tuple[bool, str]:
    """Run the Workload of a run file on the processes of torchrun; (is this rank 0, what to say). Rank 0 writes the measured Timeline.

    Raises Malformed, Refused (numbers of processes), Failed (a rank died or was late; what was measured so far is
    written beside `out`, whose earlier contents stay).
    """
    known(backend, ("gloo", "nccl"), "backend")
    known(compute, ("sleep", "matmul", "numeric"), "compute")
    if out.suffix != ".npz":
        raise Malformed(f"--out {out}: a timeline ends in .npz")
    writable(out.parent)
    run = load(path, overrides)
    if isinstance(run.plan.model, Fixed) and compute != "sleep":
        raise Malformed(f"compute {compute!r}: a model of kind fixed has times but no tensors; legal: sleep")
    workload = lower(run.plan)
    durations = op_seconds(run, workload) if compute == "sleep" else None
    lead = int(os.environ.get("RANK", "0")) == 0
    try:
        measured = execute(workload, backend, compute, steps=steps, timeout=timeout, durations=durations)  # type: ignore[arg-type]
    except Failed as error:
        partial = getattr(error, "timeline", None)
        if lead and partial is not None:
            kept = out.with_name(f"{out.stem}.interrupted.npz")
            partial.save(kept)
            raise Failed(f"{error}\nwhat was measured until then: {kept}") from error
        raise
    if lead:
        measured.save(out)
    return lead, f"measured step {format_seconds(measured.makespan)} on {run.plan.layout.degrees.world} ranks; wrote {out}"
