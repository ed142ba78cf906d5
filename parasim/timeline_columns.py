"""From a resolved Program and three arrays of seconds to the columns of a Timeline: the part that both back ends share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .program.edges import Resolved
from .program.ops import AXES, Collective, Compute, Op
from .program.workload import Program
from .timeline import COLLECTIVE, COMPUTE, EDGES, MEMORY, OPS, P2P, Timeline

Seconds = NDArray[np.float64]


def names(programs: Iterable[Program]) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Streams (compute first), phases and buffers of some Programs, in order of first use: what the columns index."""
    streams: dict[str, None] = {"compute": None}
    phases: dict[str, None] = {}
    buffers: dict[str, None] = {}
    for program in programs:
        streams.update((op.stream, None) for body in program.bodies.values() for op in body)
        phases.update((op.label.phase, None) for body in program.bodies.values() for op in body)
        buffers.update(dict.fromkeys(program.buffers))
    return tuple(streams), tuple(phases), tuple(buffers)


def op_columns(
    rank: int, resolved: Resolved, streams: Sequence[str], phases: Sequence[str], buffers: Sequence[str], ready: Seconds, start: Seconds, end: Seconds
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """(ops, edges, memory) of one rank, dtypes of `timeline`; edges index this rank's own rows, `bytes` is left at zero."""
    program, n = resolved.program, len(resolved)
    stream, phase = {s: i for i, s in enumerate(streams)}, {p: i for i, p in enumerate(phases)}
    static = {name: np.array([_static(op, stream, phase) for op in body], dtype=np.int64).reshape(-1, 7) for name, body in program.bodies.items()}
    rows = np.zeros(n, dtype=OPS)
    rows["rank"], rows["op"] = rank, np.arange(n)
    table = np.concatenate([static[c.body] for c in program.calls]) if program.calls else np.zeros((0, 7), dtype=np.int64)
    for column, name in enumerate(("kind", "stream", "phase", "axis", "stage", "layer")):
        rows[name] = table[:, column]
    widest = max((len(c.microbatches) for c in program.calls), default=0)
    slots = np.array([(*c.microbatches, *[-1] * (widest - len(c.microbatches)), -1) for c in program.calls], dtype=np.int64).reshape(-1, widest + 1)
    rows["microbatch"] = slots[resolved.call, table[:, 6]]
    rows["step"] = np.array([c.step for c in program.calls], dtype=np.int64)[resolved.call]
    rows["ready"], rows["start"], rows["end"] = ready, start, end
    edges = np.zeros(len(resolved.edges), dtype=EDGES)
    edges["op"] = np.repeat(np.arange(n), np.diff(resolved.edge_start))
    edges["waits_for"] = resolved.edges
    births = resolved.memory(start, end)
    memory = np.zeros(len(births), dtype=MEMORY)
    memory["rank"] = rank
    for name in ("time", "category", "delta"):
        memory[name] = births[name]
    number = {b: i for i, b in enumerate(buffers)}
    memory["buffer"] = np.array([number[b] for b in resolved.buffers], dtype=np.int64)[births["buffer"]] if len(births) else 0
    return rows, edges, memory


def _static(op: Op, stream: dict[str, int], phase: dict[str, int]) -> tuple[int, ...]:
    """kind, stream, phase, axis, stage, layer, slot of a template (slot -1: the last entry of a call's slots)."""
    kind = COMPUTE if isinstance(op, Compute) else COLLECTIVE if isinstance(op, Collective) else P2P
    label = op.label
    axis = AXES.index(label.axis) if label.axis in AXES else -1
    return kind, stream[op.stream], phase[label.phase], axis, label.stage, label.layer, label.slot


def merged(timeline: Timeline) -> Timeline:
    """The timeline with the neighbouring ops of one stream, phase, stage and microbatch as one row, of no layer: for drawing very many ops.

    A merged row keeps its first op's number, kind and axis and sums the bytes; edges lead between merged rows. Flows, which name ops, are left out.
    """
    ops = timeline.ops
    order = np.lexsort((ops["op"], ops["stream"], ops["rank"]))
    rows = ops[order]
    new = np.ones(len(rows), dtype=bool)
    new[1:] = rows["kind"][1:] == P2P
    for name in ("rank", "stream", "phase", "stage", "microbatch", "step"):
        new[1:] |= rows[name][1:] != rows[name][:-1]
    first = np.flatnonzero(new)
    out = rows[first]
    out["end"] = rows["end"][np.append(first[1:], len(rows))[: len(first)] - 1]
    out["bytes"] = np.add.reduceat(rows["bytes"], first) if len(first) else 0.0
    out["layer"] = -1
    turn = np.lexsort((out["op"], out["rank"]))
    place = np.empty(len(rows), dtype=np.int64)
    place[order] = np.argsort(turn)[np.cumsum(new) - 1]
    pairs = np.unique(np.stack([place[timeline.edges["op"]], place[timeline.edges["waits_for"]]], axis=1), axis=0)
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    edges = np.zeros(len(pairs), dtype=EDGES)
    edges["op"], edges["waits_for"] = pairs[:, 0], pairs[:, 1]
    return replace(timeline, ops=out[turn], edges=edges, flows=timeline.flows[:0])
