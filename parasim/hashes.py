"""64-bit hashes of numpy columns: to compare multisets and rows of many items at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Hashes = NDArray[np.uint64]
DIGITS = 12  # floats are compared to this many decimals
BLOCK = 1 << 14  # places that are hashed at once: they stay in a processor's own memory
ODD = (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)  # multipliers of splitmix64 (Steele et al. 2014)


def mix(*values: NDArray[np.generic] | np.generic) -> Hashes:
    """A 64-bit hash of the values at each place (splitmix64's finisher over their running sum)."""
    columns = [np.asarray(value).astype(np.uint64, copy=False) for value in values]
    shape = np.broadcast_shapes((1,), *(c.shape for c in columns))
    if len(shape) > 1 or shape[0] <= BLOCK:
        return _mixed(columns)
    out = np.empty(shape, dtype=np.uint64)
    for at in range(0, shape[0], BLOCK):
        out[at : at + BLOCK] = _mixed([c[at : at + BLOCK] if c.size > 1 else c for c in columns])
    return out


def _mixed(columns: Sequence[Hashes]) -> Hashes:
    out = np.zeros(1, dtype=np.uint64)
    with np.errstate(over="ignore"):
        for column in columns:
            out = out + column
            out *= np.uint64(ODD[0])
            out += np.uint64(ODD[0])
            out ^= out >> np.uint64(30)
            out *= np.uint64(ODD[1])
            out ^= out >> np.uint64(27)
            out *= np.uint64(ODD[2])
            out ^= out >> np.uint64(31)
    return out


def floats(values: NDArray[np.float64]) -> Hashes:
    """The bits of floats rounded to DIGITS decimals (-0 and 0 alike)."""
    return (np.round(values, DIGITS) + 0.0).view(np.uint64)


def distinct(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """The distinct values, ascending. (`np.unique` alone would load numpy's masked arrays.)"""
    ordered = np.sort(values, axis=None)
    return ordered[np.append(True, ordered[1:] != ordered[:-1])] if len(ordered) else ordered


def numbered(values: NDArray[np.int64], n: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The distinct values, of 0 to n - 1, ascending, and the place of each value among them."""
    seen, place = np.zeros(n, dtype=bool), np.empty(n, dtype=np.int64)  # of `place` only what is written takes memory
    seen[values] = True
    found = np.flatnonzero(seen)
    place[found] = np.arange(len(found))
    return found, place[values]


def row_hashes(columns: NDArray[np.generic]) -> Hashes:
    """A hash of every row of a two-dimensional array of integers; the order of its columns counts."""
    if len(columns) > 1 and (columns == columns[0]).all():
        return np.repeat(row_hashes(columns[:1]), len(columns))
    with np.errstate(over="ignore"):
        return mix(mix(columns, np.arange(columns.shape[1], dtype=np.uint64)[None, :]).sum(axis=1, dtype=np.uint64))
