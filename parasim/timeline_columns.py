"""From a resolved Program and three arrays of seconds to a part of a Timeline: what both back ends share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from .program.edges import Resolved
from .program.ops import AXES, CATEGORIES, Collective, Compute, Op
from .program.workload import Program
from .timeline import COLLECTIVE, COMPUTE, FIXED, NO_LIVES, OPS, P2P, Lives, Part, Script, Timeline, without_flows

AXIS: Mapping[str | None, int] = {name: i for i, name in enumerate(AXES)}
CATEGORY: Mapping[str | None, int] = {name: i for i, name in enumerate(CATEGORIES)}
LABELS = ("kind", "stream", "phase", "axis", "stage", "layer")


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


class Scribe:
    """Writes Scripts whose columns index these names (those of `names`)."""

    def __init__(self, streams: Sequence[str], phases: Sequence[str], buffers: Sequence[str]) -> None:
        self.stream, self.phase = {s: i for i, s in enumerate(streams)}, {p: i for i, p in enumerate(phases)}
        self.buffer = {b: i for i, b in enumerate(buffers)}

    def script(self, resolved: Resolved, sent: NDArray[np.float64]) -> Script:
        """What ranks of a Program have in common; `sent` float[n] are the wire bytes of its ops."""
        program, n = resolved.program, len(resolved)
        static = {name: self._static(body) for name, body in program.bodies.items()}
        table = np.concatenate([static[c.body] for c in program.calls]) if program.calls else np.zeros((0, 7), dtype=np.int64)
        widest = max([len(c.microbatches) for c in program.calls], default=0)
        ends = [(-1,) * (widest + 1 - n) for n in range(widest + 1)]
        slots = np.array([c.microbatches + ends[len(c.microbatches)] for c in program.calls], dtype=np.int64).reshape(-1, widest + 1)
        columns = {name: table[:, i].astype(OPS[name]) for i, name in enumerate(LABELS)} | {
            "op": np.arange(n, dtype=np.int32),
            "microbatch": slots[resolved.call, table[:, 6]].astype(np.int32),
            "step": np.array([c.step for c in program.calls], dtype=np.int16)[resolved.call],
            "bytes": sent,
        }
        waiting = np.repeat(np.arange(n, dtype=np.int32), np.diff(resolved.edge_start))
        return Script({name: columns[name] for name in FIXED}, waiting, resolved.edges.astype(np.int32), self._lives(resolved))

    def _lives(self, resolved: Resolved) -> Lives:
        """The lifetimes of buffers that have bytes and a category."""
        program, buffers = resolved.program, resolved.buffers
        nbytes = np.array([program.sizes[b] for b in buffers], dtype=np.float64)
        category = np.array([CATEGORY.get(program.buffers[b].category, -1) for b in buffers], dtype=np.int8)
        place = np.array(list(map(self.buffer.__getitem__, buffers)), dtype=np.int32)
        kept = (category[resolved.generation_buffer] >= 0) & (nbytes[resolved.generation_buffer] > 0)
        counts = np.diff(resolved.last_start)
        users = resolved.last_users[np.repeat(kept, counts)]
        which = resolved.generation_buffer[kept]
        first = np.concatenate([[0], np.cumsum(counts[kept])])
        return Lives(place[which], category[which], nbytes[which], resolved.birth[kept].astype(np.int32), first.astype(np.int32), users.astype(np.int32))

    def _static(self, body: Sequence[Op]) -> NDArray[np.int64]:
        """kind, stream, phase, axis, stage, layer, slot of templates (slot -1: the last entry of a call's slots); int[n, 7]."""
        rows = []
        for op in body:
            label = op.label
            kind = COMPUTE if isinstance(op, Compute) else COLLECTIVE if isinstance(op, Collective) else P2P
            rows.append((kind, self.stream[op.stream], self.phase[label.phase], AXIS.get(label.axis, -1), label.stage, label.layer, label.slot))
        return np.array(rows, dtype=np.int64).reshape(-1, 7)


def merged(timeline: Timeline) -> Timeline:
    """The timeline with the neighbouring ops of one stream, phase, stage and microbatch as one row, of no layer: for drawing very many ops.

    A merged row keeps its first op's number, kind and axis and sums the bytes; edges lead between merged rows. Flows and memory, which follow from
    single ops, are left out.
    """
    known: dict[int, tuple[Script, NDArray[np.int64], NDArray[np.int64]]] = {}
    parts = []
    for part in timeline.parts:
        if id(part.script) not in known:
            known[id(part.script)] = _coarse(part.script)
        coarse, first, last = known[id(part.script)]
        parts.append(Part(part.rank, coarse, part.ready[first], part.start[first], part.end[last]))
    return without_flows(timeline, parts)


def _coarse(whole: Script) -> tuple[Script, NDArray[np.int64], NDArray[np.int64]]:
    """A Script with merged rows, and of every such row the first and the last op."""
    columns = whole.columns
    order = np.argsort(columns["stream"], kind="stable")  # ops are in order of their numbers
    new = np.ones(len(order), dtype=bool)
    new[1:] = columns["kind"][order][1:] == P2P
    for name in ("stream", "phase", "stage", "microbatch", "step"):
        values = columns[name][order]
        new[1:] |= values[1:] != values[:-1]
    begins = np.flatnonzero(new)
    first, last = order[begins], order[np.append(begins[1:], len(order))[: len(begins)] - 1]
    turn = np.argsort(columns["op"][first])
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.argsort(turn)[np.cumsum(new) - 1]
    rows = {name: values[first[turn]] for name, values in columns.items()}
    rows["bytes"] = np.add.reduceat(columns["bytes"][order], begins)[turn] if len(begins) else rows["bytes"]
    rows["layer"] = np.full(len(begins), -1, dtype=np.int32)
    waiting, awaited = np.divmod(np.unique(place[whole.waiting] * len(order) + place[whole.awaited]), max(len(order), 1))
    apart = waiting != awaited
    return Script(rows, waiting[apart].astype(np.int32), awaited[apart].astype(np.int32), NO_LIVES), first[turn], last[turn]
