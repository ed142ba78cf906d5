"""Causal attention over packed queries, keys and values, and rotary embedding, with their derivatives written out.

A packed row holds, per key-value head, its query heads, its key and its value, each `head_dim` wide; rows are batch-major (row = b sequence + s).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..program.ops import Kernel
from .context import Context

Tensors = tuple[Tensor, ...]
ROTARY_BASE = 10000.0


def _dims(kernel: Kernel) -> tuple[int, int, int, int, int]:
    batch, sequence, heads, kv_heads, head_dim = (int(d) for d in kernel.dims)
    return batch, sequence, heads // kv_heads, kv_heads, head_dim


def _unpack(kernel: Kernel, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """q (batch, kv, group, sequence, head_dim); k and v (batch, kv, 1, sequence, head_dim)."""
    batch, sequence, group, kv, width = _dims(kernel)
    packed = qkv.reshape(batch, sequence, kv, group + 2, width).permute(0, 2, 3, 1, 4)
    return packed[:, :, :group], packed[:, :, group : group + 1], packed[:, :, group + 1 :]


def _pack(kernel: Kernel, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    batch, sequence, group, kv, width = _dims(kernel)
    packed = torch.cat((q, k, v), dim=2).permute(0, 3, 1, 2, 4)
    return packed.reshape(batch * sequence, kv * (group + 2) * width)


def _rotate(kernel: Kernel, packed: Tensor, direction: int) -> Tensor:
    _, sequence, _, _, width = _dims(kernel)
    pairs = torch.arange(width // 2, dtype=torch.float64)
    angle = torch.arange(sequence, dtype=torch.float64)[:, None] * ROTARY_BASE ** (-2 * pairs / width)
    cos, sin = angle.cos().to(packed), (direction * angle.sin()).to(packed)

    def turn(x: Tensor) -> Tensor:
        a, b = x.chunk(2, dim=-1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)

    q, k, v = _unpack(kernel, packed)
    return _pack(kernel, turn(q), turn(k), v)


def rotary(_: Context, kernel: Kernel, t: Tensors) -> Tensors:
    """Rotate the two halves of every query and key by position times base^(-2i/head_dim) (Su et al. 2021, section 3.2.2)."""
    return (_rotate(kernel, t[0], 1),)


def rotary_grad(_: Context, kernel: Kernel, t: Tensors) -> Tensors:
    """A rotation's transpose is its inverse."""
    return (_rotate(kernel, t[0], -1),)


def _scores(kernel: Kernel, q: Tensor, k: Tensor) -> Tensor:
    sequence, width = q.shape[-2:]
    scores = (q @ k.transpose(-1, -2)) / math.sqrt(width)
    later = torch.ones(sequence, sequence, dtype=torch.bool, device=q.device).triu(1)
    return scores.masked_fill(later, -math.inf)


def attention(_: Context, kernel: Kernel, t: Tensors) -> Tensors:
    """o (rows, heads head_dim) and the log-sum-exp of the scores (heads, rows)."""
    batch, sequence, group, kv, width = _dims(kernel)
    q, k, v = _unpack(kernel, t[0])
    scores = _scores(kernel, q, k)
    lse = torch.logsumexp(scores, dim=-1)
    o = torch.exp(scores - lse[..., None]) @ v
    o = o.permute(0, 3, 1, 2, 4).reshape(batch * sequence, kv * group * width)
    return o, lse.permute(1, 2, 0, 3).reshape(kv * group, batch * sequence)


def attention_grad(_: Context, kernel: Kernel, t: Tensors) -> Tensors:
    """Derivative at qkv: scores are recomputed, probabilities follow from lse (Dao et al. 2022, appendix B.2)."""
    batch, sequence, group, kv, width = _dims(kernel)
    do, qkv, o, lse = t
    q, k, v = _unpack(kernel, qkv)

    def by_head(x: Tensor) -> Tensor:
        return x.reshape(batch, sequence, kv, group, width).permute(0, 2, 3, 1, 4)

    do, o = by_head(do), by_head(o)
    scores = _scores(kernel, q, k)
    if lse.dtype == scores.dtype:
        lse = lse.reshape(kv, group, batch, sequence).permute(2, 0, 1, 3)
    else:  # a rounded lse would cost the scores their digits
        lse = torch.logsumexp(scores, dim=-1)
    p = torch.exp(scores - lse[..., None])
    dv = (p.transpose(-1, -2) @ do).sum(2, keepdim=True)
    ds = p * (do @ v.transpose(-1, -2) - (do * o).sum(-1, keepdim=True)) / math.sqrt(width)
    dk = (ds.transpose(-1, -2) @ q).sum(2, keepdim=True)
    return (_pack(kernel, ds @ k, dk, dv),)
