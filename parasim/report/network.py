"""How busy the links are: from the flows of a simulated Timeline (a measured one has none)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..timeline import Timeline
from .accounting import Window


@dataclass(frozen=True)
class LinkUse:
    """Use of the links of one kind over the step, as fractions of their bandwidth.

    `mean` is the time mean over all links of the kind, `busiest_mean` the time mean of the `busiest` link (or class of like links), `peak` the
    highest rate at any instant on any of them, with every flow at its average rate.
    """

    kind: str
    mean: float
    peak: float
    busiest: str
    busiest_mean: float


def link_use(timeline: Timeline, window: Window) -> tuple[LinkUse, ...]:
    """Per link kind, busiest first.

    A row of `flows` holds the bytes that a transfer, together with all transfers that its kind stands for, puts on each single link of a class:
    mean rate of a link = sum(bytes) / seconds. Classes count as often as they have links.
    """
    if not timeline.links or not len(timeline.flows) or window.length <= 0:
        return ()
    capacity = np.array([bandwidth for _, _, bandwidth, _ in timeline.links], dtype=np.float64)
    flows = timeline.flows
    moving = np.flatnonzero((flows["end"] > flows["start"]) & (flows["end"] > window.start) & (flows["start"] < window.end))
    small = np.uint16 if len(capacity) < 2**16 else np.int64  # sorted in one pass where it is small
    moving = moving[np.argsort(flows["link"][moving].astype(small), kind="stable")]
    bounds = np.searchsorted(flows["link"][moving], np.arange(len(capacity) + 1))
    carried, peak = np.array([_use(flows[moving[a:b]], window) for a, b in pairwise(bounds.tolist())]).T
    return _by_kind(timeline, carried / (capacity * window.length), np.minimum(peak / capacity, 1.0))


def link_series(timeline: Timeline, link: int, edges: NDArray[np.float64]) -> NDArray[np.float64]:
    """Mean use of a link (an index of `timeline.links`; fraction of its bandwidth) between consecutive `edges` (seconds), every flow at its average rate."""
    flows = timeline.flows[timeline.flows["link"] == link]
    flows = flows[flows["end"] > flows["start"]]
    rate = flows["bytes"] / (flows["end"] - flows["start"])
    times, change = np.concatenate((flows["start"], flows["end"])), np.concatenate((rate, -rate))
    order = np.argsort(times, kind="stable")
    times, level = times[order], np.cumsum(change[order])
    carried = np.concatenate(([0.0], np.cumsum(level[:-1] * np.diff(times)))) if len(times) else np.zeros(0)
    moved = np.interp(edges, times, carried) if len(times) else np.zeros(len(edges))
    width = np.diff(edges)
    return np.asarray(np.clip(np.diff(moved) / np.where(width > 0, width, 1.0) / timeline.links[link][2], 0.0, 1.0))


def _use(flows: NDArray[Any], window: Window) -> tuple[float, float]:
    """Of the flows on one link: bytes in the window, and the highest sum of rates at any instant; at equal times ends come before starts."""
    if not len(flows):
        return 0.0, 0.0
    nbytes, start, end = (np.ascontiguousarray(flows[name]) for name in ("bytes", "start", "end"))
    seconds = end - start
    share = (np.minimum(end, window.end) - np.maximum(start, window.start)) / seconds
    rate = nbytes / seconds
    order = np.argsort(np.concatenate((end, start)), kind="stable")
    return float(np.cumsum(nbytes * share)[-1]), float(np.cumsum(np.concatenate((-rate, rate))[order]).max())


def _by_kind(timeline: Timeline, mean: NDArray[np.float64], peak: NDArray[np.float64]) -> tuple[LinkUse, ...]:
    kinds = np.array([kind for _, kind, _, _ in timeline.links])
    counts = np.array([count for _, _, _, count in timeline.links], dtype=np.float64)
    out = []
    for kind in dict.fromkeys(str(k) for k in kinds):
        members = np.flatnonzero(kinds == kind)
        top = int(members[np.argmax(mean[members])])
        average = float(np.average(mean[members], weights=counts[members]))
        out.append(LinkUse(kind, average, float(peak[members].max()), timeline.links[top][0], float(mean[top])))
    return tuple(sorted(out, key=lambda use: -use.busiest_mean))
