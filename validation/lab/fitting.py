"""Start-up times of a network of the lab, fitted on runs of their own: tiny collectives over pairs and over all, tiny messages, slept ops.

Nothing else is fitted. Bandwidths are those that the shapers were told, times what TCP's and Ethernet's headers leave of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from parasim.collectives.plan import plan, seconds
from parasim.cost.profile import Profile
from parasim.executor import sweep
from parasim.program.workload import Workload
from parasim.provenance import Number
from parasim.topology.cluster import Cluster

from .networks import PAYLOAD, Network
from .ranks import Repetition, run_on

OPS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")  # those in which every rank waits for all
TINY = 1024  # bytes: wire time of some microseconds, and far below what a port passes at once
PAUSE, CALLS, ROUNDS = 0.01, 8, 4  # seconds slept before each call, calls of a run, runs
SLEEP, SLEEPS = 0.02, 12  # seconds and number of the slept ops
CABLES = ("nic", "leaf", "spine")  # kinds of links that the lab shapes
SEGMENTS = "gloo's ring all-reduce (also inside its reduce-scatter) sends a block in two segments: one moves while the other starts"
SHAPED = f"(MTU - headers) / (MTU + frame) = {PAYLOAD:.4f} of the shaped rate is payload of TCP"


def bare(name: str) -> Profile:
    """What is known before anything is measured: gloo's algorithms, what of their latency is hidden, and the payload's part of a port's rate."""
    numbers = {f"network.bandwidth_factor.{kind}": Number(PAYLOAD, "1", SHAPED, "datasheet") for kind in CABLES}
    numbers |= {f"collective.{op}.hidden_latency": Number(1.0, "1", SEGMENTS, "assumed") for op in ("all_reduce", "reduce_scatter")}
    return Profile(name, "gloo", numbers, "a network of the lab: payload of its ports, nothing fitted")


def fit(name: str, network: Network, cluster: Cluster) -> Profile:
    """The profile of a laid-out network. Takes some seconds; raises Failed where a rank dies or is late."""
    ranks = len(cluster.devices)
    keys = list(_sweep(ranks))
    workloads = [*(_tiny(op, size, ranks) for op, size in keys), sweep.messages(ranks, TINY, CALLS, PAUSE), sweep.slept_ops(ranks, SLEEPS, SLEEP)]
    expected = sum(CALLS * 2 * PAUSE for _ in workloads) + SLEEPS * SLEEP
    *found, messages, slept = run_on(network, workloads, cluster.accelerator, ROUNDS, expected)
    where = f"{ROUNDS} x {CALLS} calls of {TINY} bytes in the lab's network {cluster.name}"
    start, base = _costs(found), bare(name)
    numbers = {**base.numbers}
    for op in OPS:
        sizes = [size for o, size in keys if o == op]
        latency, step = _latencies(op, sizes, np.array([start[k] for k, (o, _) in enumerate(keys) if o == op]), cluster, base)
        numbers[f"collective.{op}.latency"] = Number(latency, "s", where, "fitted")
        numbers[f"collective.{op}.step_latency"] = Number(step, "s", where, "fitted")
    sent = float(np.median([c for run in messages for c in sweep.message_costs(run.timeline)]))
    numbers["p2p.latency"] = Number(max(0.0, sent), "s", where, "fitted")
    numbers["compute.op_overhead"] = Number(_overhead(slept, ranks), "s", f"{ROUNDS} x {SLEEPS} slept ops of {SLEEP} s on every rank", "fitted")
    return replace(base, numbers=numbers, description=f"start-up times in the lab's network {cluster.name}; bandwidths are its shapers'")


def _sweep(ranks: int) -> Iterator[tuple[str, int]]:
    """(op, members of a group): pairs, all, and what lies between."""
    for op in OPS:
        for size in (2, 4, 8):
            if size <= ranks and ranks % size == 0:
                yield op, size


def _tiny(op: str, size: int, ranks: int) -> Workload:
    """Calls of `op` in every group of `size` neighbours at once."""
    whole = sweep.collectives(op, size, TINY, CALLS, PAUSE)  # type: ignore[arg-type]
    groups = {"world": np.arange(ranks, dtype=np.int64).reshape(-1, size)}
    everyone = np.zeros(ranks, dtype=np.int64)
    return replace(whole, groups=groups, class_of_rank=everyone, coordinates={"dp": np.arange(ranks, dtype=np.int64)})


def _costs(found: Sequence[Sequence[Repetition]]) -> list[float]:
    """Seconds of a call of each sweep: from when the last rank had slept to when the last may go on."""
    return [float(np.median([c for run in runs for c in sweep.collective_costs(run.timeline)])) for runs in found]


def _overhead(runs: Sequence[Repetition], ranks: int) -> float:
    """What a slept op takes more than it sleeps, end to end, seconds."""
    ends = [run.timeline.of(r)["end"] for run in runs for r in range(ranks)]
    return max(0.0, float(np.median(np.concatenate([np.diff(e) for e in ends])) - SLEEP))


def _latencies(op: str, sizes: Sequence[int], costs: NDArray[np.float64], cluster: Cluster, base: Profile) -> tuple[float, float]:
    """(seconds per call, seconds per step of the algorithm), both >= 0, that come closest to `costs` over groups of `sizes`."""
    plans = [plan(op, TINY, cluster.devices[:size], cluster, base) for size in sizes]
    left = costs - [seconds(p, cluster, base) for p in plans]
    one = replace(base, numbers={**base.numbers, f"collective.{op}.step_latency": Number(1.0, "s", "counts steps", "assumed")})
    steps = np.array([sum(phase.latency for phase in plan(op, TINY, cluster.devices[:size], cluster, one).phases) for size in sizes])
    if np.ptp(steps) == 0:
        return max(0.0, float(np.median(left))), 0.0
    (latency, step), *_ = np.linalg.lstsq(np.stack([np.ones(len(sizes)), steps], axis=1), left, rcond=None)
    if step < 0:
        return max(0.0, float(np.median(left))), 0.0
    if latency < 0:
        return 0.0, float(left @ steps / (steps @ steps))
    return float(latency), float(step)
