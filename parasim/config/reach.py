"""What a layout asks of the servers that its groups lie in: known once ranks have devices."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ..errors import Violation
from ..parallel.check import divisors
from ..parallel.layout import Degrees, Layout
from ..parallel.mesh import Mesh
from ..topology.cluster import Cluster
from .changed import spans


def out_of_reach(layout: Layout, cluster: Cluster) -> Iterator[Violation]:
    """Transformer Engine maps user buffers of a tensor-parallel group within one scale-up network: all its ranks are on one server."""
    degrees = layout.degrees
    if not layout.tensor.user_buffers or degrees.tp == 1:
        return
    servers = np.unique([cluster.node_of[device] for device in cluster.devices[: degrees.world]], return_inverse=True)[1]
    far = _far(degrees, servers)
    if far is None:
        return
    count = len({int(s) for s in servers[far]})
    rule = f"maps buffers within one server, but the tensor-parallel group of ranks {spans(far)} spans {count}"
    smaller = (t for t in reversed(divisors(degrees.tp)) if t > 1)
    near = next((t for t in smaller if _far(replace(degrees, tp=t, dp=degrees.dp * degrees.tp // t), servers) is None), None)
    way = "a placement that keeps such a group on one server" if near is None else f"parallel.tp={near}"
    yield Violation("tensor.user_buffers", "true", rule, f"legal: false, or {way}", {"ranks": far, "servers": count})


def _far(degrees: Degrees, servers: np.ndarray[tuple[int], np.dtype[np.int64]]) -> list[int] | None:
    """The first tensor-parallel group on more than one server."""
    groups = Mesh(degrees).groups("tp")
    at = servers[groups]
    wide = np.flatnonzero((at != at[:, :1]).any(axis=1))
    return None if not wide.size else [int(r) for r in groups[wide[0]]]
