"""What collectives do to values: a few numbers per rank through the plain definition, or through real processes over gloo."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..collectives.reference import OPS, REDUCTIONS, after
from ..errors import Malformed, MissingExtra
from ..words import known

BACKENDS = ("reference", "gloo")
ROOTED = ("broadcast", "scatter")  # ops whose inputs are the root's alone
MOST_RANKS = 64
Numbers = list[float]


@dataclass(frozen=True)
class CollectiveValues:
    """`steps[i][r]`: what rank r holds after the i-th op; None where that is undefined. `sent`, `received`: elements of an all-to-all, self left out."""

    ops: tuple[str, ...]
    backend: str
    inputs: list[Numbers]
    steps: list[list[Numbers | None]]
    sent: list[int] | None
    received: list[int] | None

    def to_json(self) -> dict[str, Any]:
        """The contract `parasim.values/1`."""
        loads = None
        if self.sent is not None and self.received is not None:
            loads = {"sent": self.sent, "received": self.received, "bottleneck": max(*self.sent, *self.received)}
        return {
            "schema": "parasim.values/1",
            "ops": list(self.ops),
            "backend": self.backend,
            "ranks": len(self.inputs),
            "inputs": self.inputs,
            "outputs": self.steps[-1],
            "steps": [{"op": op, "outputs": outputs} for op, outputs in zip(self.ops, self.steps, strict=True)],
            "elements": loads,
        }

    def __str__(self) -> str:
        before: list[Numbers | None] = list(self.inputs)
        rows = [("before", before), *zip(self.ops, self.steps, strict=True)]
        lines = [f"{name:<16}{'  '.join(f'{r}: {_text(v)}' for r, v in enumerate(held))}" for name, held in rows]
        if self.sent is not None:
            lines.append(f"elements sent {self.sent}, received {self.received}")
        return "\n".join(lines)


def _text(values: Numbers | None) -> str:
    return "undefined" if values is None else f"[{' '.join(f'{v:g}' for v in values)}]"


def collective_values(
    op: str, inputs: str, *, ranks: int | None = None, reduce: str = "sum", root: int = 0, splits: str | None = None, backend: str = "reference"
) -> CollectiveValues:
    """Values after `op` (several with commas between them: one after the other) of `inputs`: a JSON list per rank, or, for a broadcast or
    scatter over `ranks`, the root's list. `splits[i][j]`: elements that rank i sends to rank j. Raises Malformed, MissingExtra, Failed."""
    ops = tuple(known(name.strip(), OPS, "op") for name in op.split(","))
    known(reduce, REDUCTIONS, "reduction")
    known(backend, BACKENDS, "backend")
    given = _lists("--inputs", inputs, ops[0], ranks, root)
    if splits is not None and ops != ("all_to_all",):
        raise Malformed("--splits goes with --op all_to_all alone")
    shares = None if splits is None else _splits(splits, given)
    _divides(ops, given, shares)
    steps = after(ops, given, reduce, root, shares) if backend == "reference" else _on_gloo(ops, given, reduce, root, shares)
    sent = received = None
    if ops == ("all_to_all",):
        table = shares or [[len(row) // len(given)] * len(given) for row in given]
        sent = [sum(row) - row[r] for r, row in enumerate(table)]
        received = [sum(row[r] for row in table) - table[r][r] for r in range(len(table))]
    return CollectiveValues(ops, backend, given, steps, sent, received)


def _parsed(flag: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise Malformed(f"{flag} {text!r} is no JSON list, such as [[0,1],[2,3]]") from None


def _numbers(flag: str, value: Any, kinds: tuple[type, ...] = (int, float)) -> list[Any]:
    if not isinstance(value, list) or any(isinstance(v, bool) or not isinstance(v, kinds) for v in value):
        raise Malformed(f"{flag}: {value!r} is no list of {'numbers' if float in kinds else 'whole numbers'}, such as [0,1,2,3]")
    return value


def _lists(flag: str, text: str, op: str, ranks: int | None, root: int) -> list[Numbers]:
    value = _parsed(flag, text)
    if isinstance(value, list) and value and not isinstance(value[0], list):
        if op not in ROOTED or ranks is None:
            raise Malformed(f"{flag} {text} is one list; write one per rank, or --ranks with one of {', '.join(ROOTED)}")
        value = [value if r == root else [] for r in range(ranks)]
    if not isinstance(value, list) or not 2 <= len(value) <= MOST_RANKS or ranks not in (None, len(value)):
        raise Malformed(f"{flag} {text} must be a list for each of {ranks or f'2 to {MOST_RANKS}'} ranks, such as [[0,1],[2,3]]")
    out = [[float(v) for v in _numbers(flag, row)] for row in value]
    if not 0 <= root < len(out):
        raise Malformed(f"--root {root} is no rank; legal: 0 to {len(out) - 1}")
    if op not in ROOTED and op != "all_to_all" and len({len(row) for row in out}) > 1:
        raise Malformed(f"{flag} {text}: the ranks of {op} have lists of one length")
    return out


def _splits(text: str, inputs: list[Numbers]) -> list[list[int]]:
    rows = _parsed("--splits", text)
    table = [_numbers("--splits", row, (int,)) for row in (rows if isinstance(rows, list) else [rows])]
    if any(len(row) != len(inputs) or min(row) < 0 for row in table) or [sum(row) for row in table] != [len(row) for row in inputs]:
        raise Malformed(f"--splits {text} must have a row per rank, whose counts sum to the length of its list: {[len(row) for row in inputs]}")
    return table


def _divides(ops: Sequence[str], inputs: list[Numbers], splits: list[list[int]] | None) -> None:
    """Ops that cut need lengths that the ranks divide; the reference says so, before any process starts."""
    after(ops, inputs, "sum", next((r for r, row in enumerate(inputs) if row), 0), splits)


def _on_gloo(ops: tuple[str, ...], inputs: list[Numbers], reduce: str, root: int, splits: list[list[int]] | None) -> list[list[Numbers | None]]:
    try:
        from ..executor.launch import spawn
        from ..executor.values import values_after
    except ImportError:
        raise MissingExtra("torch", "torch") from None
    held = spawn(values_after, len(inputs), ops, inputs, reduce, root, splits)
    return [[held[r][i] for r in range(len(inputs))] for i in range(len(ops))]
