"""The job of `parasim report`: a page of a run, of a timeline, or of two of them on one time axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from .api import load, simulate_run, writable
from .errors import Malformed
from .html import Side, side_of, write
from .plan.settings import variant as settings_of
from .traces.beside import lay_beside, timeline_of
from .traces.kineto import is_trace, read_kineto
from .traces.shares import Simulated


def write_page(source: Path, other: Path | None, overrides: Sequence[str], variant: str, out: Path) -> None:
    """Write the page of a run file, a timeline.npz or a trace of torch.profiler, alone or against another one or a variant of the run.

    Raises Malformed, Unparsable, and what `load` raises.
    """
    if out.suffix not in (".html", ".htm"):
        raise Malformed(f"--html {out}: the ending must be .html")
    if other is not None and variant:
        raise Malformed("give either OTHER or --variant, not both")
    writable(out.parent)
    first = _side(source, overrides)
    if variant:
        changed = _side(source, [*overrides, *(f"{k}={v}" for k, v in settings_of(variant))])
        write(out, first, replace(changed, name=f"{first.name}, {variant}"))
    elif other is None:
        write(out, first)
    elif is_trace(other):
        write(out, *_beside(first, other))
    else:
        write(out, first, _side(other, overrides if _is_run(source) and _is_run(other) else ()))


def _is_run(path: Path) -> bool:
    return path.suffix != ".npz" and not is_trace(path)


def _side(path: Path, more: Sequence[str]) -> Side:
    """What a page says of a file. Raises Malformed where a timeline or a trace is to be changed."""
    if _is_run(path):
        return simulate_run(load(path, more)).side
    if more:
        raise Malformed(f"{path}: --set and --variant change run files; what was simulated or measured is what it is")
    return Side(path.name, timeline_of(read_kineto(path))) if is_trace(path) else side_of(path)


def _beside(first: Side, trace: Path) -> tuple[Side, Side]:
    """Both sides of a comparison with a trace, by kind of kernel where the first is a run."""
    traced = read_kineto(trace)
    second = Side(trace.name, timeline_of(traced))
    if first.run is None or first.workload is None:
        return first, second
    rows = lay_beside(Simulated(first.run, first.workload.bound, first.timeline), traced).rows
    return replace(first, kinds={r.kind: r.predicted for r in rows}), replace(second, kinds={r.kind: r.measured for r in rows})
