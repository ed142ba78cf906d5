"""One collective through the whole simulator: a Workload of one op, and what its Timeline says of time and bytes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np

from parasim.cost.profile import Profile, datasheet
from parasim.program.ops import Buffer, Collective, CollectiveOp, Label, Ref
from parasim.program.workload import Call, Program, Workload
from parasim.sim import simulate
from parasim.timeline import Timeline
from parasim.topology.cluster import Cluster


def workload(op: CollectiveOp, nbytes: int, groups: list[list[int]], root: int = 0) -> Workload:
    """Every group makes one `op` with a larger buffer of `nbytes`, at once."""
    world = 1 + max(max(g) for g in groups)
    buffers = {"data": Buffer("data", (nbytes,), "uint8", "buffers", persistent=True)}
    refs = () if op == "barrier" else (Ref("data"),)
    call = Collective(label=Label("S", axis="dp"), stream="compute", op=op, group="group", reads=refs, writes=refs, root=root)
    program = Program(buffers, {"main": (call,)}, (Call("main"),))
    return Workload((program,), np.zeros(world, dtype=np.int64), {"group": np.array(groups)}, {}, {})


def run(op: CollectiveOp, nbytes: int, cluster: Cluster, algorithm: str, profile: Profile | None = None, *, fold: bool = True) -> Timeline:
    """All devices of `cluster` in one collective by `algorithm`."""
    chosen = replace(profile or datasheet(), algorithms={op: algorithm})
    return simulate(workload(op, nbytes, [list(range(len(cluster.devices)))]), cluster, chosen, fold=fold)


def bytes_per_link(timeline: Timeline) -> list[float]:
    """Bytes on every link in use."""
    total: Counter[int] = Counter()
    for row in timeline.flows:
        total[int(row["link"])] += float(row["bytes"])
    return [nbytes for link, nbytes in sorted(total.items()) for _ in range(timeline.links[link][3])]
