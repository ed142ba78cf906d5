"""Initial values of a Program's persistent buffers: parameters from their names, copies equal to them, moments and gradients zero."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ..program.ops import Compute
from ..program.workload import Program
from .context import TORCH_DTYPES, Context
from .kernels_state import initial_value


def trained_buffers(program: Program) -> dict[str, tuple[str, ...]]:
    """Every persistent buffer that holds parameters, or what Adam steps in their place -> the parameters it holds (a part of)."""
    stepped = {
        ref.name
        for body in program.bodies.values()
        for op in body
        for kernel in (op.kernels if isinstance(op, Compute) else ())
        if kernel.name in ("adam", "host_adam")
        for ref in (kernel.writes[0], *kernel.writes[3:])
    }
    return {n: b.of or (n,) for n, b in program.buffers.items() if b.persistent and (b.category == "parameters" or n in stepped)}


def held(context: Context, name: str, parts: tuple[str, ...], full: Mapping[str, Tensor]) -> Tensor:
    """What buffer `name` holds when the full parameters `parts` have the values `full`: a copy of one of them, or a flat shard."""
    local = [context.cut(p, full[p]) for p in parts]
    if len(local) == 1 and tuple(local[0].shape) == context.local_shape(name):
        return local[0]
    return context.flat_shard(name, local)


def initial_buffers(program: Program, context: Context) -> dict[str, Tensor]:
    """Tensors of all persistent buffers before the first step."""
    trained = trained_buffers(program)
    out = {}
    for name, buffer in program.buffers.items():
        if not buffer.persistent:
            continue
        if name in trained:
            full = {p: initial_value(p, context.full_shape(p)) for p in trained[name]}
            value = held(context, name, trained[name], full)
        else:
            value = torch.zeros(context.local_shape(name))
        out[name] = value.to(TORCH_DTYPES[buffer.dtype])
    return out
