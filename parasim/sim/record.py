"""The way out of folding: the engine's ranks become the columns of a Timeline."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .. import timeline as tl
from ..cost.pricing import PRICES, flops
from ..program.ops import Compute
from ..program.workload import Program
from ..timeline import Part, Script, Timeline
from ..timeline_columns import Scribe, names
from .engine import Engine
from .fold import LoadKey
from .ranks import Rank
from .steps import Move, Step

Span = tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]


class Flows(NamedTuple):
    """Columns of flows."""

    op: NDArray[np.int64]
    link: NDArray[np.int64]
    bytes: NDArray[np.float64]
    start: NDArray[np.float64]
    end: NDArray[np.float64]


def record(engine: Engine) -> Timeline:
    """All simulated ranks, flows by link colour, memory from lifetimes; rows are made when they are asked for."""
    recorded = _Recorded(engine)
    streams, phases, buffers = recorded.names
    return Timeline.of_source(
        recorded,
        representative=engine.fold.representative,
        streams=streams,
        phases=phases,
        buffers=buffers,
        links=engine.fold.links,
        meta=_meta(engine),
    )


class _Recorded:
    """A finished engine, as the source of a Timeline."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.names = names({id(p): p for p in (rank.program for rank in engine.ranks)}.values())

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """The simulated ranks."""
        scribe, scripts, found = Scribe(*self.names), dict[Hashable, Script](), []
        for rank in self.engine.ranks:
            sent = {name: tuple([step.sent for step in steps]) for name, steps in rank.steps.items()}
            key = id(rank.program), tuple(sent.items())
            if key not in scripts:
                wire = {name: np.array(nbytes) for name, nbytes in sent.items()}
                scripts[key] = scribe.script(rank.resolved, np.concatenate([np.zeros(0), *(wire[call.body] for call in rank.program.calls)]))
            found.append(Part(rank.rank, scripts[key], *rank.times))
        return tuple(found)

    @cached_property
    def flows(self) -> NDArray[Any]:
        """What they put on the links."""
        lengths = np.cumsum([0, *(len(rank.resolved) for rank in self.engine.ranks)]).tolist()
        return _flows(self.engine, dict(zip((rank.rank for rank in self.engine.ranks), lengths, strict=False)))


def _flows(engine: Engine, first: dict[int, int]) -> NDArray[Any]:
    """What every transfer put on one link of each colour: those the engine replayed, then those inside fused runs."""
    rows = _Rows()
    rows.put(_replayed(engine, first))
    spans: dict[int, Span] = {}
    begins: dict[int, dict[str, NDArray[np.int64]]] = {}
    for rank in engine.ranks:
        if id(rank.program) not in begins:
            begins[id(rank.program)] = _begins(rank.program)
        fused = ~rank.replayed
        for name, calls in begins[id(rank.program)].items():
            for flows in _fused_flows(rank, rank.steps[name], calls, fused, first[rank.rank], engine.fold.loads, spans):
                rows.put(flows)
    return rows.whole()


class _Rows:
    """Rows of flows, which may be most of what a process holds: put where they stay."""

    def __init__(self) -> None:
        self.rows, self.used = np.empty(1 << 10, dtype=tl.FLOWS), 0

    def put(self, flows: Flows) -> None:
        """More of them."""
        until = self.used + len(flows.op)
        if until > len(self.rows):
            self.rows.resize(max(until, len(self.rows) + len(self.rows) // 4), refcheck=False)  # in place
        for name, column in zip(Flows._fields, flows, strict=True):
            self.rows[name][self.used : until] = column
        self.used = until

    def whole(self) -> NDArray[Any]:
        """All of them."""
        self.rows.resize(self.used, refcheck=False)
        return self.rows


def _begins(program: Program) -> dict[str, NDArray[np.int64]]:
    """The first op instances of the calls of every body."""
    calls: dict[str, list[int]] = {}
    starts = np.concatenate([[0], np.cumsum([len(program.bodies[c.body]) for c in program.calls])])
    for at, call in zip(starts.tolist(), program.calls, strict=False):
        calls.setdefault(call.body, []).append(at)
    return {name: np.array(begins) for name, begins in calls.items()}


def _replayed(engine: Engine, first: dict[int, int]) -> Flows:
    """The rows of the transfers that the engine replayed, in order: as many of each as it has links."""
    transfers = engine.replay.transfers
    if not transfers:
        none, never = np.zeros(0, dtype=np.int64), np.zeros(0)
        return Flows(none, none, never, never, never)
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
    op, start, end = (np.array(column) for column in zip(*((first[t.rank] + t.op, t.start, t.end) for t in transfers), strict=True))
    return Flows(np.repeat(op, counts), link[at], nbytes[at], np.repeat(start, counts), np.repeat(end, counts))


def _fused_flows(
    rank: Rank,
    steps: list[Step],
    begins: NDArray[np.int64],
    fused: NDArray[np.bool_],
    first: int,
    loads: Mapping[LoadKey, Mapping[int, float]],
    spans: dict[int, Span],
) -> list[Flows]:
    """The transfers of the fused collectives of one body: per collective and phase the rows of all calls."""
    own = [(i, s.route) for i, s in enumerate(steps) if s.route is not None and rank.rank == s.route.present[0]]  # of several that run it together, one
    if not own:
        return []
    for _, route in own:
        if id(route) not in spans:
            spans[id(route)] = _span(route.moves, loads)
    found = [spans[id(route)] for _, route in own]
    position = np.repeat(np.array([i for i, _ in own]), [len(span[0]) for span in found])
    link, nbytes, begin, until = (np.concatenate(columns)[:, None] for columns in zip(*found, strict=True))
    instances = begins + position[:, None]
    inside, start = fused[instances], rank.times[1][instances]
    columns = first + instances, link, nbytes, start + begin, start + until
    return [Flows(*(np.broadcast_to(column, inside.shape)[inside] for column in columns))]


def _span(moves: Sequence[Move], loads: Mapping[LoadKey, Mapping[int, float]]) -> Span:
    """Of the phases of a collective: links, bytes on each, and the seconds from its start in which they move."""
    rows, at = [], 0.0
    for move in moves:
        rows += [(link, move.bytes * load, at + move.latency, at + move.seconds) for link, load in loads[move.loads].items()]
        at += move.seconds
    columns = np.array(rows, dtype=np.float64).reshape(-1, 4).T
    return columns[0].astype(np.int64), columns[1], columns[2], columns[3]


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
    work: dict[Hashable, float] = {}
    for program, ranks in programs.values():
        calls = Counter(call.body for call in program.calls)
        for name, body in program.bodies.items():
            for op in body:
                for k in op.kernels if isinstance(op, Compute) else ():
                    kind = PRICES[k.name].kind
                    if kind not in total[""]:
                        continue
                    key = k.name, k.dims
                    if key not in work:
                        work[key] = flops(k)
                    done = ranks * calls[name] * work[key]
                    total[""][kind] += done
                    if op.label.phase == "R":
                        total["R"][kind] += done
    return total
