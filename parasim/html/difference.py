"""Two sides of a page against each other: numbers side by side, and op by op where both ran one program."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from ..comparison import compare
from ..errors import Refused
from ..memory import memory_peaks
from .side import Side

REPORTED = (("tokens per second", "tokens_per_s", "rate"), ("MFU", "mfu", "share"), ("HFU", "hfu", "share"), ("bubble", "bubble_makespan", "share"))


def words(a: Side, b: Side) -> tuple[str, str]:
    """What the sides are called: predicted and measured where that is the difference, else before and after."""
    named = {"simulated": "predicted", "measured": "measured"}
    if {a.source, b.source} == {"simulated", "measured"}:
        return named[a.source], named[b.source]
    return "before", "after"


def difference(a: Side, b: Side, communication: tuple[dict[str, Any], dict[str, Any]]) -> dict[str, Any]:
    """`rows` of [name, unit, a, b]; `ops` in the form of parasim.comparison/1, or null and `why`."""
    ops, why = None, ""
    if a.kinds is not None and b.kinds is not None:
        return {"rows": list(_rows(a, b, *communication)), "ops": None, "why": "a trace names kernels, not ops of a program; kinds are compared above"}
    try:
        first, second = (b, a) if (a.source, b.source) == ("measured", "simulated") else (a, b)
        ops = compare(first.timeline, second.timeline).to_json()
    except Refused as e:
        called = dict(zip(("predicted", "measured"), words(first, second), strict=True))
        why = re.sub("predicted|measured", lambda word: called[word[0]], str(e))
    return {"rows": list(_rows(a, b, *communication)), "ops": ops, "why": why}


def _rows(a: Side, b: Side, ours: dict[str, Any], theirs: dict[str, Any]) -> Iterator[list[Any]]:
    yield ["step time", "seconds", a.window.length, b.window.length]
    if a.kinds is not None and b.kinds is not None:
        yield from ([kind, "seconds", a.kinds.get(kind, 0.0), b.kinds.get(kind, 0.0)] for kind in dict.fromkeys([*a.kinds, *b.kinds]))
    for name, key, unit in REPORTED:
        values = [None if side.report is None else side.report.get(key) for side in (a, b)]
        if all(isinstance(v, int | float) for v in values):
            yield [name, unit, *values]
    for name, key in (("compute", "compute_s"), ("of it optimizer", "optimizer_s")):
        yield [name, "seconds", ours[key], theirs[key]]
    sides = [{row["axis"]: row for row in side["axes"]} for side in (ours, theirs)]
    axes = dict.fromkeys([*sides[0], *sides[1]])
    yield from ([f"exposed {axis}", "seconds", *(side.get(axis, {}).get("exposed_s", 0.0) for side in sides)] for axis in axes)
    yield ["idle", "seconds", ours["idle_s"], theirs["idle_s"]]
    yield from ([f"overlapped {axis}", "seconds", *(side.get(axis, {}).get("overlapped_s", 0.0) for side in sides)] for axis in axes)
    yield from ([f"bytes sent, {axis}", "bytes", *(side.get(axis, {}).get("bytes", 0.0) for side in sides)] for axis in axes)
    if len(a.timeline.memory) and len(b.timeline.memory):
        heaviest = [max(memory_peaks(side.timeline).values(), key=lambda p: p.nbytes) for side in (a, b)]
        yield ["peak memory", "bytes", *(p.nbytes for p in heaviest)]
        yield from ([f"of it {c}", "bytes", *(p.by_category[c] for p in heaviest)] for c in heaviest[0].by_category if any(p.by_category[c] for p in heaviest))
