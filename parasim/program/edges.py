"""resolve: the edges and lifetimes that follow from what ops read and write. The only place that knows the rules; both back ends consume its columns.

Rules. A stream runs its ops in list order. An op starts when its stream is free and its edges have ended: the last writer of each buffer it
reads, the earlier readers and the writer of each buffer it writes, its fences (`after`: the latest op issued before it on a named stream) and
its window (at most k outputs alive). All edges point to earlier list positions. Edges inside one stream, and edges implied by an earlier wait
of the same stream, are dropped. A write that does not read starts a new generation, which lives from the start of its first op to the latest
end of its users; persistent buffers have one generation that lives through the whole step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidProgram
from .ops import CATEGORIES, Op
from .text import describe
from .workload import IntArray, Program, buffer_bytes


@dataclass(frozen=True)
class Resolved:
    """Columns over the n op instances of a Program, in list order, and over its g generations.

    `call`, `position` int[n]: where an instance comes from. `stream` int[n] indexes `streams`. Instance i waits for
    `edges[edge_start[i]:edge_start[i + 1]]`, all smaller than i and on other streams. Generation j is of buffer `generation_buffer[j]`
    (index into `buffers`), microbatch `generation_microbatch[j]` (-1: per step), born at the start of op `birth[j]` (-1: persistent), and
    dies when the last of `last_users[last_start[j]:last_start[j + 1]]` ends (one per stream that used it).
    """

    program: Program
    call: IntArray
    position: IntArray
    streams: tuple[str, ...]
    stream: IntArray
    edge_start: IntArray
    edges: IntArray
    buffers: tuple[str, ...]
    generation_buffer: IntArray
    generation_microbatch: IntArray
    birth: IntArray
    last_start: IntArray
    last_users: IntArray

    def __len__(self) -> int:
        return len(self.call)

    def op(self, i: int) -> Op:
        """The op template of instance i."""
        return self.program.bodies[self.program.calls[int(self.call[i])].body][int(self.position[i])]

    def microbatches(self, i: int) -> tuple[int, ...]:
        """The microbatches of the call of instance i."""
        return self.program.calls[int(self.call[i])].microbatches

    def text(self, i: int) -> str:
        """Instance i in words."""
        return describe(self.op(i), self.microbatches(i))

    def waits(self, i: int) -> list[int]:
        """The instances that instance i waits for."""
        return [int(e) for e in self.edges[self.edge_start[i] : self.edge_start[i + 1]]]

    def memory(self, start: NDArray[np.float64], end: NDArray[np.float64]) -> NDArray[Any]:
        """Births and deaths as (time, buffer, category, delta), from the start and end seconds of every instance; time -inf: resident."""
        sizes = np.array([buffer_bytes(self.program.buffers[b]) for b in self.buffers], dtype=float)
        categories = np.array([_category(self.program, b) for b in self.buffers], dtype=np.int8)
        counted = categories >= 0
        born = np.where(self.birth >= 0, start[self.birth] if len(start) else 0.0, -np.inf)
        dead = np.maximum.reduceat(end[self.last_users], self.last_start[:-1]) if len(self.last_users) else np.zeros(0)
        kept = counted[self.generation_buffer] & (sizes[self.generation_buffer] > 0)
        mortal = kept & (self.birth >= 0)
        out = np.zeros(int(kept.sum() + mortal.sum()), dtype=[("time", "f8"), ("buffer", "i4"), ("category", "i1"), ("delta", "f8")])
        out["time"] = np.concatenate([born[kept], dead[mortal]])
        which = np.concatenate([self.generation_buffer[kept], self.generation_buffer[mortal]])
        out["buffer"], out["category"] = which, categories[which]
        out["delta"] = sizes[which] * np.repeat([1.0, -1.0], [int(kept.sum()), int(mortal.sum())])
        return out


def _category(program: Program, buffer: str) -> int:
    category = program.buffers[buffer].category
    return CATEGORIES.index(category) if category in CATEGORIES else -1


class _Template(NamedTuple):
    """One op of a body with its names as numbers. `slots` are (buffer, slot, crosses streams, persistent)."""

    op: Op
    stream: int
    reads: tuple[tuple[int, int, bool, bool], ...]
    fresh: tuple[tuple[int, int, bool, bool], ...]
    updated: tuple[tuple[int, int, bool, bool], ...]
    fences: tuple[int, ...]


def _templates(program: Program, streams: dict[str, int], names: dict[str, int]) -> dict[str, list[_Template]]:
    touched: dict[str, set[str]] = {}
    for body in program.bodies.values():
        for op in body:
            streams.setdefault(op.stream, len(streams))
            for ref in (*op.reads, *op.writes):
                touched.setdefault(ref.name, set()).add(op.stream)
    for fence in {f for body in program.bodies.values() for op in body for f in op.after}:
        streams.setdefault(fence, len(streams))
    unknown = [n for n in touched if n not in names]
    if unknown:
        raise InvalidProgram(f"buffer {unknown[0]} is used but not declared")
    crossing = {n for n, used in touched.items() if len(used) > 1}

    def key(ref: Any) -> tuple[int, int, bool, bool]:
        return names[ref.name], ref.slot, ref.name in crossing, program.buffers[ref.name].persistent

    return {
        name: [
            _Template(
                op,
                streams[op.stream],
                tuple(key(r) for r in op.reads),
                tuple(key(r) for r in op.writes if r not in op.reads),
                tuple(key(r) for r in op.writes if r in op.reads),
                tuple(streams[f] for f in op.after),
            )
            for op in body
        ]
        for name, body in program.bodies.items()
    }


class _Resolver:
    """State of one pass over the calls."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.streams: dict[str, int] = {}
        self.names = {n: i for i, n in enumerate(program.buffers)}
        self.templates = _templates(program, self.streams, self.names)
        self.call: list[int] = []
        self.position: list[int] = []
        self.stream: list[int] = []
        self.edges: list[list[int]] = []
        self.generation_buffer: list[int] = []
        self.generation_microbatch: list[int] = []
        self.birth: list[int] = []
        self.users: list[dict[int, int]] = []
        self.generation: dict[tuple[int, int], int] = {}
        self.writer: dict[tuple[int, int], int] = {}
        self.readers: dict[tuple[int, int], list[int]] = {}
        self.tail: dict[int, int] = {}
        self.known: list[dict[int, int]] = [{} for _ in self.streams]
        self.windows: dict[str, list[list[int]]] = {}
        for name, buffer in program.buffers.items():
            if buffer.persistent:
                self._born((self.names[name], -1), -1)

    def _born(self, key: tuple[int, int], op: int) -> int:
        self.generation[key] = g = len(self.birth)
        self.generation_buffer.append(key[0])
        self.generation_microbatch.append(key[1])
        self.birth.append(op)
        self.users.append({} if op < 0 else {self.stream[op]: op})
        return g

    def run(self) -> None:
        for c, call in enumerate(self.program.calls):
            for p, template in enumerate(self.templates[call.body]):
                self.call.append(c)
                self.position.append(p)
                self.stream.append(template.stream)
                self._visit(len(self.call) - 1, template, call.microbatches)

    def _visit(self, i: int, t: _Template, microbatches: tuple[int, ...]) -> None:
        stream, waits = t.stream, []
        generation, writer, readers = self.generation, self.writer, self.readers
        for buffer, slot, crosses, persistent in t.reads:
            key = (buffer, microbatches[slot] if slot >= 0 and not persistent else -1)
            g = generation.get(key)
            if g is None:
                raise InvalidProgram(f"{describe(t.op, microbatches)} reads {self._name(key)} before anything wrote it")
            self.users[g][stream] = i
            if crosses:
                if key in writer:
                    waits.append(writer[key])
                readers.setdefault(key, []).append(i)
        for buffer, slot, crosses, persistent in t.updated:
            key = (buffer, microbatches[slot] if slot >= 0 and not persistent else -1)
            if crosses:
                waits += readers.pop(key, ())
                writer[key] = i
        born = []
        for buffer, slot, crosses, persistent in t.fresh:
            key = (buffer, microbatches[slot] if slot >= 0 and not persistent else -1)
            if crosses:
                waits += readers.pop(key, ())
                if key in writer:
                    waits.append(writer[key])
                writer[key] = i
            if persistent:
                self.users[generation[key]][stream] = i
            else:
                born.append(self._born(key, i))
        waits += [self.tail[f] for f in t.fences if f in self.tail]
        if t.op.window:
            waits += self._window(t.op.window, born)
        self.tail[stream] = i
        self.edges.append(self._foreign(i, stream, waits) if waits else [])

    def _window(self, name: str, born: list[int]) -> list[int]:
        alive, k = self.windows.setdefault(name, []), self.program.windows[name]
        waits = [u for g in alive[-k] for u in self.users[g].values()] if len(alive) >= k else []
        alive.append(born)
        return waits

    def _foreign(self, i: int, stream: int, waits: list[int]) -> list[int]:
        known, latest = self.known[stream], {}
        for j in waits:
            other = self.stream[j]
            if j != i and other != stream and known.get(other, -1) < j:
                known[other] = latest[other] = j
        return sorted(latest.values())

    def _name(self, key: tuple[int, int]) -> str:
        name = list(self.program.buffers)[key[0]]
        return f"{name}[{key[1]}]" if key[1] >= 0 else name

    def columns(self) -> Resolved:
        last = [sorted(u.values()) or [0] for u in self.users]
        return Resolved(
            program=self.program,
            call=np.array(self.call, dtype=np.int64),
            position=np.array(self.position, dtype=np.int64),
            streams=tuple(self.streams),
            stream=np.array(self.stream, dtype=np.int64),
            edge_start=np.cumsum([0, *map(len, self.edges)]),
            edges=np.array([e for es in self.edges for e in es], dtype=np.int64),
            buffers=tuple(self.program.buffers),
            generation_buffer=np.array(self.generation_buffer, dtype=np.int64),
            generation_microbatch=np.array(self.generation_microbatch, dtype=np.int64),
            birth=np.array(self.birth, dtype=np.int64),
            last_start=np.cumsum([0, *map(len, last)]),
            last_users=np.array([u for us in last for u in us], dtype=np.int64),
        )


def resolve(program: Program) -> Resolved:
    """Edges and lifetimes of a Program. Raises InvalidProgram for a read of something never written and for undeclared buffers."""
    resolver = _Resolver(program)
    resolver.run()
    return resolver.columns()
