"""The torch half of calibration: sweep transfers over sizes on real ranks, fit latency and bandwidth per op, return a Profile's numbers.

The sweep runs through the executor itself (same threads, same waits), every transfer after a slept op and with all ranks taking part, because
a small machine is bound by its processors: what is fitted must be as busy as what is predicted.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..collectives.plan import CollectivePlan, plan, seconds, send
from ..cost.profile import Profile
from ..errors import Malformed
from ..program.workload import Workload
from ..provenance import Number
from ..timeline import Timeline
from ..topology.cluster import Cluster
from ..topology.loader import load_cluster
from . import sweep

if TYPE_CHECKING:
    from .journal import Journal

Told = TypeVar("Told")
OPS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "p2p")
SIZES = (1 << 16, 1 << 19, 1 << 20, 1 << 21, 1 << 22)
PAUSE = 0.01  # seconds slept before every transfer: a training step does not send back to back
ROUNDS = 3
SLEEP, SLEEPS = 0.02, 10  # seconds and number of the slept ops that show the overhead of one
RESAMPLES = 200  # for the 95 % interval


@dataclass(frozen=True)
class Row:
    """One size of one op: `samples` are the seconds of every call, `fitted` what the fitted numbers give."""

    op: str
    nbytes: int
    ranks: int
    samples: tuple[float, ...]
    fitted: float

    @property
    def seconds(self) -> float:
        """The median call."""
        return float(np.median(self.samples))


@dataclass(frozen=True)
class Calibration:
    """What a sweep measured and what was fitted to it; `numbers` have the keys of a Profile."""

    rows: tuple[Row, ...]
    numbers: Mapping[str, Number]
    cluster: Cluster
    backend: str

    def profile(self, name: str) -> Profile:
        """The numbers as a Profile."""
        return Profile(name, self.backend, self.numbers, f"fitted to a sweep of {len(self.rows)} sizes")  # type: ignore[arg-type]


def calibrate_collectives(
    ranks: int | None = None,
    sizes: Sequence[int] = SIZES,
    *,
    ops: Sequence[str] = OPS,
    count: int = 5,
    cluster: Cluster | None = None,
    backend: str = "gloo",
    timeout: float = 120.0,
    kept: Path | None = None,
) -> Calibration:
    """Sweep `ops` over `sizes` (bytes, as in a CollectivePlan) with `count` calls each and round, and fit.

    With `ranks` that many local gloo processes are started; without, the processes of torchrun take part by `backend` and all get the result.
    Numbers are relative to the links of `cluster` (default: the loopback cluster of the catalog). Samples are written to the file `kept` as they
    are measured, and those that it holds are not measured again. Raises Failed where ranks die or are late, Malformed where `kept` is of another sweep.
    """
    unknown = [op for op in ops if op not in OPS]
    if unknown:
        raise Malformed(f"op={unknown[0]} must be one of {', '.join(OPS)}")
    if len(set(sizes)) < 2 or min(sizes) < sweep.ELEMENT:
        raise Malformed(f"sizes={list(sizes)} must hold at least two sizes of {sweep.ELEMENT} bytes or more: latency and bandwidth are two numbers")
    from .launch import joined, spawn

    if ranks is None:
        import torch.distributed as dist

        with joined(backend, timeout):
            ranks = dist.get_world_size()
            measured = measure(ranks, tuple(ops), tuple(sizes), count, timeout, kept)
    else:
        if ranks < 2:
            raise Malformed(f"ranks={ranks} must be at least 2: nothing is sent by one rank")
        if kept is not None:
            _journal(kept, ranks, count)  # what is refused is refused here
        measured = spawn(measure, ranks, ranks, tuple(ops), tuple(sizes), count, timeout, kept, timeout=timeout)[0]
    return fit(measured, ranks, cluster or load_cluster("loopback", ranks), platform.node(), backend)


Samples = dict[tuple[str, int], list[float]]  # (op, bytes) -> seconds of every call
SLEPT = ("sleep", 0)  # the key of the overhead of slept ops, seconds


def measure(ranks: int, ops: tuple[str, ...], sizes: tuple[int, ...], count: int, timeout: float, kept: Path | None = None) -> Samples:
    """Run the sweep in this process group; the same samples on every rank. Rounds go over everything, so that a busy second hits all a little.

    Rank 0 keeps the samples, in `kept` too, and tells how far it is.
    """
    import torch.distributed as dist

    from .execution import Execution, Settings
    from .payloads import given

    settings = Settings("sleep", timeout, given)
    first = dist.get_rank() == 0
    journal = _journal(kept, ranks, count) if first and kept is not None else None
    found: dict[tuple[str, int], list[list[float]]] = {key: [] for key in (*((op, n) for op in ops for n in sizes), SLEPT)}
    if journal is not None:
        found |= {key: list(journal.samples.get(_case(key), ())) for key in found}
    done = _told({key: len(samples) for key, samples in found.items()})
    executions = {key: Execution(_workload(*key, ranks, count), settings) for key in found if done[key] < ROUNDS}
    for execution in executions.values():
        execution.run()
    for n in range(ROUNDS):
        todo = {key: execution for key, execution in executions.items() if done[key] <= n}
        for key, execution in todo.items():
            sample = _costs(key, execution.run(), ranks)
            found[key].append(sample)
            if journal is not None:
                journal.add(_case(key), sample)
        if first and kept is not None and todo:
            print(f"round {n + 1} of {ROUNDS}: {len(todo)} cases", file=sys.stderr, flush=True)
    return {key: [x for sample in samples for x in sample] for key, samples in _told(found).items()}


def _told(what: Told) -> Told:
    """What rank 0 knows, on every rank."""
    import torch.distributed as dist

    said = [what]
    dist.broadcast_object_list(said, 0)
    return said[0]


def _journal(path: Path, ranks: int, count: int) -> Journal:
    from importlib.metadata import version

    from .journal import Journal

    machine = {"sweep": "collectives", "ranks": str(ranks), "calls": str(count), "host": platform.node(), "torch": version("torch")}
    return Journal(path, machine)


def _case(key: tuple[str, int]) -> str:
    return f"{key[0]} {key[1]}"


def _costs(key: tuple[str, int], timeline: Timeline, ranks: int) -> list[float]:
    """Seconds of every call of a case."""
    if key == SLEPT:
        rows = timeline.ops
        return [float(x) - SLEEP for r in range(ranks) for x in np.diff(rows["end"][rows["rank"] == r])]
    return (sweep.message_costs if key[0] == "p2p" else sweep.collective_costs)(timeline)


def _workload(op: str, nbytes: int, ranks: int, count: int) -> Workload:
    if (op, nbytes) == SLEPT:
        return sweep.slept_ops(ranks, SLEEPS, SLEEP)
    if op == "p2p":
        return sweep.messages(ranks, nbytes, count, PAUSE)
    return sweep.collectives(op, ranks, nbytes, count, PAUSE)  # type: ignore[arg-type]


# ---- fitting


@dataclass(frozen=True)
class _Op:
    """Points of one op: `base` are the latencies the cluster has by itself, `wire` the seconds its links take at their bandwidth."""

    base: NDArray[np.float64]
    wire: NDArray[np.float64]
    samples: tuple[NDArray[np.float64], ...]

    def fit(self, pick: Callable[[NDArray[np.float64]], NDArray[np.float64]]) -> tuple[float, float]:
        """(latency >= 0, seconds per wire second) through the medians of `pick(samples)` per size."""
        y = np.array([np.median(pick(s)) for s in self.samples]) - self.base
        i, j = np.triu_indices(len(y), 1)
        run = self.wire[j] - self.wire[i]
        slope = _weighted_median((y[j] - y[i]) / run, np.abs(run))
        latency = float(np.median(y - slope * self.wire))
        if slope > 0 and latency >= 0:
            return latency, slope
        return 0.0, max(_weighted_median(y / self.wire, self.wire), np.finfo(float).tiny)


def fit(measured: Samples, ranks: int, cluster: Cluster, source: str, backend: str = "gloo") -> Calibration:
    """Latency and bandwidth factor per op by a weighted median of pairwise slopes (Sen 1968), and the overhead of a slept op.

    The 95 % intervals come from resampling the calls of every size.
    """
    rng = np.random.default_rng(0)
    numbers: dict[str, Number] = {}
    rows: list[Row] = []
    where = f"{backend} sweep, {ranks} ranks on {source}"
    for op in dict.fromkeys(o for o, n in measured if (o, n) != SLEPT):
        sizes = [n for o, n in measured if o == op]
        points = _points(op, sizes, measured, cluster)
        latency, slope = points.fit(lambda s: s)
        drawn = np.array([points.fit(lambda s: rng.choice(s, len(s))) for _ in range(RESAMPLES)])
        low, high = np.percentile(drawn, [2.5, 97.5], axis=0)
        prefix = "p2p" if op == "p2p" else f"collective.{op}"
        numbers[f"{prefix}.latency"] = Number(latency, "s", where, "fitted", (float(low[0]), float(high[0])))
        numbers[f"{prefix}.bandwidth_factor"] = Number(1 / slope, "1", where, "fitted", (float(1 / high[1]), float(1 / low[1])))
        fitted = points.base + latency + slope * points.wire
        rows += [Row(op, n, ranks, tuple(measured[op, n]), float(f)) for n, f in zip(sizes, fitted, strict=True)]
    if SLEPT in measured:
        over = np.array(measured[SLEPT])
        medians = [float(np.median(rng.choice(over, len(over)))) for _ in range(RESAMPLES)]
        low_, high_ = (max(0.0, float(p)) for p in np.percentile(medians, [2.5, 97.5]))
        numbers["compute.op_overhead"] = Number(max(0.0, float(np.median(over))), "s", where, "fitted", (low_, high_))
    return Calibration(tuple(rows), numbers, cluster, backend)


def _points(op: str, sizes: Sequence[int], measured: Samples, cluster: Cluster) -> _Op:
    bare = Profile("bare", "gloo")
    plans = list(_plans(op, sizes, cluster, bare))
    base = np.array([sum(phase.latency for phase in p.phases) for p in plans])
    wire = np.array([seconds(p, cluster, bare) for p in plans]) - base
    return _Op(base, wire, tuple(np.array(measured[op, n]) for n in sizes))


def _plans(op: str, sizes: Sequence[int], cluster: Cluster, bare: Profile) -> Iterator[CollectivePlan]:
    for nbytes in sizes:
        if op == "p2p":
            yield send(nbytes, cluster.devices[0], cluster.devices[1], cluster, bare)
        else:
            yield plan(op, nbytes, cluster.devices, cluster, bare)


def _weighted_median(values: NDArray[Any], weights: NDArray[Any]) -> float:
    order = np.argsort(values)
    total = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(total, total[-1] / 2)])
