"""Negative controls: predictions that are wrong on purpose, and a network that is. A gate that lets one of them pass judges nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from parasim.cost.profile import Profile
from parasim.program.ops import COMPUTE, Collective, Op
from parasim.program.workload import Call, Program, Workload
from parasim.sim.engine import Engine
from parasim.sim.network import Fluid, Network
from parasim.sim.record import record
from parasim.timeline import Timeline
from parasim.topology.cluster import Cluster

BUCKETS = "buckets"  # the subject of the cases for the control of how many collectives are in flight


class Unshared(Network):
    """Every transfer as fast as if it were alone: a latency and bytes over bandwidth, whatever else is in flight."""

    def _solve(self, fluids: Sequence[Fluid]) -> None:
        self.solves += 1
        for fluid in fluids:
            if fluid.rate == 0.0:
                self._set(fluid, self.path(fluid.loads).solo)


def pure_latency(workload: Workload, cluster: Cluster, profile: Profile, *, fold: bool = True) -> Timeline:
    """What `simulate` would say if transfers never met."""
    engine = Engine(workload, cluster, profile, folding=fold, network=Unshared)
    engine.run()
    return record(engine)


def two_at_a_time(workload: Workload) -> Workload:
    """Collectives beside compute on two streams in turn instead of one: two in flight, as a group of gloo's own asynchronous handles has."""
    return replace(workload, programs=tuple(map(_in_turn, workload.programs)))


def _in_turn(program: Program) -> Program:
    """Every call gets a body of its own, since a body that is called twice takes other turns."""
    bodies: dict[str, tuple[Op, ...]] = {}
    calls, turn = [], 0
    for k, call in enumerate(program.calls):
        ops: list[Op] = []
        for op in program.bodies[call.body]:
            if isinstance(op, Collective) and op.stream != COMPUTE:
                op, turn = replace(op, stream=f"{op.stream}.{turn % 2}"), turn + 1
            ops.append(op)
        bodies[f"{call.body}.{k}"] = tuple(ops)
        calls.append(Call(f"{call.body}.{k}", call.microbatches, call.step))
    return replace(program, bodies=bodies, calls=tuple(calls))
