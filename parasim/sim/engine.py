"""The engine: simpy replays the ops of one rank per fold colour. An event only where somebody waits.

A collective starts when all colours of its group have reached it; a message when both ends have; a compute op progresses at rate 1, or
slower where the Profile names a slow-down beside a transfer of that rank. When no event is left and an op has not ended, the engine names
every stuck rank and op.
"""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np
from numpy.typing import NDArray

from ..collectives.plan import capacity
from ..cost.profile import Profile
from ..cost.timing import host_launch
from ..errors import Refused, Violation
from ..program.digest import Body, Form
from ..program.workload import IntArray, Workload
from ..topology.cluster import Cluster, Rates
from .clock import Clock
from .deadlock import explain
from .fold import Fold, fold
from .fuse import Order, fuse_all
from .known import Known
from .network import Network
from .ranks import Rank
from .replay import Replay
from .steps import Pricer
from .traffic import Traffic


class Engine:
    """One run. `simulate` in the package reads the result off `ranks`, `transfers` and `fold`."""

    def __init__(self, workload: Workload, cluster: Cluster, profile: Profile, *, folding: bool, fusing: bool = True, network: type[Network] = Network) -> None:
        if workload.world > len(cluster.devices):
            raise Refused([Violation("devices", str(workload.world), f"exceeds the {len(cluster.devices)} devices of cluster {cluster.name}")])
        workload = workload.bound
        self.workload, self.cluster, self.profile = workload, cluster, profile
        self.clock = Clock()
        self.traffic = Traffic(workload, cluster, profile)
        self.capacity: Rates = capacity(cluster, profile)
        self.fold: Fold = fold(workload, cluster, self.traffic, self.capacity, enabled=folding)
        self.network = network(self.clock, [bandwidth for _, _, bandwidth, _ in self.fold.links], self.fold.loads.values(), self.fold.slack)
        known: dict[Form, tuple[Body, ...]] = {}
        for program in workload.programs:
            program.resolve(known)
        self.ranks = [Rank(r, int(workload.class_of_rank[r]), workload.program_of(r)) for r in self.fold.representatives]
        self.slowdown = {kind: profile.get(f"overlap.slowdown.{kind}", 0.0) for kind in ("collective", "p2p")}
        self._fusing = fusing and not any(self.slowdown.values())  # what transfers may slow has no length of its own
        paces, launch = cluster.paces(workload.world), _launch(workload, cluster, profile)
        self._pricer = Pricer(self.traffic, self.fold, self.network.path, cluster.accelerator, profile, paces, launch)

    def run(self) -> None:
        """Replay to the end. Raises Deadlock naming what is stuck."""
        for rank in self.ranks:
            rank.steps = self._pricer.steps(rank.rank, rank.c, rank.program)
        sets = self._fuse()
        self.replay = Replay(self.ranks, self.network, self.clock, self.slowdown, sets)
        self.replay.run()
        heads = [(at, i) for at, rank in enumerate(self.ranks) for i in self._heads(rank)]
        if heads:
            raise explain(self.workload, self.ranks, heads, self.fold.representative)

    @staticmethod
    def _heads(rank: Rank) -> list[int]:
        """The first op of every stream that has not ended."""
        heads: dict[int, int] = {}
        for i, last in zip(rank.cut.heads, rank.cut.tails, strict=True):
            if rank.done[last]:
                continue
            heads.setdefault(int(rank.resolved.stream[i]), i)
        return list(heads.values())

    def _fuse(self) -> dict[tuple[int, ...], int]:
        """What every rank runs as one: ops whose duration nothing else can change, those of several classes together; who has each number."""
        known = Known({rank.rank: rank for rank in self.ranks}, self.fold, fusing=self._fusing)
        kinds: dict[Hashable, int] = {}  # ranks of one Program that know the same run the same
        order_of: dict[int, Order] = {}
        orders, seconds, meets, kind_of = list[Order](), list[NDArray[np.float64]](), list[IntArray](), dict[int, int]()
        for rank in self.ranks:
            found = [known.of(body) for body in rank.steps.values()]
            flat = np.array([x for s, _ in found for x in s], dtype=np.float64), np.array([x for _, m in found for x in m], dtype=np.int64)
            key = id(rank.program), flat[0].tobytes(), flat[1].tobytes()
            if key not in kinds:
                if id(rank.program) not in order_of:
                    order_of[id(rank.program)] = Order.of(rank.resolved)
                order = order_of[id(rank.program)]
                kinds[key] = len(kinds)
                orders.append(order)
                seconds.append(flat[0][order.template])
                meets.append(flat[1][order.template])
            kind_of[rank.rank] = kinds[key]
        runs = fuse_all(orders, seconds, meets, {n: tuple(dict.fromkeys(kind_of[r] for r in present)) for present, n in known.sets.items()})
        for rank in self.ranks:
            rank.fused(runs[kind_of[rank.rank]])
        return known.sets


def _launch(workload: Workload, cluster: Cluster, profile: Profile) -> float:
    """Seconds of the host per kernel."""
    tp, pp = (int(workload.coordinates[axis].max()) + 1 if axis in workload.coordinates else 1 for axis in ("tp", "pp"))
    return host_launch(profile, tp, pp, workload.world, int(cluster.servers[: workload.world].max()) + 1)
