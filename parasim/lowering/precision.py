"""The precision passes: linear layers multiply copies in a narrower dtype (fp8), cast by named kernels with one scale per tensor.

As Transformer Engine has it (Micikevicius et al. 2022, arXiv 2209.05433): the products of a layer's matrices, forward and both backward, run on
scaled copies; parameters, attention, norms and the head keep the run's precision, and so does what is communicated, but for rows that tensor
parallelism gathers for such products alone: each rank casts its own, and copies are gathered with their scales. A copy made in the forward is kept
for the weight gradient in place of what it was made of. Weights are cast once a step, before the first forward of their stage; under ZeRO-3 whenever
they have been gathered.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain

from ..program.ops import COMPUTE, Collective, Compute, DType, Kernel, Label, Op, Ref, replace
from ..program.workload import Call
from .draft import Draft
from .pieces import AXIS, VIEWS
from .shards import stage as stage_of_zero

SCALED = {"linear": "scaled_linear", "linear_input_grad": "scaled_linear_input_grad", "linear_weight_grad": "scaled_linear_weight_grad"}
CASTS = "Q"  # body of a stage's casts of weights


def precision(draft: Draft) -> None:
    """Put casts before the products of every body, one for each operand that no earlier body left a copy of."""
    dtype = draft.layout.linear
    if dtype is None:
        return
    for stage in draft.stages:
        s = stage.number
        draft.bodies[f"{CASTS}{s}"] = []
        forward, backwards = f"F{s}", [[key for key in keys if key in draft.bodies] for keys in ((f"B{s}",), (f"I{s}", f"W{s}"))]
        writer = _Writer(draft, dtype, s, _only_multiplied(op for key in (forward, *chain(*backwards)) for op in draft.bodies[key]))
        draft.bodies[forward] = list(writer.body(draft.bodies[forward]))
        kept = {source for source in writer.copies if not draft.buffers[source.name].persistent}  # whole parameters are gathered, and cast, anew
        for keys in backwards:
            writer.copies = kept - writer.narrow
            for key in keys:
                draft.bodies[key] = list(writer.body(draft.bodies[key]))


def weight_casts(draft: Draft) -> None:
    """Call a stage's casts of weights before its first forward."""
    for stage in draft.stages if draft.layout.linear else ():
        first = next(i for i, call in enumerate(draft.calls) if call.body == f"F{stage.number}")
        draft.calls.insert(first, Call(f"{CASTS}{stage.number}"))


def _multiplied(op: Op) -> tuple[Ref, ...]:
    """The operands of a product that runs on scaled copies."""
    if not isinstance(op, Compute) or op.kernels[0].name not in SCALED:
        return ()
    kernel = op.kernels[0]
    return kernel.reads[: 2 if kernel.name == "linear_weight_grad" else 1 + (int(kernel.dims[0]) if kernel.dims else 1)]


def _moves(op: Op) -> bool:
    """Does it gather rows of tensor parallelism, split or join them?"""
    if isinstance(op, Collective):
        return (op.op, op.group, op.dim) == ("all_gather", AXIS, 0)
    return isinstance(op, Compute) and op.kernels[0].name in VIEWS


def _only_multiplied(ops: Iterable[Op]) -> set[Ref]:
    """What is gathered, split or joined to be read by nothing but products on scaled copies."""
    every = list(ops)
    moves = [op for op in every if _moves(op)]
    read = {ref for op in every for ref in op.needs}
    other = {ref for op in every if not _moves(op) for ref in op.writes}
    other |= {ref for op in every if not _moves(op) for ref in op.needs if ref not in _multiplied(op)}
    found = {ref for op in moves for ref in op.writes if ref in read and ref not in other}
    while True:
        wide = {ref for op in moves if not found.issuperset(op.writes) for ref in (*op.needs, *op.writes)}
        if not found & wide:
            return found
        found -= wide


