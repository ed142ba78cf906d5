"""Bodies, digested once for `edges.resolve`: names become numbers, and what can make an edge is told apart from what only lives and dies.

Three kinds of buffers are kept apart. *Inner* ones are born and die inside every call: their generations are the same in each. *Saved* ones
outlive a call but stay on one stream: they make no edge, only a lifetime. *Crossing* ones are touched by several streams (or bounded by a
window) and are visited op by op.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from ..errors import InvalidProgram
from .ops import Op, Ref
from .text import describe
from .workload import IntArray, Program

Key = tuple[int, int]  # (buffer, microbatch), microbatch -1: one per step


class Use(NamedTuple):
    """A crossing reference of a body: buffer number, slot (-1 of persistent buffers, too), persistent. With the microbatches of a call and a last -1
    as `slots`, its key is (buffer, slots[slot])."""

    buffer: int
    slot: int
    persistent: bool


class Site(NamedTuple):
    """An op of a body that something outside the call, or another stream, can touch. `fences` are (stream, position in this body or -1)."""

    op: Op
    position: int
    stream: int
    reads: tuple[Use, ...]
    fresh: tuple[Use, ...]
    updated: tuple[Use, ...]
    fences: tuple[tuple[int, int], ...]

    @property
    def persistent(self) -> bool:
        """Does it touch a persistent buffer?"""
        return any(use.persistent for uses in (self.reads, self.fresh, self.updated) for use in uses)

    def part(self, persistent: bool) -> Site:
        """Only its touches of persistent buffers, or all the rest."""
        reads, fresh, updated = (tuple(use for use in uses if use.persistent == persistent) for uses in (self.reads, self.fresh, self.updated))
        return self._replace(reads=reads, fresh=fresh, updated=updated, fences=() if persistent else self.fences)


class Body(NamedTuple):
    """A body, digested once. `tails` are the last position of each stream.

    Where its touches of crossing persistent buffers are all on one stream, `sites` are also there in two parts: `quiet`, those touches, of
    which the last of many calls tells all, and `noisy`, the rest. Elsewhere `quiet` is empty.

    `inner` generations are born and die inside one call: rows (buffer, slot, birth position, last position). `saved` are the touches of
    buffers that outlive a call: rows (buffer, slot, position, 1 where the op writes it afresh).
    """

    length: int
    stream: IntArray
    tails: dict[int, int]
    sites: tuple[Site, ...]
    noisy: tuple[Site, ...]
    quiet: tuple[Site, ...]
    inner: IntArray
    saved: IntArray


def check_names(program: Program) -> None:
    """Every body, buffer, slot and window that is named exists. Raises InvalidProgram."""
    widest: dict[str, int] = {}
    for name, body in program.bodies.items():
        widest[name] = 0
        for op in body:
            for ref in (*op.needs, *op.writes):
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


class Digest:
    """Digests bodies: names become numbers, and what never leaves a call is separated from what may."""

    def __init__(self, program: Program) -> None:
        check_names(program)
        self.program = program
        self.names = {n: i for i, n in enumerate(program.buffers)}
        self.streams: dict[str, int] = {}
        touched: dict[str, set[str]] = {}
        leaves: set[str] = set()
        windowed: set[str] = set()
        for body in program.bodies.values():
            written: set[Ref] = set()
            for op in body:
                self.streams.setdefault(op.stream, len(self.streams))
                for ref in (*op.needs, *op.writes):
                    touched.setdefault(ref.name, set()).add(op.stream)
                leaves.update(r.name for r in op.needs if r not in written)
                written.update(op.writes)
                if op.window:
                    windowed.update(r.name for r in op.writes)
        for fence in dict.fromkeys(f for body in program.bodies.values() for op in body for f in op.after):
            self.streams.setdefault(fence, len(self.streams))
        self.crossing = windowed | {n for n, used in touched.items() if len(used) > 1}
        alone = {n for n in touched if n not in self.crossing and not program.buffers[n].persistent}
        self.inner, self.saved = alone - leaves, alone & leaves
        self.bodies = {name: self._digest(body) for name, body in program.bodies.items()}

    def _uses(self, refs: Iterable[Ref]) -> tuple[Use, ...]:
        return tuple([self._use(r) for r in refs if r.name in self.crossing])

    def _use(self, ref: Ref) -> Use:
        persistent = self.program.buffers[ref.name].persistent
        return Use(self.names[ref.name], -1 if persistent else ref.slot, persistent)

    def _digest(self, body: tuple[Op, ...]) -> Body:
        sites, tails, inner, saved = [], dict[int, int](), list[list[int]](), list[tuple[int, int, int, int]]()
        alive: dict[Ref, list[int]] = {}
        for p, op in enumerate(body):
            reads = set(op.needs)
            site = Site(
                op,
                p,
                self.streams[op.stream],
                self._uses(op.needs),
                self._uses(r for r in op.writes if r not in reads),
                self._uses(r for r in op.writes if r in reads),
                tuple((self.streams[f], tails.get(self.streams[f], -1)) for f in op.after),
            )
            if site.reads or site.fresh or site.updated or site.fences or op.window:
                sites.append(site)
            for ref in (*op.needs, *op.writes):
                if ref.name in self.inner:
                    if ref not in reads:
                        alive[ref] = [self.names[ref.name], ref.slot, p, p]
                        inner.append(alive[ref])
                    alive[ref][3] = p
                elif ref.name in self.saved:
                    saved.append((self.names[ref.name], ref.slot, p, int(ref not in reads)))
            tails[self.streams[op.stream]] = p
        streams = np.array([self.streams[op.stream] for op in body], dtype=np.int64)
        rows = (np.array(r, dtype=np.int64).reshape(-1, 4) for r in (inner, saved))
        return Body(len(body), streams, tails, tuple(sites), *_apart(sites), *rows)


def _apart(sites: list[Site]) -> tuple[tuple[Site, ...], tuple[Site, ...]]:
    """Sites without their touches of persistent buffers, and those touches as sites of their own, if all are on one stream."""
    touching = [site for site in sites if site.persistent]
    if len({site.stream for site in touching}) != 1 or any(site.op.window for site in touching):
        return tuple(sites), ()
    noisy = [site.part(False) for site in sites]
    return tuple(s for s in noisy if s.reads or s.fresh or s.updated or s.fences or s.op.window), tuple(s.part(True) for s in touching)
