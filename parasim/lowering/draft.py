"""Draft: a Program being written. Passes edit its bodies and calls; nothing else in parasim is half-built."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from ..config.plan import Plan
from ..parallel.layout import Layout
from ..program.ops import COMPUTE, Buffer, Category, Collective, CollectiveOp, Compute, DType, Kernel, Label, Op, Ref, replace
from ..program.workload import Call, Program
from ..schedules import Placement
from .messages import Route

TIED = "embedding"  # the group of ranks that hold copies of a tied embedding
PIPELINE = "pp"  # the group of a pipeline's ranks, and the axis they are cut along
MIRROR = "pp.mirror"  # the group of two ranks that hold the same stages, for microbatches from either end


def micro(name: str) -> Ref:
    """A buffer of the call's microbatch."""
    return Ref(name, 0)


@dataclass
class Stage:
    """A position in depth: its number and its layers [first, last)."""

    number: int
    first: int
    last: int


class Gathered(NamedTuple):
    """Where a parameter is shared out: the flat shard of this rank, the parameters that are whole with it, their kind (units of a kind are bounded
    together), and the group that shares them."""

    shard: Ref
    parameters: tuple[Ref, ...]
    kind: str
    group: str


@dataclass
class Draft:
    """One rank class under construction.

    `ranks_of_stage` gives the pipeline rank of every stage, for the first microbatch where that depends on it (`rank_of` tells). `paired` are
    the (stage, microbatch) of backwards that overlap with the forward before them; `route` places the messages of all ranks.
    `columns` names the buffers that tensor parallelism cuts and along which dim;
    `rows` the hidden-wide activations that sequence parallelism cuts along dim 0; `copied` those of `columns` that it cuts by key-value heads, of which
    several ranks hold copies; `shared` the gradients that need one more sum, by group,
    before the data-parallel reduction; `experts` the parameters that are spread over ep and reduced among the ranks with the same experts;
    `shards`, under ZeRO-3, for every parameter that is shared out how it becomes whole.
    """

    plan: Plan
    rank: int
    stages: list[Stage]
    ranks_of_stage: tuple[int, ...]
    placement: Placement
    route: Route
    buffers: dict[str, Buffer] = field(default_factory=dict)
    bodies: dict[str, list[Op]] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)
    windows: dict[str, int] = field(default_factory=dict)
    columns: dict[str, int] = field(default_factory=dict)
    rows: set[str] = field(default_factory=set)
    shared: dict[str, str] = field(default_factory=dict)
    copied: set[str] = field(default_factory=set)
    shards: dict[str, Gathered] = field(default_factory=dict)
    experts: set[str] = field(default_factory=set)
    paired: set[tuple[int, int]] = field(default_factory=set)

    @property
    def layout(self) -> Layout:
        """The layout of the plan."""
        return self.plan.layout

    def rank_of(self, stage: int, microbatch: int) -> int:
        """The pipeline rank that runs a stage."""
        return self.placement.rank(stage, microbatch, self.layout.degrees.pp, self.layout.batch.microbatches)

    @cached_property
    def mirrored(self) -> bool:
        """Is every stage on two ranks, one for each half of the microbatches?"""
        last = self.layout.batch.microbatches - 1
        return any(self.rank_of(s, last) != rank for s, rank in enumerate(self.ranks_of_stage))

    @property
    def total_stages(self) -> int:
        """Stages of the whole model."""
        return len(self.ranks_of_stage)

    def buffer(
        self,
        name: str,
        shape: Iterable[int | str],
        category: Category,
        *,
        dtype: DType | None = None,
        persistent: bool = False,
        cut: int | None = None,
        rows: bool = False,
        of: tuple[str, ...] = (),
        shard: tuple[tuple[int, str], ...] = (),
    ) -> Ref:
        """Declare a buffer once (full shape) and return its reference: per step if persistent, else of the call's microbatch."""
        if name not in self.buffers:
            self.buffers[name] = Buffer(name, tuple(shape), dtype or self.layout.precision, category, persistent, shard, of)
            if cut is not None:
                self.columns[name] = cut
            if rows:
                self.rows.add(name)
        return Ref(name, -1 if persistent else 0)

    def parameter(self, name: str, shape: Iterable[int], cut: int | None = None) -> Ref:
        """Declare a parameter and its gradient accumulator."""
        shape = tuple(shape)
        self.buffer(f"{name}.grad", shape, "gradients", dtype=self.layout.optimizer.gradient, persistent=True, cut=cut)
        return self.buffer(name, shape, "parameters", persistent=True, cut=cut)

    def activation(self, name: str, shape: Iterable[int], *, cut: int | None = None, rows: bool = False, dtype: DType | None = None) -> Ref:
        """Declare an activation and its gradient of the same shape."""
        shape = tuple(shape)
        self.buffer(f"{name}.grad", shape, "activations", cut=cut, rows=rows, dtype=dtype)
        return self.buffer(name, shape, "activations", cut=cut, rows=rows, dtype=dtype)

    def op(self, label: Label, kernel: str, reads: Iterable[Ref], writes: Iterable[Ref]) -> Compute:
        """One kernel in the run's precision on the compute stream."""
        return compute(label, kernel, reads, writes, self.layout.precision)

    @property
    def parameters(self) -> list[str]:
        """Names of the parameters this rank holds, in order of declaration."""
        return [n for n, b in self.buffers.items() if b.category == "parameters" and b.persistent and not b.of]

    def program(self) -> Program:
        """The finished Program: only the bodies that are called and the buffers that are used."""
        used = {c.body for c in self.calls}
        bodies = {n: tuple(b) for n, b in self.bodies.items() if n in used and b}
        touched = {name for b in bodies.values() for o in b for refs in (o.needs, o.writes) for name, _ in refs}
        buffers = {n: b for n, b in self.buffers.items() if n in touched}
        return Program(buffers, bodies, tuple(c for c in self.calls if c.body in bodies), dict(self.windows))


def grad(ref: Ref) -> Ref:
    """The gradient of a buffer."""
    return Ref(f"{ref.name}.grad", ref.slot)


def compute(
    label: Label, kernel: str, reads: Iterable[Ref], writes: Iterable[Ref], dtype: DType, *, dims: tuple[int | float, ...] = (), role: str = ""
) -> Compute:
    """One kernel as an op on the compute stream; dims that follow from buffer shapes are filled by the last pass."""
    return Compute(label=label, stream=COMPUTE, kernels=(Kernel(kernel, tuple(reads), tuple(writes), dims, dtype, role),))


def collective(
    label: Label,
    op: CollectiveOp,
    group: str,
    reads: Iterable[Ref],
    writes: Iterable[Ref],
    stream: str,
    *,
    dim: int | None = None,
    after: tuple[str, ...] = (),
    axis: str = "",
    copied: bool = False,
) -> Collective:
    """One collective of `group`, labelled with its axis."""
    label = label._replace(axis=axis or group)
    return Collective(label=label, stream=stream, after=after, op=op, group=group, reads=tuple(reads), writes=tuple(writes), dim=dim, copied=copied)


def relabel(op: Op, phase: str) -> Op:
    """The same op under another phase."""
    return replace(op, label=op.label._replace(phase=phase))
