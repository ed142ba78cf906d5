"""Exact memory of a rank over time, from the births and deaths of its buffers.

A buffer's bytes count from the start of the op that writes it until the end of its last user; resident buffers (time -inf) count from before
the first op. At one instant deaths come before births: an op may take over the bytes that its predecessor's last use gave back. Hence a
buffer that is born and dies at the same instant never shows.
Host (offloaded) buffers have no index in CATEGORIES and stay outside.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .cost.pricing import PRICES
from .program.edges import Resolved
from .program.ops import CATEGORIES, Compute, Op
from .program.workload import buffer_bytes
from .timeline import MEMORY, NO_BIRTHS, Births, Timeline

Floats = NDArray[np.float64]
_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True)
class MemoryCurve:
    """Steps of one rank's memory: from `times[i]` (seconds, float[n]) on it holds `by_category[i]` (bytes, float[n, len(CATEGORIES)])."""

    rank: int
    times: Floats
    by_category: Floats

    @property
    def total(self) -> Floats:
        """Bytes over all categories, float[n]."""
        return np.asarray(self.by_category.sum(axis=1))


@dataclass(frozen=True)
class MemoryPeak:
    """The first instant at which a rank holds most: `nbytes` in all, `by_category` summing to it, and its `largest` (buffer name, bytes).

    `buffers` are the parts of the category of that name (logits, buckets, workspace), the numbers in their names left out, largest first.
    """

    rank: int
    time: float
    nbytes: float
    by_category: Mapping[str, float]
    largest: tuple[tuple[str, float], ...]
    buffers: Mapping[str, float] = field(default_factory=dict)


def memory_curve(timeline: Timeline, rank: int) -> MemoryCurve:
    """The memory of `rank` (or of the representative that stands for it) after each instant at which anything is born or dies.

    Resident bytes are the first row, at time 0 (or the first event, if that is earlier).
    """
    return _curve(_of(timeline, rank), int(timeline.representative[rank]))


def ordered_memory(timeline: Timeline, rank: int) -> NDArray[Any]:
    """Rows of `memory` of `rank` (or of the representative that stands for it) on the accelerator, in order of time, deaths first at equal times."""
    part = timeline.part(rank)
    return np.zeros(0, dtype=MEMORY) if part is None else np.asarray(part.memory()[_order(part.births())])


def memory_peak(timeline: Timeline, rank: int, top: int = 8) -> MemoryPeak:
    """The exact peak of `rank`, what it consists of and the `top` largest buffers alive then (same names summed)."""
    part = timeline.part(rank)
    births = NO_BIRTHS if part is None else part.births()
    return _peak(births, _order(births), int(timeline.representative[rank]), timeline.buffers, top)


def memory_peaks(timeline: Timeline, top: int = 8) -> dict[int, MemoryPeak]:
    """The peak of every kept rank. What happens to ranks of one Script happens in much the same order, which is begun from."""
    known: dict[int, tuple[Births, NDArray[np.int64]]] = {}
    found: dict[int, MemoryPeak] = {}
    for part in timeline.parts:
        if part.given is None and id(part.script) in known:
            births, order = known[id(part.script)]
            births = births._replace(time=part.birth_times())
            time = births.time[order]
            order = order if (time[1:] >= time[:-1]).all() else order[np.argsort(time, kind="stable")]
        else:
            births = part.births()
            order = _order(births)
            known |= {id(part.script): (births, order)} if part.given is None else {}
        found[part.rank] = _peak(births, order, part.rank, timeline.buffers, top)
    return found


def _of(timeline: Timeline, rank: int) -> Births:
    part = timeline.part(rank)
    return NO_BIRTHS if part is None else _ordered(part.births())


def _order(births: Births) -> NDArray[np.int64]:
    """Births and deaths on the accelerator, in order of time, deaths first at equal times."""
    death = births.delta <= 0
    counted = (births.category >= 0) & (births.category < len(CATEGORIES))
    order = np.concatenate([np.flatnonzero(counted & death), np.flatnonzero(counted & ~death)])
    return np.asarray(order[np.argsort(births.time[order], kind="stable")])


def _ordered(births: Births) -> Births:
    return births.at(_order(births))


def _instants(time: Floats) -> NDArray[np.int64]:
    """Index of the last row of each distinct time."""
    return np.flatnonzero(np.append(time[1:] != time[:-1], True)) if len(time) else np.zeros(0, dtype=np.int64)


