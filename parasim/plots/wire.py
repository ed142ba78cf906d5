"""Protocol buffers as columns: the bytes of one field, or of one message, for each of n messages at once (protobuf.dev/programming-guides/encoding).

Written here because millions of values take minutes one by one.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

VARINT, FIXED, NESTED = 0, 1, 2  # wire types


class Bytes(NamedTuple):
    """`length[i]` bytes for each of n messages, one after the other in `data`."""

    data: NDArray[np.uint8]
    length: NDArray[np.int64]


def key(number: int, wire: int) -> bytes:
    """What stands before a field."""
    return varint(number << 3 | wire)


def varint(value: int) -> bytes:
    """A number that is not negative, seven bits at a time."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def message(**fields: Any) -> bytes:
    """One message; fields are f1, f2, ... with numbers, text or messages, or lists of them."""
    out = b""
    for name, values in fields.items():
        for value in values if isinstance(values, list) else [values]:
            raw = value.encode() if isinstance(value, str) else value
            out += key(int(name[1:]), VARINT) + varint(raw) if isinstance(raw, int) else key(int(name[1:]), NESTED) + varint(len(raw)) + raw
    return out


def same(value: bytes, n: int) -> Bytes:
    """The same bytes in each of n messages."""
    return Bytes(np.tile(np.frombuffer(value, dtype=np.uint8), n), np.full(n, len(value), dtype=np.int64))


def joined(*columns: Bytes) -> Bytes:
    """The columns of each message one after the other."""
    length = np.sum([c.length for c in columns], axis=0)
    at = np.cumsum(length) - length
    out = np.empty(int(length.sum()), dtype=np.uint8)
    for c in columns:
        begins = np.cumsum(c.length) - c.length
        out[np.repeat(at - begins, c.length) + np.arange(len(c.data))] = c.data
        at = at + c.length
    return Bytes(out, length)


def numbers(number: int, values: NDArray[Any]) -> Bytes:
    """A field of numbers that are not negative."""
    return joined(same(key(number, VARINT), len(values)), _varints(values))


def doubles(number: int, values: NDArray[np.float64]) -> Bytes:
    """A field of floats."""
    data = np.ascontiguousarray(values, dtype="<f8").view(np.uint8)
    return joined(same(key(number, FIXED), len(values)), Bytes(data, np.full(len(values), 8)))


def fixed(number: int, values: NDArray[Any], counts: NDArray[Any]) -> Bytes:
    """A repeated field of 64-bit numbers, of which message i has the next `counts[i]`."""
    first = np.frombuffer(key(number, FIXED), dtype=np.uint8)
    data = np.concatenate([np.tile(first, (len(values), 1)), np.ascontiguousarray(values, dtype="<u8").view(np.uint8).reshape(-1, 8)], axis=1)
    return Bytes(data.ravel(), np.asarray(counts, dtype=np.int64) * (len(first) + 8))


def nested(number: int, *columns: Bytes) -> Bytes:
    """A field that holds a message of these fields."""
    body = joined(*columns)
    return joined(same(key(number, NESTED), len(body.length)), _varints(body.length), body)


def only(here: NDArray[np.bool_], column: Bytes) -> Bytes:
    """A column of the messages `here`, which the others lack."""
    length = np.zeros(len(here), dtype=np.int64)
    length[here] = column.length
    return Bytes(column.data, length)


def _varints(values: NDArray[Any]) -> Bytes:
    given = values.astype(np.uint64)
    width = max(1, -(-int(given.max(initial=0)).bit_length() // 7))
    sevens = given[:, None] >> (np.arange(width, dtype=np.uint64) * np.uint64(7))
    kept = np.ones(sevens.shape, dtype=bool)
    kept[:, 1:] = sevens[:, 1:] > 0
    data = (sevens & np.uint64(127)).astype(np.uint8)
    data[:, :-1] |= kept[:, 1:].astype(np.uint8) << 7
    return Bytes(data[kept], kept.sum(axis=1))
