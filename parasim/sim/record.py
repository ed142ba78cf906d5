"""The way out of folding: the engine's ranks become the columns of a Timeline."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import timeline as tl
from ..cost.pricing import PRICES, flops
from ..program.ops import Compute
from ..program.workload import Program
from ..timeline import Part, Script, Timeline
from ..timeline_columns import names, script
from .engine import Engine
from .ranks import Rank
from .steps import Move, Step


def record(engine: Engine) -> Timeline:
    """All simulated ranks, flows by link colour, memory from lifetimes."""
    streams, phases, buffers = names({id(p): p for p in (rank.program for rank in engine.ranks)}.values())
    scripts: dict[Hashable, Script] = {}
    parts, first, at = [], [], 0
    for rank in engine.ranks:
        sent = {name: tuple(step.sent for step in steps) for name, steps in rank.steps.items()}
        key = id(rank.program), tuple(sent.items())
        if key not in scripts:
            wire = np.concatenate([np.zeros(0), *(np.array(sent[call.body]) for call in rank.program.calls)])
            scripts[key] = script(rank.resolved, streams, phases, buffers, wire)
        parts.append(Part(rank.rank, scripts[key], *rank.times()))
        first.append(at)
        at += len(rank.resolved)
    return Timeline.of_parts(
        parts,
        flows=_flows(engine, dict(zip((p.rank for p in parts), first, strict=True))),
        representative=engine.fold.representative,
        streams=streams,
        phases=phases,
        buffers=buffers,
        links=engine.fold.links,
        meta=_meta(engine),
    )


def _flows(engine: Engine, first: dict[int, int]) -> NDArray[Any]:
    """What every transfer put on one link of each colour: those the engine replayed, then those inside fused runs."""
    parts = [_replayed(engine, first)]
    for rank in engine.ranks:
        calls: dict[str, list[int]] = {}
        starts = np.concatenate([[0], np.cumsum([len(rank.program.bodies[c.body]) for c in rank.program.calls])])
        for at, call in zip(starts.tolist(), rank.program.calls, strict=False):
            calls.setdefault(call.body, []).append(at)
        for name, begins in calls.items():
            parts += _fused_flows(engine, rank, rank.steps[name], np.array(begins), first[rank.rank])
    return np.concatenate(parts)


def _replayed(engine: Engine, first: dict[int, int]) -> NDArray[Any]:
    """The rows of the transfers that the engine replayed, in order: as many of each as it has links."""
    transfers = engine.replay.transfers
    moves = {id(t.move): t.move for t in transfers}
    number = {name: i for i, name in enumerate(moves)}
    loads = [engine.fold.loads[move.loads] for move in moves.values()]
    sizes = np.array([len(x) for x in loads], dtype=np.int64)
    link = np.array([one for x in loads for one in x], dtype=np.int64)
    nbytes = np.array([move.bytes * w for move, x in zip(moves.values(), loads, strict=True) for w in x.values()], dtype=np.float64)
    begins = np.cumsum(sizes) - sizes
    which = np.array([number[id(t.move)] for t in transfers], dtype=np.int64)
    counts = sizes[which]
    at = np.repeat(begins[which] - np.cumsum(counts) + counts, counts) + np.arange(int(counts.sum()))
    rows = np.empty(len(at), dtype=tl.FLOWS)
    rows["link"], rows["bytes"] = link[at], nbytes[at]
    rows["op"] = np.repeat(np.array([first[t.rank] + t.op for t in transfers], dtype=np.int64), counts)
    rows["start"] = np.repeat(np.array([t.start for t in transfers], dtype=np.float64), counts)
    rows["end"] = np.repeat(np.array([t.end for t in transfers], dtype=np.float64), counts)
    return rows


def _fused_flows(engine: Engine, rank: Rank, steps: list[Step], begins: NDArray[np.int64], first: int) -> list[NDArray[Any]]:
    """The transfers of the fused collectives of one body: per collective and phase the rows of all calls."""
    template = [
        (position, link, move.bytes * load, begin, until)
        for position, step in enumerate(steps)
        if step.route is not None and rank.rank == min(step.route.present)  # of several that run it together, one
        for move, begin, until in _spans(step.route.moves)
        for link, load in engine.fold.loads[move.loads].items()
    ]
    if not template:
        return []
    position, link, nbytes, begin, until = (np.array(column) for column in zip(*template, strict=True))
    instances = begins[None, :] + position[:, None]
    fused = ~np.isnan(rank.seconds[instances])
    start = np.frombuffer(rank.start)[instances]
    rows = np.empty(instances.shape, dtype=tl.FLOWS)
    rows["op"], rows["link"], rows["bytes"] = first + instances, link[:, None], nbytes[:, None]
    rows["start"], rows["end"] = start + begin[:, None], start + until[:, None]
    return [rows[fused]]


def _spans(moves: Sequence[Move]) -> Iterator[tuple[Move, float, float]]:
    """The phases of a collective with the seconds from its start in which their bytes move."""
    at = 0.0
    for move in moves:
        yield move, at + move.latency, at + move.seconds
        at += move.seconds


def _meta(engine: Engine) -> dict[str, Any]:
    done = _flops(engine)
    return {
        "source": "simulated",
        "world": engine.workload.world,
        "classes": len(engine.ranks),
        "events": engine.replay.events,
        "solves": engine.network.solves,
        "steps": engine.workload.steps,
        "capacity_bytes": engine.cluster.accelerator.memory.value,
        "kernel_flops": done[""],
        "recomputed_flops": done["R"],
        "folding": list(engine.fold.reasons),
        "slowed_s": sum(engine.replay.slowed[int(r)] for r in engine.fold.representative) / engine.workload.world if engine.replay.slowed else 0.0,
    }


def _flops(engine: Engine) -> dict[str, dict[str, float]]:
    """FLOPs of all ranks and the whole run, by phase ("": all) and kind of kernel ("matmul", "attention")."""
    multiplicity = dict(zip(*np.unique(engine.fold.representative, return_counts=True), strict=True))
    programs: dict[int, tuple[Program, float]] = {}
    for rank in engine.ranks:
        before = programs.get(id(rank.program), (rank.program, 0.0))[1]
        programs[id(rank.program)] = rank.program, before + float(multiplicity[rank.rank])
    total = {phase: {"matmul": 0.0, "attention": 0.0} for phase in ("", "R")}
    for program, ranks in programs.values():
        calls = Counter(call.body for call in program.calls)
        for name, body in program.bodies.items():
            for op in body:
                for k in op.kernels if isinstance(op, Compute) else ():
                    kind = PRICES[k.name].kind
                    for phase in ("", op.label.phase) if kind in total[""] else ():
                        if phase in total:
                            total[phase][kind] += ranks * calls[name] * flops(k)
    return total
