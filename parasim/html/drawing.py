"""Where every rank sits: its server, its coordinates, the class it was simulated in; and the drawing of the network."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..memory import memory_peaks
from ..plots.cluster_layout import arc, sketch
from ..report import rank_times
from ..topology.cluster import Cluster
from .columns import Columns
from .side import Side


def layout(side: Side, columns: Columns) -> dict[str, Any]:
    """`axes` with a column of coordinates each, `servers` (names; one number per rank in a column), numbers per class, the `network` or null."""
    timeline = side.timeline
    representative = timeline.representative
    kept, classes = np.unique(representative, return_inverse=True)
    columns.put_index("class", classes.ravel())
    axes = _axes(side)
    for axis in axes:
        columns.put_index(f"at_{axis}", np.asarray(side.workload.coordinates[axis]) if side.workload is not None else np.zeros(0))
    servers = _servers(side, columns)
    times, peaks = rank_times(timeline, side.window), memory_peaks(timeline)
    about = [
        {
            "rank": rank,
            "stages": side.stages.get(rank, []),
            "peak_bytes": peaks[rank].nbytes,
            "by_category": list(peaks[rank].by_category.values()),
            "compute_s": times[rank].compute,
            "exposed_s": float(times[rank].exposed.sum()),
            "idle_s": times[rank].idle,
        }
        for rank in kept.tolist()
    ]
    network = _network(side.run.cluster) if side.run is not None else None
    return {"axes": axes, "servers": servers, "classes": about, "network": network}


def _axes(side: Side) -> list[str]:
    """Axes along which ranks differ, as the workload orders them."""
    return [] if side.workload is None else [axis for axis, at in side.workload.coordinates.items() if "." not in axis and np.asarray(at).max(initial=0) > 0]


def _servers(side: Side, columns: Columns) -> list[str]:
    """Names of the servers in order of their first rank; column `server` says which one a rank is on. Empty without a cluster."""
    if side.run is None:
        columns.put("server", [], "u1")
        return []
    cluster = side.run.cluster
    names = [cluster.node_of.get(device, device) for device in cluster.devices[: len(side.timeline.representative)]]
    number = {name: i for i, name in enumerate(dict.fromkeys(names))}
    columns.put_index("server", np.array([number[name] for name in names], dtype=np.int64))
    return list(number)


def _network(cluster: Cluster) -> dict[str, Any]:
    """Boxes, wires, frames and notes of the drawing; `rank` of the boxes of devices."""
    made = sketch(cluster)
    rank_of = {device: i for i, device in enumerate(cluster.devices)}
    rank_of_box = {key: rank_of[node] for node, key in made.key_of.items() if node in rank_of}
    index = {key: i for i, key in enumerate(made.boxes)}
    boxes = [[b.x, b.y, b.width, b.text, b.kind, b.count, rank_of_box.get(key, -1)] for key, b in made.boxes.items()]
    wires = []
    for w in made.wires:
        a, b = made.boxes[w.a], made.boxes[w.b]
        depth = arc(abs(a.x - b.x)) if a.y == b.y else 0.0
        wires.append([index[w.a], index[w.b], w.kind, w.bandwidth if np.isfinite(w.bandwidth) else None, w.count, depth])
    return {"name": cluster.name, "boxes": boxes, "wires": wires, "frames": [list(f) for f in made.frames], "notes": made.notes}
