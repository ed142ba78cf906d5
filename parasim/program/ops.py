"""The closed union of ops: Compute, Collective, P2P. Everything an op needs, in either back end, is in its fields.

Sizes in bytes are never a field: they are shape times dtype of the buffers read or written.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple, TypeVar

DType = Literal["bf16", "fp16", "fp32", "fp64", "fp8", "int32", "int64", "uint8"]
DTYPE_BYTES: dict[str, int] = {"bf16": 2, "fp16": 2, "fp32": 4, "fp64": 8, "fp8": 1, "int32": 4, "int64": 8, "uint8": 1}

Category = Literal["parameters", "gradients", "optimizer", "activations", "gathered", "buffers", "host"]
CATEGORIES: tuple[Category, ...] = ("parameters", "gradients", "optimizer", "activations", "gathered", "buffers")
AXES: tuple[str, ...] = ("tp", "cp", "ep", "dp", "pp")

CollectiveOp = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "barrier"]
COMPUTE = "compute"


class Ref(NamedTuple):
    """A buffer as a body sees it: slot k is the k-th microbatch of the call, -1 one instance per step."""

    name: str
    slot: int = -1


@dataclass(frozen=True)
class Buffer:
    """A named array of one rank.

    `shape` is local; an entry may name a load table (rows that arrive at this rank). `shard` lists (dim, axis): what the local shape is
    a cut of. `of` names the buffers whose flat concatenation, padded to a multiple of the group, this is a flat shard of.
    `padding` rows at the end of dimension 0 of the whole array belong to nothing: they are zero, and stay so.
    `persistent` buffers live through the whole step (parameters, gradients, optimizer state); the others are born and die by use.
    """

    name: str
    shape: tuple[int | str, ...]
    dtype: DType
    category: Category
    persistent: bool = False
    shard: tuple[tuple[int, str], ...] = ()
    of: tuple[str, ...] = ()
    padding: int = 0


@dataclass(frozen=True)
class Kernel:
    """A name of `program.kernels.KERNELS`, a pure function of named buffers.

    `dims` are the integers (or load table names, or seconds for `delay`) that price it; `role` marks linear kernels as `column` or `row`
    for the tensor pass. It is one of `parts` like it that fill the device together, each by its share of the rows.
    """

    name: str
    reads: tuple[Ref, ...]
    writes: tuple[Ref, ...]
    dims: tuple[int | float | str, ...]
    dtype: DType
    role: str = ""
    parts: int = 1


class Label(NamedTuple):
    """For people, reports and colours; no back end acts on it. Step and microbatch come from the call."""

    phase: str
    stage: int = -1
    slot: int = -1
    layer: int = -1
    axis: str = ""


@dataclass(frozen=True, kw_only=True)
class _Op:
    label: Label
    stream: str
    after: tuple[str, ...] = ()
    window: str = ""


@dataclass(frozen=True, kw_only=True)
class Compute(_Op):
    """Kernels that run back to back on one stream. `workspace` is the bytes of inner temporaries."""

    kernels: tuple[Kernel, ...]
    workspace: int = 0

    @cached_property
    def reads(self) -> tuple[Ref, ...]:
        """Buffers read from outside: those an earlier kernel of this op wrote afresh are inner."""
        if len(self.kernels) == 1:
            return tuple(dict.fromkeys(self.kernels[0].reads))
        fresh: set[Ref] = set()
        out: dict[Ref, None] = {}
        for k in self.kernels:
            out.update([(r, None) for r in k.reads if r not in fresh])
            fresh.update([r for r in k.writes if r not in k.reads])
        return tuple(out)

    @cached_property
    def needs(self) -> tuple[Ref, ...]:
        """What must be there when it runs."""
        return self.reads

    @cached_property
    def writes(self) -> tuple[Ref, ...]:
        """Every buffer written, in order of first write."""
        return tuple(dict.fromkeys([r for k in self.kernels for r in k.writes]))


@dataclass(frozen=True, kw_only=True)
class Collective(_Op):
    """One collective of the rank's group named `group`.

    `reduce` accumulates in the dtype of the written buffer. `dim` is the dimension that is cut or concatenated; None is the flat
    concatenation of `reads`, padded to a multiple of the group. `splits` are the counts buffers of an uneven all-to-all (the executor
    reads them), `load` the share table (the simulator reads it). `copied` by copy engines into buffers that the group has mapped ("user
    buffers"), not by kernels of a communication library: it takes no multiprocessor from compute.
    """

    op: CollectiveOp
    group: str
    reads: tuple[Ref, ...]
    writes: tuple[Ref, ...]
    reduce: Literal["sum", "avg", "max"] = "sum"
    dim: int | None = None
    copies: Literal["per_rank", "per_node"] = "per_rank"
    splits: tuple[Ref, Ref] | None = None
    load: str = ""
    root: int = 0
    copied: bool = False

    @property
    def algorithm(self) -> str:
        """The algorithm that its software fixes, else "auto"."""
        return "user-buffers" if self.copied else "auto"

    @property
    def needs(self) -> tuple[Ref, ...]:
        """What must be there when it runs: what it reads, and the counts."""
        return (*self.reads, *(self.splits or ()))


@dataclass(frozen=True)
class Msg:
    """One message. `peer` names an array of the Workload (`pp+1`); `channel` is equal at both ends, matched FIFO with the microbatch."""

    buffer: Ref
    peer: str
    channel: str


@dataclass(frozen=True, kw_only=True)
class P2P(_Op):
    """A batch of messages: receives are posted first, the batch ends with its last message."""

    sends: tuple[Msg, ...] = ()
    recvs: tuple[Msg, ...] = ()

    @cached_property
    def reads(self) -> tuple[Ref, ...]:
        return tuple(m.buffer for m in self.sends)

    @cached_property
    def writes(self) -> tuple[Ref, ...]:
        return tuple(m.buffer for m in self.recvs)

    @cached_property
    def needs(self) -> tuple[Ref, ...]:
        """What must be there when it runs."""
        return self.reads


Op = Compute | Collective | P2P
Part = TypeVar("Part", bound=Buffer | Kernel | Compute | Collective | P2P | Msg)


def replace(part: Part, **fields: Any) -> Part:
    """`dataclasses.replace` for what a Program is made of, several times as fast: fields are copied without running `__init__`. Raises TypeError."""
    known = part.__dataclass_fields__
    if not fields.keys() <= known.keys():
        raise TypeError(f"{type(part).__name__} has no {', '.join(fields.keys() - known.keys())}")
    new, values = object.__new__(type(part)), part.__dict__
    new.__dict__.update({name: values[name] for name in known} | fields)
    return new
