"""A Report for people: tables by rich."""

from __future__ import annotations

from io import StringIO

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ..units import format_flops, format_memory, format_seconds
from .values import UPPER_BOUND, Report, Stage

WIDTH = 110
BINDING = 0.5  # a link used more than this share of the step is called binding
BAR = 40


def as_text(report: Report) -> str:
    """The report as plain text."""
    out = StringIO()
    render(report, Console(file=out, width=WIDTH, color_system=None, highlight=False))
    return "\n".join(line.rstrip() for line in out.getvalue().rstrip().splitlines())


def render(report: Report, console: Console) -> None:
    """Print the report on `console`."""
    provenance = report.provenance
    title = f"{provenance['model']} on {report.world} x {provenance['accelerator']} ({provenance['cluster']}), {provenance['source']}"
    console.print(Text(title, style="bold"))
    parts = (_headline(report), _breakdown(report), _stages(report), _memory(report), _links(report), _notes(report))
    for part in parts:
        if part is not None:
            console.print()
            console.print(Padding(part, (0, 0, 0, 2)))


def _headline(report: Report) -> RenderableType:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_row("step time", Text(format_seconds(report.step_time), style="bold"))
    if report.tokens_per_s is not None:
        table.add_row("throughput", f"{report.tokens_per_s:,.4g} tokens/s, {report.tokens_per_s / report.world:,.4g} per device")
    if report.mfu is not None:
        bound = ", an upper bound: no profile, datasheet rates" if any(UPPER_BOUND in a for a in report.assumptions) else ""
        table.add_row("MFU", f"{_percent(report.mfu)} of {format_flops(report.peak_flops)} ({report.precision}, dense){bound}")
    if report.hfu is not None:
        table.add_row("HFU", f"{_percent(report.hfu)} (with recompute)")
    if report.bubble_makespan is not None and report.bubble_over_ideal is not None:
        table.add_row("bubble", f"{_percent(report.bubble_makespan)} of the step: all that is not compute on the busiest rank, exposed communication too")
    if report.binding_link is not None:
        link = report.binding_link
        table.add_row(
            "binding link" if link.busiest_mean >= BINDING else "busiest link", f"{link.kind}: {link.busiest} is {_percent(link.busiest_mean)} used on average"
        )
    if report.straggler is not None:
        s = report.straggler
        more = f"{_percent(s.compute / s.others - 1)} longer than the other ranks of stage {s.stage}, {format_seconds(s.compute - s.others)} a step"
        table.add_row("slow rank", f"rank {s.rank} computes {more}")
    if report.blame:
        b = report.blame[0]
        table.add_row("waited for", f"rank {b.rank}: {b.waiting} rank{'s' * (b.waiting > 1)} idle for it, up to {format_seconds(b.idle)} each")
    if report.cost is not None:
        table.add_row("cost", f"{report.cost:,.4g} USD per step")
    return table


def _breakdown(report: Report) -> RenderableType:
    """Bars of the mean rank's step; they add up to the step."""
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), title="a step of the mean rank", title_justify="left", title_style="bold")
    t = report.times
    exposed = [(f"exposed {axis}", seconds, "red") for axis, seconds in t.exposed.items() if seconds > 0]
    for name, seconds, style in (("compute", t.compute, "green"), *exposed, ("idle", t.idle, "bright_black")):
        share = seconds / report.step_time if report.step_time else 0.0
        cells = "█" * round(BAR * share) or ("▏" if seconds > 0 else "")
        table.add_row(name, format_seconds(seconds), _percent(share), Text(cells, style=style), _beside(report, name))
    return table


def _beside(report: Report, name: str) -> str:
    """What else is worth knowing of one line of the breakdown."""
    if name == "compute" and report.times.optimizer > 0:
        return f"optimizer {format_seconds(report.times.optimizer)}"
    if name.startswith("exposed "):
        axis = name.removeprefix("exposed ")
        sent = report.comm_bytes.get(axis, 0.0)
        return f"overlapped {format_seconds(report.times.overlapped.get(axis, 0.0))}, sends {format_memory(sent)} per rank"
    return ""


