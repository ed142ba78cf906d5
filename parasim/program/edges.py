"""resolve: the edges and lifetimes that follow from what ops read and write. The only place that knows the rules; both back ends consume its columns.

Rules. A stream runs its ops in list order. An op starts when its stream is free and its edges have ended: the last writer of each buffer it
reads, the earlier readers and the writer of each buffer it writes, its fences (`after`: the latest op issued before it on a named stream) and
its window (at most k outputs alive). All edges point to earlier list positions. Edges inside one stream, and edges implied by an earlier wait
of the same stream, are dropped. A write that does not read starts a new generation, which lives from the start of its first op to the latest
end of its users; persistent buffers have one generation that lives through the whole step.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import NoReturn

import numpy as np

from ..errors import InvalidProgram
from .digest import Body, Form, Key, Site, digests
from .ops import Op
from .text import describe
from .workload import Call, IntArray, Program


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


class _Resolver:
    """State of one pass over the calls."""

    def __init__(self, program: Program, known: MutableMapping[Form, tuple[Body, ...]]) -> None:
        self.program = program
        self.bodies, self.names = digests(program, known)
        bodies = [self.bodies[c.body] for c in program.calls]
        self.start = np.cumsum([0, *(body.length for body in bodies)], dtype=np.int64)
        self.stream = np.concatenate([b.stream for b in bodies]) if bodies else np.zeros(0, dtype=np.int64)
        self.begin: list[int] = self.start.tolist()
        self.streams: list[int] = self.stream.tolist()
        self.edges: dict[int, list[int]] = {}
        self.generations: list[tuple[int, int, int]] = []  # buffer, microbatch, birth
        self.users: list[dict[int, int]] = []  # last user by stream
        self.generation: dict[Key, int] = {}
        self.writer: dict[Key, int] = {}
        self.readers: dict[Key, list[int]] = {}
        self.tail: dict[int, int] = {}
        self.known: list[dict[int, int]] = [{} for _ in self.names]
        self.windows: dict[str, list[list[int]]] = {}
        self.loud = {name: any(site.persistent for site in body.sites) for name, body in self.bodies.items()}
        self.touched: dict[int, int] = {}  # calls that touched persistent buffers on one stream; -1: on several
        self.touches = 0  # of all of them
        self.heard: dict[str, int] = {}  # per body: what the others had touched when its own touches were last looked at
        self.pending: dict[str, int] = {}  # per body the call whose touches are put off, in order of the calls
        for number, buffer in enumerate(program.buffers.values()):
            if buffer.persistent:
                self._born((number, -1), -1, 0)

    def _born(self, key: Key, op: int, stream: int) -> int:
        self.generation[key] = g = len(self.generations)
        self.generations.append((*key, op))
        self.users.append({} if op < 0 else {stream: op})
        return g

    def run(self) -> None:
        for c, (start, call) in enumerate(zip(self.begin, self.program.calls, strict=False)):
            body = self.bodies[call.body]
            self._call(start, call, body.noisy if self._quiet(c, call.body, body) else body.sites)
            for stream, position in body.tails.items():
                self.tail[stream] = start + position
        self._flush()

    def _call(self, start: int, call: Call, sites: tuple[Site, ...]) -> None:
        slots = (*call.microbatches, -1)
        for site in sites:
            self._visit(start, site, slots)

    def _quiet(self, c: int, name: str, body: Body) -> bool:
        """Can the touches of persistent buffers of call `c` be put off? While no other stream touches any, those of the body's next call will do.

        They make no edge if those of its last call are known and no other stream has touched a persistent buffer since.
        """
        if not body.quiet:
            if self.loud[name]:
                self._flush()
                self.touched[-1] = self.touched.get(-1, 0) + 1
                self.touches += 1
            return False
        stream = body.quiet[0].stream
        mine = self.touched.get(stream, 0)
        others = self.touches - mine
        self.touched[stream] = mine + 1
        self.touches += 1
        if self.heard.get(name) == others:
            self.pending.pop(name, None)
            self.pending[name] = c
            return True
        self._flush()
        self.heard[name] = others
        return False

    def _flush(self) -> None:
        """Make up for the touches that were put off, in order."""
        pending, self.pending = self.pending, {}
        for name, c in pending.items():
            self._call(self.begin[c], self.program.calls[c], self.bodies[name].quiet)

    def _visit(self, start: int, site: Site, slots: tuple[int, ...]) -> None:
        position, stream, window, reads, fresh, updated, fences = site
        i, waits, generation, writer, readers = start + position, list[int](), self.generation, self.writer, self.readers
        for buffer, slot, _ in reads:
            key = (buffer, slots[slot])
            if key not in generation:
                self._unwritten(key, i)
            self.users[generation[key]][stream] = i
            if key in writer:
                waits.append(writer[key])
            if key in readers:
                readers[key].append(i)
            else:
                readers[key] = [i]
        for buffer, slot, _ in updated:
            key = (buffer, slots[slot])
            waits += readers.pop(key, ())
            writer[key] = i
        born = []
        for buffer, slot, persistent in fresh:
            key = (buffer, slots[slot])
            waits += readers.pop(key, ())
            if key in writer:
                waits.append(writer[key])
            writer[key] = i
            if persistent:
                self.users[generation[key]][stream] = i
            else:
                born.append(self._born(key, i, stream))
        for fence, at in fences:
            if at >= 0:
                waits.append(start + at)
            elif fence in self.tail:
                waits.append(self.tail[fence])
        if window:
            waits += self._window(window, born)
        if waits:
            self._wait(i, stream, waits)

    def _window(self, name: str, born: list[int]) -> list[int]:
        alive, k = self.windows.setdefault(name, []), self.program.windows[name]
        waits = [u for g in alive[-k] for u in self.users[g].values()] if len(alive) >= k else []
        alive.append(born)
        return waits

    def _wait(self, i: int, stream: int, waits: list[int]) -> None:
        """Keep the latest wait per other stream, unless an earlier op of this stream already waited for it or something later."""
        known, latest, streams = self.known[stream], dict[int, int](), self.streams
        for j in waits:
            other = streams[j]
            if j != i and other != stream and known.get(other, -1) < j:
                known[other] = latest[other] = j
        if latest:
            self.edges[i] = sorted(latest.values())

    def _name(self, key: Key) -> str:
        name = list(self.program.buffers)[key[0]]
        return f"{name}[{key[1]}]" if key[1] >= 0 else name

    def _rows(self, which: str, positions: int) -> list[IntArray]:
        """The rows `which` of every body, once per call, as columns: buffer, microbatch, `positions` columns of instances, then the rest."""
        calls: dict[str, list[int]] = {}
        for c, call in enumerate(self.program.calls):
            calls.setdefault(call.body, []).append(c)
        out = [[np.zeros(0, dtype=np.int64)] for _ in range(4)]
        for name, used in calls.items():
            template: IntArray = getattr(self.bodies[name], which)
            if len(template):
                slots = np.array([(*self.program.calls[c].microbatches, -1) for c in used], dtype=np.int64)  # slot -1 is the last entry
                begins = self.start[used][:, None]
                shape = len(used), len(template)
                out[0].append(np.broadcast_to(template[:, 0], shape).ravel())
                out[1].append(slots[:, template[:, 1]].ravel())
                for k in (2, 3):
                    out[k].append((begins + template[:, k]).ravel() if k < 2 + positions else np.broadcast_to(template[:, k], shape).ravel())
        return [np.concatenate(column) for column in out]

    def _saved(self) -> tuple[IntArray, IntArray, IntArray, IntArray]:
        """Generations of buffers that stay on one stream but outlive a call: buffer, microbatch, birth and last user."""
        buffers, microbatches, instances, fresh = self._rows("saved", 1)
        if not len(buffers):
            return buffers, microbatches, instances, fresh
        n, span = len(self.stream), int(microbatches.max()) + 2
        touches = np.sort(((buffers * span + microbatches + 1) * n + instances) * 2 + fresh)  # one number each
        keys, at = np.divmod(touches >> 1, n)
        new = (touches & 1).astype(bool)
        first = np.append(True, keys[1:] != keys[:-1])
        orphans = np.flatnonzero(first & ~new)
        if len(orphans):
            earliest = orphans[at[orphans].argmin()]
            self._unwritten((int(keys[earliest] // span), int(keys[earliest] % span) - 1), int(at[earliest]))
        births = np.flatnonzero(new)
        last = np.append(births[1:], len(touches)) - 1
        buffer, microbatch = np.divmod(keys[births], span)
        return buffer, microbatch - 1, at[births], at[last]

    def _unwritten(self, key: Key, instance: int) -> NoReturn:
        at = int(np.searchsorted(self.start, instance, side="right")) - 1
        call = self.program.calls[at]
        op = self.program.bodies[call.body][instance - int(self.start[at])]
        raise InvalidProgram(f"{describe(op, call.microbatches)} reads {self._name(key)} before anything wrote it")

    def columns(self) -> Resolved:
        n = int(self.start[-1])
        lengths = np.diff(self.start)
        counts = np.zeros(n, dtype=np.int64)
        for i, waits in self.edges.items():
            counts[i] = len(waits)
        outer = [sorted(u.values()) or [0] for u in self.users]
        crossing = *np.array(self.generations, dtype=np.int64).reshape(-1, 3).T, np.array([u for us in outer for u in us], dtype=np.int64)
        buffer, microbatch, birth, users = (np.concatenate(columns) for columns in zip(crossing, self._rows("inner", 2), self._saved(), strict=True))
        sizes = np.ones(len(buffer), dtype=np.int64)
        sizes[: len(outer)] = [len(us) for us in outer]
        return Resolved(
            program=self.program,
            call=np.repeat(np.arange(len(lengths)), lengths),
            position=np.arange(n) - np.repeat(self.start[:-1], lengths),
            streams=self.names,
            stream=self.stream,
            edge_start=np.concatenate([[0], np.cumsum(counts)]),
            edges=np.array([e for i in sorted(self.edges) for e in self.edges[i]], dtype=np.int64),
            buffers=tuple(self.program.buffers),
            generation_buffer=buffer,
            generation_microbatch=microbatch,
            birth=birth,
            last_start=np.concatenate([[0], np.cumsum(sizes)]),
            last_users=users,
        )


def resolve(program: Program, known: MutableMapping[Form, tuple[Body, ...]] | None = None) -> Resolved:
    """Edges and lifetimes of a Program; of several that are much alike, with one `known` for all of them, sooner.

    Raises InvalidProgram for a read of something never written and for names without meaning.
    """
    resolver = _Resolver(program, {} if known is None else known)
    resolver.run()
    return resolver.columns()
