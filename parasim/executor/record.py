"""From measured times to a Timeline: static columns from the Workload, the start of what several ranks do together from all of them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..program.edges import Resolved
from ..program.ops import AXES, P2P, Collective, Compute, Op
from ..program.workload import Workload
from ..timeline import COLLECTIVE, COMPUTE, EDGES, FLOWS, MEMORY, OPS, Timeline
from ..timeline import P2P as MESSAGES

Times = NDArray[np.float64]  # float[n, 3]: ready, start, end of every instance in seconds; nan where it did not happen

# bytes a rank sends per byte of the larger buffer, for a ring of n (reduce, broadcast: mean over ranks); counts, not measured
RING_SHARE = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
    "broadcast": lambda n: (n - 1) / n,
}


def wire_bytes(workload: Workload, rank: int, op: Op) -> float:
    """Bytes this rank sends for the op, counting collectives as rings."""
    program = workload.program_of(rank)
    match op:
        case Compute():
            return 0.0
        case P2P():
            return float(program.nbytes(op.reads))
        case Collective():
            share = RING_SHARE.get(op.op)
            larger = max(program.nbytes(op.reads), program.nbytes(op.writes))
            return larger * share(len(workload.members(rank, op.group))) if share else 0.0


def timeline(workload: Workload, resolved: Mapping[int, Resolved], times: Mapping[int, Times], meta: Mapping[str, Any]) -> Timeline:
    """The Timeline of the ranks in `times`. `resolved` has the columns of every rank's Program; instances that did not end are left out."""
    names = _Names()
    rows, memory, edges, offset = [], [], [], 0
    starts = _together(workload, resolved, times)
    for rank in sorted(times):
        r, t = resolved[rank], times[rank].copy()
        t[:, 1] = np.fmax(t[:, 1], np.minimum(starts[rank], t[:, 2]))
        done = ~np.isnan(t[:, 2])
        ops = np.zeros(len(r), dtype=OPS)
        for i in range(len(r)):
            ops[i] = (rank, i, *names.static(workload, rank, r, i), *t[i])
        row = np.where(done, offset + np.cumsum(done) - 1, -1)
        edges += [(row[i], row[j]) for i in range(len(r)) for j in r.waits(i) if done[i] and done[j]]
        rows.append(ops[done])
        if done.all() and len(r):
            memory.append(_memory(names, rank, r, t))
        offset += int(done.sum())
    return Timeline(
        ops=np.concatenate(rows) if rows else np.zeros(0, OPS),
        flows=np.zeros(0, FLOWS),
        memory=np.concatenate(memory) if memory else np.zeros(0, MEMORY),
        edges=np.array(edges, dtype=EDGES),
        representative=np.arange(workload.world, dtype=np.int64),
        streams=tuple(names.streams),
        phases=tuple(names.phases),
        buffers=tuple(names.buffers),
        meta={"source": "measured", **meta},
    )


class _Names:
    """Tables of names that grow as rows are written."""

    def __init__(self) -> None:
        self.streams: dict[str, int] = {}
        self.phases: dict[str, int] = {}
        self.buffers: dict[str, int] = {}

    def static(self, workload: Workload, rank: int, r: Resolved, i: int) -> tuple[Any, ...]:
        """The columns kind .. bytes of instance i."""
        op, microbatches, label = r.op(i), r.microbatches(i), r.op(i).label
        kind = {Compute: COMPUTE, Collective: COLLECTIVE, P2P: MESSAGES}[type(op)]
        return (
            kind,
            self.streams.setdefault(op.stream, len(self.streams)),
            self.phases.setdefault(label.phase, len(self.phases)),
            AXES.index(label.axis) if label.axis in AXES else -1,
            label.stage,
            label.layer,
            microbatches[label.slot] if 0 <= label.slot < len(microbatches) else -1,
            r.program.calls[int(r.call[i])].step,
            wire_bytes(workload, rank, op),
        )


def _memory(names: _Names, rank: int, r: Resolved, t: Times) -> NDArray[Any]:
    found = r.memory(t[:, 0], t[:, 2])
    out = np.zeros(len(found), dtype=MEMORY)
    index = np.array([names.buffers.setdefault(b, len(names.buffers)) for b in r.buffers], dtype=np.int32)
    out["rank"], out["buffer"] = rank, index[found["buffer"]]
    for column in ("time", "category", "delta"):
        out[column] = found[column]
    return out


def _together(workload: Workload, resolved: Mapping[int, Resolved], times: Mapping[int, Times]) -> dict[int, NDArray[np.float64]]:
    """When everybody had reached it: per rank and instance the latest ready time over a collective's members or a message's two ends.

    The clock is common to all ranks. A batch of messages starts with its first message. Compute ops get nan.
    """
    reached: dict[Hashable, float] = defaultdict(lambda: -np.inf)
    keys: dict[int, list[list[Hashable]]] = {}
    for rank in times:
        keys[rank] = list(_meetings(workload, rank, resolved[rank]))
        for i, meetings in enumerate(keys[rank]):
            for key in meetings:
                reached[key] = np.fmax(reached[key], times[rank][i, 0])
    return {rank: np.array([min((reached[k] for k in ks), default=np.nan) for ks in keys[rank]]) for rank in times}


def _meetings(workload: Workload, rank: int, r: Resolved) -> Iterator[list[Hashable]]:
    """The keys of what instance 0, 1, ... does together with other ranks: equal on all that take part."""
    count: Counter[Hashable] = Counter()

    def ordinal(key: tuple[Hashable, ...]) -> Hashable:
        count[key] += 1
        return (*key, count[key])

    for i in range(len(r)):
        op, microbatches = r.op(i), r.microbatches(i)
        if isinstance(op, Collective):
            yield [ordinal((op.group, op.stream, int(workload.members(rank, op.group)[0])))]
        elif isinstance(op, P2P):
            sent = [(m, rank, int(workload.peers[m.peer][rank])) for m in op.sends]
            received = [(m, int(workload.peers[m.peer][rank]), rank) for m in op.recvs]
            yield [ordinal((m.channel, a, b, microbatches[m.buffer.slot] if m.buffer.slot >= 0 else -1)) for m, a, b in sent + received]
        else:
            yield []
