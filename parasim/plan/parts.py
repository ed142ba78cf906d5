"""The parts of a model that bounds are made of, and how long their ops take on a rank that waits for nothing else.

A part is what stands before the layers (embedding), a layer of each kind (dense, with experts), and what stands behind them (head, loss).
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from ..model.spec import Fixed, Model, Transformer
from ..program.ops import COMPUTE, Collective, Compute, Op

FIRST, LAST = -1, -2  # parts before and behind the layers; the others are 0 (dense) and 1 (experts)
BEFORE = float("-inf")  # when a stream is free, or a buffer there, of which nothing is known
LAYER = re.compile(r"L(\d+)\.(.*)", re.DOTALL)
Key = tuple[str, int, int]  # a buffer without its layer, its layer (-1: none), its slot
Price = Callable[[Op], float]


def kind(model: Model, layer: int) -> int:
    """Which part a layer is."""
    return int(isinstance(model, Transformer) and model.sparse(layer))


def shallow(model: Model) -> Model:
    """The model with as few layers as show every kind of them: a prefix, so that every layer keeps its kind."""
    kinds = [kind(model, n) for n in range(model.layers)]
    depth = min(model.layers, max(2, *(kinds.index(k) + 1 for k in set(kinds))))
    if isinstance(model, Fixed):
        return replace(model, layers=depth, parameters=model.parameters // model.layers * depth)
    return replace(model, layers=depth)


def part_of(model: Model, layers: Sequence[int], letter: str) -> list[int | None]:
    """The part of every op of a body, from the layers of their labels; what carries none belongs to the end it stands at."""
    numbered = [i for i, n in enumerate(layers) if n >= 0]
    low, high = (numbered[0], numbered[-1]) if numbered else (len(layers), len(layers))
    before, behind = (FIRST, LAST) if letter == "F" else (LAST, FIRST)
    return [kind(model, n) if n >= 0 else before if i < low else behind if i > high else None for i, n in enumerate(layers)]


class Beat(NamedTuple):
    """An op as far as its time is concerned. `moves`: a transfer; `again`: it repeats the forward in a backward; `aside`: of a collective the stream
    on which it runs beside the compute of another microbatch."""

    stream: str
    seconds: float
    reads: tuple[Key, ...]
    writes: tuple[Key, ...]
    after: tuple[str, ...]
    moves: bool
    again: bool
    aside: str


Beats = dict[tuple[int, int], list[Beat]]  # by part and layer, -1 for what is no layer


def elapsed(beats: Iterable[Beat], *, moving: bool = True, again: bool = True) -> float:
    """Seconds from the first op of the compute stream to the end of its last one, at least: the longest path through their streams, what they read and
    their fences. Other streams may have begun before, where nothing of `beats` holds them. Without what is not asked for: transfers, repeated ops.
    """
    free: dict[str, float] = {COMPUTE: 0.0}
    there: dict[Key, float] = {}
    for stream, seconds, reads, writes, after, moves, repeats, _ in beats:
        if (moves and not moving) or (repeats and not again):
            seconds = 0.0
        at = free.get(stream, BEFORE)
        for key in reads:
            at = max(at, there.get(key, BEFORE))
        for name in after:
            at = max(at, free.get(name, BEFORE))
        free[stream] = end = at + seconds
        for key in writes:
            there[key] = end
    return free[COMPUTE]


def templates(model: Model, body: Sequence[Op], letter: str, price: Price) -> Beats:
    """The ops of a body, their layers counted from their own (behind the layers: from the number of these)."""
    out: Beats = {}
    latest: tuple[int, int] | None = None  # where the last op of the compute stream belongs to
    for op, part in zip(body, part_of(model, [op.label.layer for op in body], letter), strict=True):
        if part is None:
            continue
        key = (part, op.label.layer if part >= 0 else -1)
        base = op.label.layer if part >= 0 else model.layers if part == LAST else 0
        latest = key if op.stream == COMPUTE else latest
        reads, writes = (tuple([_key(r.name, base) for r in refs]) for refs in (op.reads, op.writes))
        aside = "" if not isinstance(op, Collective) else f"{op.label.axis}.overlap" if op.stream == COMPUTE else op.stream
        fences = op.after if latest == key else ()
        beat = Beat(op.stream, price(op), reads, writes, fences, not isinstance(op, Compute), op.label.phase == "R", aside)
        out.setdefault(key, []).append(beat)
    return out


@lru_cache(maxsize=4096)
def _key(name: str, base: int) -> Key:
    found = LAYER.match(name)
    return (found[2], int(found[1]) - base, 0) if found else (name, BASELESS, 0)


BASELESS = 1 << 30  # in place of the layer of a buffer that belongs to none


def by_part(found: Beats, *, moving: bool = True, again: bool = True) -> dict[int, float]:
    """Seconds of the compute stream by part, at least, as in `elapsed`; of the layers of a kind the shortest."""
    out: dict[int, float] = {}
    for (part, _), beats in found.items():
        seconds = elapsed(beats, moving=moving, again=again)
        out[part] = min(seconds, out.get(part, seconds))
    return out


def shortest(found: Beats) -> dict[int, list[Beat]]:
    """By part the ops of its layer that takes least."""
    return {part: beats for (part, _), beats in sorted(found.items(), key=lambda row: -elapsed(row[1]))}


def stage(parts: Mapping[int, list[Beat]], order: Iterable[tuple[int, int]], slot: int) -> Iterator[Beat]:
    """The ops of (part, layer) in order."""
    for part, layer in order:
        for beat in parts.get(part, ()):
            reads, writes = (tuple((name, n if n == BASELESS else n + layer, slot) for name, n, _ in keys) for keys in (beat.reads, beat.writes))
            yield beat._replace(reads=reads, writes=writes)


def together(forward: Iterable[Beat], backward: Iterable[Beat]) -> float:
    """Seconds of an overlapped pair, woven as `lowering.pairs` does, at least."""
    return elapsed(_woven(deque(_awaited(forward)), deque(_awaited(backward))))


def _awaited(beats: Iterable[Beat]) -> list[Beat]:
    """Only those collectives may go aside whose output a later op reads."""
    read: set[Key] = set()
    out: list[Beat] = []
    for beat in reversed(list(beats)):
        out.append(beat._replace(aside="") if beat.aside and read.isdisjoint(beat.writes) else beat)
        read.update(beat.reads)
    return out[::-1]


def _woven(mine: deque[Beat], other: deque[Beat]) -> Iterator[Beat]:
    while mine:
        beat = mine.popleft()
        aside = bool(beat.aside and other)
        yield beat._replace(stream=beat.aside) if aside else beat
        if aside or not mine:
            mine, other = other, mine
