"""What `parasim goodput` is asked: flags as text, the run, the data files; all of it to SI numbers and the answer."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any

import numpy as np

from ..config import Run
from ..documents import parse
from ..errors import Malformed, Refused
from ..model.layers import parameters
from ..program.ops import DTYPE_BYTES
from ..units import Dimension, format_bandwidth, format_bytes, format_seconds
from ..units import parse as quantity
from .batch import budget, steps_to_target
from .goodput import INTERVALS, Outages, shares
from .goodput_answer import Goodput, Job, Row, sensitivity
from .goodput_failures import FailureLog, load_failures
from .goodput_simulation import Estimate, simulate
from .whatif import report_of

MOMENTS = 2  # of Adam
DRAWS = 20_000


@dataclass(frozen=True)
class Asked:
    """The flags of `parasim goodput` as they were written; None: not given."""

    mtbf: str | None = None
    failures: str | None = None
    checkpoint: str | None = None
    storage: str | None = None
    interval: str = "young"
    restart: str | None = None
    detection: str | None = None
    silent: str | None = None
    silent_delay: str | None = None
    spares: int | None = None
    repair: str | None = None
    stragglers: str | None = None
    price: str | None = None
    tokens: str | None = None
    gpu_hours: str | None = None
    critical_batch: float | None = None
    minimum_steps: float | None = None
    draws: int = 0
    seed: int = 0


@dataclass(frozen=True)
class _Defaults:
    """The rows of goodput.yaml, and notes of which were used."""

    rows: dict[str, Any]
    notes: list[str]

    def get(self, flag: str, written: str | None, key: str, dimension: Dimension = "seconds") -> float:
        """The flag, or the default with a note."""
        if written is not None:
            return _value(flag, written, dimension)
        row = self.rows[key]
        self.notes.append(f"{flag} {row['value']} ({row['status']}: {row['source']})")
        return quantity(row["value"], dimension)


def goodput(run: Run, asked: Asked) -> Goodput:
    """The answer for `run`. Raises Malformed (what a flag holds), Refused (a job that gets nowhere)."""
    defaults = _Defaults(dict(parse(files(__package__).joinpath("goodput.yaml").read_bytes(), "goodput.yaml").mapping()), [])
    log = None if asked.failures is None else load_failures(asked.failures)
    if asked.mtbf is not None and log is not None:
        raise Malformed("give either --mtbf or --failures, not both")
    outages = _outages(run, asked, log, defaults)
    job = Job(run.devices, _training(run, asked), count("--gpu-hours", asked.gpu_hours), _price(run, asked))
    target = budget(run.plan.layout.batch.global_, asked.critical_batch) if asked.critical_batch is not None else None
    facts = log.facts(run.devices) if log is not None else None
    if math.isinf(outages.mtbf):
        curve = tuple(_curve_row(replace(outages, mtbf=quantity(m, "seconds")), asked) for m in defaults.rows["curve"])
        return Goodput(run.name, job, outages, None, curve, {}, None, tuple(defaults.notes), facts, target)
    interval = _interval(asked.interval, outages)
    row = Row(outages.mtbf, interval, shares(outages, interval))
    drawn = _drawn(outages, interval, asked)
    return Goodput(run.name, job, outages, row, (), sensitivity(outages, interval), drawn, tuple(defaults.notes), facts, target)


def _outages(run: Run, asked: Asked, log: FailureLog | None, defaults: _Defaults) -> Outages:
    mtbf = _value("--mtbf", asked.mtbf, "seconds") if asked.mtbf is not None else log.mtbf(run.devices) if log else math.inf
    silent = _share("--silent", asked.silent) if asked.silent is not None else log.share(silent=True) if log else 0.0
    if log:
        defaults.notes.append(f"failures as in {log.source}, in proportion to devices: MTBF {format_seconds(mtbf)}")
    return Outages(
        mtbf=mtbf,
        checkpoint=_checkpoint(run, asked, defaults),
        restart=defaults.get("--restart", asked.restart, "restart"),
        detection=defaults.get("--detection", asked.detection, "detection"),
        silent=silent,
        silent_delay=defaults.get("--silent-delay", asked.silent_delay, "silent_delay") if silent else 0.0,
        replaced=log.share(replace=True) if log else 1.0,
        spares=_natural("--spares", asked.spares),
        repair=defaults.get("--repair", asked.repair, "repair") if asked.spares is not None else 0.0,
        planned=1 / (log.planned * run.devices) if log and log.planned else None,
        slowdown=_slowdown(asked.stragglers),
    )


def state_bytes(run: Run) -> int:
    """Bytes of one checkpoint: parameters, their fp32 master copy where there is one, and two moments of Adam; each once, not per replica."""
    layout = run.plan.layout
    low = layout.precision in ("bf16", "fp16")
    kept = DTYPE_BYTES["fp32" if low else layout.precision]
    each = DTYPE_BYTES[layout.precision] + MOMENTS * kept + (kept if low and layout.optimizer.master else 0)
    return parameters(run.plan.model) * each


def _checkpoint(run: Run, asked: Asked, defaults: _Defaults) -> float:
    """Seconds that one checkpoint holds training up."""
    if asked.checkpoint is not None:
        if asked.storage is not None:
            raise Malformed("give either --checkpoint or --storage, not both")
        return _value("--checkpoint", asked.checkpoint, "seconds")
    nbytes = state_bytes(run)
    if not nbytes:
        raise Malformed("the model has no parameters, so a checkpoint has no size; give --checkpoint T")
    if asked.storage is not None:
        bandwidth = _value("--storage", asked.storage, "bandwidth")
    else:
        bandwidth = defaults.get("storage per device", None, "storage_per_device", "bandwidth") * run.devices
    note = f"a checkpoint writes {format_bytes(nbytes)} at {format_bandwidth(bandwidth)} while training stands still"
    defaults.notes.append(note)
    return nbytes / bandwidth


def _interval(text: str, outages: Outages) -> float:
    return INTERVALS[text](outages.checkpoint, outages.mtbf) if text in INTERVALS else _value("--interval", text, "seconds", "young, daly or a time")


def _curve_row(outages: Outages, asked: Asked) -> Row:
    interval = _interval(asked.interval, outages)
    try:
        return Row(outages.mtbf, interval, shares(outages, interval))
    except Refused:
        return Row(outages.mtbf, interval, None)


def _drawn(outages: Outages, interval: float, asked: Asked) -> Estimate | None:
    if asked.draws == 0:
        return None
    if not 2 <= asked.draws <= DRAWS * 50 or asked.seed < 0:
        raise Malformed(f"--draws {asked.draws} --seed {asked.seed}: from 2 to {DRAWS * 50} intervals are drawn, with a seed of 0 or more")
    return simulate(outages, interval, np.random.default_rng(asked.seed), asked.draws)


def _training(run: Run, asked: Asked) -> float | None:
    """Seconds of training without any loss; None where nothing to be reached is named."""
    tokens, steps = count("--tokens", asked.tokens), None
    if (asked.critical_batch is None) != (asked.minimum_steps is None):
        raise Malformed("--critical-batch and --minimum-steps go together: steps = minimum (1 + critical / batch)")
    if asked.critical_batch is not None and asked.minimum_steps is not None:
        steps = math.ceil(steps_to_target(run.plan.layout.batch.global_, asked.critical_batch, asked.minimum_steps))
    goals = {"--tokens": tokens, "--gpu-hours": asked.gpu_hours, "--critical-batch": steps}
    if sum(g is not None for g in goals.values()) > 1:
        raise Malformed(f"give one of {', '.join(goals)}, not several")
    if tokens is None and steps is None:
        return None
    report = report_of(run)
    return steps * report.step_time if steps is not None else tokens / report.tokens * report.step_time if tokens is not None else None


def _price(run: Run, asked: Asked) -> float | None:
    if asked.price is not None:
        try:
            return quantity(asked.price, "price")
        except Malformed as error:
            raise Malformed(f"--price {error}") from None
    return None if run.cluster.price is None else float(run.cluster.price)


def _value(flag: str, text: str, dimension: Dimension, legal: str = "") -> float:
    """A quantity above 0, but for the times that may be none at all. Raises Malformed naming the flag."""
    try:
        value = quantity(text, dimension)
    except Malformed as error:
        raise Malformed(f"{flag} {error}" + (f"; legal: {legal}" if legal else "")) from None
    if not value and flag not in ("--restart", "--detection", "--silent-delay", "--repair"):
        raise Malformed(f"{flag} {text} must be more than 0")
    return value


SUFFIXES: dict[str, float] = {"": 1.0, "k": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}


def count(flag: str, text: str | None) -> float | None:
    """A number above 0, perhaps in k, M, B or T."""
    if text is None:
        return None
    stem, suffix = (text[:-1], text[-1]) if text[-1:] in SUFFIXES and text[-1:] else (text, "")
    try:
        value = float(stem) * SUFFIXES[suffix]
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise Malformed(f"{flag} {text} must be a number above 0, such as 1.5e6, 1.5M or 15T")
    return value


def _share(flag: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= 1:
        raise Malformed(f"{flag} {text} must be a share from 0 to 1")
    return value


def _natural(flag: str, value: int | None) -> int | None:
    if value is not None and not 0 <= value < 10**5:
        raise Malformed(f"{flag} {value} must be a whole number from 0 to {10**5 - 1}")
    return value


def _slowdown(text: str | None) -> float:
    """Mean factor on the step: "0.05x1.3" is 5 % of the time with somebody 1.3 times as slow (the slowest sets the pace of a synchronous step)."""
    if text is None:
        return 1.0
    share, times, factor = text.partition("x")
    try:
        value = float(factor)
    except ValueError:
        value = math.nan
    if not times or not 1 <= value < math.inf:
        raise Malformed(f"--stragglers {text} is written SHARExFACTOR with a factor of 1 or more, such as 0.05x1.3")
    return 1 + _share("--stragglers", share) * (value - 1)


def asked_from(pairs: Iterable[tuple[str, str]]) -> Asked:
    """`Asked` from names and texts, as a sweep varies them. Raises Malformed."""
    numbers = {"spares": int, "draws": int, "seed": int, "critical_batch": float, "minimum_steps": float}
    values: dict[str, Any] = {}
    for name, text in pairs:
        if name not in Asked.__dataclass_fields__:
            raise Malformed(f"goodput.{name} is unknown; known: {', '.join(sorted(Asked.__dataclass_fields__))}")
        try:
            values[name] = numbers.get(name, str)(text)
        except ValueError:
            raise Malformed(f"goodput.{name}={text} must be a number") from None
    return Asked(**values)
