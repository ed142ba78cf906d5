"""The way out of folding: the engine's ranks become the columns of a Timeline."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import timeline as tl
from ..cost.pricing import PRICES, flops
from ..program.ops import Compute
from ..timeline import Timeline
from ..timeline_columns import names, op_columns
from .engine import Engine, Rank
from .steps import Move


def record(engine: Engine) -> Timeline:
    """Columns of all simulated ranks, flows by link colour, memory from lifetimes."""
    streams, phases, buffers = names({id(p): p for p in (rank.program for rank in engine.ranks)}.values())
    ops = np.zeros(sum(len(rank.resolved) for rank in engine.ranks), dtype=tl.OPS)
    edges, memory, first = [], [], dict[int, int]()
    at = 0
    for rank in engine.ranks:
        rows, waits, births = op_columns(rank.rank, rank.resolved, streams, phases, buffers, rank.ready, rank.start, rank.end)
        rows["bytes"] = _wire_bytes(rank)
        first[rank.rank] = at
        for column in waits.dtype.names or ():
            waits[column] += at
        ops[at : at + len(rows)] = rows
        at += len(rows)
        edges.append(waits)
        memory.append(births)
    return Timeline(
        ops=ops,
        flows=_flows(engine, first),
        memory=np.concatenate(memory),
        edges=np.concatenate(edges),
        representative=engine.fold.representative,
        streams=streams,
        phases=phases,
        buffers=buffers,
        links=engine.fold.links,
        meta=_meta(engine),
    )


def _wire_bytes(rank: Rank) -> NDArray[np.float64]:
    """Bytes this rank puts on the wire for every op instance."""
    table = {name: np.array([step.sent for step in steps]) for name, steps in rank.steps.items()}
    return np.concatenate([table[call.body] for call in rank.program.calls])


def _flows(engine: Engine, first: dict[int, int]) -> NDArray[Any]:
    """What every transfer put on one link of each colour: those the engine replayed, then those inside fused runs."""
    replayed = [(first[t.rank] + t.op, link, t.bytes * load, t.start, t.end) for t in engine.transfers for link, load in engine.fold.loads[t.loads].items()]
    parts = [np.array(replayed, dtype=tl.FLOWS)]
    for rank in engine.ranks:
        calls: dict[str, list[int]] = {}
        starts = np.concatenate([[0], np.cumsum([len(rank.program.bodies[c.body]) for c in rank.program.calls])])
        for at, call in zip(starts.tolist(), rank.program.calls, strict=False):
            calls.setdefault(call.body, []).append(at)
        for name, begins in calls.items():
            for position, step in enumerate(rank.steps[name]):
                if step.route is not None and step.route.moves:
                    parts += _fused_flows(engine, rank, np.array(begins) + position, step.route.moves, first[rank.rank])
    return np.concatenate(parts)


def _fused_flows(engine: Engine, rank: Rank, instances: NDArray[np.int64], moves: tuple[Move, ...], first: int) -> list[NDArray[Any]]:
    """The transfers of the instances of one collective template that were fused."""
    instances = instances[~np.isnan(rank.seconds[instances])]
    parts, at = [], rank.start[instances]
    for move in moves if len(instances) else ():
        loads = engine.fold.loads[move.loads]
        end = at + move.seconds
        rows = np.zeros((len(instances), len(loads)), dtype=tl.FLOWS)
        rows["op"] = (first + instances)[:, None]
        rows["link"] = np.array(list(loads), dtype=np.int64)
        rows["bytes"] = move.bytes * np.array(list(loads.values()))
        rows["start"], rows["end"] = (at + move.latency)[:, None], end[:, None]
        parts.append(rows.ravel())
        at = end
    return parts


def _meta(engine: Engine) -> dict[str, Any]:
    return {
        "source": "simulated",
        "world": engine.workload.world,
        "classes": len(engine.ranks),
        "events": engine.events,
        "solves": engine.network.solves,
        "steps": engine.workload.steps,
        "capacity_bytes": engine.cluster.accelerator.memory.value,
        "kernel_flops": _flops(engine, ""),
        "recomputed_flops": _flops(engine, "R"),
        "folding": list(engine.fold.reasons),
        "slowed_s": sum(engine.slowed[int(r)] for r in engine.fold.representative) / engine.workload.world if engine.slowed else 0.0,
    }


def _flops(engine: Engine, phase: str) -> dict[str, float]:
    """FLOPs of all ranks and the whole run by kind of kernel ("matmul", "attention"), of one phase or, with "", of all."""
    multiplicity = dict(zip(*np.unique(engine.fold.representative, return_counts=True), strict=True))
    total = {"matmul": 0.0, "attention": 0.0}
    for rank in engine.ranks:
        calls = Counter(call.body for call in rank.program.calls)
        for name, body in rank.program.bodies.items():
            for op in body:
                if isinstance(op, Compute) and phase in ("", op.label.phase):
                    for k in op.kernels:
                        if PRICES[k.name].kind in total:
                            total[PRICES[k.name].kind] += float(multiplicity[rank.rank]) * calls[name] * flops(k)
    return total
