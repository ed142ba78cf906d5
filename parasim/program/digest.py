"""Bodies, digested once for `edges.resolve`: names become numbers, and what can make an edge is told apart from what only lives and dies.

Three kinds of buffers are kept apart. *Inner* ones are born and die inside every call: their generations are the same in each. *Saved* ones
outlive a call but stay on one stream: they make no edge, only a lifetime. *Crossing* ones are touched by several streams (or bounded by a
window) and are visited op by op.

Only numbers are digested: Programs whose ops differ in names alone, as those of the stages in the middle of a pipeline do, share what was found.
"""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping
from typing import NamedTuple

import numpy as np

from ..errors import InvalidProgram
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

    position: int
    stream: int
    window: str
    reads: tuple[Use, ...]
    fresh: tuple[Use, ...]
    updated: tuple[Use, ...]
    fences: tuple[tuple[int, int], ...]

    @property
    def persistent(self) -> bool:
        """Does it touch a persistent buffer?"""
        return any(use.persistent for uses in (self.reads, self.fresh, self.updated) for use in uses)

    @property
    def idle(self) -> bool:
        """Is there nothing to look at?"""
        return not (self.reads or self.fresh or self.updated or self.fences or self.window)

    def part(self, persistent: bool) -> Site:
        """Only its touches of persistent buffers, or all the rest."""
        reads, fresh, updated = (tuple([use for use in uses if use.persistent == persistent]) for uses in (self.reads, self.fresh, self.updated))
        return Site(self.position, self.stream, self.window, reads, fresh, updated, () if persistent else self.fences)


class Body(NamedTuple):
    """A body, digested once: so many ops, which use so many slots. `tails` are the last position of each stream.

    Where its touches of crossing persistent buffers are all on one stream, `sites` are also there in two parts: `quiet`, those touches, of
    which the last of many calls tells all, and `noisy`, the rest. Elsewhere `quiet` is empty.

    `inner` generations are born and die inside one call: rows (buffer, slot, birth position, last position). `saved` are the touches of
    buffers that outlive a call: rows (buffer, slot, position, 1 where the op writes it afresh).
    """

    length: int
    slots: int
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


Touch = tuple[int, int]  # (buffer, slot)


class Line(NamedTuple):
    """An op in numbers: its stream, the streams of its fences, its window, and what it needs and writes."""

    stream: int
    after: tuple[int, ...]
    window: str
    needs: tuple[Touch, ...]
    writes: tuple[Touch, ...]


class Form(NamedTuple):
    """A Program in numbers: which buffers are persistent, and the ops of each body. Two Programs with equal forms have equal bodies."""

    persistent: tuple[bool, ...]
    bodies: tuple[tuple[Line, ...], ...]


def numbered(program: Program) -> tuple[Form, tuple[str, ...]]:
    """A Program in numbers, and the names of its streams: those of ops, then those of fences alone, in order of first use.

    Raises KeyError for a buffer that is not declared.
    """
    number = {n: i for i, n in enumerate(program.buffers)}
    streams: dict[str, int] = {}
    for body in program.bodies.values():
        for op in body:
            streams.setdefault(op.stream, len(streams))
    for fence in dict.fromkeys(f for body in program.bodies.values() for op in body for f in op.after):
        streams.setdefault(fence, len(streams))
    bodies = [
        tuple(
            [
                Line(
                    streams[op.stream],
                    tuple([streams[f] for f in op.after]),
                    op.window,
                    tuple([(number[name], slot) for name, slot in op.needs]),
                    tuple([(number[name], slot) for name, slot in op.writes]),
                )
                for op in body
            ]
        )
        for body in program.bodies.values()
    ]
    return Form(tuple([b.persistent for b in program.buffers.values()]), tuple(bodies)), tuple(streams)


def digests(program: Program, known: MutableMapping[Form, tuple[Body, ...]]) -> tuple[dict[str, Body], tuple[str, ...]]:
    """The bodies of a Program by name, digested, and the names of its streams; `known` holds those of other Programs, and then these. Raises
    InvalidProgram."""
    try:
        form, streams = numbered(program)
    except KeyError:
        check_names(program)
        raise
    if form not in known:
        known[form] = _Digest(form).bodies
    bodies = dict(zip(program.bodies, known[form], strict=True))
    windows = all(program.windows.get(line.window, 0) > 0 for body in form.bodies for line in body if line.window)
    if not windows or any(call.body not in bodies or bodies[call.body].slots > len(call.microbatches) for call in program.calls):
        check_names(program)
    return bodies, streams


class _Digest:
    """Separates what never leaves a call from what may."""

    def __init__(self, form: Form) -> None:
        self.persistent = form.persistent
        touched: dict[int, set[int]] = {}
        leaves: set[int] = set()
        windowed: set[int] = set()
        for body in form.bodies:
            written: set[Touch] = set()
            for line in body:
                for buffer, _ in (*line.needs, *line.writes):
                    touched.setdefault(buffer, set()).add(line.stream)
                leaves.update([touch[0] for touch in line.needs if touch not in written])
                written.update(line.writes)
                if line.window:
                    windowed.update([buffer for buffer, _ in line.writes])
        self.crossing = windowed | {n for n, used in touched.items() if len(used) > 1}
        alone = {n for n in touched if n not in self.crossing and not form.persistent[n]}
        self.inner, self.saved = alone - leaves, alone & leaves
        self.bodies = tuple([self._digest(body) for body in form.bodies])

    def _uses(self, touches: Iterable[Touch]) -> tuple[Use, ...]:
        held = self.persistent
        return tuple([Use(b, -1 if held[b] else slot, held[b]) for b, slot in touches if b in self.crossing])

    def _digest(self, body: tuple[Line, ...]) -> Body:
        sites, tails, inner, saved = [], dict[int, int](), list[list[int]](), list[tuple[int, int, int, int]]()
        alive: dict[Touch, list[int]] = {}
        for p, (stream, after, window, needs, writes) in enumerate(body):
            reads = set(needs)
            site = Site(
                p,
                stream,
                window,
                self._uses(needs),
                self._uses([t for t in writes if t not in reads]),
                self._uses([t for t in writes if t in reads]),
                tuple([(f, tails.get(f, -1)) for f in after]),
            )
            if not site.idle:
                sites.append(site)
            for touch in (*needs, *writes):
                if touch[0] in self.inner:
                    if touch not in reads:
                        alive[touch] = [*touch, p, p]
                        inner.append(alive[touch])
                    alive[touch][3] = p
                elif touch[0] in self.saved:
                    saved.append((*touch, p, int(touch not in reads)))
            tails[stream] = p
        streams = np.array([line.stream for line in body], dtype=np.int64)
        rows = (np.array(r, dtype=np.int64).reshape(-1, 4) for r in (inner, saved))
        slots = max((slot + 1 for line in body for b, slot in (*line.needs, *line.writes) if not self.persistent[b]), default=0)
        return Body(len(body), slots, streams, tails, tuple(sites), *_apart(sites), *rows)


def _apart(sites: list[Site]) -> tuple[tuple[Site, ...], tuple[Site, ...]]:
    """Sites without their touches of persistent buffers, and those touches as sites of their own, if all are on one stream."""
    touching = [site for site in sites if site.persistent]
    if len({site.stream for site in touching}) != 1 or any(site.window for site in touching):
        return tuple(sites), ()
    noisy = [site.part(False) for site in sites]
    return tuple([s for s in noisy if not s.idle]), tuple([s.part(True) for s in touching])
