"""The command line. It parses flags, calls `parasim.api` and `parasim.jobs`, and prints; it computes nothing.

Exit codes: 0 done, 1 the answer is no, 2 malformed, 3 cannot be parsed, 4 a missing extra, 130 interrupted.
"""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from . import cli_facts, cli_traces
from .cli_calibrate import app as calibrate_app
from .cli_common import AsJson, Overrides, RunFile
from .cli_common import print_json as _print_json
from .cli_common import print_text as _print

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Simulate one training step of a large model on a cluster: time, memory, exposed communication, bubbles, money.",
)
WITH_TORCH = ("execute", "calibrate")
app.add_typer(calibrate_app, name="calibrate")


def _version(asked: bool) -> None:
    if asked:
        from . import __version__

        _print(f"parasim {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    ctx: typer.Context,
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    """Simulate one training step of a large model on a cluster: time, memory, exposed communication, bubbles, money."""
    if ctx.invoked_subcommand not in WITH_TORCH:
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # starting threads that nothing here uses takes numpy longer than the rest of its loading


@app.command()
def run(
    file: RunFile = None,
    overrides: Overrides = None,
    json: AsJson = False,
    out: Annotated[Path | None, typer.Option(help="Directory of the results; default parasim-out/<run name>, none with --json.")] = None,
    no_fold: Annotated[bool, typer.Option("--no-fold", help="Simulate every rank by itself.")] = False,
    explain_folding: Annotated[bool, typer.Option("--explain-folding", help="Say which ranks were simulated for which.")] = False,
) -> None:
    """Simulate one step and write report.json, timeline.npz, timeline.png, memory.png and trace.pftrace."""
    from .plots.artist import Artist

    with Artist() if out or not json else nullcontext() as artist:
        from .api import load, require_fit, simulate_run, writable, write_results

        loaded = load(file, overrides or ())
        directory = out or (None if json else Path("parasim-out") / loaded.name)
        if directory is not None:
            writable(directory)
        result = simulate_run(loaded, fold=not no_fold, beside=True)

        def show() -> None:
            _print_json(result.report.to_json()) if json else _print(str(result.report))

        written = [] if directory is None else write_results(result, directory, artist, show)
        if not written:
            show()
    if explain_folding:
        from .report.folding import explain

        typer.echo(explain(result.timeline), err=json)
    for path in written:
        typer.echo(f"wrote {path}", err=json)
    require_fit(result)


@app.command()
def check(file: RunFile = None, overrides: Overrides = None, json: AsJson = False) -> None:
    """Check a run file: violations and a lower bound of memory, without simulation."""
    from .errors import DoesNotFit, Refused
    from .jobs import check_run, refusal

    try:
        checked = check_run(file, overrides or ())
    except Refused as error:
        if json:
            _print_json(refusal(error))
        raise
    if json:
        _print_json(checked.to_json())
    else:
        _print(str(checked))
    if not checked.fits:
        raise DoesNotFit(f"stage {checked.heaviest} needs at least {checked.bound(checked.heaviest)}, more than the accelerator has")


@app.command()
def program(file: RunFile = None, overrides: Overrides = None, rank: Annotated[int, typer.Option(help="The rank whose Program is printed.")] = 0) -> None:
    """Print the Program of a rank: its calls, bodies and buffers."""
    from .api import load, lower
    from .errors import Malformed
    from .program.text import render

    workload = lower(load(file, overrides or ()).plan)
    if not 0 <= rank < workload.world:
        raise Malformed(f"--rank {rank} is not a rank of this run; legal: 0 to {workload.world - 1}")
    _print(render(workload.program_of(rank)))


@app.command()
def whatif(
    file: RunFile = None,
    overrides: Overrides = None,
    variants: Annotated[list[str] | None, typer.Option("--variant", metavar="K=V,K=V", help="Settings of one variant; repeatable.")] = None,
    sweeps: Annotated[list[str] | None, typer.Option("--sweep", metavar="K=A..B:2x", help="Or a row per value: a..b:2x, a..b:2, a,b,c.")] = None,
    json: AsJson = False,
    out: Annotated[Path | None, typer.Option(help="Also draw the rows into this PNG, SVG or PDF.")] = None,
) -> None:
    """Simulate variants of a run side by side: step, memory, and what binds before and after."""
    from .jobs import draw_rows, what_if

    found = what_if(file, overrides or (), variants or (), sweeps or ())
    _print_json(found.to_json()) if json else _print(str(found))
    if out is not None:
        draw_rows(found, out)


@app.command()
def explain(file: RunFile = None, overrides: Overrides = None, json: AsJson = False) -> None:
    """Why the step takes as long: its critical path, what a better machine would gain, who waits for whom."""
    from .api import load
    from .plan.explain import explain as explained

    found = explained(load(file, overrides or ()))
    _print_json(found.to_json()) if json else _print(str(found))


@app.command()
def goodput(
    file: RunFile = None,
    overrides: Overrides = None,
    mtbf: Annotated[str | None, typer.Option(help="Mean time between failures of the job; without it, or --failures, a curve.")] = None,
    failures: Annotated[str | None, typer.Option(help="Or what fails: llama3-54-days, or a YAML file of causes.")] = None,
    checkpoint: Annotated[str | None, typer.Option(help="Time that a checkpoint holds training up; default: state over --storage.")] = None,
    storage: Annotated[str | None, typer.Option(help="Bandwidth of the storage.")] = None,
    interval: Annotated[str, typer.Option(help="Training between checkpoints: young, daly, or a time.")] = "young",
    restart: Annotated[str | None, typer.Option(help="Time of a restart.")] = None,
    detection: Annotated[str | None, typer.Option(help="Time until a failure is noticed.")] = None,
    silent: Annotated[str | None, typer.Option(help="Share of failures that corrupt silently.")] = None,
    silent_delay: Annotated[str | None, typer.Option(help="Time until those are noticed.")] = None,
    spares: Annotated[int | None, typer.Option(help="Spare servers; default: always one.")] = None,
    repair: Annotated[str | None, typer.Option(help="Time until a server is repaired.")] = None,
    stragglers: Annotated[str | None, typer.Option(metavar="SHARExFACTOR", help="0.05x1.3: slower by 1.3 for 5 % of the time.")] = None,
    price: Annotated[str | None, typer.Option(help="Per device; default: the cluster's.")] = None,
    tokens: Annotated[str | None, typer.Option(help="Tokens to train on, such as 15T.")] = None,
    gpu_hours: Annotated[str | None, typer.Option(help="Or a budget of GPU-hours.")] = None,
    critical_batch: Annotated[float | None, typer.Option(help="Or a target: its critical batch, in the unit of batch.global.")] = None,
    minimum_steps: Annotated[float | None, typer.Option(help="And the steps that very large batches would need.")] = None,
    draws: Annotated[int, typer.Option(help="Also draw that many intervals at random.")] = 0,
    seed: Annotated[int, typer.Option(help="Of those draws.")] = 0,
    json: AsJson = False,
) -> None:
    """Effective training time under failures and checkpoints; wall time, GPU-hours, money."""
    from .api import load
    from .plan.goodput_ask import Asked
    from .plan.goodput_ask import goodput as answer

    asked = Asked(
        mtbf, failures, checkpoint, storage, interval, restart, detection, silent, silent_delay, spares, repair, stragglers, price, tokens, gpu_hours,
        critical_batch, minimum_steps, draws, seed,
    )  # fmt: skip
    found = answer(load(file, overrides or ()), asked)
    _print_json(found.to_json()) if json else _print(str(found))


@app.command()
def sweep(
    file: Annotated[Path, typer.Argument(metavar="SWEEP.yaml", help="run, vary: {key: [values] or a..b:2x}, measure, out, options.")],
    backend: Annotated[str, typer.Option(help="Where the points run: local, dask or slurm.")] = "local",
    workers: Annotated[int, typer.Option(help="Processes or jobs at a time; 1 and local: this process.")] = 2,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the rows that are there.")] = False,
    json: AsJson = False,
) -> None:
    """Every combination of settings of a run, over processes, Dask or Slurm; may be killed and resumed."""
    from .plan.sweep import load_sweep, run_sweep

    table = run_sweep(load_sweep(file), backend, workers, resume, lambda text: typer.echo(text, err=True))
    _print_json(table.to_json()) if json else _print(str(table))


@app.command()
def search(
    file: RunFile = None,
    overrides: Overrides = None,
    devices: Annotated[int | None, typer.Option(min=1, help="Devices to use; default: those of the run file.")] = None,
    varied: Annotated[list[str] | None, typer.Option("--vary", metavar="K=VALUES", help="Values of a key, a..b:2x or a,b,c; --set K=V pins it.")] = None,
    objective: Annotated[str, typer.Option(help="step, mfu, memory, cost or time-to-target.")] = "step",
    constraints: Annotated[list[str] | None, typer.Option("--constraint", metavar="NAME<=X", help="Such as mfu>=0.4 or tp<=8; repeatable.")] = None,
    top: Annotated[int, typer.Option(min=1, help="Layouts to list.")] = 10,
    runs: Annotated[int | None, typer.Option(min=1, help="Most runs of the engine; default: by the size of the run.")] = None,
    critical_batch: Annotated[float | None, typer.Option(min=1, metavar="TOKENS", help="For time-to-target; default: critical_batch of the run file.")] = None,
    seconds: Annotated[float, typer.Option(min=0.0, help="Start nothing new after so many seconds, and say how far the first may be from the best.")] = 25.0,
    json: AsJson = False,
) -> None:
    """The best layouts of a run on so many devices: bounds for all, simulation for finalists."""
    from .jobs import search_layouts
    from .plan.search_report import as_text, to_json

    more = {"varied": varied or (), "objective": objective, "constraints": constraints or (), "top": top, "runs": runs, "critical_batch": critical_batch}
    more["seconds"] = seconds
    found = search_layouts(file, overrides or (), devices, **more)
    _print_json(to_json(found)) if json else _print(as_text(found))


@app.command()
def schedule(
    name: Annotated[str | None, typer.Option(help="Schedule; parasim catalog schedules lists them.")] = None,
    ranks: Annotated[int | None, typer.Option(min=1, help="Pipeline ranks.")] = None,
    microbatches: Annotated[int | None, typer.Option(min=1, help="Microbatches per step.")] = None,
    csv: Annotated[Path | None, typer.Option(help="Or a table in the form of torch.distributed.pipelining, with or without transfers.")] = None,
    chunks: Annotated[int | None, typer.Option(min=1, help="Stages per rank; default: what the schedule has.")] = None,
    times: Annotated[str, typer.Option(metavar="F,I,W", help="Seconds of one microbatch over 1/ranks of the depth.")] = "1,1,1",
    stage_scale: Annotated[str, typer.Option(metavar="S,S,...", help="A factor per stage.")] = "",
    comm: Annotated[float, typer.Option(min=0.0, max=1e6, help="Seconds per message.")] = 0.0,
    comm_model: Annotated[str, typer.Option(help="async, stream or blocking.")] = "async",
    pairs: Annotated[str, typer.Option(help="Overlapped forwards and backwards: block, or sequential.")] = "block",
    backward_order: Annotated[str | None, typer.Option(help="Microbatches of the backwards (gpipe, looped-bfs): increasing or decreasing.")] = None,
    group: Annotated[int | None, typer.Option(min=1, help="Microbatches per group (interleaved schedules).")] = None,
    memory_cap: Annotated[str, typer.Option(metavar="N", help="Microbatches in flight (zb-auto), for all ranks or one number per rank.")] = "",
    versus: Annotated[str | None, typer.Option(metavar="NAME", help="Also makespan and bubble over those of another schedule.")] = None,
    versus_microbatches: Annotated[int | None, typer.Option(min=1, help="With other microbatches.")] = None,
    versus_times: Annotated[str | None, typer.Option(metavar="F,I,W", help="Or other times.")] = None,
    write_csv: Annotated[Path | None, typer.Option(help="Also write the schedule as a table.")] = None,
    out: Annotated[Path | None, typer.Option(help="Also draw the timeline into this PNG, SVG or PDF.")] = None,
    json: AsJson = False,
) -> None:
    """Time a bare pipeline schedule."""
    from .errors import Deadlock, Malformed
    from .jobs import beside, draw, time_named, time_table, write_table
    from .schedules.table import Table

    if csv is not None:
        given = {"--name": name, "--ranks": ranks, "--microbatches": microbatches, "--chunks": chunks, "--group": group, "--memory-cap": memory_cap or None}
        given |= {"--backward-order": backward_order, "--versus": versus, "--versus-microbatches": versus_microbatches, "--versus-times": versus_times}
        if any(v is not None for v in given.values()):
            raise Malformed(f"--csv does not go with {', '.join(flag for flag, v in given.items() if v is not None)}: the table says it")
        report, timeline, table = time_table(csv, times=times, scale=stage_scale, comm=comm, comm_model=comm_model, pairs=pairs)
    elif name is None or ranks is None or microbatches is None:
        raise Malformed("give either --name, --ranks and --microbatches, or --csv FILE")
    else:
        turn: dict[str, Any] = {"comm": comm, "comm_model": comm_model, "pairs": pairs, "backward_order": backward_order, "group": group}
        turn |= {"chunks": chunks, "times": times, "scale": stage_scale, "cap": memory_cap}
        report, timeline = time_named(name, ranks, microbatches, **turn)
        report = beside(report, name, ranks, microbatches, versus, versus_microbatches, versus_times, **turn)
        table = Table.of(report.orders)
    if write_csv is not None:
        write_table(table, write_csv)
    _print_json(report.to_json()) if json else _print(str(report))
    if report.deadlock is not None or timeline is None:
        raise Deadlock(f"deadlock: {report.deadlock['cycle'] if report.deadlock else ''}")
    if out is not None:
        draw("gantt", timeline, out)


@app.command()
def collective(
    cluster: Annotated[str, typer.Option(help="Catalog name or file.")],
    op: Annotated[str, typer.Option(help="all_reduce, all_gather, reduce_scatter, all_to_all, ...")],
    ranks: Annotated[str | None, typer.Option(metavar="N", help="The first N devices; several: 2,4,8 or 2..16:2x.")] = None,
    rank_list: Annotated[str | None, typer.Option(metavar="0-7,16", help="Or these devices.")] = None,
    nbytes: Annotated[str, typer.Option("--bytes", metavar="MIN:MAX:FACTOR", help="Sizes, or one size such as 100MB.")] = "8:16G:2",
    algorithm: Annotated[str, typer.Option(help="auto, ring, direct, ...")] = "auto",
    profile: Annotated[str | None, typer.Option(help="Profile: a catalog name or a file, several with commas; without one, datasheet numbers.")] = None,
    measured: Annotated[str | None, typer.Option(metavar="1.6ms", help="A measured time in place of the predicted one.")] = None,
    arrivals: Annotated[str | None, typer.Option(metavar="0s,1s,...", help="When each rank comes to it: how long each waits.")] = None,
    json: AsJson = False,
) -> None:
    """Time one collective over sizes, as nccl-tests prints it."""
    from .jobs import collective_json, collective_rows, collective_table, waits

    if arrivals is not None:
        answer = waits(cluster, op, arrivals, nbytes, profile)
        _print_json(answer.to_json()) if json else _print(str(answer))
        return
    rows = collective_rows(cluster, op, ranks=ranks, rank_list=rank_list, sizes=nbytes, algorithm=algorithm, profile=profile, measured=measured)
    _print_json(collective_json(rows)) if json else _print(collective_table(rows))


@app.command()
def catalog(kind: Annotated[str, typer.Argument(help="models, clusters, accelerators, schedules, stacks or profiles.")], json: AsJson = False) -> None:
    """List what can be named in a run file."""
    from .catalogs import catalog_json, catalog_of

    entries = catalog_of(kind)
    width = max(map(len, entries), default=0)
    if json:
        _print_json(catalog_json(kind, entries))
    else:
        _print("\n".join(f"{name:<{width}}  {summary}" for name, summary in entries.items()) or f"no {kind} yet")


@app.command()
def plot(
    kind: Annotated[str, typer.Argument(help="gantt, memory, links; cluster, ladder; scaling, cliff, buckets, pareto.")],
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="A timeline.npz; a cluster by name or file; or the --json of whatif, for pareto of search.")],
    out: Annotated[Path, typer.Option(help="PNG, SVG or PDF.")],
    devices: Annotated[int, typer.Option(min=1, help="Devices that are wanted of a cluster whose count is auto.")] = 1,
) -> None:
    """Draw a saved timeline (gantt, memory, links), a cluster (cluster, ladder), or results of whatif and search (scaling, cliff, buckets, pareto)."""
    from .jobs import plot_file

    plot_file(kind, source, out, devices)
    typer.echo(f"wrote {out}")


