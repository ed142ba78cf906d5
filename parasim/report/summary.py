"""summarize: a Timeline and its run become the numbers of one step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import __version__
from ..collecting import uncollected
from ..cost.accuracy import accuracies, accuracy
from ..memory import MemoryPeak, memory_peaks
from ..model.layers import attention_convention, model_flops
from ..program.ops import CATEGORIES
from ..timeline import COMPUTE, Timeline
from ..units import format_seconds
from .accounting import NAMES, RankTimes, Window, rank_times, step_window
from .blame import blame, led_by, straggler
from .network import link_use
from .reserved import reserved
from .values import UPPER_BOUND, Engine, MemorySummary, Report, Stage, StepTimes

if TYPE_CHECKING:
    from ..config import Run

ByStage = list[tuple[int, dict[int, float]]]  # stage, and per kept rank the seconds of its compute ops of that stage
LIBRARY = "communication library buffers"
EXCLUDED = ("framework and driver context", LIBRARY, "allocator fragmentation")
REMARKS = {LIBRARY: "users report about 1.6 GB for one NCCL communicator, 6 GB for three or more: NVIDIA/nccl#864"}


@uncollected()
def summarize(timeline: Timeline, run: Run, *, allocator: bool = True) -> Report:
    """The Report of one step (the last of a timeline with several; its time is the distance between the ends of the last two).

    Without `allocator` it does not say what torch's allocator would reserve, which takes as long as the rest.

    Raises Refused for a timeline without ops.
    """
    window = step_window(timeline)
    times = rank_times(timeline, window)
    by_stage = sorted(_stage_ranks(timeline).items())
    batch = run.plan.layout.batch
    tokens = batch.global_ * max(batch.sequence, 1)
    steps = window.step + 1
    slow = straggler(by_stage, {r: t.compute for r, t in times.items()}, timeline.multiplicity)
    useful = model_flops(run.plan.model, tokens, batch.sequence) or None
    return Report(
        name=run.name,
        step_time=window.length,
        tokens=tokens,
        world=len(timeline.representative),
        model_flops=useful,
        hardware_flops=_hardware_flops(timeline, useful, steps),
        peak_flops=float(run.cluster.accelerator.peak(run.plan.layout.compute_dtype)),
        precision=run.plan.layout.compute_dtype,
        ideal=max(t.compute for t in times.values()),
        longest_span=max(t.span for t in times.values()),
        times=mean_times(timeline, times),
        comm_bytes=comm_bytes(timeline, window),
        memory=_memory(timeline, run, by_stage, allocator=allocator),
        stages=_stages(by_stage, times, window),
        links=link_use(timeline, window),
        blame=led_by(slow, blame(timeline, window, times), times, timeline.multiplicity),
        straggler=slow,
        engine=Engine(
            ranks=len(times),
            classes=int(timeline.meta.get("classes", len(times))),
            events=timeline.meta.get("events"),
            wall=timeline.meta.get("wall_s"),
            lowering=timeline.meta.get("lowering_s"),
        ),
        cost=None if run.cluster.price is None else float(run.cluster.price) * len(timeline.representative) * window.length / 3600.0,
        assumptions=(*_assumptions(run, steps), *_slowed(timeline, run, steps)),
        provenance=_provenance(timeline, run),
        accuracy=accuracy(run.profile.name, _stack(run), run.cluster.accelerator.name),
    )


def _stack(run: Run) -> str | None:
    name = run.source.get("stack")
    return None if name is None else str(name)


def _hardware_flops(timeline: Timeline, useful: float | None, steps: int) -> float | None:
    """Model FLOPs plus those computed again (phase R), attention counted as in the model FLOPs: all queries against all keys.

    Kernels skip the half that the causal mask hides, hence the factor 2. None where the timeline does not say (a measured one).
    """
    again = timeline.meta.get("recomputed_flops")
    if useful is None or again is None:
        return None
    return useful + (float(again["matmul"]) + 2.0 * float(again["attention"])) / steps


def _weights(timeline: Timeline, ranks: Iterable[int]) -> list[float]:
    multiplicity = timeline.multiplicity
    return [multiplicity.get(r, 0) / len(timeline.representative) for r in ranks]


def mean_times(timeline: Timeline, times: Mapping[int, RankTimes]) -> StepTimes:
    """Means over all ranks of the cluster (a kept rank counts as often as it stands for others)."""
    weights = np.array(_weights(timeline, times))
    accounts = list(times.values())
    return StepTimes(
        compute=float(weights @ [t.compute for t in accounts]),
        optimizer=float(weights @ [t.optimizer for t in accounts]),
        idle=float(weights @ [t.idle for t in accounts]),
        exposed=_by_axis(weights @ np.array([t.exposed for t in accounts])),
        overlapped=_by_axis(weights @ np.array([t.overlapped for t in accounts])),
    )


def _by_axis(values: Any) -> dict[str, float]:
    """The five axes always; `other` (transfers without an axis) only where there are any."""
    return {name: float(v) for name, v in zip(NAMES, values, strict=True) if name != "other" or v}


def comm_bytes(timeline: Timeline, window: Window) -> dict[str, float]:
    """Mean over ranks of the wire bytes that a rank sends in the step, per axis."""
    many = timeline.multiplicity
    axes, weighted = [], []
    for part in timeline.parts:
        sent = np.flatnonzero((part["step"] == window.step) & (part["kind"] != COMPUTE))
        axes.append(part["axis"][sent].astype(np.int64) % len(NAMES))
        weighted.append(part["bytes"][sent] * many.get(part.rank, 0) / len(timeline.representative))
    return _by_axis(np.bincount(np.concatenate(axes), weights=np.concatenate(weighted), minlength=len(NAMES)))


def _stage_ranks(timeline: Timeline) -> dict[int, dict[int, float]]:
    """stage -> rank -> seconds of compute ops of that stage, for the kept ranks. Ops without a stage count only where no op has one."""
    computes = [(p, p["kind"] == COMPUTE) for p in timeline.parts]
    if not any((p["stage"][on] >= 0).any() for p, on in computes):
        return {0: {p.rank: float((p.end[on] - p.start[on]).sum()) for p, on in computes}}
    out: dict[int, dict[int, float]] = {}
    for part, on in computes:
        mine = np.flatnonzero(on & (part["stage"] >= 0))
        stage = part["stage"][mine]
        seconds = np.bincount(stage, weights=part.end[mine] - part.start[mine])
        for i in np.flatnonzero(np.bincount(stage)).tolist():
            out.setdefault(i, {})[part.rank] = float(seconds[i])
    return out


def _stages(by_stage: ByStage, times: Mapping[int, RankTimes], window: Window) -> tuple[Stage, ...]:
    """One row per stage: its rank with the longest compute."""
    out = []
    for stage, ranks in by_stage:
        rank = max(ranks, key=lambda r: (times[r].compute, -r))
        t = times[rank]
        out.append(
            Stage(
                stage=stage,
                rank=rank,
                compute=t.compute,
                own_compute=ranks[rank] / (window.step + 1),
                exposed=_by_axis(t.exposed),
                idle=t.idle,
                slack=max(window.end - t.last, 0.0),
            )
        )
    return tuple(out)


def _memory(timeline: Timeline, run: Run, stages: ByStage, *, allocator: bool) -> MemorySummary:
    peaks = memory_peaks(timeline)
    heaviest = max(peaks.values(), key=lambda p: (p.nbytes, -p.rank))
    per_stage = [max((peaks[r] for r in ranks), key=lambda p: (p.nbytes, -p.rank)) for _, ranks in stages]
    capacity = timeline.meta.get("capacity_bytes")
    excluded = dict.fromkeys((*EXCLUDED, *timeline.meta.get("excluded", ())))
    size = float(capacity if capacity is not None else run.cluster.accelerator.memory.value)
    fitted = heaviest.nbytes > 0 and "memory.fragmentation" in run.profile.numbers
    replayed = allocator and run.cluster.accelerator.kind == "gpu" and heaviest.nbytes
    return MemorySummary(
        peak=heaviest,
        per_stage=tuple(per_stage),
        stage=_stage_of(heaviest, stages),
        capacity=size,
        known=any(p.given is None or len(p.given.time) for p in timeline.parts) or timeline.meta.get("source", "simulated") != "measured",
        excluded=tuple(f"{e} ({REMARKS[e]})" if e in REMARKS else str(e) for e in excluded),
        categories=CATEGORIES,
        fitted_reserved=heaviest.nbytes * (1 + run.profile.get("memory.fragmentation")) if fitted else None,
        reserved=reserved(timeline, heaviest.rank, size) if replayed else None,
    )


def _stage_of(peak: MemoryPeak, stages: ByStage) -> int:
    return next((stage for stage, ranks in stages if peak.rank in ranks), 0)


def _assumptions(run: Run, steps: int) -> tuple[str, ...]:
    fitted = [n for n in run.profile.numbers.values() if n.status == "fitted"]
    profile = (
        f"profile {run.profile.name}: {len(fitted)} fitted of {len(run.profile.numbers)} numbers"
        if fitted
        else f"profile {run.profile.name}: no fitted numbers; {UPPER_BOUND}"
    )
    return (
        *run.plan.assumptions,
        profile,
        *_transferred(run),
        f"MFU counts model FLOPs against the dense {run.plan.layout.compute_dtype} peak; {attention_convention()}",
        "HFU adds the FLOPs that are computed again, attention counted in the same way",
        *((f"step time: distance between the ends of the last two of {steps} steps",) if steps > 1 else ()),
    )


def _transferred(run: Run) -> tuple[str, ...]:
    """Where the profile was compared on other accelerators only: its efficiencies are used with the datasheet of this one."""
    fitted = sorted({a.accelerator for a in accuracies() if a.profile == run.profile.name})
    name = run.cluster.accelerator.name
    return (f"profile {run.profile.name} is from {', '.join(fitted)}: its efficiencies are transferred to {name}",) if fitted and name not in fitted else ()


def _slowed(timeline: Timeline, run: Run, steps: int) -> tuple[str, ...]:
    """What compute loses to the transfers beside it, where the profile names a slow-down; the seconds are part of compute."""
    keys = {kind: f"overlap.slowdown.{kind}" for kind in ("collective", "p2p")}
    factors = {kind: run.profile.numbers[key].value for kind, key in keys.items() if key in run.profile.numbers}
    if not any(factors.values()):
        return ()
    lost = float(timeline.meta.get("slowed_s", 0.0)) / steps
    words = " and ".join(f"{1 + x:g} times as long beside a {'message' if kind == 'p2p' else kind}" for kind, x in factors.items() if x)
    return (f"compute takes {words} of its rank: {format_seconds(lost)} of the compute of a mean rank and step",)


def _provenance(timeline: Timeline, run: Run) -> dict[str, Any]:
    """What the run file's provenance holds (versions, hashes of the inputs), and the names of the parts."""
    return {
        "parasim": __version__,
        **run.provenance,
        "source": str(timeline.meta.get("source", "simulated")),
        "run": run.name,
        "model": run.plan.model.name,
        "cluster": run.cluster.name,
        "accelerator": run.cluster.accelerator.name,
        "profile": run.profile.name,
    }
