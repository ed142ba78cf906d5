"""Measured collectives as every importer gives them."""

from __future__ import annotations

from typing import NamedTuple

# Bytes of an element by the names that nccl-tests and torch use.
DTYPE_BYTES = {
    **dict.fromkeys(("int8", "uint8", "char", "byte", "bool", "f8e4m3", "f8e5m2", "fp8_e4m3", "fp8_e5m2", "float8_e4m3fn", "float8_e5m2"), 1),
    **dict.fromkeys(("half", "bfloat16", "float16", "short", "int16"), 2),
    **dict.fromkeys(("float", "float32", "int32", "uint32", "int"), 4),
    **dict.fromkeys(("double", "float64", "int64", "uint64", "long"), 8),
}


class Sample(NamedTuple):
    """One measured call: `op` as a Program names it (or sendrecv), the larger buffer of a rank (bytes), ranks, servers (0: not known), seconds.

    `at` is file:line, or the file and the number of the call. `members` are the ranks, () where they are not known: then the first so many.
    """

    op: str
    nbytes: int
    ranks: int
    nodes: int
    seconds: float
    at: str
    members: tuple[int, ...] = ()

    @property
    def algbw(self) -> float:
        """Bytes/s of the larger buffer, as nccl-tests print it."""
        return self.nbytes / self.seconds

    @property
    def busbw(self) -> float:
        """algbw times 2(n-1)/n for all_reduce, (n-1)/n for all_gather, reduce_scatter and all_to_all, else 1 (nccl-tests, doc/PERFORMANCE.md)."""
        shared = (self.ranks - 1) / self.ranks
        return self.algbw * {"all_reduce": 2 * shared, "all_gather": shared, "reduce_scatter": shared, "all_to_all": shared}.get(self.op, 1.0)
