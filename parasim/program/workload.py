"""Program (the text of one rank class) and Workload (programs plus the arrays that resolve their names): the first waist."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .ops import DTYPE_BYTES, Buffer, Op, Ref

if TYPE_CHECKING:
    from .edges import Resolved

IntArray = NDArray[np.int64]


class Call(NamedTuple):
    """One use of a body: one microbatch, two for {F&B} and for batches of transfers, none for per-step work."""

    body: str
    microbatches: tuple[int, ...] = ()
    step: int = 0


@dataclass(frozen=True)
class Program:
    """`bodies` are op templates whose buffers name slots of the call's microbatches; `calls` order them. `windows` bounds live outputs."""

    buffers: Mapping[str, Buffer]
    bodies: Mapping[str, tuple[Op, ...]]
    calls: tuple[Call, ...]
    windows: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def resolved(self) -> Resolved:
        """Edges and lifetimes, derived once (`edges.resolve`). Raises InvalidProgram."""
        from .edges import resolve

        return resolve(self)

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the text, not what is derived from it."""
        return {k: v for k, v in self.__dict__.items() if k not in ("resolved", "sizes")}

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Bytes of every buffer."""
        return {name: buffer_bytes(buffer) for name, buffer in self.buffers.items()}

    def nbytes(self, refs: tuple[Ref, ...]) -> int:
        """Bytes of the named buffers (shape times dtype)."""
        sizes = self.sizes
        return sum([sizes[r.name] for r in refs])


@dataclass(frozen=True)
class Workload:
    """What is simulated and executed.

    `class_of_rank` int[world] picks the Program; `groups[name]` int[k, n] lists the k groups of n ranks in axis order; `peers[name]`
    int[world] gives each rank's peer (-1: none); `coordinates[axis]` int[world]; `loads[name]` float[n, n] are source x destination shares.
    """

    programs: tuple[Program, ...]
    class_of_rank: IntArray
    groups: Mapping[str, IntArray]
    peers: Mapping[str, IntArray]
    coordinates: Mapping[str, IntArray]
    loads: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    steps: int = 1

    @property
    def world(self) -> int:
        """Number of ranks."""
        return len(self.class_of_rank)

    def program_of(self, rank: int) -> Program:
        """The Program that `rank` runs."""
        return self.programs[int(self.class_of_rank[rank])]

    def members(self, rank: int, group: str) -> IntArray:
        """The ranks of the group called `group` that holds `rank`, in axis order."""
        return np.asarray(self.groups[group][self._rows[group][rank]])

    @cached_property
    def _rows(self) -> dict[str, IntArray]:
        """Per group name the row of every rank (-1: in none), int[world]."""
        out = {}
        for name, table in self.groups.items():
            out[name] = np.full(self.world, -1, dtype=np.int64)
            out[name][table[::-1].ravel()] = np.repeat(np.arange(len(table))[::-1], table.shape[1])
        return out


def buffer_bytes(buffer: Buffer) -> int:
    """Bytes of one buffer with integer dims."""
    return prod(int(n) for n in buffer.shape) * DTYPE_BYTES[buffer.dtype]
