"""Data, fixed times and optimizer state, and the deterministic values that runs and their references start from."""

from __future__ import annotations

import math
import time
import zlib

import torch
from torch import Tensor

from ..program.ops import Kernel, Ref
from .context import TORCH_DTYPES, Context

Tensors = tuple[Tensor, ...]


def _generator(text: str) -> torch.Generator:
    return torch.Generator().manual_seed(zlib.crc32(text.encode()))


def initial_value(name: str, shape: tuple[int, ...]) -> Tensor:
    """The full parameter called `name` before the first step, fp64: normal, scaled by 1/sqrt(fan-in); vectors that are no bias are near 1."""
    x = torch.randn(shape, generator=_generator(name), dtype=torch.float64) / math.sqrt(shape[-2] if len(shape) > 1 else shape[0])
    return x if len(shape) > 1 or name.endswith("bias") else x + 1


def sample_rows(role: str, step: int, replica: int, microbatch: int, shape: tuple[int, ...]) -> Tensor:
    """One full microbatch of one data-parallel replica, normal, fp64."""
    return torch.randn(shape, generator=_generator(f"{role}.{step}.{replica}.{microbatch}"), dtype=torch.float64)


def sample_tokens(role: str, step: int, replica: int, microbatch: int, shape: tuple[int, ...], vocabulary: int) -> Tensor:
    """The same of token ids below `vocabulary`, int64."""
    return torch.randint(vocabulary, shape, generator=_generator(f"{role}.{step}.{replica}.{microbatch}"))


def sample(context: Context, kernel: Kernel, _: Tensors) -> Tensors:
    """This rank's part of the microbatch: every rank of a replica draws the same full one."""
    ref = kernel.writes[0]
    microbatch = context.microbatches[ref.slot] if ref.slot >= 0 else -1
    where = (kernel.role, context.step, context.place("dp").index, microbatch, context.full_shape(ref.name))
    integers = context.buffers[ref.name].dtype in ("int32", "int64")
    return (context.cut(ref.name, sample_tokens(*where, int(kernel.dims[1])) if integers else sample_rows(*where)),)


def drawn_mask(context: Context, ref: Ref, rate: float) -> Tensor:
    """This rank's part of the dropout mask `ref`, uint8: 1 with probability 1 - `rate`, the same whenever it is drawn, and however cut over
    tp; parts of a sequence have masks of their own."""
    microbatch = context.microbatches[ref.slot] if ref.slot >= 0 else -1
    part = context.place("cp")
    generator = _generator(f"{ref.name}.{context.step}.{context.place('dp').index}.{microbatch}" + (f".{part.index}" if part.size > 1 else ""))
    return context.cut(ref.name, (torch.rand(context.full_shape(ref.name), generator=generator) >= rate).to(torch.uint8))


def delay(context: Context, kernel: Kernel, _: Tensors) -> Tensors:
    """Sleep; what is written is zero."""
    time.sleep(float(kernel.dims[0]))
    return zero(context, kernel, ())


def zero(context: Context, kernel: Kernel, _: Tensors) -> Tensors:
    """Zeros of the written buffers' shapes."""
    return tuple(torch.zeros(context.local_shape(r.name), dtype=TORCH_DTYPES[context.buffers[r.name].dtype]) for r in kernel.writes)


def accumulate(context: Context, kernel: Kernel, t: Tensors) -> Tensors:
    """The sum of the two tensors read, in the dtype of the first."""
    return (t[0] + t[1].to(t[0]),)


def squared_norm(context: Context, kernel: Kernel, t: Tensors) -> Tensors:
    """The sum of squares of what is read, in the dtype that is written, added to what is there if that is read too."""
    dtype = TORCH_DTYPES[context.buffers[kernel.writes[0].name].dtype]
    gradients = [x.to(dtype) for ref, x in zip(kernel.reads, t, strict=True) if ref not in kernel.writes]
    return (context.accumulate(kernel, t, 0, torch.stack([(g * g).sum() for g in gradients]).sum().reshape(1)),)


def flat_slice(context: Context, kernel: Kernel, t: Tensors) -> Tensors:
    """This rank's flat shard of the padded concatenation of what is read."""
    return (context.flat_shard(kernel.writes[0].name, t),)


def list_slices(_: Context, __: Kernel, ___: Tensors) -> Tensors:
    """Nothing is written; torch's copies find their slices themselves."""
    return ()


def copy_slices(_: Context, kernel: Kernel, t: Tensors) -> Tensors:
    """The same values, slice by slice."""
    y = torch.empty_like(t[0])
    for part, source in zip(y.view(-1).tensor_split(int(kernel.dims[1])), t[0].reshape(-1).tensor_split(int(kernel.dims[1])), strict=True):
        part.copy_(source)
    return (y,)


def copy(_: Context, __: Kernel, t: Tensors) -> Tensors:
    """The same values; where they are follows from the category of the written buffer."""
    return (t[0].clone(),)


def adam(context: Context, kernel: Kernel, t: Tensors) -> Tensors:
    """Adam with bias correction (Kingma and Ba 2015, algorithm 1); a fourth written buffer gets the rounded parameters."""
    p, m, v = adam_step(t[0], t[1].to(t[0]), t[2], t[3], context)
    return (p, m, v, p) if len(kernel.writes) > 3 else (p, m, v)


def adam_step(p: Tensor, g: Tensor, m: Tensor, v: Tensor, context: Context) -> tuple[Tensor, Tensor, Tensor]:
    """Parameters and moments after step `context.step` (counted from 0)."""
    h, t = context.adam, context.step + 1
    m = h.beta1 * m + (1 - h.beta1) * g
    v = h.beta2 * v + (1 - h.beta2) * g * g
    update = (m / (1 - h.beta1**t)) / ((v / (1 - h.beta2**t)).sqrt() + h.epsilon)
    return p - h.learning_rate * update, m, v
