"""The answer of `parasim goodput`: from a run and what is asked to a fraction, days, GPU-hours and money, or a curve of them over MTBFs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..errors import Refused
from ..units import format_seconds
from .goodput import Outages, Shares, daly, shares, young
from .goodput_simulation import Estimate

SCHEMA = "parasim.goodput/1"


@dataclass(frozen=True)
class Job:
    """What is to be trained: `seconds` of training without any loss, or a budget of `gpu_hours` (one of them, or neither); `price` USD per device-hour."""

    devices: int
    seconds: float | None = None
    gpu_hours: float | None = None
    price: float | None = None

    def totals(self, fraction: float | None) -> dict[str, float | None]:
        """Wall seconds, GPU-hours and money when `fraction` of the wall time is training; None where unknown, or never done."""
        wall = None
        if self.gpu_hours is not None:
            wall = self.gpu_hours * 3600 / self.devices
        elif self.seconds is not None and fraction:
            wall = self.seconds / fraction
        hours = None if wall is None else wall * self.devices / 3600
        return {"wall_s": wall, "gpu_hours": hours, "cost_usd": None if hours is None or self.price is None else hours * self.price}


@dataclass(frozen=True)
class Row:
    """One MTBF: the interval between checkpoints (seconds) and where the time goes; no shares where the job gets nowhere."""

    mtbf: float
    interval: float
    shares: Shares | None

    @property
    def fraction(self) -> float:
        """Share of wall time that is training."""
        return self.shares.training if self.shares else 0.0


@dataclass(frozen=True)
class Goodput:
    """The answer: one row where the MTBF is known, a curve where it is not. `sensitivity`: input -> fraction at half and at twice of it.

    `failures` are facts of the log (`FailureLog.facts`), `target` what the batch means for a goal (`batch.budget`).
    """

    name: str
    job: Job
    outages: Outages
    row: Row | None
    curve: tuple[Row, ...]
    sensitivity: Mapping[str, tuple[float, float]]
    drawn: Estimate | None
    assumptions: tuple[str, ...]
    failures: Mapping[str, Any] | None = None
    target: Mapping[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """The contract `parasim.goodput/1`."""
        row, o = self.row, self.outages
        return {
            "schema": SCHEMA,
            **_numbers(row, self.job),
            "curve": None if row else [_numbers(r, self.job) for r in self.curve],
            "devices": self.job.devices,
            "checkpoint_s": o.checkpoint,
            "restart_s": o.restart,
            "detection_s": o.detection,
            "shares": None if row is None or row.shares is None else dict(vars(row.shares)),
            "young_interval_s": None if row is None else young(o.checkpoint, row.mtbf),
            "daly_interval_s": None if row is None else daly(o.checkpoint, row.mtbf),
            "sensitivity": {k: {"half": a, "twice": b} for k, (a, b) in self.sensitivity.items()},
            "monte_carlo": None if self.drawn is None else {"effective_fraction": self.drawn.fraction, "standard_error": self.drawn.error},
            "lost_fraction": None if row is None else 1 - row.fraction,
            "failures": self.failures,
            "target": self.target,
            "assumptions": list(self.assumptions),
        }

    def __str__(self) -> str:
        lines = [f"{self.name}: {self.job.devices} devices"]
        o = self.outages
        lines.append(f"checkpoint {format_seconds(o.checkpoint)}, restart {format_seconds(o.restart)}, noticed after {format_seconds(o.detection)}")
        lines += _one(self.row, self) if self.row else _curve(self)
        return "\n".join([*lines, *(f"assumed: {a}" for a in self.assumptions)])


def _numbers(row: Row | None, job: Job) -> dict[str, Any]:
    known = {"mtbf_s": row and row.mtbf, "checkpoint_interval_s": row and row.interval, "effective_fraction": row and row.fraction}
    return {**known, **job.totals(row.fraction if row else None)}


def _one(row: Row, answer: Goodput) -> list[str]:
    o = answer.outages
    lines = [
        f"MTBF {format_seconds(row.mtbf)}: a checkpoint every {format_seconds(row.interval)} of training "
        f"(Young {young(o.checkpoint, row.mtbf):,.0f} s, Daly {daly(o.checkpoint, row.mtbf):,.0f} s)",
        f"effective training time {100 * row.fraction:.2f} %",
    ]
    if row.shares:
        lost = {k: v for k, v in vars(row.shares).items() if k != "training" and v}
        lines.append("lost: " + ", ".join(f"{k} {100 * v:.2f} %" for k, v in lost.items()))
    if answer.drawn:
        lines.append(f"drawn at random: {100 * answer.drawn.fraction:.2f} % +- {100 * answer.drawn.error:.2f} %")
    if answer.sensitivity:
        lines.append("effective training time if an input were half / twice as large:")
        lines += [f"  {k:<12} {100 * a:6.2f} %  {100 * b:6.2f} %" for k, (a, b) in answer.sensitivity.items()]
    return [*lines, *_totals(answer.job.totals(row.fraction))]


def _totals(totals: Mapping[str, float | None]) -> list[str]:
    wall, hours, cost = totals["wall_s"], totals["gpu_hours"], totals["cost_usd"]
    if wall is None or hours is None:
        return []
    money = "no price" if cost is None else f"{cost:,.0f} USD"
    return [f"wall time {wall / 3600:,.1f} h ({wall / 86400:,.1f} days), {hours:,.0f} GPU-hours, {money}"]


def _curve(answer: Goodput) -> list[str]:
    lines = [*_totals(answer.job.totals(None)), "no MTBF given (--mtbf or --failures), so no single number:"]
    lines.append(f"  {'MTBF':>8}  {'checkpoint every':>16}  {'effective':>9}  {'wall time':>10}")
    for r in answer.curve:
        wall = answer.job.totals(r.fraction)["wall_s"]
        shown = "-" if wall is None else format_seconds(wall)
        lines.append(f"  {format_seconds(r.mtbf):>8}  {format_seconds(r.interval):>16}  {100 * r.fraction:7.2f} %  {shown:>10}")
    return lines


def sensitivity(outages: Outages, interval: float) -> dict[str, tuple[float, float]]:
    """Fraction at half and at twice of every input that is not zero, all else (the interval too) as it is."""

    def at(changed: Outages, tau: float = interval) -> float:
        try:
            return shares(changed, tau).training
        except Refused:
            return 0.0

    out = {"interval": (at(outages, interval / 2), at(outages, interval * 2))}
    for field in ("mtbf", "checkpoint", "restart", "detection", "silent_delay"):
        value = getattr(outages, field)
        if value and not (field == "silent_delay" and not outages.silent):
            half, twice = (replace(outages, **{field: value * factor}) for factor in (0.5, 2.0))
            out[field] = (at(half), at(twice))
    return out
