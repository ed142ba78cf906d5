"""Program (the text of one rank class) and Workload (programs plus the arrays that resolve their names): the first waist."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .ops import DTYPE_BYTES, Buffer, Compute, Op, Ref

if TYPE_CHECKING:
    from .digest import Body, Form
    from .edges import Resolved

IntArray = NDArray[np.int64]
ZIGZAG = "cp.zigzag"  # the coordinate along cp of ranks that hold chunks r and 2 cp - 1 - r of 2 cp chunks
KV_COPIES, KV_HEAD = "tp.kv", "tp.head"  # the group of ranks along tp that hold copies of one key-value head; the coordinate: which one
LOAD_AXIS = "ep"  # the coordinate that rows of routing depend on


class Call(NamedTuple):
    """One use of a body: one microbatch, two for {F&B} and for batches of transfers, none for per-step work."""

    body: str
    microbatches: tuple[int, ...] = ()
    step: int = 0


@dataclass(frozen=True)
class Program:
    """`bodies` are op templates whose buffers name slots of the call's microbatches; `calls` order them. `windows` bounds live outputs.

    A dimension may name a load table; `Workload.bound` puts the numbers in. `largest` then holds the bytes of such buffers on the rank where they
    are largest.
    """

    buffers: Mapping[str, Buffer]
    bodies: Mapping[str, tuple[Op, ...]]
    calls: tuple[Call, ...]
    windows: Mapping[str, int] = field(default_factory=dict)
    largest: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def resolved(self) -> Resolved:
        """Edges and lifetimes, derived once (`edges.resolve`). Raises InvalidProgram."""
        from .edges import resolve

        return resolve(self)

    def resolve(self, known: MutableMapping[Form, tuple[Body, ...]]) -> Resolved:
        """`resolved`, with what is `known` of Programs like it. Raises InvalidProgram."""
        from .edges import resolve

        if "resolved" not in self.__dict__:
            self.__dict__["resolved"] = resolve(self, known)
        return self.resolved

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the text, not what is derived from it."""
        return {k: v for k, v in self.__dict__.items() if k not in ("resolved", "sizes")}

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Bytes of every buffer."""
        return {name: buffer_bytes(buffer) for name, buffer in self.buffers.items()}

    def largest_nbytes(self, refs: tuple[Ref, ...]) -> int:
        """Bytes of the named buffers on the rank that routing gives most."""
        return sum([self.largest.get(r.name, self.sizes[r.name]) for r in refs])

    def nbytes(self, refs: tuple[Ref, ...]) -> int:
        """Bytes of the named buffers (shape times dtype)."""
        sizes = self.sizes
        return sum([sizes[r.name] for r in refs])


@dataclass(frozen=True)
class Workload:
    """What is simulated and executed.

    `class_of_rank` int[world] picks the Program; `groups[name]` int[k, n] lists the k groups of n ranks in axis order; `peers[name]`
    int[world] gives each rank's peer (-1: none); `coordinates[axis]` int[world]; `loads[name]` float[n, n] are source x destination shares
    of an exchange, float[n] rows by the rank's coordinate along ep, which shapes and dims name where routing decides.
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

    @cached_property
    def bound(self) -> Workload:
        """The same with the numbers of its loads in place of their names: one Program for each class and set of numbers."""
        tables = {name: table for name, table in self.loads.items() if table.ndim == 1}
        if not tables:
            return self
        at = self.coordinates.get(LOAD_AXIS, np.zeros(self.world, dtype=np.int64))
        rows = np.rint(np.stack([table[at] for table in tables.values()])).astype(np.int64)
        keys, first, of_rank = np.unique(np.vstack([self.class_of_rank, rows]), axis=1, return_index=True, return_inverse=True)
        turn = np.argsort(first)  # programs in the order of their first rank
        most = {name: int(np.rint(table.max())) for name, table in tables.items()}
        programs = tuple(bound_program(self.programs[keys[0, k]], dict(zip(tables, map(int, keys[1:, k]), strict=True)), most) for k in turn)
        return replace(self, programs=programs, class_of_rank=np.argsort(turn)[of_rank.ravel()])

    def members(self, rank: int, group: str) -> IntArray:
        """The ranks of the group called `group` that holds `rank`, in axis order."""
        return np.asarray(self.groups[group][self.rows(group)[rank]])

    @cached_property
    def _rows(self) -> dict[str, IntArray]:
        return {}

    def rows(self, group: str) -> IntArray:
        """The row of every rank in the table of a group name (-1: in none), int[world]."""
        if group not in self._rows:
            table = self.groups[group]
            self._rows[group] = np.full(self.world, -1, dtype=np.int64)
            self._rows[group][table[::-1].ravel()] = np.repeat(np.arange(len(table))[::-1], table.shape[1])
        return self._rows[group]


def buffer_bytes(buffer: Buffer) -> int:
    """Bytes of one buffer; rows that a load table decides count none until they are bound."""
    return prod(0 if isinstance(n, str) else n for n in buffer.shape) * DTYPE_BYTES[buffer.dtype]


def bound_buffer(buffer: Buffer, rows: Mapping[str, int]) -> Buffer:
    """The buffer with the numbers of `rows` in its shape."""
    return replace(buffer, shape=tuple(rows[n] if isinstance(n, str) else n for n in buffer.shape))


def bound_program(program: Program, rows: Mapping[str, int], most: Mapping[str, int]) -> Program:
    """The Program with the numbers of `rows` in shapes and dims; edges and lifetimes are those of the Program itself."""

    def numbers(op: Op) -> Op:
        if not isinstance(op, Compute) or not any(isinstance(d, str) for k in op.kernels for d in k.dims):
            return op
        return replace(op, kernels=tuple(replace(k, dims=tuple(rows[d] if isinstance(d, str) else d for d in k.dims)) for k in op.kernels))

    named = {n: b for n, b in program.buffers.items() if any(isinstance(d, str) for d in b.shape)}
    buffers = {n: bound_buffer(b, rows) if n in named else b for n, b in program.buffers.items()}
    largest = {n: buffer_bytes(bound_buffer(b, most)) for n, b in named.items()}
    out = replace(program, buffers=buffers, bodies={n: tuple(map(numbers, body)) for n, body in program.bodies.items()}, largest=largest)
    out.__dict__["resolved"] = replace(program.resolved, program=out)
    return out
