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

    do, o = _by_head(kernel, do), _by_head(kernel, o)
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


def _by_head(kernel: Kernel, x: Tensor) -> Tensor:
    """(rows, heads width) as (batch, kv, group, sequence, width)."""
    batch, sequence, group, kv, width = _dims(kernel)
    return x.reshape(batch, sequence, kv, group, width).permute(0, 2, 3, 1, 4)


def _kept(x: Tensor) -> Tensor:
    """(batch, kv, group, sequence, keys) as scores are kept: (heads, rows, keys)."""
    batch, kv, group, sequence, keys = x.shape
    return x.permute(1, 2, 0, 3, 4).reshape(kv * group, batch * sequence, keys)


def _grouped(kernel: Kernel, scores: Tensor) -> Tensor:
    """The inverse of `_kept`."""
    batch, sequence, group, kv, _ = _dims(kernel)
    return scores.reshape(kv, group, batch, sequence, scores.shape[-1]).permute(2, 0, 1, 3, 4)


def attention_scores(_: Context, kernel: Kernel, t: Tensors) -> Tensors:
    """q k^T / sqrt(head_dim) of every query and every key of its sequence."""
    q, k, _v = _unpack(kernel, t[0])
    return (_kept((q @ k.transpose(-1, -2)) / math.sqrt(q.shape[-1])),)


def attention_scores_grad(_: Context, kernel: Kernel, t: Tensors) -> Tensors:
    """Derivative at qkv: dq = ds k, dk = ds^T q (both over sqrt(head_dim)), dv = p^T do."""
    ds, do, p, qkv = t
    q, k, _v = _unpack(kernel, qkv)
    ds, p = _grouped(kernel, ds) / math.sqrt(q.shape[-1]), _grouped(kernel, p)
    dv = (p.transpose(-1, -2) @ _by_head(kernel, do)).sum(2, keepdim=True)
    dk = (ds.transpose(-1, -2) @ q).sum(2, keepdim=True)
    return (_pack(kernel, ds @ k, dk, dv),)


def attention_context(_: Context, kernel: Kernel, t: Tensors) -> Tensors:
    """Values weighed with p."""
    batch, sequence, group, kv, width = _dims(kernel)
    o = _grouped(kernel, t[0]) @ _unpack(kernel, t[1])[2]
    return (o.permute(0, 3, 1, 2, 4).reshape(batch * sequence, kv * group * width),)


def attention_context_grad(_: Context, kernel: Kernel, t: Tensors) -> Tensors:
    """dp = do v^T."""
    return (_kept(_by_head(kernel, t[0]) @ _unpack(kernel, t[1])[2].transpose(-1, -2)),)


def causal_softmax(_: Context, __: Kernel, t: Tensors) -> Tensors:
    """Softmax over the keys not later than the query: row r of a sequence of n keys has position r mod n."""
    keys = t[0].shape[-1]
    position = torch.arange(t[0].shape[1], device=t[0].device) % keys
    later = torch.arange(keys, device=t[0].device)[None, :] > position[:, None]
    return (torch.softmax(t[0].masked_fill(later, -math.inf), dim=-1),)


def causal_softmax_grad(_: Context, __: Kernel, t: Tensors) -> Tensors:
    """ds = p (dp - sum over keys of p dp)."""
    dp, p = t
    return (p * (dp - (p * dp).sum(-1, keepdim=True)),)
