"""The jobs of `parasim calibrate`: sweeps of collectives, of kernels and of steps, and files of others, each into a Profile."""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .api import build, lower, simulate_run, writable
from .collectives.table import busbw_factor, parse_sizes
from .config import Run
from .cost.profile import Profile, save_profile
from .cost.timing import seconds
from .documents import write
from .errors import Malformed, Refused
from .executor import require_torch
from .memory import memory_peak
from .program.ops import DType
from .provenance import Number
from .topology.cluster import Accelerator
from .topology.loader import accelerators, load_cluster
from .units import format_memory, format_seconds
from .words import known

if TYPE_CHECKING:
    from .executor.calibrate import Row as Swept
    from .executor.journal import Journal
    from .executor.kernel_times import Case

Tell = Callable[[str], None]
ROUNDS = 20  # samples of a case, over all calls
TIMEOUT = 60.0  # seconds before a step gives up
SIZES = ("tiny", "small", "large")  # of seconds; of one thread of a processor; of a GPU
FITTED = "none"  # the recomputation whose steps are fitted; the others are predicted

# GPT-like stacks and what they are fed, by size
STACKS: Mapping[str, Mapping[str, Any]] = {
    "tiny": {"layers": 2, "hidden": 64, "heads": 4, "vocab": 128, "max_positions": 32},
    "small": {"layers": 2, "hidden": 512, "heads": 8, "vocab": 2048, "max_positions": 256},
    "large": {"layers": 8, "hidden": 2048, "heads": 16, "vocab": 32768, "max_positions": 2048},
}
RECOMPUTE = ("none", "full")


def calibrate(out: Path, *, ranks: int | None, sizes: str, tell: Tell) -> str:
    """Sweep collectives on gloo and write the fitted profile; what to say. Samples are kept beside it, and a second run goes on with them."""
    require_torch()
    from .executor.calibrate import calibrate_collectives

    writable(out.parent)
    kept = out.with_name(f"{out.name}.samples.jsonl")
    try:
        calibration = calibrate_collectives(ranks, parse_sizes(sizes), kept=kept)
    except KeyboardInterrupt:
        tell(f"interrupted; the samples until now are in {kept}: run again to go on")
        raise
    if int(os.environ.get("RANK", "0")) == 0:
        save_profile(calibration.profile(out.stem), out)
    return "\n".join([*_swept(calibration.rows), *(f"{key}: {n.value:.6g} {n.unit}" for key, n in sorted(calibration.numbers.items())), f"wrote {out}"])


def _swept(rows: Sequence[Swept]) -> list[str]:
    """The sweep in the words of nccl-tests; busbw is what the lectures call the bandwidth of a collective: bytes that cross a link per second."""
    lines = ["op              bytes   time(us)  algbw(GB/s)  busbw(GB/s)  fitted(us)"]
    for row in rows:
        algbw = row.nbytes / row.seconds / 1e9
        busbw = algbw * busbw_factor(row.op, row.ranks)
        lines.append(f"{row.op:<14} {row.nbytes:>6} {row.seconds * 1e6:>10.1f} {algbw:>12.3f} {busbw:>12.3f} {row.fitted * 1e6:>11.1f}")
    return lines


def calibrate_files(form: str, paths: Sequence[Path], cluster: str, out: Path) -> str:
    """Fit a profile to measured files (`nccl-tests`, `kineto` or `chakra`) of a job on `cluster` and write it; what to say."""
    from .collectives.calibration import from_nccl_tests

    writable(out.parent)
    profile, table = from_nccl_tests(paths, cluster, out.stem) if form == "nccl-tests" else _from_traces(form, paths, cluster, out.stem)
    save_profile(profile, out)
    return f"{table}\nwrote {out}"


