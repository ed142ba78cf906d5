"""The precision passes: linear layers multiply copies in a narrower dtype (fp8), cast by named kernels with one scale per tensor.

As Transformer Engine has it (Micikevicius et al. 2022, arXiv 2209.05433): the products of a layer's matrices, forward and both backward, run on
scaled copies; parameters, attention, norms, the head and what is communicated keep the run's precision. A copy made in the forward is kept for
the weight gradient in place of what it was made of. Weights are cast once a step, before the first forward of their stage; under ZeRO-3 whenever they
have been gathered.
"""

from __future__ import annotations

from dataclasses import replace

from ..program.ops import COMPUTE, Compute, DType, Kernel, Label, Op, Ref
from ..program.workload import Call
from .draft import Draft
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
        kept: set[Ref] = set()
        draft.bodies[f"F{s}"] = _body(draft, dtype, s, draft.bodies[f"F{s}"], kept)
        for keys in ([f"B{s}"], [f"I{s}", f"W{s}"]):
            copies = {source for source in kept if not draft.buffers[source.name].persistent}  # whole parameters are gathered, and cast, anew
            for key in keys:
                draft.bodies[key] = _body(draft, dtype, s, draft.bodies[key], copies)


def weight_casts(draft: Draft) -> None:
    """Call a stage's casts of weights before its first forward."""
    for stage in draft.stages if draft.layout.linear else ():
        first = next(i for i, call in enumerate(draft.calls) if call.body == f"F{stage.number}")
        draft.calls.insert(first, Call(f"{CASTS}{stage.number}"))


def _body(draft: Draft, dtype: DType, stage: int, body: list[Op], copies: set[Ref]) -> list[Op]:
    """The body with its products scaled; `copies` are the buffers of which a copy is there, before and after."""
    out: list[Op] = []
    for op in body:
        kernel = op.kernels[0] if isinstance(op, Compute) else None
        if kernel is not None and kernel.name in SCALED:
            assert isinstance(op, Compute)
            multiplied = 2 if kernel.name == "linear_weight_grad" else 1 + (int(kernel.dims[0]) if kernel.dims else 1)
            for source in kernel.reads[:multiplied]:
                once = draft.buffers[source.name].persistent and stage_of_zero(draft.layout) < 3
                if not once and source not in copies:
                    out.append(_cast(draft, dtype, op.label, source))
                    copies.add(source)
                elif once and _copy(source)[0].name not in draft.buffers:
                    draft.bodies[f"{CASTS}{stage}"].append(_cast(draft, dtype, Label("F", stage, -1, op.label.layer), source))
            operands = tuple(r for source in kernel.reads[:multiplied] for r in _copy(source))
            op = replace(op, kernels=(replace(kernel, name=SCALED[kernel.name], reads=(*operands, *kernel.reads[multiplied:]), dtype=dtype),))
        out.append(op)
        copies.difference_update(op.writes)
    return out


def _copy(source: Ref) -> tuple[Ref, Ref]:
    """The scaled copy of a buffer and its scale."""
    return Ref(f"{source.name}.scaled", source.slot), Ref(f"{source.name}.scale", source.slot)


def _cast(draft: Draft, dtype: DType, label: Label, source: Ref) -> Op:
    buffer = draft.buffers[source.name]
    (copy, scale), category = _copy(source), buffer.category
    if category == "parameters" and stage_of_zero(draft.layout) == 3:
        category = "gathered"
    draft.buffers.setdefault(copy.name, replace(buffer, name=copy.name, dtype=dtype, persistent=False, category=category))
    draft.buffer(scale.name, (1,), category, dtype="fp32" if dtype == "fp8" else dtype)
    return Compute(label=label, stream=COMPUTE, kernels=(Kernel("cast", (source,), (copy, scale), (), buffer.dtype),))
