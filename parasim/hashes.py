"""64-bit hashes of numpy columns: to compare multisets and rows of many items at once."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Hashes = NDArray[np.uint64]
DIGITS = 12  # floats are compared to this many decimals
ODD = (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)  # multipliers of splitmix64 (Steele et al. 2014)


def mix(*values: NDArray[np.generic] | np.generic) -> Hashes:
    """A 64-bit hash of the values at each place (splitmix64's finisher over their running sum)."""
    out = np.zeros(1, dtype=np.uint64)
    with np.errstate(over="ignore"):
        for value in values:
            out = (out + np.asarray(value).astype(np.uint64, copy=False)) * np.uint64(ODD[0]) + np.uint64(ODD[0])
            out ^= out >> np.uint64(30)
            out *= np.uint64(ODD[1])
            out ^= out >> np.uint64(27)
            out *= np.uint64(ODD[2])
            out ^= out >> np.uint64(31)
    return out


def floats(values: NDArray[np.float64]) -> Hashes:
    """The bits of floats rounded to DIGITS decimals (-0 and 0 alike)."""
    return (np.round(values, DIGITS) + 0.0).view(np.uint64)


def row_hashes(columns: NDArray[np.generic]) -> Hashes:
    """A hash of every row of a two-dimensional array of integers; the order of its columns counts."""
    with np.errstate(over="ignore"):
        return mix(mix(columns, np.arange(columns.shape[1], dtype=np.uint64)[None, :]).sum(axis=1, dtype=np.uint64))
