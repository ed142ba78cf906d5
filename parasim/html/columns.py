"""Numbers for a browser: columns packed one after the other, compressed, as text in base64; and tables of what occurs more than once."""

from __future__ import annotations

import zlib
from base64 import b64encode
from collections.abc import Hashable
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

WHOLE = 2**32  # numbers that four bytes tell apart
LEVEL = 7  # of zlib
ALIGNED = 8  # bytes: a typed array of JavaScript begins at a multiple of its width
INTEGERS = ("u1", "u2", "u4")
T = TypeVar("T", bound=Hashable)


class Columns:
    """Columns by name; `to_json` is what columns.js unpacks."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._where: dict[str, list[Any]] = {}
        self._size = 0

    def put(self, name: str, values: Any, dtype: str) -> None:
        """A column of numpy type `dtype` (u1 u2 u4 i1 i2 i4 f4 f8), stored little-endian."""
        data = np.ascontiguousarray(values).astype(f"<{dtype}").tobytes()
        padding = -len(data) % ALIGNED
        self._where[name] = [dtype, self._size, len(values)]
        self._parts.append(data + bytes(padding))
        self._size += len(data) + padding

    def put_index(self, name: str, values: NDArray[Any]) -> None:
        """A column of numbers from 0 up, in the narrowest type that holds them."""
        top = int(values.max()) if len(values) else 0
        self.put(name, values, next(t for t in INTEGERS if top <= np.iinfo(t).max))

    def put_steps(self, name: str, values: Any) -> None:
        """A column of numbers from 0 to 2**32 - 1 as differences to the one before (modulo 2**32): for what grows evenly."""
        self.put(name, np.mod(np.diff(np.asarray(values, dtype=np.int64), prepend=0), WHOLE), "u4")

    def to_json(self) -> dict[str, Any]:
        """`where[name]` is [type, offset, length]; `data` the compressed bytes."""
        packed = zlib.compress(b"".join(self._parts), LEVEL)
        return {"where": self._where, "data": b64encode(packed).decode()}


class Table(Generic[T]):
    """Distinct values in order of first use."""

    def __init__(self) -> None:
        self._index: dict[T, int] = {}

    def __getitem__(self, value: T) -> int:
        return self._index.setdefault(value, len(self._index))

    @property
    def values(self) -> list[T]:
        """The values by index."""
        return list(self._index)


def distinct(rows: NDArray[Any], columns: tuple[str, ...]) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """The distinct combinations of some columns, and for each row which it is."""
    from ..report.keys import row_keys

    _, first, index = np.unique(row_keys(rows, columns), return_index=True, return_inverse=True)
    return rows[first], index
