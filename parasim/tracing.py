"""The jobs about traces: runs and timelines for other tools, traces of torch.profiler beside a prediction. Each returns data or text; none prints."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from .api import Timeline, compare, load, simulate_run, writable
from .errors import Malformed
from .jobs import write_figure
from .traces.kineto import is_trace, read_kineto
from .words import known

OF_TIMELINES = ("perfetto", "chrome", "csv", "memory-snapshot")
OF_RUNS = ("chakra",)


def export_file(form: str, source: Path, out: Path, rank: int | None, overrides: Sequence[str]) -> str:
    """Write a timeline (or, for `chakra`, a run) for another tool; what to say. Raises Malformed, Unparsable, and what `load` raises."""
    known(form, (*OF_TIMELINES, *OF_RUNS), "export")
    writable(out.parent)
    if form in OF_RUNS:
        return _chakra(source, out, rank, overrides)
    if overrides:
        raise Malformed(f"--set changes run files; {form} is made of a timeline")
    timeline = Timeline.load(source)
    from . import plots

    if form == "memory-snapshot":
        plots.write_memory_snapshot(timeline, rank or 0, out)
        return f"wrote {out}"
    if rank is not None:
        raise Malformed(f"--rank chooses the memory of memory-snapshot and the file of chakra; {form} holds every rank")
    writers: Mapping[str, Callable[[Timeline, Path], int | None]] = {"chrome": plots.write_chrome, "csv": plots.write_csv, "perfetto": plots.write_perfetto}
    rows = writers[form](timeline, out)
    return f"wrote {out}" + ("" if rows is None else f": {rows:,} ops")


def _chakra(source: Path, out: Path, rank: int | None, overrides: Sequence[str]) -> str:
    if source.suffix == ".npz":
        raise Malformed(f"{source}: chakra is made of a run file: a timeline knows neither kernels nor groups")
    from .traces.chakra_export import write_chakra
    from .traces.shares import Simulated

    result = simulate_run(load(source, overrides))
    run = Simulated(result.run, result.workload.bound, result.timeline)
    written = write_chakra(run, out.with_suffix("") if out.suffix == ".et" else out, None if rank is None else [rank])
    last = f" to {written.paths[-1].name}" if len(written.paths) > 1 else ""
    return f"wrote {written.paths[0]}{last}: {written.nodes:,} nodes\nwrote {written.groups}"


def compare_files(predicted: Path, measured: Path, overrides: Sequence[str], out: Path | None) -> Any:
    """The comparison of two timelines op by op, or of a run with a trace of torch.profiler by kind of kernel (drawn into `out`).

    Raises Malformed, Unparsable, Refused, and what `load` raises.
    """
    if is_trace(measured):
        return _beside(predicted, measured, overrides, out)
    if overrides or out is not None:
        raise Malformed("--set and --out go with a trace of torch.profiler (.json or .json.gz) as the measured side")
    if is_trace(predicted):
        raise Malformed(f"{predicted}: the trace stands second: parasim compare RUN.yaml TRACE.json.gz")
    return compare(Timeline.load(predicted), Timeline.load(measured))


def _beside(source: Path, trace: Path, overrides: Sequence[str], out: Path | None) -> Any:
    if source.suffix == ".npz":
        raise Malformed(f"{source}: a trace is laid beside a run file: a timeline does not know its kernels")
    from .traces.beside import lay_beside, timeline_of
    from .traces.shares import Simulated

    traced = read_kineto(trace)
    result = simulate_run(load(source, overrides))
    found = lay_beside(Simulated(result.run, result.workload.bound, result.timeline), traced)
    if out is not None:
        from . import plots

        write_figure(plots.beside(found, result.timeline, timeline_of(traced)), out)
    return found