def _from_traces(form: str, paths: Sequence[Path], cluster: str, name: str) -> tuple[Profile, str]:
    """A profile of the kernels and collectives in traces of a job, and what to say. Raises Refused where neither tells anything."""
    from .collectives.calibration import from_samples, names_of
    from .cost import kineto
    from .traces.chakra import read_chakra
    from .traces.kinds import fitted
    from .traces.kineto import read_kineto

    if form == "chakra":
        found = read_chakra(paths)
        traces, kernels, said = found.traces, found.kernels, str(found)
    else:
        traces = kineto.read(paths, needed=False)
        kernels, said = [k for path in paths for k in read_kineto(path, needed=False).kernels], str(traces)
    numbers, lines = fitted(kernels, load_cluster(cluster, max((c.ranks for c in traces.calls), default=1)).accelerator, f"{form} ({names_of(paths)})")
    tables = [said, "\n".join(lines)]
    profile = Profile(name, description=f"fitted to {form} ({names_of(paths)}) on {cluster}")
    if traces.calls:
        profile, table = from_samples(traces.samples(), cluster, name, f"{form} ({names_of(paths)})")
        tables.append(table)
    if not numbers and not traces.calls:
        raise Refused(f"{names_of(paths)}: neither a collective with its sizes nor a kernel with FLOPs or bytes; profile with record_shapes=True")
    return replace(profile, numbers={**numbers, **profile.numbers}), "\n\n".join(t for t in tables if t)


# ---- one device


@dataclass(frozen=True)
class Bench:
    """What is measured on: a device of torch, the dtype of a run on it, the set of sizes, and what the machine says of itself."""

    device: Any
    dtype: DType
    sizes: str
    machine: Mapping[str, str]

    @property
    def backend(self) -> str:
        """The backend of torch.distributed."""
        return "nccl" if self.device.type == "cuda" else "gloo"

    @property
    def words(self) -> str:
        """Device and software."""
        return f"{self.machine['device']}, torch {self.machine['torch']}"


def bench(sizes: str | None = None, dtype: str | None = None, *, on_processor: bool = False) -> Bench:
    """The GPU if torch has one and it is wanted, in bf16, else one thread of the processor, in fp32. Raises MissingExtra without torch."""
    require_torch()
    from .executor.single import here, machine, processor

    device = processor() if on_processor else here()
    cuda = device.type == "cuda"
    chosen = known(dtype or ("bf16" if cuda else "fp32"), ("bf16", "fp16", "fp32"), "--dtype")
    return Bench(device, chosen, known(sizes or ("large" if cuda else "small"), SIZES, "--sizes"), machine(device))  # type: ignore[arg-type]


def _accelerator(name: str | None, found: Bench) -> Accelerator | None:
    """The accelerator whose datasheet counts; None: the peaks of this processor are measured. Raises Malformed for a GPU without a name."""
    if name is not None:
        chip = accelerators()[known(name, accelerators(), "--accelerator")]
        chip.peak(found.dtype)
        return chip
    if found.device.type == "cuda":
        raise Malformed(f"--accelerator must say whose datasheet {found.machine['device']} has; one of {', '.join(accelerators())}")
    return None


def _journal(kind: str, out: Path, found: Bench) -> Journal:
    from .executor.journal import Journal

    if out.suffix not in (".yaml", ".yml"):
        raise Malformed(f"--out {out}: a profile ends in .yaml")
    writable(out.parent)
    return Journal(out.with_name(f"{out.name}.samples.jsonl"), {"sweep": kind, "dtype": found.dtype, "sizes": found.sizes, **found.machine})


def _collect(journal: Journal, measures: Mapping[str, Callable[[], list[float]]], limit: float, tell: Tell) -> None:
    if not limit > 0:
        raise Malformed(f"--seconds {limit:g} must be more than 0")
    try:
        journal.collect(measures, limit, ROUNDS, tell)
    except KeyboardInterrupt:
        tell(f"interrupted; the samples until now are in {journal.path}: run again to go on")
        raise


def _cases(found: Bench) -> dict[str, Case]:
    from .executor.kernel_times import SETS, cases

    return cases(SETS[found.sizes], found.dtype, found.device)