def _stages(report: Report) -> RenderableType:
    axes = [a for a in report.times.exposed if any(s.exposed.get(a, 0.0) > 0 for s in report.stages)]
    table = Table(
        box=None,
        padding=(0, 2, 0, 0),
        title="stages (the rank of each that computes longest; memory of its heaviest rank)",
        title_justify="left",
        title_style="bold",
    )
    for column in ("stage", "rank", "compute", *(f"exposed {a}" for a in axes), "idle", "slack", "peak memory", "headroom"):
        table.add_column(column, justify="right")
    for s, peak in zip(report.stages, report.memory.per_stage, strict=True):
        room = report.memory.capacity - peak.nbytes
        memory = (format_memory(round(peak.nbytes)), _signed_bytes(room)) if report.memory.known else ("-", "-")
        table.add_row(*_stage_cells(s, axes), memory[0], Text(memory[1], style="red" if room < 0 else ""))
    return table


def _stage_cells(s: Stage, axes: list[str]) -> list[str]:
    return [str(s.stage), str(s.rank)] + [format_seconds(x) for x in (s.compute, *(s.exposed.get(a, 0.0) for a in axes), s.idle, s.slack)]


def _memory(report: Report) -> RenderableType | None:
    memory = report.memory
    if not memory.known:
        return None
    peak = memory.peak
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), title_justify="left", title_style="bold")
    table.title = f"memory at the peak of rank {peak.rank} (stage {memory.stage}), at {format_seconds(peak.time)}"
    for category, nbytes in peak.by_category.items():
        if nbytes > 0:
            share = nbytes / max(memory.capacity, peak.nbytes)
            table.add_row(category, format_memory(round(nbytes)), Text("█" * round(BAR * share), style="blue"))
    verdict = f"of {format_memory(memory.capacity)}: {'fits' if memory.fits else 'DOES NOT FIT'}, headroom {_signed_bytes(memory.headroom)}"
    table.add_row("peak", format_memory(round(peak.nbytes)), Text(verdict, style="" if memory.fits else "bold red"))
    if memory.reserved is not None:
        parts = f"{format_memory(round(memory.reserved.cached))} of cached blocks, {format_memory(round(memory.reserved.rounding))} of rounding"
        retries = f", {memory.reserved.retries} times the device was full" if memory.reserved.retries else ""
        table.add_row("reserved", format_memory(round(memory.reserved.total)), Text(f"by torch's caching allocator for this: {parts}{retries}"))
    if memory.fitted_reserved is not None:
        table.add_row("", format_memory(round(memory.fitted_reserved)), Text("reserved, as fitted on published peaks (memory.fragmentation of the profile)"))
    if peak.largest:
        names = ", ".join(f"{name} {format_memory(round(nbytes))}" for name, nbytes in peak.largest[:4])
        table.add_row("largest", "", Text(names))
    return table


def _links(report: Report) -> RenderableType | None:
    if not report.links:
        return None
    table = Table(box=None, padding=(0, 2, 0, 0), title="links", title_justify="left", title_style="bold")
    for column in ("kind", "mean use", "peak use", "busiest", "its mean use"):
        table.add_column(column, justify="left" if column in ("kind", "busiest") else "right")
    for use in report.links:
        table.add_row(use.kind, _percent(use.mean), _percent(use.peak), use.busiest, _percent(use.busiest_mean))
    return table


def _notes(report: Report) -> RenderableType:
    engine = report.engine
    facts = [f"{engine.ranks} of {report.world} ranks kept", f"{engine.classes} classes"]
    facts += [f"{engine.events:,} events"] if engine.events is not None else []
    facts += [format_seconds(engine.wall)] if engine.wall is not None else []
    facts += [f"after {format_seconds(engine.lowering)} of lowering"] if engine.lowering is not None else []
    lines = [f"assumed: {a}" for a in report.assumptions] + ["not in memory: " + "; ".join(report.memory.excluded)]
    lines += [f"uncertainty: {report.accuracy.sentence()}"] if report.accuracy is not None else []
    return Group(*(Text(line, style="bright_black") for line in [*lines, "engine: " + ", ".join(facts)]))


def _percent(x: float) -> str:
    return f"{100 * x:.1f} %"


def _signed_bytes(x: float) -> str:
    return ("-" if x < 0 else "") + format_memory(round(abs(x)))
