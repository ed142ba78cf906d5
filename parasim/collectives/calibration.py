"""From measured collectives to a Profile: latency per call and fraction of the bandwidth, per op, on the cluster they ran on.

Seconds decide, never a printed bandwidth: t = latency + x * (time of the bytes as `plan` prices them), by soft least squares of the relative error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..cost import nccl_tests
from ..cost.profile import Profile, datasheet
from ..cost.samples import Sample
from ..errors import Malformed, Refused
from ..provenance import Number
from ..topology.cluster import Cluster
from ..topology.loader import load_cluster
from .plan import plan, seconds, send

DIGITS = 4
SOFT, ROUNDS = 0.05, 50


def from_nccl_tests(paths: Sequence[Path], cluster: str | Path, name: str = "calibrated") -> tuple[Profile, str]:
    """A profile from logs or JSON reports of nccl-tests that ran on `cluster` (a catalog name or a file), and the table to print.

    Raises as `nccl_tests.read`, `load_cluster` and `calibrate` do.
    """
    samples = nccl_tests.samples(paths)
    return calibrate(samples, _cluster(cluster, samples), name, f"nccl-tests ({names_of(paths)})")


def from_samples(samples: Sequence[Sample], cluster: str | Path, name: str, source: str) -> tuple[Profile, str]:
    """A profile from the collectives of a traced job on `cluster`, and the table to print. Raises as `load_cluster` and `calibrate` do."""
    return calibrate(samples, _cluster(cluster, samples), name, source)


def _cluster(spec: str | Path, samples: Sequence[Sample]) -> Cluster:
    """With devices for the largest group, or as many as there are."""
    ranks = sorted({max(s.ranks, max(s.members, default=-1) + 1) for s in samples}, reverse=True)
    for count in ranks[:-1]:
        try:
            return load_cluster(spec, count)
        except Refused:
            continue
    return load_cluster(spec, ranks[-1])


def names_of(paths: Sequence[Path]) -> str:
    """The files in words."""
    return ", ".join(path.name for path in paths[:3]) + (f" and {len(paths) - 3} more" if len(paths) > 3 else "")


def calibrate(samples: Sequence[Sample], cluster: Cluster, name: str, source: str) -> tuple[Profile, str]:
    """A profile fitted to `samples`, and a table of them with what it predicts.

    `cluster` is where they ran, with at least as many devices as ranks; `source` is said with every number. Ops of one size only give a bandwidth
    at the cluster's own latency. Raises `Refused` without a sample that parasim can plan.
    """
    usable = [s for s in samples if s.ranks <= len(cluster.devices)]
    numbers: dict[str, Number] = {}
    lines = [f"{'op':16} {'bytes':>14} {'ranks':>6} {'measured':>12} {'fitted':>12} {'error':>8}"]
    for op in dict.fromkeys(s.op for s in usable):
        mine = [s for s in usable if s.op == op]
        try:
            parts = np.array([_parts(s, cluster) for s in mine])
        except (Refused, Malformed) as refusal:
            lines.append(f"{op}: passed over: {refusal}")
            continue
        latency, slower = _line(parts, np.array([s.seconds for s in mine]))
        fitted = parts[:, 0] + latency + slower * parts[:, 1]
        lines += [
            f"{op:16} {s.nbytes:14} {s.ranks:6} {s.seconds * 1e6:10.2f}us {t * 1e6:10.2f}us {t / s.seconds - 1:+8.1%}"
            for s, t in zip(mine, fitted, strict=True)
        ]
        text = f"{source}: {len(mine)} sizes of {op}, median |error| {np.median(np.abs(fitted / [s.seconds for s in mine] - 1)):.0%}"
        at = "p2p" if op == "sendrecv" else f"collective.{op}"
        numbers[f"{at}.latency"] = Number(_rounded(latency), "s", text, "fitted")
        numbers[f"{at}.bandwidth_factor"] = Number(_rounded(1 / slower), "1", text, "fitted")
    if not numbers:
        most = max((s.ranks for s in samples), default=0)
        raise Refused(
            f"no sample can be fitted on cluster {cluster.name} of {len(cluster.devices)} devices (up to {most} ranks measured, {len(samples)} samples)"
        )
    left = len(samples) - len(usable)
    lines += [f"{left} samples of more ranks than the {len(cluster.devices)} devices of {cluster.name} are left out"] if left else []
    return replace(datasheet(), name=name, description=f"fitted to {source} on {cluster.name}", numbers=numbers), "\n".join(lines)


def _parts(s: Sample, cluster: Cluster) -> tuple[float, float]:
    """Latency of the links and time of the bytes on the datasheet's network."""
    known = s.members if max(s.members, default=-1) < len(cluster.devices) else ()
    members, base = [cluster.devices[i] for i in known or range(s.ranks)], datasheet()
    if s.op == "sendrecv":
        pairs = zip(members, (*members[1:], members[0]), strict=True)
        made = max((send(s.nbytes, a, b, cluster, base) for a, b in pairs), key=lambda p: seconds(p, cluster, base))
    else:
        made = plan(s.op, float(s.nbytes), members, cluster, base)
    latency = sum(phase.latency for phase in made.phases)
    return latency, seconds(made, cluster, base) - latency


def _line(parts: NDArray[np.float64], times: NDArray[np.float64]) -> tuple[float, float]:
    """Seconds per call beyond the links' latency (0 or more) and how many times as long the bytes take (above 0).

    Reweighted least squares of relative errors that pull linearly from SOFT on, so that the bend between small and large sizes, where no line
    can hold, does not spoil both.
    """
    weights = np.ones(len(times))
    for _ in range(ROUNDS):
        latency, slower = _weighted(parts, times, weights)
        rest = (parts[:, 0] + latency + slower * parts[:, 1]) / times - 1
        weights = (1 + (rest / SOFT) ** 2) ** -0.25
    return latency, slower


def _weighted(parts: NDArray[np.float64], times: NDArray[np.float64], weights: NDArray[np.float64]) -> tuple[float, float]:
    rest, moving = (times - parts[:, 0]) / times * weights, parts[:, 1] / times * weights
    if len({round(float(t), 12) for t in parts[:, 1]}) > 1:
        latency, slower = np.linalg.lstsq(np.stack((weights / times, moving), axis=1), rest, rcond=None)[0]
        if latency >= 0 and slower > 0:
            return float(latency), float(slower)
    slower = float(moving @ rest) / float(moving @ moving) if moving.any() else 1.0
    return (0.0, slower) if slower > 0 else (0.0, float(np.median(times / parts[:, 1])))


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")
