"""Fit the network numbers of a profile to measured collectives: robust least squares of log ratios, by Nelder and Mead's simplex on logs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from parasim.collectives.group import Group
from parasim.collectives.plan import CollectivePlan, group_of, phases_of, rivals, rounds_of, seconds, send
from parasim.collectives.protocols import Start
from parasim.collectives.selection import Choice, call_of, choices
from parasim.cost.profile import Profile
from parasim.errors import Refused
from parasim.provenance import Number
from parasim.topology.cluster import Cluster

Array = NDArray[np.float64]
DIGITS = 3
SOFT = 0.15  # log ratio from which a row pulls linearly
PULL = 5e-4  # of a squared log ratio to its start: a number that no row informs stays where it starts


@dataclass(frozen=True)
class Point:
    """One measured collective: `op` as parasim names it (or "sendrecv"), the larger buffer, ranks and their servers, seconds, where."""

    op: str
    nbytes: int
    ranks: int
    cluster: Cluster
    measured: float
    system: str = ""


def predict(points: Sequence[Point], profile: Profile) -> Array:
    """Seconds of every point, float[points]; what does not depend on the size is worked out once per op and ranks."""
    known: dict[tuple[str, int, str], Callable[[float], float]] = {}
    out = []
    for p in points:
        key = (p.op, p.ranks, p.cluster.name)
        if key not in known:
            known[key] = _timed(p, profile)
        out.append(known[key](float(p.nbytes)))
    return np.array(out, dtype=np.float64)


def _timed(p: Point, profile: Profile) -> Callable[[float], float]:
    """nbytes -> seconds: what `plan` and `seconds` give, with the rounds of every algorithm in question made once."""
    members = p.cluster.devices[: p.ranks]
    if p.op == "sendrecv":
        return lambda nbytes: seconds(slowest_send(nbytes, members, p.cluster, profile), p.cluster, profile)
    if p.op == "copy":
        return lambda nbytes: seconds(send(nbytes, members[0], members[-1], p.cluster, profile), p.cluster, profile)
    group: Group = group_of(members, p.cluster, profile)
    starts: dict[str, Start | None] = {}

    def start(choice: Choice) -> Start | None:
        if choice.name not in starts:
            try:
                starts[choice.name] = phases_of(p.op, choice.name, rounds_of(choice.run, group), group, profile)[1]
            except Refused:
                starts[choice.name] = None
        return starts[choice.name]

    def timed(nbytes: float) -> float:
        picked, protocols = rivals(p.op, choices(p.op, profile, call_of(members, p.cluster, nbytes)), nbytes, group, profile)
        made = [(one, protocol) for one, protocol in zip(map(start, picked), protocols, strict=True) if one is not None]
        return made[0][0].seconds(nbytes, made[0][1]) if made[0][1] else min(one.seconds(nbytes) for one, _ in made)

    return timed


def slowest_send(nbytes: float, members: Sequence[str], cluster: Cluster, profile: Profile) -> CollectivePlan:
    """nccl-tests' sendrecv: every rank sends to the next one at once; no two of them share a port, so the slowest one is its time."""
    ends = dict.fromkeys((cluster.node_of[a] == cluster.node_of[b], a, b) for a, b in zip(members, (*members[1:], members[0]), strict=True))
    near = next(((a, b) for same, a, b in ends if same), None)
    far = next(((a, b) for same, a, b in ends if not same), None)
    plans = [send(nbytes, *pair, cluster, profile, ranks=len(members)) for pair in (near, far) if pair]
    return max(plans, key=lambda made: seconds(made, cluster, profile))


@dataclass(frozen=True)
class Fit:
    """The free numbers of `profile` (key -> (start, low, high)) fitted to `points`."""

    profile: Profile
    free: Mapping[str, tuple[float, float, float]]
    points: Sequence[Point]
    units: Mapping[str, str]
    source: str

    @cached_property
    def solution(self) -> Array:
        """Logs of the fitted values, in the order of `free`."""
        return simplex(self._loss, np.log([start for start, _, _ in self.free.values()]))

    def _loss(self, logs: Array) -> float:
        low, high = (np.log([bounds[i] for bounds in self.free.values()]) for i in (1, 2))
        outside = float(np.sum(np.maximum(low - logs, 0) + np.maximum(logs - high, 0)))
        outside += PULL * float(np.sum((logs - np.log([start for start, _, _ in self.free.values()])) ** 2))
        return float(np.mean(SOFT * (np.sqrt(1 + (self.residuals(np.clip(logs, low, high)) / SOFT) ** 2) - 1))) + outside

    def residuals(self, logs: Array) -> Array:
        """log(predicted / measured) of every point."""
        return np.asarray(np.log(predict(self.points, self.with_values(np.exp(logs)))) - np.log([p.measured for p in self.points]))

    def with_values(self, values: Sequence[float] | Array, intervals: Sequence[tuple[float, float]] | None = None) -> Profile:
        """The profile with `values` for the free numbers."""
        numbers = dict(self.profile.numbers)
        for i, key in enumerate(self.free):
            numbers[key] = Number(float(values[i]), self.units[key], self.source, "fitted", intervals[i] if intervals else None)
        return replace(self.profile, numbers=numbers)

    def fitted(self) -> Profile:
        """The profile with rounded fitted numbers and their 95 % intervals (linearised, from the median absolute residual)."""
        logs = np.clip(self.solution, *(np.log([b[i] for b in self.free.values()]) for i in (1, 2)))
        rest = self.residuals(logs)
        steps = 0.02 * np.eye(len(logs))
        slopes = np.stack([(self.residuals(logs + s) - rest) / 0.02 for s in steps], axis=1)
        spread = 1.4826 * float(np.median(np.abs(rest)))
        deviation = np.minimum(np.sqrt(np.maximum(np.diag(np.linalg.pinv(slopes.T @ slopes)), 0.0)) * spread, 2.0)
        values = [_rounded(v) for v in np.exp(logs)]
        intervals = [(_rounded(v * np.exp(-1.96 * d)), _rounded(v * np.exp(1.96 * d))) for v, d in zip(values, deviation, strict=True)]
        return self.with_values(values, intervals)


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def simplex(loss: Callable[[Array], float], start: Array, step: float = 0.4, rounds: int = 400, tolerance: float = 1e-5) -> Array:
    """Nelder and Mead, "A simplex method for function minimization" (1965), restarted once where it ended."""
    for _ in range(2):
        corners = [start, *(start + step * unit for unit in np.eye(len(start)))]
        values = [loss(c) for c in corners]
        for _ in range(rounds):
            order = np.argsort(values, kind="stable")
            corners, values = [corners[i] for i in order], [values[i] for i in order]
            if values[-1] - values[0] < tolerance:
                break
            _move(loss, corners, values)
        start, step = corners[int(np.argmin(values))], step / 2
    return start


def _move(loss: Callable[[Array], float], corners: list[Array], values: list[float]) -> None:
    """Replace the worst corner by its reflection, expansion or contraction, or shrink towards the best."""
    centre = np.mean(corners[:-1], axis=0)

    def at(reach: float) -> tuple[Array, float]:
        point = centre + reach * (corners[-1] - centre)
        return point, loss(point)

    best = at(-1.0)
    if best[1] < values[0]:
        best = min(best, at(-2.0), key=lambda pair: pair[1])
    elif best[1] >= values[-2]:
        best = min(best, at(0.5), at(-0.5), key=lambda pair: pair[1])
    if best[1] < values[-1]:
        corners[-1], values[-1] = best
        return
    for i in range(1, len(corners)):
        corners[i] = (corners[i] + corners[0]) / 2
        values[i] = loss(corners[i])
