"""The numbers of the other panes: use of the links over time, what each axis communicates."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..report import link_series, link_use, rank_times
from ..report.summary import comm_bytes, mean_times
from ..timeline import COMPUTE, KINDS
from .columns import Columns, distinct
from .side import Side

BINS = 1200
FULL = 250  # of a byte: a link that is used all the time
PER_KIND = 4  # links of a kind with a curve, the busiest


def links(side: Side, columns: Columns) -> dict[str, Any]:
    """`kinds` as in the report; `curves`: name, kind, bandwidth, multiplicity and mean use of the busiest links, their use in column `link_use`."""
    timeline, window = side.timeline, side.window
    uses = link_use(timeline, window)
    edges = np.linspace(0.0, max(timeline.makespan, 1e-9), BINS + 1)
    curves, series = [], []
    for use in uses:
        for link in _busiest(side, use.kind):
            name, kind, bandwidth, count = timeline.links[link]
            values = link_series(timeline, link, edges)
            inside = (edges[:-1] >= window.start) & (edges[1:] <= window.end)
            mean = float(values[inside].mean()) if inside.any() else float(values.mean())
            curves.append({"name": name, "kind": kind, "bandwidth": _finite(bandwidth), "count": count, "mean": mean})
            series.append(np.rint(values * FULL))
    columns.put("link_use", np.concatenate(series) if series else [], "u1")
    names = [[name, kind, _finite(bandwidth), count] for name, kind, bandwidth, count in timeline.links]
    kinds = [{"kind": u.kind, "mean": u.mean, "peak": u.peak, "busiest": u.busiest, "busiest_mean": u.busiest_mean} for u in uses]
    return {"names": names, "kinds": kinds, "curves": curves, "bins": BINS, "full": FULL}


def _busiest(side: Side, kind: str) -> list[int]:
    """The links of a kind that carry most of what they could."""
    timeline = side.timeline
    carried = np.bincount(timeline.flows["link"], weights=timeline.flows["bytes"], minlength=len(timeline.links))
    mine = [i for i, link in enumerate(timeline.links) if link[1] == kind and carried[i] > 0]
    return sorted(mine, key=lambda i: (-carried[i] / timeline.links[i][2], i))[:PER_KIND]


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def communication(side: Side) -> dict[str, Any]:
    """Means over all ranks and one step: `axes` (bytes sent, seconds exposed and overlapped), and `kinds` of transfers with their mean size and time."""
    timeline, window = side.timeline, side.window
    times = mean_times(timeline, rank_times(timeline, window))
    sent = comm_bytes(timeline, window)
    axes = [
        {"axis": axis, "bytes": sent.get(axis, 0.0), "exposed_s": exposed, "overlapped_s": times.overlapped.get(axis, 0.0)}
        for axis, exposed in times.exposed.items()
        if exposed > 0 or sent.get(axis, 0.0) > 0 or times.overlapped.get(axis, 0.0) > 0
    ]
    return {"compute_s": times.compute, "optimizer_s": times.optimizer, "idle_s": times.idle, "step_s": window.length, "axes": axes, "kinds": _kinds(side)}


def _kinds(side: Side) -> list[dict[str, Any]]:
    """Transfers of one kind, axis and phase: how many a rank takes part in, seconds of one, bytes of one (of those that send), seconds of all."""
    timeline = side.timeline
    ops = timeline.ops[(timeline.ops["kind"] != COMPUTE) & (timeline.ops["step"] == side.window.step)]
    if not len(ops):
        return []
    weight = _weights(side)[ops["rank"]]
    first, index = distinct(ops, ("kind", "axis", "phase"))
    count, seconds, nbytes = (np.bincount(index, weights=weight * x) for x in (np.ones(len(ops)), ops["end"] - ops["start"], ops["bytes"]))
    senders = np.bincount(index, weights=weight * (ops["bytes"] > 0))
    rows = [
        {
            "kind": KINDS[row["kind"]],
            "axis": int(row["axis"]),
            "phase": int(row["phase"]),
            "count": float(count[i]),
            "bytes": float(nbytes[i] / senders[i]) if senders[i] else 0.0,
            "mean_s": float(seconds[i] / count[i]) if count[i] else 0.0,
            "total_s": float(seconds[i]),
        }
        for i, row in enumerate(first)
    ]
    return sorted(rows, key=lambda r: -r["total_s"])


def _weights(side: Side) -> NDArray[np.float64]:
    """The share of all ranks that each rank number stands for."""
    world = len(side.timeline.representative)
    return np.bincount(side.timeline.representative, minlength=world) / world