def _peak(births: Births, order: NDArray[np.int64], rank: int, names: tuple[str, ...], top: int) -> MemoryPeak:
    """The peak of births and deaths in an order of time; which comes first at one instant does not matter."""
    if not len(order):
        return MemoryPeak(rank, 0.0, 0.0, {str(c): 0.0 for c in CATEGORIES}, ())
    time = births.time[order]
    last = _instants(time)
    at = int(last[np.argmax(np.cumsum(births.delta[order])[last])])
    alive = births.at(order[: at + 1])
    held = np.bincount(alive.buffer, weights=alive.delta, minlength=len(names))
    sums = np.bincount(alive.category, weights=alive.delta, minlength=len(CATEGORIES))
    composition = {str(name): float(b) for name, b in zip(CATEGORIES, sums, strict=True)}
    order = np.argsort(-held, kind="stable")[:top]
    largest = tuple((names[i], float(held[i])) for i in order if held[i] > 0)
    return MemoryPeak(
        rank, float(time[at] if np.isfinite(time[at]) else _finite(time)[at]), sum(composition.values()), composition, largest, _parts(alive, names)
    )


def _parts(alive: Births, names: tuple[str, ...]) -> dict[str, float]:
    """Bytes of category `buffers` by name, without the numbers in it ("dp.bucket3.grad" is a dp.bucket.grad)."""
    mine = alive.category == CATEGORIES.index("buffers")
    held = np.bincount(alive.buffer[mine], weights=alive.delta[mine], minlength=len(names))
    out: dict[str, float] = {}
    for i in np.flatnonzero(held > 0):
        name = _NUMBER.sub("", names[i])
        out[name] = out.get(name, 0.0) + float(held[i])
    return dict(sorted(out.items(), key=lambda part: (-part[1], part[0])))


def _finite(times: Floats) -> Floats:
    """Times with those of resident buffers (-inf) at 0, or at the first event if that is earlier."""
    finite = np.isfinite(times)
    return np.where(finite, times, min(0.0, float(times[finite].min())) if finite.any() else 0.0)


def _curve(rows: Births, rank: int) -> MemoryCurve:
    last = _instants(rows.time)
    by_category = np.zeros((len(last), len(CATEGORIES)))
    for c in np.flatnonzero(np.bincount(rows.category, minlength=1)).tolist():
        by_category[:, c] = np.cumsum(np.where(rows.category == c, rows.delta, 0.0))[last]
    times = _finite(rows.time[last])
    return MemoryCurve(rank, times, by_category)


def thinned(values: Floats, points: int) -> NDArray[np.int64]:
    """Where a curve of more than 2 `points` entries is looked at: the first and, of each of `points` runs of neighbours, the highest and the last."""
    if len(values) <= 2 * points:
        return np.arange(len(values))
    size, more = divmod(len(values), points)
    begins = np.arange(points) * size + np.minimum(np.arange(points), more)
    ends = np.append(begins[1:], len(values))
    high = np.flatnonzero(values == np.repeat(np.maximum.reduceat(values, begins), ends - begins))
    chosen = np.zeros(len(values), dtype=bool)
    chosen[0] = chosen[high[np.searchsorted(high, begins)]] = chosen[ends - 1] = True
    return np.flatnonzero(chosen)


def memory_bound(resolved: Resolved) -> float:
    """A lower bound of the peak bytes of a rank from the order of its compute stream alone, without times.

    A generation is alive at least from the first to the last compute-stream op known to use it: its birth, if that is on the compute
    stream, and its last user there. What lives only on other streams is left out. Persistent buffers count throughout. Only compute ops that
    take time count: what an op of no seconds reads may die as its output is born.
    """
    if "compute" not in resolved.streams or not len(resolved):
        return 0.0
    on_compute = resolved.stream == resolved.streams.index("compute")
    sizes = np.array([buffer_bytes(resolved.program.buffers[b]) for b in resolved.buffers], dtype=float)
    counted = np.array([resolved.program.buffers[b].category in CATEGORIES for b in resolved.buffers])
    weight = np.where(counted, sizes, 0.0)[resolved.generation_buffer]
    users = np.where(on_compute[resolved.last_users], resolved.last_users, -1)
    last = np.maximum.reduceat(users, resolved.last_start[:-1]) if len(users) else np.zeros(0, dtype=np.int64)
    first = np.where((resolved.birth >= 0) & on_compute[resolved.birth], resolved.birth, last)
    mortal = (resolved.birth >= 0) & (last >= 0)
    level = np.zeros(len(resolved) + 1)
    np.add.at(level, first[mortal], weight[mortal])
    np.add.at(level, last[mortal] + 1, -weight[mortal])
    return float(weight[resolved.birth < 0].sum() + np.cumsum(level)[:-1].max(where=_lasting(resolved) & on_compute, initial=0.0))


def _lasting(resolved: Resolved) -> NDArray[np.bool_]:
    """Which instances are computes that take time, bool[n]: all but those made of delays of 0 s."""
    bodies = {name: np.array([_takes_time(op) for op in body], dtype=bool) for name, body in resolved.program.bodies.items()}
    return np.concatenate([bodies[call.body] for call in resolved.program.calls])


def _takes_time(op: Op) -> bool:
    return isinstance(op, Compute) and any(PRICES[k.name].kind != "view" and (k.name != "delay" or float(k.dims[0]) > 0) for k in op.kernels)
