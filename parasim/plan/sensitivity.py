"""How the step depends on numbers of the machine: finite differences through the whole engine, with the cluster or the profile scaled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from ..config import Run
from ..cost.profile import Profile
from ..lowering import lower
from ..program.workload import Workload
from ..provenance import Number
from ..report import step_window
from ..sim import simulate
from ..topology.cluster import Accelerator, Cluster

CHANGE = 1e-3  # relative change of a number; a step of the form a + b/x is then known to 0.1 %
Machine = tuple[Cluster, Profile]


@dataclass(frozen=True)
class Sensitivity:
    """`elasticity` = d log(step) / d log(number): -0.3 means that 1 % more of it makes the step 0.3 % shorter.

    `value` is the number where it is one (SI `unit`), else None (links of one kind with different bandwidths; latencies): then `derivative` is
    d(step)/d(factor) in seconds, where factor 1 is the machine as it is; else d(step)/d(number), seconds per unit.
    """

    name: str
    unit: str
    value: float | None
    derivative: float
    elasticity: float


def sensitivities(run: Run, workload: Workload | None = None) -> list[Sensitivity]:
    """One row for FLOP/s, memory bandwidth, the bandwidth of every kind of link the run could use, and all latencies, the largest effect first."""
    workload = workload or lower(run.plan)
    step = _step(workload, (run.cluster, run.profile))
    rows = []
    for name, unit, value, scaled in _numbers(run):
        other = _step(workload, scaled(1 + CHANGE))
        slope = (other - step) / CHANGE
        rows.append(Sensitivity(name, unit, value, slope / value if value else slope, slope / step if step else 0.0))
    return sorted(rows, key=lambda r: (-abs(r.elasticity), r.name))


def _step(workload: Workload, machine: Machine) -> float:
    return step_window(simulate(workload, *machine)).length


def _numbers(run: Run) -> Iterator[tuple[str, str, float | None, Callable[[float], Machine]]]:
    cluster, profile, device = run.cluster, run.profile, run.cluster.accelerator
    peak = run.plan.layout.compute_dtype
    peaks = {d: n.value for d, n in device.peak_flops.items()}
    yield (f"{device.name} {peak}", "FLOP/s", peaks[peak], lambda f: (replace(cluster, accelerator=_faster(run, f)), profile))
    yield (
        f"{device.name} memory bandwidth",
        "B/s",
        device.memory_bandwidth.value,
        lambda f: (replace(cluster, accelerator=replace(device, memory_bandwidth=_times(device.memory_bandwidth, f))), profile),
    )
    for kind in dict.fromkeys(link.kind for link in cluster.links):
        bandwidths = {link.bandwidth for link in cluster.links if link.kind == kind}
        value = bandwidths.pop() if len(bandwidths) == 1 else None
        yield f"{kind} bandwidth", "B/s", value, lambda f, kind=kind: (_wider(cluster, kind, f), profile)  # type: ignore[misc]
    yield "all latencies", "s", None, lambda f: later(cluster, profile, f)


def _times(number: Number, factor: float) -> Number:
    return replace(number, value=number.value * factor, interval=None)


def _faster(run: Run, factor: float) -> Accelerator:
    device = run.cluster.accelerator
    return replace(device, peak_flops={d: _times(n, factor) for d, n in device.peak_flops.items()})


def _wider(cluster: Cluster, kind: str, factor: float) -> Cluster:
    return replace(cluster, links=tuple(k._replace(bandwidth=k.bandwidth * factor) if k.kind == kind else k for k in cluster.links))


def later(cluster: Cluster, profile: Profile, factor: float) -> Machine:
    """Latencies of links, and those of software: the profile's numbers in seconds but for what kernels cost."""
    numbers = {k: _times(n, factor) if n.unit == "s" and not k.startswith("compute.") else n for k, n in profile.numbers.items()}
    links = tuple(k._replace(latency=k.latency * factor) for k in cluster.links)
    return replace(cluster, links=links), replace(profile, numbers=numbers)
