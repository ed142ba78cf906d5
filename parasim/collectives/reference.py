"""What collectives do to values, in numpy: the plain definition that back ends are held against.

Every function takes one array per rank and returns one per rank. `reduce` is "sum", "avg", "max" or "min".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import Malformed

Array = NDArray[Any]
REDUCTIONS: Mapping[str, Callable[[Array], Array]] = {
    "sum": lambda stacked: np.sum(stacked, axis=0),
    "avg": lambda stacked: np.mean(stacked, axis=0),
    "max": lambda stacked: np.max(stacked, axis=0),
    "min": lambda stacked: np.min(stacked, axis=0),
}


def _reduced(inputs: Sequence[Array], reduce: str) -> Array:
    if reduce not in REDUCTIONS:
        raise Malformed(f"reduce={reduce!r} is unknown; one of {', '.join(REDUCTIONS)}")
    return REDUCTIONS[reduce](np.stack([np.asarray(x) for x in inputs]))


def all_reduce(inputs: Sequence[Array], reduce: str = "sum") -> list[Array]:
    """Every rank gets the reduction of all inputs."""
    total = _reduced(inputs, reduce)
    return [total.copy() for _ in inputs]


def reduce(inputs: Sequence[Array], root: int = 0, reduce: str = "sum") -> list[Array | None]:
    """The root gets the reduction; the buffers of the others are undefined (None)."""
    return [_reduced(inputs, reduce) if rank == root else None for rank in range(len(inputs))]


def all_gather(inputs: Sequence[Array]) -> list[Array]:
    """Every rank gets the concatenation in rank order."""
    whole = np.concatenate([np.atleast_1d(x) for x in inputs])
    return [whole.copy() for _ in inputs]


def gather(inputs: Sequence[Array], root: int = 0) -> list[Array | None]:
    """The root gets the concatenation in rank order, the others nothing."""
    return [all_gather(inputs)[0] if rank == root else None for rank in range(len(inputs))]


def reduce_scatter(inputs: Sequence[Array], reduce: str = "sum") -> list[Array]:
    """Rank k keeps the k-th of n equal parts of the reduction."""
    return scatter(_reduced(inputs, reduce), len(inputs))


def scatter(value: Array, ranks: int) -> list[Array]:
    """Rank k gets the k-th of n equal parts of the root's value."""
    value = np.asarray(value)
    if len(value) % ranks:
        raise Malformed(f"length {len(value)} is not a multiple of {ranks} ranks; pad it to {-(-len(value) // ranks) * ranks}")
    return list(np.split(value, ranks))


def broadcast(value: Array, ranks: int) -> list[Array]:
    """Every rank gets the root's value."""
    return [np.array(value) for _ in range(ranks)]


def all_to_all(inputs: Sequence[Array], splits: Sequence[Sequence[int]] | None = None) -> list[Array]:
    """Part j of rank i goes to rank j, which concatenates by source rank; `splits[i][j]` are the lengths (None: equal parts)."""
    n = len(inputs)
    if splits is None:
        parts = [scatter(x, n) for x in inputs]
    else:
        parts = [np.split(np.asarray(x), np.cumsum(row)[:-1]) for x, row in zip(inputs, splits, strict=True)]
    return [np.concatenate([parts[i][j] for i in range(n)]) for j in range(n)]


OPS = ("broadcast", "scatter", "gather", "reduce", "all_reduce", "all_gather", "reduce_scatter", "all_to_all")


def after(
    ops: Sequence[str], inputs: Sequence[Sequence[float]], reduction: str = "sum", root: int = 0, splits: Sequence[Sequence[int]] | None = None
) -> list[list[list[float] | None]]:
    """`[i][r]`: what rank r holds after the i-th of `ops`, each working on what the one before left; None where that is undefined."""
    held: list[Array | None] = [np.asarray(row, dtype=np.float64) for row in inputs]
    out = []
    for op in ops:
        if any(x is None for x in held):
            raise Malformed(f"op {op} comes after one that leaves the ranks other than {root} undefined; legal last")
        held = _call(op, [x for x in held if x is not None], reduction, root, splits)
        out.append([None if x is None else [float(v) for v in x] for x in held])
    return out


def _call(op: str, x: list[Array], reduction: str, root: int, splits: Sequence[Sequence[int]] | None) -> list[Array | None]:
    n = len(x)
    calls: Mapping[str, Callable[[], Sequence[Array | None]]] = {
        "broadcast": lambda: broadcast(x[root], n),
        "scatter": lambda: scatter(x[root], n),
        "gather": lambda: gather(x, root),
        "reduce": lambda: reduce(x, root, reduction),
        "all_reduce": lambda: all_reduce(x, reduction),
        "all_gather": lambda: all_gather(x),
        "reduce_scatter": lambda: reduce_scatter(x, reduction),
        "all_to_all": lambda: all_to_all(x, splits),
    }
    return list(calls[op]())
