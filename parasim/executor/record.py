"""From measured times to a Timeline: static columns from the Workload, the start of what several ranks do together from all of them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..program.edges import Resolved
from ..program.ops import P2P, Collective, Compute, Op
from ..program.workload import Workload
from ..timeline import FLOWS, NO_LIVES, Part, Script, Timeline
from ..timeline_columns import Scribe, names

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
    """The Timeline of the ranks in `times`. `resolved` has the columns of every rank's Program; instances that did not end are left out,
    and the memory of a rank that did not finish."""
    streams, phases, buffers = names(workload.programs)
    scribe, starts = Scribe(streams, phases, buffers), _together(workload, resolved, times)
    parts = []
    for rank in sorted(times):
        ready, began, end = times[rank].T
        start = np.fmax(began, np.minimum(starts[rank], end))
        sent = np.array([wire_bytes(workload, rank, resolved[rank].op(i)) for i in range(len(end))], dtype=np.float64)
        whole = scribe.script(resolved[rank], sent)
        done = ~np.isnan(end)
        parts.append(Part(rank, whole, ready, start, end) if done.all() else _cut_short(Part(rank, whole, ready, start, end), done))
    return Timeline.of_parts(
        parts,
        flows=np.zeros(0, FLOWS),
        representative=np.arange(workload.world, dtype=np.int64),
        streams=streams,
        phases=phases,
        buffers=buffers,
        meta={"source": "measured", "world": workload.world, "steps": workload.steps, **meta},
    )


def _cut_short(part: Part, done: NDArray[np.bool_]) -> Part:
    """The ops of a rank that have ended, without its memory."""
    row = (np.cumsum(done) - 1).astype(np.int32)
    whole = part.script
    kept = done[whole.waiting] & done[whole.awaited]
    ended = Script({name: values[done] for name, values in whole.columns.items()}, row[whole.waiting[kept]], row[whole.awaited[kept]], NO_LIVES)
    return Part(part.rank, ended, part.ready[done], part.start[done], part.end[done])


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
