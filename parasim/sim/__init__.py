"""The simulator: a Workload on a Cluster under a Profile becomes a Timeline. The only room that knows simpy."""

from __future__ import annotations

from ..collecting import uncollected
from ..cost.profile import Profile
from ..program.workload import Workload
from ..timeline import Timeline
from ..topology.cluster import Cluster
from .engine import Engine
from .record import record


@uncollected()
def simulate(workload: Workload, cluster: Cluster, profile: Profile, *, fold: bool = True, fuse: bool = True) -> Timeline:
    """Replay the workload; rank i runs on device i of the cluster. `fold=False` simulates every rank by itself, `fuse=False` every op.

    Raises Deadlock (ranks and ops named), Unreachable (a partitioned network), Refused (more ranks than devices).
    """
    engine = Engine(workload, cluster, profile, folding=fold, fusing=fuse)
    engine.run()
    return record(engine)


__all__ = ["simulate"]
