"""Hand-made workloads and networks whose answers are computed on paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from parasim.cost.profile import Profile, datasheet
from parasim.program.ops import P2P, Buffer, Collective, CollectiveOp, Compute, Kernel, Label, Msg, Op, Ref
from parasim.program.workload import Call, Program, Workload
from parasim.provenance import Number
from parasim.sim import simulate
from parasim.timeline import Timeline
from parasim.topology.builders import IDEAL, from_graph
from parasim.topology.cluster import Cluster, Link


def work(seconds: float, *writes: str, reads: Sequence[str] = (), stream: str = "compute", after: tuple[str, ...] = ()) -> Compute:
    """A delay that writes buffers."""
    kernel = Kernel("delay", tuple(Ref(n) for n in reads), tuple(Ref(n) for n in writes), (seconds,), "uint8")
    return Compute(label=Label("F", 0), stream=stream, after=after, kernels=(kernel,))


def send(name: str, peer: str, stream: str = "pp.send", channel: str = "") -> P2P:
    """Send a buffer; its channel is its name."""
    return P2P(label=Label("send", 0, axis="pp"), stream=stream, sends=(Msg(Ref(name), peer, channel or name),))


def recv(name: str, peer: str, stream: str = "pp.recv", channel: str = "") -> P2P:
    """Receive a buffer; its channel is its name."""
    return P2P(label=Label("recv", 0, axis="pp"), stream=stream, recvs=(Msg(Ref(name), peer, channel or name),))


def collective(op: CollectiveOp, group: str, name: str, stream: str = "compute") -> Collective:
    """A collective in place."""
    return Collective(label=Label("S", axis="dp"), stream=stream, op=op, group=group, reads=(Ref(name),), writes=(Ref(name),))


def workload(
    bodies: Sequence[Sequence[Op]], sizes: Mapping[str, int], groups: Mapping[str, Any] | None = None, peers: Mapping[str, Any] | None = None
) -> Workload:
    """One rank per body. `sizes` in bytes; buffers of collectives (p...) live through the step; `to3` is every rank's peer 3 unless given."""
    world = len(bodies)
    buffers = {n: Buffer(n, (size,), "uint8", "buffers", persistent=n.startswith("p")) for n, size in sizes.items()}
    everyone = {f"to{r}": np.full(world, r) for r in range(world)}
    return Workload(
        programs=tuple(Program(buffers, {"main": tuple(body)}, (Call("main"),)) for body in bodies),
        class_of_rank=np.arange(world),
        groups={n: np.asarray(g) for n, g in (groups or {}).items()},
        peers=everyone | {n: np.asarray(p) for n, p in (peers or {}).items()},
        coordinates={},
    )


def network(devices: int, links: Sequence[tuple[str, str, float]], latency: float = 0.0, switches: Sequence[str] = ()) -> Cluster:
    """Devices d0, d1, ... and switches, joined by two-way links (a, b, bytes/s)."""
    nodes = {f"d{i}": "gpu" for i in range(devices)} | dict.fromkeys(switches, "switch")
    return from_graph("hand", IDEAL, nodes, [Link(a, b, "nic", bandwidth, latency) for a, b, bandwidth in links], {})


def profile(**numbers: float) -> Profile:
    """A profile with some numbers, keys written with __ for dots."""
    return Profile("hand", numbers={k.replace("__", "."): Number(v, "1", "made up", "assumed") for k, v in numbers.items()})


def run(w: Workload, cluster: Cluster, p: Profile | None = None, *, fold: bool = True) -> Timeline:
    """Simulate."""
    return simulate(w, cluster, p or datasheet(), fold=fold)


def times(t: Timeline, rank: int, op: int) -> tuple[float, float, float]:
    """(ready, start, end) of one op of a rank."""
    row = t.of(rank)[op]
    return float(row["ready"]), float(row["start"]), float(row["end"])