def _measured_peaks(journal: Journal, cases: Mapping[str, Case], out: Path, found: Bench) -> Accelerator:
    """An accelerator whose peaks are the best rates of the sweep, for a processor without a datasheet, and its file beside `out`."""
    from .executor.fitting import rate
    from .executor.single import memory_bytes

    best: dict[bool, float] = {}
    for name, case in cases.items():
        if case.kernel is not None and case.kernel.name in ("linear", "residual_add"):
            product = case.kernel.name == "linear"
            best[product] = max([best.get(product, 0.0), *(rate(case.kernel, s[0]) for s in journal.samples.get(name, ()))])
    if len(best) < 2 or not min(best.values()) > 0:
        raise Refused("the peaks of this processor are not measured yet: run again to go on, or give more --seconds")
    source = f"no datasheet: fastest of a sweep on {found.words}"
    flops, moved = best[True], best[False]
    chip = Accelerator(
        f"{out.stem}-device",
        "cpu",
        {found.dtype: Number(flops, "FLOP/s", source, "fitted")},
        Number(memory_bytes(found.device), "B", f"memory of the host of {found.words}", "fitted"),
        Number(moved, "B/s", source, "fitted"),
    )
    entry = {n: {"value": f"{x.value:.6g} {x.unit}", "source": x.source, "status": x.status} for n, x in _numbers(chip)}
    head = {"name": chip.name, "kind": chip.kind, "peak_flops": {found.dtype: entry.pop("peak")}}
    write({**head, **entry}, _accelerator_file(out))
    return chip


def _numbers(chip: Accelerator) -> Iterable[tuple[str, Number]]:
    yield "peak", next(iter(chip.peak_flops.values()))
    yield "memory", chip.memory
    yield "memory_bandwidth", chip.memory_bandwidth


def _accelerator_file(out: Path) -> Path:
    return out.with_name(f"{out.stem}.accelerator.yaml")


def _profile(kind: str, out: Path, numbers: Mapping[str, Number], chip: Accelerator, found: Bench) -> Profile:
    from .executor.single import clocks

    said = f"{kind} of {found.words}, {found.dtype}; clocks as found: {clocks(found.device)}; {datetime.date.today()}; fractions of {chip.name}"
    return Profile(out.stem, found.backend, numbers, said)  # type: ignore[arg-type]


def _said(numbers: Mapping[str, Number]) -> Iterable[str]:
    for key, n in sorted(numbers.items()):
        low, high = n.interval or (n.value, n.value)
        yield f"{key}: {n.value:.6g} {n.unit} ({low:.6g} to {high:.6g})"


def calibrate_kernels(out: Path, accelerator: str | None, *, limit: float, tell: Tell, sizes: str | None = None, dtype: str | None = None) -> str:
    """Time torch's kernels on this device for at most about `limit` seconds, fit, and write the Profile; what to say.

    Raises Malformed (flags, files), Refused where the time was too short for every case: a second run goes on.
    """
    found = bench(sizes, dtype)
    chip = _accelerator(accelerator, found)
    journal = _journal("kernels", out, found)
    from .executor.fitting import fit_kernels
    from .executor.kernel_times import LAUNCH_KEYS, measures

    cases = _cases(found)
    _collect(journal, measures(cases), limit, tell)
    chip = chip or _measured_peaks(journal, cases, out, found)
    samples = {name: [s[0] for s in journal.samples.get(name, ())] for name in cases}
    launches = {name: key for name, key in LAUNCH_KEYS.items() if name in cases}
    kernels = {name: case.kernel for name, case in cases.items() if case.kernel is not None}
    numbers = fit_kernels(samples, kernels, launches, chip, f"kernels of {found.words}, of {chip.name}")
    profile = _profile("kernels", out, numbers, chip, found)
    save_profile(profile, out)
    lines = []
    for name, kernel in kernels.items():
        taken = float(np.median(samples[name]))
        error = seconds(kernel, chip, profile) / taken - 1
        lines.append(f"{name:28s} {len(samples[name]):3d} samples  {format_seconds(taken):>10s}  fitted {error:+.1%}")
    return "\n".join([*lines, *_said(numbers), _wrote(out, chip)])


