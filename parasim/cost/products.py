"""How much of its rate a matrix product reaches by its shape: tiles of the output in waves over the multiprocessors, and the start of every tile.

A product of (m, k) and (k, n) is cut into tiles of the output, each computed by one multiprocessor over the whole of k. The last wave is partly
empty (NVIDIA, Matrix Multiplication Background User's Guide, "wave quantization"); half of what is empty is lost, as tiles start when the one
before them ends. A tile of a x b elements reads a + b elements for a b multiply-adds: smaller tiles run at a lower rate, 1 + c (1/a + 1/b) times slower.
Every tile takes as long as k0 more elements of k, for filling its pipeline and writing its result. The fastest tile counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import ceil
from typing import NamedTuple

TILES = ((256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64))


class Shape(NamedTuple):
    """`batch` products of (m, k) and (k, n)."""

    batch: float
    m: float
    n: float
    k: float


def reached(shape: Shape, multiprocessors: float | None, start: float, tile_cost: float) -> float:
    """Fraction of its rate, 0 to 1; `start` is k0 and `tile_cost` c above, both in elements. Without the count of
    multiprocessors, or where small tiles cost nothing, only k0 counts."""
    batch, m, n, k = shape
    if not min(shape) > 0:
        return 1.0
    deep = k / (k + start)
    if multiprocessors is None or not tile_cost:
        return deep
    widest = 1 + tile_cost * (1 / TILES[0][0] + 1 / TILES[0][1])
    best = 0.0
    for a, b in TILES:
        waves = batch * ceil(m / a) * ceil(n / b) / multiprocessors
        spent = max(1.0, waves + 0.5 * (ceil(waves) - waves))
        rate = widest / (1 + tile_cost * (1 / a + 1 / b))
        best = max(best, rate * batch * m * n / (spent * multiprocessors * a * b))
    return min(best, 1.0) * deep


def filled(size: float, unit: float | None) -> float:
    """Part of a systolic array of `unit` elements that a side of `size` fills, the last of several passes too; 1 without such arrays. Both sides of what
    stands in the array count, `n` and `k` of a product; of attention only the width of its heads is short (in all its products it is one of the two)."""
    return 1.0 if unit is None or not size > 0 else size / (unit * ceil(size / unit))


def _rows(dims: tuple[float, ...]) -> Shape:
    rows, inner, columns = dims[:3]
    return Shape(1, rows, columns, inner)


def _input(dims: tuple[float, ...]) -> Shape:
    rows, inner, columns = dims[:3]
    return Shape(1, rows, inner, columns)


def _weight(dims: tuple[float, ...]) -> Shape:
    rows, inner, columns = dims[:3]
    return Shape(1, inner, columns, rows)


def _grouped(shape: Callable[[tuple[float, ...]], Shape]) -> Callable[[tuple[float, ...]], Shape]:
    """One product per expert, each with its share of the rows."""

    def of(dims: tuple[float, ...]) -> Shape:
        rows, inner, columns, experts = dims
        one = shape((rows / max(experts, 1.0), inner, columns))
        return one._replace(batch=max(experts, 1.0))

    return of


def _scores(dims: tuple[float, ...]) -> Shape:
    batch, sequence, heads, _, width = dims[:5]
    return Shape(batch * heads, sequence, sequence, width)


def _context(dims: tuple[float, ...]) -> Shape:
    batch, sequence, heads = dims[:3]
    return Shape(batch * heads, sequence, dims[-1], sequence)


DENSE = {"": _rows, "_input_grad": _input, "_weight_grad": _weight}
SHAPES: Mapping[str, Callable[[tuple[float, ...]], Shape]] = {
    **{f"{name}{suffix}": shape for name in ("linear", "head", "scaled_linear") for suffix, shape in DENSE.items()},
    "linear_others": _rows,
    "linear_input_grad_others": _input,
    "grouped_linear": _grouped(_rows),
    "grouped_linear_input_grad": _grouped(_input),
    "grouped_linear_weight_grad": _grouped(_weight),
    "attention_scores": _scores,
    "attention_scores_grad": _context,
    "attention_context": _context,
    "attention_context_grad": _scores,
}
