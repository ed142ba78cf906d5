"""Attention over keys and values of another part of the sequence, and the copies that exchange heads for tokens.

Positions follow from the rank's place along cp; what a kernel gets of the keys later than a query weighs nothing.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..program.ops import Kernel
from .context import Context
from .kernels_attention import by_head, by_query, masked_scores, packed_columns, sizes, unpacked, value_dim

Tensors = tuple[Tensor, ...]


def _keys(kernel: Kernel, kv: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values as (batch, kv heads, 1, sequence, width) of packed ones (rows, kv_heads (head_dim + value_dim))."""
    batch, sequence, _, heads, width = sizes(kernel)
    by_heads = kv.reshape(batch, sequence, heads, -1).transpose(1, 2)[:, :, None]
    return by_heads[..., :width], by_heads[..., width:]


def _packed(kernel: Kernel, k: Tensor, v: Tensor) -> Tensor:
    batch, sequence = sizes(kernel)[:2]
    return torch.cat((k, v), dim=-1)[:, :, 0].transpose(1, 2).reshape(batch * sequence, -1)


def kv_slice(_: Context, kernel: Kernel, t: Tensors) -> Tensors:
    """Keys and values of every head, side by side."""
    _q, k, v = unpacked(kernel, t[0])
    return (_packed(kernel, k, v),)


def kv_slice_grad(_: Context, kernel: Kernel, t: Tensors) -> Tensors:
    """Added where keys and values lie; queries have none."""
    dk, dv = _keys(kernel, t[0])
    batch, sequence, group, heads, width = sizes(kernel)
    return (t[1] + packed_columns(kernel, t[0].new_zeros(batch, heads, group, sequence, width), dk, dv),)


def attention_block(context: Context, kernel: Kernel, t: Tensors) -> Tensors:
    """o and its log-sum-exp over more keys: both parts weighed by exp(lse of the part - lse of all)."""
    qkv, kv, o, lse = t
    batch, sequence, group, heads, _width = sizes(kernel)
    q = unpacked(kernel, qkv)[0]
    k, v = _keys(kernel, kv)
    scores = masked_scores(context, kernel, 0, q, k, int(kernel.dims[6]))
    before = by_query(kernel, lse)
    after = torch.logaddexp(before, torch.logsumexp(scores, dim=-1).to(before))
    merged = by_head(kernel, o) * torch.exp(before - after)[..., None].to(o) + torch.exp(scores - after[..., None]).to(o) @ v
    rows = merged.permute(0, 3, 1, 2, 4).reshape(batch * sequence, -1)
    return rows, after.permute(1, 2, 0, 3).reshape(heads * group, batch * sequence)


def attention_block_grad(context: Context, kernel: Kernel, t: Tensors) -> Tensors:
    """(dqkv with this block's part of dq added, dkv of the block); probabilities follow from the lse of all keys."""
    do, qkv, kv, o, lse, dqkv = t
    q = unpacked(kernel, qkv)[0]
    k, v = _keys(kernel, kv)
    do, o = by_head(kernel, do), by_head(kernel, o)
    scores = masked_scores(context, kernel, 1, q, k, int(kernel.dims[6]))
    p = torch.exp(scores - by_query(kernel, lse)[..., None]).to(scores)
    ds = p * (do @ v.transpose(-1, -2) - (do * o).sum(-1, keepdim=True)) / math.sqrt(q.shape[-1])
    dk, dv = (ds.transpose(-1, -2) @ q).sum(2, keepdim=True), (p.transpose(-1, -2) @ do).sum(2, keepdim=True)
    nothing = torch.zeros_like(k)
    return dqkv + packed_columns(kernel, ds @ k, nothing, k.new_zeros(*k.shape[:-1], value_dim(kernel))), _packed(kernel, dk, dv)


def split_rows(_: Context, kernel: Kernel, t: Tensors) -> Tensors:
    """Parts of the rows, one after the other."""
    return tuple(t[0].chunk(int(kernel.dims[2])))


def join_rows(_: Context, __: Kernel, t: Tensors) -> Tensors:
    """Parts of the rows below each other."""
    return (torch.cat(t),)


def columns_to_blocks(_: Context, kernel: Kernel, t: Tensors) -> Tensors:
    """Blocks of columns below each other."""
    return (torch.cat(t[0].chunk(int(kernel.dims[2]), 1)),)


def blocks_to_columns(_: Context, kernel: Kernel, t: Tensors) -> Tensors:
    """Blocks of rows beside each other."""
    return (torch.cat(t[0].chunk(int(kernel.dims[2])), 1),)


def blocks_to_sequence(_: Context, kernel: Kernel, t: Tensors) -> Tensors:
    """The parts of each sequence after one another."""
    batch, sequence, _columns, parts = map(int, kernel.dims)
    return (t[0].reshape(parts, batch, sequence, -1).transpose(0, 1).reshape(t[0].shape),)


def sequence_to_blocks(_: Context, kernel: Kernel, t: Tensors) -> Tensors:
    """The same part of all sequences after one another."""
    batch, sequence, _columns, parts = map(int, kernel.dims)
    return (t[0].reshape(batch, parts, sequence, -1).transpose(0, 1).reshape(t[0].shape),)
