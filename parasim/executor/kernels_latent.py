"""Latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1): the norm of compressed keys and values, and what packs queries, keys and values."""

from __future__ import annotations

import torch
from torch import Tensor

from ..program.ops import Kernel
from .context import Context
from .kernels_attention import turned
from .kernels_dense import rms_input_grad, rms_normalised

Tensors = tuple[Tensor, ...]


def latent_norm(_: Context, kernel: Kernel, t: Tensors) -> Tensors:
    """RMS norm of the first columns of x; the last ones, the shared rotary key, as they are."""
    x, w = t
    width = w.shape[0]
    return rms_normalised(x[:, :width])[0] * w, x[:, width:].clone()


def latent_norm_input_grad(_: Context, __: Kernel, t: Tensors) -> Tensors:
    """dx of both parts, side by side."""
    dy, dr, x, w = t
    return (torch.cat((rms_input_grad(dy * w, x[:, : w.shape[0]]), dr), dim=1),)


def latent_norm_weight_grad(context: Context, kernel: Kernel, t: Tensors) -> Tensors:
    """gw (+)= sum dy xhat."""
    dy, x = t[:2]
    return (context.accumulate(kernel, t, 0, (dy * rms_normalised(x[:, : dy.shape[1]])[0]).sum(0)),)


def _sizes(kernel: Kernel) -> tuple[int, int, int, int, int, int]:
    batch, sequence, heads, nope, rope, value = (int(d) for d in kernel.dims)
    return batch, sequence, heads, nope, rope, value


def latent_rotary(context: Context, kernel: Kernel, t: Tensors) -> Tensors:
    """Per head: query (nope, turned rope), key (nope, turned shared key), value."""
    batch, sequence, heads, nope, rope, value = _sizes(kernel)
    at = context.positions(sequence)
    q = t[0].reshape(batch, sequence, heads, nope + rope)
    k, v = torch.split(t[1].reshape(batch, sequence, heads, nope + value), [nope, value], dim=-1)
    shared = turned(t[2].reshape(batch, sequence, rope), 1, at)[:, :, None].expand(-1, -1, heads, -1)
    rotated = turned(q[..., nope:].transpose(1, 2), 1, at).transpose(1, 2)
    return (torch.cat((q[..., :nope], rotated, k, shared, v), dim=-1).reshape(batch * sequence, -1),)


def latent_rotary_grad(context: Context, kernel: Kernel, t: Tensors) -> Tensors:
    """(dr, dq, dkv): turned back; the shared key collects from every head held here."""
    batch, sequence, heads, nope, rope, value = _sizes(kernel)
    at = context.positions(sequence)
    packed = t[0].reshape(batch, sequence, heads, -1)
    dqn, dqr, dk, dshared, dv = torch.split(packed, [nope, rope, nope, rope, value], dim=-1)
    dq = torch.cat((dqn, turned(dqr.transpose(1, 2), -1, at).transpose(1, 2)), dim=-1)
    rows = batch * sequence
    return turned(dshared.sum(2), -1, at).reshape(rows, rope), dq.reshape(rows, -1), torch.cat((dk, dv), dim=-1).reshape(rows, -1)
