"""resolve: the edges and lifetimes that follow from what ops read and write. The only place that knows the rules; both back ends consume its columns.

Rules. A stream runs its ops in list order. An op starts when its stream is free and its edges have ended: the last writer of each buffer it
reads, the earlier readers and the writer of each buffer it writes, its fences (`after`: the latest op issued before it on a named stream) and
its window (at most k outputs alive). All edges point to earlier list positions. Edges inside one stream, and edges implied by an earlier wait
of the same stream, are dropped. A write that does not read starts a new generation, which lives from the start of its first op to the latest
end of its users; persistent buffers have one generation that lives through the whole step.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidProgram
from .ops import CATEGORIES, Op, Ref
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
        dead = np.maximum.reduceat(end[self.last_users], self.last_start[:-1]) if len(end) else np.zeros(len(self.birth))
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


Key = tuple[int, int]  # (buffer, microbatch), microbatch -1: one per step


class _Use(NamedTuple):
    """A reference of a body: buffer number, slot, touched by several streams, persistent."""

    buffer: int
    slot: int
    crosses: bool
    persistent: bool

    def key(self, microbatches: tuple[int, ...]) -> Key:
        return self.buffer, microbatches[self.slot] if self.slot >= 0 and not self.persistent else -1


class _Site(NamedTuple):
    """An op of a body that something outside the call, or another stream, can touch. `fences` are (stream, position in this body or -1)."""

    op: Op
    position: int
    stream: int
    reads: tuple[_Use, ...]
    fresh: tuple[_Use, ...]
    updated: tuple[_Use, ...]
    fences: tuple[tuple[int, int], ...]


class _Body(NamedTuple):
    """A body, digested once. `inner` generations are born and die inside one call: rows (buffer, slot, birth position, last position)."""

    length: int
    stream: IntArray
    tails: dict[int, int]
    sites: tuple[_Site, ...]
    inner: IntArray


def check_names(program: Program) -> None:
    """Every body, buffer, slot and window that is named exists. Raises InvalidProgram."""
    widest: dict[str, int] = {}
    for name, body in program.bodies.items():
        widest[name] = 0
        for op in body:
            for ref in (*op.reads, *op.writes):
                if ref.name not in program.buffers:
                    raise InvalidProgram(f"{describe(op)} of body {name}: buffer {ref.name} is used but not declared")
                if not program.buffers[ref.name].persistent:
                    widest[name] = max(widest[name], ref.slot + 1)
            if op.window and program.windows.get(op.window, 0) < 1:
                raise InvalidProgram(f"{describe(op)} of body {name}: window {op.window} has no size of 1 or more")
    for call in program.calls:
        if call.body not in program.bodies:
            raise InvalidProgram(f"call of {call.body}, which is no body of the program")
        if widest[call.body] > len(call.microbatches):
            given = len(call.microbatches)
            raise InvalidProgram(f"call of {call.body} with {given} microbatches, whose ops use buffers of {widest[call.body]}")


class _Reader:
    """Digests bodies: names become numbers, and what never leaves a call is separated from what may."""

    def __init__(self, program: Program) -> None:
        check_names(program)
        self.program = program
        self.names = {n: i for i, n in enumerate(program.buffers)}
        self.streams: dict[str, int] = {}
        touched: dict[str, set[str]] = {}
        leaves: set[str] = set()
        for body in program.bodies.values():
            written: set[Ref] = set()
            for op in body:
                self.streams.setdefault(op.stream, len(self.streams))
                for ref in (*op.reads, *op.writes):
                    touched.setdefault(ref.name, set()).add(op.stream)
                leaves.update(r.name for r in op.reads if r not in written)
                written.update(op.writes)
                if op.window:
                    leaves.update(r.name for r in op.writes)
        for fence in {f for body in program.bodies.values() for op in body for f in op.after}:
            self.streams.setdefault(fence, len(self.streams))
        self.crossing = {n for n, used in touched.items() if len(used) > 1}
        self.inner = {n for n in touched if n not in leaves and n not in self.crossing and not program.buffers[n].persistent}
        self.bodies = {name: self._digest(body) for name, body in program.bodies.items()}

    def _uses(self, refs: Iterable[Ref]) -> tuple[_Use, ...]:
        """The references that matter outside the call: not inner, and not a persistent buffer of one stream only."""
        return tuple(
            _Use(self.names[r.name], r.slot, r.name in self.crossing, self.program.buffers[r.name].persistent)
            for r in refs
            if r.name not in self.inner and (r.name in self.crossing or not self.program.buffers[r.name].persistent)
        )

    def _digest(self, body: tuple[Op, ...]) -> _Body:
        sites, tails, inner = [], dict[int, int](), list[list[int]]()
        alive: dict[Ref, list[int]] = {}
        for p, op in enumerate(body):
            reads = set(op.reads)
            site = _Site(
                op,
                p,
                self.streams[op.stream],
                self._uses(op.reads),
                self._uses(r for r in op.writes if r not in reads),
                self._uses(r for r in op.writes if r in reads),
                tuple((self.streams[f], tails.get(self.streams[f], -1)) for f in op.after),
            )
            if site.reads or site.fresh or site.updated or site.fences or op.window:
                sites.append(site)
            for ref in (*op.reads, *op.writes):
                if ref.name in self.inner:
                    if ref not in reads:
                        alive[ref] = [self.names[ref.name], ref.slot, p, p]
                        inner.append(alive[ref])
                    alive[ref][3] = p
            tails[self.streams[op.stream]] = p
        streams = np.array([self.streams[op.stream] for op in body], dtype=np.int64)
        return _Body(len(body), streams, tails, tuple(sites), np.array(inner, dtype=np.int64).reshape(-1, 4))


class _Resolver:
    """State of one pass over the calls."""

    def __init__(self, program: Program) -> None:
        self.program, self.reader = program, _Reader(program)
        lengths = np.array([self.reader.bodies[c.body].length for c in program.calls], dtype=np.int64)
        self.start = np.concatenate([[0], np.cumsum(lengths)])
        bodies = [self.reader.bodies[c.body] for c in program.calls]
        self.stream = np.concatenate([b.stream for b in bodies]) if bodies else np.zeros(0, dtype=np.int64)
        self.edges: dict[int, list[int]] = {}
        self.generations: list[tuple[int, int, int]] = []  # buffer, microbatch, birth
        self.users: list[dict[int, int]] = []  # last user by stream
        self.generation: dict[Key, int] = {}
        self.writer: dict[Key, int] = {}
        self.readers: dict[Key, list[int]] = {}
        self.tail: dict[int, int] = {}
        self.known: list[dict[int, int]] = [{} for _ in self.reader.streams]
        self.windows: dict[str, list[list[int]]] = {}
        for name, buffer in program.buffers.items():
            if buffer.persistent:
                self._born((self.reader.names[name], -1), -1, 0)

    def _born(self, key: Key, op: int, stream: int) -> int:
        self.generation[key] = g = len(self.generations)
        self.generations.append((*key, op))
        self.users.append({} if op < 0 else {stream: op})
        return g

    def run(self) -> None:
        for c, call in enumerate(self.program.calls):
            body, start = self.reader.bodies[call.body], int(self.start[c])
            for site in body.sites:
                self._visit(start, site, call.microbatches)
            for stream, position in body.tails.items():
                self.tail[stream] = start + position

    def _visit(self, start: int, site: _Site, microbatches: tuple[int, ...]) -> None:
        i, stream, waits = start + site.position, site.stream, list[int]()
        generation, writer, readers = self.generation, self.writer, self.readers
        for use in site.reads:
            key = use.key(microbatches)
            g = generation.get(key)
            if g is None:
                raise InvalidProgram(f"{describe(site.op, microbatches)} reads {self._name(key)} before anything wrote it")
            self.users[g][stream] = i
            if use.crosses:
                if key in writer:
                    waits.append(writer[key])
                readers.setdefault(key, []).append(i)
        for use in site.updated:
            if use.crosses:
                key = use.key(microbatches)
                waits += readers.pop(key, ())
                writer[key] = i
        born = []
        for use in site.fresh:
            key = use.key(microbatches)
            if use.crosses:
                waits += readers.pop(key, ())
                if key in writer:
                    waits.append(writer[key])
                writer[key] = i
            if use.persistent:
                self.users[generation[key]][stream] = i
            else:
                born.append(self._born(key, i, stream))
        for fence, position in site.fences:
            if position >= 0:
                waits.append(start + position)
            elif fence in self.tail:
                waits.append(self.tail[fence])
        if site.op.window:
            waits += self._window(site.op.window, born)
        if waits:
            self._wait(i, stream, waits)

    def _window(self, name: str, born: list[int]) -> list[int]:
        alive, k = self.windows.setdefault(name, []), self.program.windows[name]
        waits = [u for g in alive[-k] for u in self.users[g].values()] if len(alive) >= k else []
        alive.append(born)
        return waits

    def _wait(self, i: int, stream: int, waits: list[int]) -> None:
        """Keep the latest wait per other stream, unless an earlier op of this stream already waited for it or something later."""
        known, latest = self.known[stream], dict[int, int]()
        for j in waits:
            other = int(self.stream[j])
            if j != i and other != stream and known.get(other, -1) < j:
                known[other] = latest[other] = j
        if latest:
            self.edges[i] = sorted(latest.values())

    def _name(self, key: Key) -> str:
        name = list(self.program.buffers)[key[0]]
        return f"{name}[{key[1]}]" if key[1] >= 0 else name

    def _inner(self) -> tuple[IntArray, IntArray]:
        """Generations that live inside one call: rows (buffer, microbatch, birth) and their last users."""
        rows, last = [], []
        for c, call in enumerate(self.program.calls):
            inner = self.reader.bodies[call.body].inner
            if len(inner):
                slots = np.array((*call.microbatches, -1), dtype=np.int64)  # slot -1 is the last entry
                rows.append(np.stack([inner[:, 0], slots[inner[:, 1]], inner[:, 2] + self.start[c]], axis=1))
                last.append(inner[:, 3] + self.start[c])
        return (np.concatenate(rows), np.concatenate(last)) if rows else (np.zeros((0, 3), dtype=np.int64), np.zeros(0, dtype=np.int64))

    def columns(self) -> Resolved:
        n = int(self.start[-1])
        lengths = np.diff(self.start)
        counts = np.zeros(n, dtype=np.int64)
        for i, waits in self.edges.items():
            counts[i] = len(waits)
        outer = [sorted(u.values()) or [0] for u in self.users]
        inner, inner_last = self._inner()
        generations = np.concatenate([np.array(self.generations, dtype=np.int64).reshape(-1, 3), inner])
        outer_last = np.array([u for us in outer for u in us], dtype=np.int64)
        sizes = np.concatenate([np.array([len(us) for us in outer], dtype=np.int64), np.ones(len(inner), dtype=np.int64)])
        return Resolved(
            program=self.program,
            call=np.repeat(np.arange(len(lengths)), lengths),
            position=np.arange(n) - np.repeat(self.start[:-1], lengths),
            streams=tuple(self.reader.streams),
            stream=self.stream,
            edge_start=np.concatenate([[0], np.cumsum(counts)]),
            edges=np.array([e for i in sorted(self.edges) for e in self.edges[i]], dtype=np.int64),
            buffers=tuple(self.program.buffers),
            generation_buffer=generations[:, 0],
            generation_microbatch=generations[:, 1],
            birth=generations[:, 2],
            last_start=np.concatenate([[0], np.cumsum(sizes)]),
            last_users=np.concatenate([outer_last, inner_last]),
        )


def resolve(program: Program) -> Resolved:
    """Edges and lifetimes of a Program. Raises InvalidProgram for a read of something never written and for names without meaning."""
    resolver = _Resolver(program)
    resolver.run()
    return resolver.columns()
