"""Products of scaled copies: what fp8 linear layers do, computed in fp32 (or the copies' own wider dtype)."""

from __future__ import annotations

import torch
from torch import Tensor

from ..program.ops import Kernel
from .context import TORCH_DTYPES, Context
from .kernels_dense import apart, weights

Tensors = tuple[Tensor, ...]
FP8 = torch.float8_e4m3fn


def cast(context: Context, kernel: Kernel, t: Tensors) -> Tensors:
    """x / scale in the written dtype, and the scale that puts the largest |x| at the largest fp8 number (1 for wider dtypes)."""
    copy, scale = (TORCH_DTYPES[context.buffers[r.name].dtype] for r in kernel.writes)
    if copy != FP8:
        return t[0].to(copy), torch.ones(1, dtype=scale, device=t[0].device)
    largest = t[0].abs().max().to(scale).clamp_min(torch.finfo(scale).tiny)
    factor = largest / torch.finfo(FP8).max
    return (t[0].to(scale) / factor).to(copy), factor.reshape(1)


def _wide(copy: Tensor, scale: Tensor) -> Tensor:
    """What was cast: each of the scales for as many rows, one block after the other."""
    each = scale if len(scale) == 1 else scale.repeat_interleave(len(copy) // len(scale))[:, None]
    return copy.to(scale.dtype) * each


def _beside(copies: Tensors) -> Tensor:
    """The matrices of (copy, scale, copy, scale, ...) side by side."""
    return torch.cat([_wide(*copies[i : i + 2]) for i in range(0, len(copies), 2)], 1)


def _result(context: Context, kernel: Kernel, y: Tensor) -> Tensor:
    return y.to(TORCH_DTYPES[context.buffers[kernel.writes[0].name].dtype])


def scaled_linear(context: Context, kernel: Kernel, t: Tensors) -> Tensors:
    """y = x w (+ b)."""
    behind = 2 + 2 * weights(kernel)
    y = _wide(t[0], t[1]) @ _beside(t[2:behind])
    return (_result(context, kernel, y + torch.cat(t[behind:]) if len(t) > behind else y),)


def scaled_linear_input_grad(context: Context, kernel: Kernel, t: Tensors) -> Tensors:
    """dx = dy w^T."""
    return (_result(context, kernel, _wide(t[0], t[1]) @ _beside(t[2:]).T),)


def scaled_linear_weight_grad(context: Context, kernel: Kernel, t: Tensors) -> Tensors:
    """gw (+)= x^T dy."""
    return apart(context, kernel, t, _wide(t[0], t[1]).T @ _wide(t[2], t[3]))
