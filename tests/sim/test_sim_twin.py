"""The engine, folded and fused, against a slow reading of the rules: every rank by itself, ops visited until nothing changes, no events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_sim_folding import MODELS, layouts, plan_of

from parasim.collectives.plan import plan, seconds
from parasim.cost.profile import datasheet
from parasim.cost.timing import seconds as kernel_seconds
from parasim.lowering import lower
from parasim.program.ops import P2P, Collective, Compute, Op
from parasim.program.workload import Workload
from parasim.sim import simulate
from parasim.topology.builders import ideal
from parasim.topology.cluster import Cluster
from parasim.topology.loader import load_cluster

Node = tuple[int, int]  # rank, op instance


class Twin:
    """Times of every op of every rank on a network where nothing shares anything (unlimited bandwidth, given latency)."""

    def __init__(self, w: Workload, cluster: Cluster) -> None:
        self.w, self.cluster = w, cluster
        self.ready: dict[Node, float] = {}
        self.start: dict[Node, float] = {}
        self.end: dict[Node, float] = {}
        self.op: dict[Node, Op] = {}
        self.before: dict[Node, list[Node]] = {}
        self.meet: dict[Node, list[Hashable]] = {}
        self.members: dict[Hashable, list[Node]] = {}
        for rank in range(w.world):
            self.read(rank)
        while self.advance():
            pass

    def read(self, rank: int) -> None:
        """The ops of a rank, what each waits for, and which meetings it takes part in."""
        r = self.w.program_of(rank).resolved
        last: dict[int, int] = {}
        met: Counter[Hashable] = Counter()
        for i in range(len(r)):
            node, op, s = (rank, i), r.op(i), int(r.stream[i])
            self.op[node] = op
            self.before[node] = [(rank, e) for e in r.waits(i)] + ([(rank, last[s])] if s in last else [])
            last[s] = i
            names: list[Hashable] = []
            if isinstance(op, Collective):
                names = [(op.group, tuple(self.w.members(rank, op.group).tolist()), op.stream)]
            elif isinstance(op, P2P):
                for m, out in [(m, True) for m in op.sends] + [(m, False) for m in op.recvs]:
                    peer = int(self.w.peers[m.peer][rank])
                    microbatch = r.microbatches(i)[m.buffer.slot]
                    names.append((m.channel, (rank, peer) if out else (peer, rank), microbatch, out))
            keys = [(name, met[name]) for name in names]
            met.update(names)
            self.meet[node] = [((k[0][:-1], k[1]) if isinstance(op, P2P) else k) for k in keys]  # type: ignore[index]
            for key in self.meet[node]:
                self.members.setdefault(key, []).append(node)

    def advance(self) -> bool:
        changed = False
        for node, op in self.op.items():
            if node not in self.ready and all(b in self.end for b in self.before[node]):
                self.ready[node] = max((self.end[b] for b in self.before[node]), default=0.0)
                changed = True
            if node in self.ready and node not in self.end:
                changed |= self.finish(node, op)
        return changed

    def finish(self, node: Node, op: Op) -> bool:
        if isinstance(op, Compute):
            took = sum(kernel_seconds(k, self.cluster.accelerator, datasheet()) for k in op.kernels)
            self.start[node], self.end[node] = self.ready[node], self.ready[node] + took
            return True
        due = 2 if isinstance(op, P2P) else self.w.groups[op.group].shape[1]
        at = [[self.ready[n] for n in self.members[k] if n in self.ready] for k in self.meet[node]]
        if any(len(a) < due for a in at):
            return False
        starts = [max(a) for a in at]
        self.start[node] = min(starts)
        self.end[node] = max(starts) + self.took(node, op)
        return True

    def took(self, node: Node, op: Op) -> float:
        if isinstance(op, P2P):
            return self.cluster.links[0].latency * 2  # device to switch to device
        assert isinstance(op, Collective)
        program = self.w.program_of(node[0])
        nbytes = max(program.nbytes(op.reads), program.nbytes(op.writes))
        devices = [self.cluster.devices[r] for r in self.w.members(node[0], op.group)]
        return seconds(plan(op.op, nbytes, devices, self.cluster, datasheet()), self.cluster, datasheet())


@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(layouts((1, 2, 4, 8)), st.sampled_from(("none", "full")), st.sampled_from((0.0, 1e-6, 1e-3)), st.booleans())
def test_every_op_starts_and_ends_when_the_rules_say(layout: dict[str, Any], recompute: str, latency: float, fold: bool) -> None:
    w = lower(plan_of(layout | {"recompute": recompute}))
    cluster = ideal(w.world, latency, accelerator=load_cluster("h100-hgx-ib400", 1).accelerator)
    twin, t = Twin(w, cluster), simulate(w, cluster, datasheet(), fold=fold)
    assert len(twin.end) == sum(len(w.program_of(r).resolved) for r in range(w.world))
    tolerance = 1e-9 * t.makespan
    for rank in range(w.world):
        rows = t.of(rank)
        for column, due in (("ready", twin.ready), ("start", twin.start), ("end", twin.end)):
            assert np.abs(rows[column] - [due[rank, i] for i in range(len(rows))]).max() <= tolerance, (rank, column)


@pytest.mark.parametrize("comm", ["async", "stream", "blocking"])
@pytest.mark.parametrize("schedule", ["naive", "gpipe", "1f1b"])
def test_every_pipeline_of_every_size_ends(schedule: str, comm: str) -> None:
    """No deadlock for any number of ranks and microbatches (lower verifies), and the times are those of the rules."""
    for p in range(1, 6):
        for m in (1, 2, 3, 5, 8):
            layout = {"model": MODELS["fixed"] | {"layers": 5}, "cluster": "h100-hgx-ib400", "devices": p, "parallel": {"pp": p}}
            layout |= {"batch": {"global": m, "micro": 1, "sequence": 1}, "pipeline": {"schedule": schedule, "comm": comm}}
            w = lower(plan_of(layout))
            cluster = ideal(p, 1e-4)
            assert simulate(w, cluster, datasheet()).makespan == pytest.approx(max(Twin(w, cluster).end.values()), rel=1e-9)