def _wrote(out: Path, chip: Accelerator) -> str:
    file = _accelerator_file(out)
    return f"wrote {out}, fractions of {chip.name}" + (f", whose peaks were measured here: {file}" if chip.name == f"{out.stem}-device" else "'s datasheet")


# ---- steps of one device


def step_run(stack: Mapping[str, Any], recompute: str, dtype: str, micro: int = 1, microbatches: int = 2, **more: Any) -> Run:
    """The resolved run of one device that trains a GPT-like stack; `more` are keys of a run file, such as cluster and profile."""
    keys = {**stack, "name": "gpt", "activation": "gelu", "positions": "learned"}
    batch = {"global": micro * microbatches, "micro": micro, "sequence": keys["max_positions"]}
    fixed = {"devices": 1, "precision": dtype, "optimizer": {"gradient_dtype": "fp32"}}
    return build({"name": f"gpt-{recompute}", "model": keys, "batch": batch, "recompute": recompute, "cluster": "loopback", **fixed, **more})


def calibrate_step(out: Path, accelerator: str | None, *, limit: float, tell: Tell, sizes: str | None = None, dtype: str | None = None) -> str:
    """Time steps of a small transformer, run from the Workload's own kernels with and without recomputation, and fit; what to say.

    Fitted are the ops of the steps without recomputation; those with it are predicted, and the error is said. Raises as `calibrate_kernels`.
    """
    found = bench(sizes, dtype)
    chip = _accelerator(accelerator, found)
    journal = _journal("step", out, found)
    from .executor.fitting import fit_steps
    from .executor.kernel_times import measures
    from .executor.single import alone
    from .executor.step_times import Step, seconds_of_ops

    peaks = {} if chip else {n: c for n, c in _cases(found).items() if c.kernel is not None and c.kernel.name in ("linear", "residual_add")}
    with alone(found.device, TIMEOUT):
        steps = {way: Step(lower(step_run(STACKS[found.sizes], way, found.dtype).plan), found.device, TIMEOUT) for way in RECOMPUTE}
        _collect(journal, {**measures(peaks), **{f"step {way}": step.sample for way, step in steps.items()}}, limit, tell)
    lacking = [way for way in RECOMPUTE if not journal.samples.get(f"step {way}")]
    if lacking:
        raise Refused(f"steps with recompute {', '.join(lacking)} are not measured yet: run again to go on, or give more --seconds")
    chip = chip or _measured_peaks(journal, peaks, out, found)
    fitted = [(steps[FITTED].ops, seconds_of_ops(journal.samples[f"step {FITTED}"]))]
    numbers = fit_steps(fitted, chip, f"ops of steps on {found.words}, of {chip.name}")
    save_profile(_profile("steps", out, numbers, chip, found), out)
    named = accelerator or str(_accelerator_file(out).resolve())
    lines = [_step_line(way, journal.samples[f"step {way}"], found, named, out) for way in RECOMPUTE]
    return "\n".join([*lines, *_said(numbers), _wrote(out, chip)])


def _step_line(way: str, samples: Sequence[Sequence[float]], found: Bench, accelerator: str, out: Path) -> str:
    """A step as measured beside the one that the Profile predicts."""
    taken = [s[0] for s in samples]
    cluster = {"base": "loopback", "accelerator": accelerator}
    timeline = simulate_run(step_run(STACKS[found.sizes], way, found.dtype, cluster=cluster, profile=str(out.resolve()))).timeline
    median = float(np.median(taken))
    spread = (max(taken) - min(taken)) / median
    peak = memory_peak(timeline, 0).nbytes
    most = max(s[1] for s in samples)
    held = (
        f", peak {format_memory(most)}, predicted {format_memory(peak)}" if most else f", predicted peak {format_memory(peak)} (none is measured without a GPU)"
    )
    told = "fitted" if way == FITTED else "predicted"
    error = f"{told} {format_seconds(timeline.makespan)} ({timeline.makespan / median - 1:+.1%})"
    return f"step, recompute {way}: {format_seconds(median)} (spread {spread:.0%} of {len(taken)}), {error}{held}"