@app.command()
def report(
    source: Annotated[Path, typer.Argument(metavar="RUN.yaml|TIMELINE.npz", help="What to show; of a timeline also the report.json beside it.")],
    other: Annotated[Path | None, typer.Argument(metavar="[OTHER]", help="Another one to compare with, or a trace of torch.profiler.")] = None,
    html: Annotated[Path, typer.Option(metavar="OUT.html", help="The page: one file, for any browser, without a network.")] = ...,  # type: ignore[assignment]
    overrides: Overrides = None,
    variant: Annotated[str, typer.Option(metavar="K=V,K=V", help="Instead of OTHER: the same run with these settings.")] = "",
) -> None:
    """Write a page with an interactive timeline, memory, links and layout; of two runs a comparison."""
    from .pages import write_page

    write_page(source, other, overrides or (), variant, html)
    typer.echo(f"wrote {html}")


@app.command()
def execute(
    file: RunFile = None,
    overrides: Overrides = None,
    backend: Annotated[str, typer.Option(help="gloo or nccl.")] = "gloo",
    compute: Annotated[str, typer.Option(help="sleep (predicted durations), matmul, or numeric (really trains).")] = "sleep",
    steps: Annotated[int, typer.Option(min=1, help="Runs; the first is left out when there are several.")] = 3,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds before any wait gives up.")] = 60.0,
    out: Annotated[Path, typer.Option(help="The measured timeline.")] = Path("measured.npz"),
) -> None:
    """Run the same Workload on real processes: torchrun --nproc_per_node N -m parasim execute RUN.yaml."""
    from .jobs import execute_run

    lead, text = execute_run(file, overrides or (), backend=backend, compute=compute, steps=steps, timeout=timeout, out=out)
    if lead:
        typer.echo(text)


for command in cli_facts.COMMANDS:
    app.command()(command)
for name, exchange in cli_traces.COMMANDS.items():
    app.command(name)(exchange)


def main() -> None:
    """Entry point: every refusal is one message on stderr and its exit code, never a traceback."""
    from .collecting import rarely
    from .errors import ParasimError

    rarely()
    try:
        try:
            app(standalone_mode=True)
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except ParasimError as e:
        typer.echo(f"error: {e}", err=True)
        sys.exit(e.exit_code)
    except KeyboardInterrupt:
        typer.echo("interrupted", err=True)
        sys.exit(130)
    except BrokenPipeError:  # the reader has seen enough
        _drop_output()
    except OSError as e:
        _drop_output()
        typer.echo(f"error: cannot write the output ({e.strerror or e})", err=True)
        sys.exit(2)


def _drop_output() -> None:
    """What is still buffered for a standard output that takes no more goes nowhere, silently."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
