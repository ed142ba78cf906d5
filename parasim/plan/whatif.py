"""whatif: variants of a run side by side, each resolved anew from what was written, with what binds before and after."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..config import Run, vary
from ..errors import Refused
from ..lowering import lower
from ..report import Report, summarize
from ..sim import simulate
from ..units import format_memory, format_seconds
from .batch import time_to_target
from .binding import binding, link, overhead, shares
from .settings import Setting, sweep, variant

SCHEMA = "parasim.whatif/1"
Settings = tuple[Setting, ...]


@dataclass(frozen=True)
class Variant:
    """One row: what was set, and its Report, or why there is none."""

    settings: Settings
    report: Report | None
    refusal: str = ""

    @property
    def name(self) -> str:
        """The settings as they are written."""
        return ", ".join(f"{k}={v}" for k, v in self.settings)

    @property
    def binds(self) -> str:
        """What binds: `refused` where the layout is illegal."""
        return "refused" if self.report is None else binding(self.report)


@dataclass(frozen=True)
class WhatIf:
    """A baseline and its variants, in the order asked."""

    name: str
    baseline: Report
    variants: tuple[Variant, ...]
    critical_batch: int | None = None
    notes: tuple[str, ...] = field(default=())

    def to_target(self, report: Report | None) -> float | None:
        """Seconds to a target per fewest step that it takes (McCandlish et al. 2018, equation 2.11); None without a critical batch."""
        return None if report is None or self.critical_batch is None else time_to_target(report.step_time, report.tokens, self.critical_batch, 1.0)

    def to_json(self) -> dict[str, Any]:
        """The contract `parasim.whatif/1`. A refused variant has report null and says why under `refusal`."""
        before = binding(self.baseline)
        return {
            "schema": SCHEMA,
            "baseline": self.baseline.to_json(),
            "baseline_time_to_target_s": self.to_target(self.baseline),
            "variants": [
                {
                    "set": dict(v.settings),
                    "report": None if v.report is None else v.report.to_json(),
                    "binding_before": before,
                    "binding_after": v.binds,
                    "link_before": link(self.baseline),
                    "link_after": None if v.report is None else link(v.report),
                    "refusal": v.refusal or None,
                    "time_to_target_s": self.to_target(v.report),
                    "over_baseline": None if v.report is None else over(v.report, self.baseline),
                }
                for v in self.variants
            ],
        }

    def __str__(self) -> str:
        rows: list[tuple[str, ...]] = [("", "step", "vs. now", "compute", "exposed", "bubble", "peak memory", "binds", "then", "busiest link")]
        rows.append(_row("as written", self.baseline, self.baseline))
        for v in self.variants:
            rows.append((v.name, f"refused: {v.refusal.splitlines()[0]}") if v.report is None else _row(v.name, v.report, self.baseline))
        if self.critical_batch is not None:
            aims = [self.to_target(self.baseline), *(self.to_target(v.report) for v in self.variants)]
            rows = [(*rows[0], "to target, per fewest step"), *((*r, format_seconds(a)) if a is not None else r for r, a in zip(rows[1:], aims, strict=True))]
        widths = [max((len(r[c]) for r in rows if len(r) > 2), default=0) for c in range(len(rows[0]))]
        widths[0] = max(len(r[0]) for r in rows)
        lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=False)).rstrip() for row in rows]
        more = [line for v in self.variants for line in v.refusal.splitlines()[1:]]
        return "\n".join([f"{self.name}: {len(self.variants)} variants", *lines, *more])


def over(report: Report, before: Report) -> dict[str, Any]:
    """The numbers of a row over those of the baseline (None where that is zero); `saved_s` is the time that its step is shorter by,
    `lost_per_device` the share of the baseline's tokens per second and device that is missing."""
    mine, theirs = report.to_json(), before.to_json()
    speed = _over(mine["tokens_per_s_per_device"], theirs["tokens_per_s_per_device"])
    return {
        "step_time": _over(report.step_time, before.step_time),
        "saved_s": before.step_time - report.step_time,
        "tokens_per_s": _over(mine["tokens_per_s"], theirs["tokens_per_s"]),
        "tokens_per_s_per_device": speed,
        "lost_per_device": None if speed is None else 1 - speed,
        "mfu": _over(mine["mfu"], theirs["mfu"]),
        "peak_bytes": _over(mine["memory"]["peak_bytes"], theirs["memory"]["peak_bytes"]),
        "comm_bytes": {axis: _over(n, theirs["comm_bytes"].get(axis)) for axis, n in mine["comm_bytes"].items()},
        "exposed": {axis: _over(n, theirs["time_s"]["exposed"].get(axis)) for axis, n in mine["time_s"]["exposed"].items()},
    }


def _over(a: float | None, b: float | None) -> float | None:
    return a / b if a is not None and b else None


def _row(name: str, report: Report, before: Report) -> tuple[str, ...]:
    parts = shares(report)
    exposed = sum(s for n, s in parts.items() if n.startswith("exposed"))
    change = report.step_time / before.step_time - 1 if before.step_time else 0.0
    return (
        name,
        format_seconds(report.step_time),
        f"{100 * change:+.1f} %",
        f"{100 * parts['compute']:.1f} %",
        f"{100 * exposed:.1f} %",
        f"{100 * parts['bubble']:.1f} %",
        format_memory(round(report.memory.peak.nbytes)) + ("" if report.memory.fits else " (does not fit)"),
        binding(report),
        overhead(report),
        link(report) or "-",
    )


def asked(variants: Sequence[str], sweeps: Sequence[str]) -> list[Settings]:
    """The rows that the flags ask for: the variants, then every value of every sweep. Raises Malformed."""
    rows = [variant(text) for text in variants]
    for text in sweeps:
        path, values = sweep(text)
        rows += [((path, value),) for value in values]
    return rows


def whatif(run: Run, rows: Sequence[Settings], progress: Callable[[str], None] | None = None) -> WhatIf:
    """Simulate `run` and every row of settings. A variant that is illegal is a row with its reason; one that does not fit is a row like any other.

    Raises Malformed for a setting of the wrong form, and what the baseline itself raises.
    """
    baseline = report_of(run)
    out = []
    for settings in rows:
        overrides = [f"{k}={v}" for k, v in settings]
        if progress is not None:
            progress(" ".join(overrides))
        try:
            out.append(Variant(settings, report_of(vary(run, overrides))))
        except Refused as error:
            out.append(Variant(settings, None, str(error)))
    return WhatIf(run.name, baseline, tuple(out), run.critical_batch)


def report_of(run: Run) -> Report:
    """Lower, simulate, summarise."""
    return summarize(simulate(lower(run.plan), run.cluster, run.profile), run)