@dataclass
class _Writer:
    """Rewrites the bodies of one stage; `copies` are the buffers of which a copy is there, `narrow` those of which there are only copies."""

    draft: Draft
    dtype: DType
    stage: int
    narrow: set[Ref]
    copies: set[Ref] = field(default_factory=set)
    scales: dict[Ref, Ref] = field(default_factory=dict)

    def body(self, body: list[Op]) -> Iterator[Op]:
        """The body with its products scaled."""
        gathered: dict[Ref, Ref] = {}
        for op in body:
            if _moves(op) and self.narrow.issuperset(op.writes):
                yield from self._moved(op, gathered)
                continue
            multiplied = _multiplied(op)
            if multiplied:
                assert isinstance(op, Compute)
                yield from self._cast_all(op.label, multiplied)
                kernel = op.kernels[0]
                operands = tuple(r for source in multiplied for r in (_copy(source), self._scale(source)))
                reads = (*operands, *kernel.reads[len(multiplied) :])
                op = replace(op, kernels=(replace(kernel, name=SCALED[kernel.name], reads=reads, dtype=self.dtype),))
            yield op
            self.copies.difference_update(op.writes)

    def _cast_all(self, label: Label, sources: Iterable[Ref]) -> Iterator[Op]:
        """Casts of those that have no copy yet; of parameters that stay, once a step."""
        for source in sources:
            once = self.draft.buffers[source.name].persistent and stage_of_zero(self.draft.layout) < 3
            if not once and source not in self.copies:
                yield self._cast(label, source)
                self.copies.add(source)
            elif once and _copy(source).name not in self.draft.buffers:
                self.draft.bodies[f"{CASTS}{self.stage}"].append(self._cast(Label("F", self.stage, -1, label.layer), source))

    def _moved(self, op: Op, gathered: dict[Ref, Ref]) -> Iterator[Op]:
        """The op on copies. Their scales: one for all parts of what is split, one per rank for what is gathered, those of the parts for what is joined."""
        yield from self._cast_all(op.label, op.needs)
        scales = [self._scale(source) for source in op.needs]
        if isinstance(op, Collective):
            if scales[0] not in gathered:
                gathered[scales[0]] = self._wider(scales, "full", self.draft.layout.degrees.tp)
                yield replace(op, reads=(scales[0],), writes=(gathered[scales[0]],))
            self.scales[op.writes[0]] = gathered[scales[0]]
            yield replace(op, reads=(_copy(op.reads[0]),), writes=(self._declared(op.writes[0]),))
        else:
            assert isinstance(op, Compute)
            kernel = op.kernels[0]
            if len(scales) > 1:
                joined = self._wider(scales, "joined", len(scales))
                yield replace(op, kernels=(replace(kernel, reads=tuple(scales), writes=(joined,), dtype=self.draft.buffers[joined.name].dtype),))
                scales = [joined]
            self.scales |= dict.fromkeys(op.writes, scales[0])
            views = tuple(self._declared(ref) for ref in kernel.writes)
            yield replace(op, kernels=(replace(kernel, reads=tuple(map(_copy, kernel.reads)), writes=views, dtype=self.dtype),))
        self.copies.update(op.writes)

    def _scale(self, source: Ref) -> Ref:
        return self.scales.get(source, Ref(f"{source.name}.scale", source.slot))

    def _wider(self, scales: list[Ref], suffix: str, times: int) -> Ref:
        """A buffer for `times` as many scales."""
        buffer = self.draft.buffers[scales[0].name]
        name = f"{buffer.name}.{suffix}"
        self.draft.buffer(name, (int(buffer.shape[0]) * times,), buffer.category, dtype=buffer.dtype)
        return Ref(name, scales[0].slot)

    def _declared(self, source: Ref) -> Ref:
        """The copy of a buffer, as large as it, in the narrow dtype."""
        buffer = self.draft.buffers[source.name]
        category = "gathered" if buffer.category == "parameters" and stage_of_zero(self.draft.layout) == 3 else buffer.category
        copy = _copy(source)
        self.draft.buffers.setdefault(copy.name, replace(buffer, name=copy.name, dtype=self.dtype, persistent=False, category=category))
        return copy

    def _cast(self, label: Label, source: Ref) -> Op:
        copy, scale = self._declared(source), Ref(f"{source.name}.scale", source.slot)
        self.draft.buffer(scale.name, (1,), self.draft.buffers[copy.name].category, dtype="fp32" if self.dtype == "fp8" else self.dtype)
        dtype = self.draft.buffers[source.name].dtype
        return Compute(label=label, stream=COMPUTE, kernels=(Kernel("cast", (source,), (copy, scale), (), dtype),))


def _copy(source: Ref) -> Ref:
    """The scaled copy of a buffer."""
    return Ref(f"{source.name}.scaled", source.slot)
