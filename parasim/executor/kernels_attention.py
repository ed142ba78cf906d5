"""Causal attention over packed queries, keys and values, and rotary embedding, with their derivatives written out.

A packed row holds, per key-value head, its query heads, its key and its value, each `head_dim` wide (values `value_dim`, where that is given);
rows are batch-major (row = b sequence + s).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..program.ops import Kernel
from .context import Context
from .kernels_dense import rms_input_grad, rms_normalised

Tensors = tuple[Tensor, ...]
ROTARY_BASE = 10000.0


def sizes(kernel: Kernel) -> tuple[int, int, int, int, int]:
    batch, sequence, heads, kv_heads, head_dim = (int(d) for d in kernel.dims[:5])
    return batch, sequence, heads // kv_heads, kv_heads, head_dim


def value_dim(kernel: Kernel) -> int:
    return int(kernel.dims[5 if len(kernel.dims) > 5 else 4])


def unpacked(kernel: Kernel, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """q (batch, kv, group, sequence, head_dim); k and v (batch, kv, 1, sequence, head_dim or value_dim)."""
    batch, sequence, group, kv, width = sizes(kernel)
    packed = qkv.reshape(batch, sequence, kv, -1).transpose(1, 2)
    q, k, v = torch.split(packed, [group * width, width, value_dim(kernel)], dim=-1)
    return q.reshape(batch, kv, sequence, group, width).transpose(2, 3), k[:, :, None], v[:, :, None]


def packed_columns(kernel: Kernel, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    batch, sequence = sizes(kernel)[:2]
    columns = [x.permute(0, 3, 1, 2, 4).flatten(3) for x in (q, k, v)]
    return torch.cat(columns, dim=-1).reshape(batch * sequence, -1)


def turned(x: Tensor, direction: int, positions: Tensor) -> Tensor:
    """x (..., sequence, width) turned by `positions` (sequence,), pairs being the two halves (Su et al. 2021, section 3.2.2); direction -1 turns back."""
    width = x.shape[-1]
    pairs = torch.arange(width // 2, dtype=torch.float64)
    angle = positions.to(torch.float64)[:, None] * ROTARY_BASE ** (-2 * pairs / width)
    cos, sin = angle.cos().to(x), (direction * angle.sin()).to(x)
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


def _rotate(context: Context, kernel: Kernel, packed: Tensor, direction: int) -> Tensor:
    q, k, v = unpacked(kernel, packed)
    at = context.positions(sizes(kernel)[1])
    return packed_columns(kernel, turned(q, direction, at), turned(k, direction, at), v)


def rotary(context: Context, kernel: Kernel, t: Tensors) -> Tensors:
    """Rotate the two halves of every query and key by position times base^(-2i/head_dim)."""
    return (_rotate(context, kernel, t[0], 1),)


def rotary_grad(context: Context, kernel: Kernel, t: Tensors) -> Tensors:
    """A rotation's transpose is its inverse."""
    return (_rotate(context, kernel, t[0], -1),)


def _norm_weights(kernel: Kernel, t: Tensors) -> list[tuple[Tensor, Tensor]]:
    """(rows of queries or keys over which one norm runs, its weights) for queries, then keys; t = qkv wq wk.

    Weights as wide as a head: (batch, kv, heads, sequence, head_dim); wider ones: all heads of a token beside each other.
    """
    q, k, _ = unpacked(kernel, t[0])
    width = q.shape[-1]
    return [(x if w.shape[0] == width else _beside(x), w) for x, w in ((q, t[1]), (k, t[2]))]


def _beside(x: Tensor) -> Tensor:
    """(batch, kv, heads, sequence, width) -> (batch, sequence, kv heads width)."""
    return x.permute(0, 3, 1, 2, 4).flatten(2)


def _apart(x: Tensor, like: Tensor) -> Tensor:
    """The inverse of `_beside`, where x is so."""
    batch, kv, heads, sequence, width = like.shape
    return x if x.dim() == 5 else x.reshape(batch, sequence, kv, heads, width).permute(0, 2, 3, 1, 4)


def qk_norm(_: Context, kernel: Kernel, t: Tensors) -> Tensors:
    """RMS norms on queries and keys; values stay."""
    q, k, v = unpacked(kernel, t[0])
    nq, nk = (_apart(rms_normalised(x)[0] * w, like) for (x, w), like in zip(_norm_weights(kernel, t), (q, k), strict=True))
    return (packed_columns(kernel, nq, nk, v),)


def qk_norm_input_grad(_: Context, kernel: Kernel, t: Tensors) -> Tensors:
    """The norms' derivative at qkv; dv passes."""
    dy, qkv, wq, wk = t
    dq, dk, dv = unpacked(kernel, dy)
    parts = zip(_norm_weights(kernel, (qkv, wq, wk)), (dq, dk), strict=True)
    gq, gk = (_apart(rms_input_grad((d if x.dim() == 5 else _beside(d)) * w, x), d) for (x, w), d in parts)
    return (packed_columns(kernel, gq, gk, dv),)


def qk_norm_weight_grad(context: Context, kernel: Kernel, t: Tensors) -> Tensors:
    """gw (+)= sum dy xhat over everything that shares a weight."""
    like = [torch.empty(context.local_shape(w.name), device=t[0].device) for w in kernel.writes]
    sums = []
    for (x, w), d in zip(_norm_weights(kernel, (t[1], *like)), unpacked(kernel, t[0])[:2], strict=True):
        sums.append(((d if x.dim() == 5 else _beside(d)) * rms_normalised(x)[0]).reshape(-1, w.shape[0]).sum(0))
    return tuple(context.accumulate(kernel, t, i, value) for i, value in enumerate(sums))


def alibi_slopes(heads: int) -> list[float]:
    """Slopes of ALiBi (Press et al. 2021, arXiv 2108.12409, section 3): 2^(-8 i / n) for n = 2^k heads, the missing ones of other n from 2 n."""
    power = 2 ** int(math.log2(heads))
    first = [2.0 ** (-8.0 * (i + 1) / power) for i in range(power)]
    return first + ([2.0 ** (-4.0 * (i + 1) / power) for i in range(0, 2 * (heads - power), 2)])


def _products(context: Context, kernel: Kernel, packed: int, q: Tensor, k: Tensor, at: Tensor | None = None, keys: Tensor | None = None) -> Tensor:
    """q k^T / sqrt(head_dim), with the linear biases of this rank's heads where the kernel's role asks for them; reads[packed] is qkv.

    `at` and `keys` are the positions of queries and keys where they are not counted from 0 (biases depend on their difference only).
    """
    scores = (q @ k.transpose(-1, -2)) / math.sqrt(q.shape[-1])
    if kernel.role != "alibi":
        return scores
    _, _, group, kv, _ = sizes(kernel)
    place = context.shard_of(kernel.reads[packed].name, 1)
    slopes = torch.tensor(alibi_slopes(group * kv * place.size), dtype=scores.dtype).chunk(place.size)[place.index].reshape(kv, group, 1, 1)
    at = torch.arange(q.shape[-2]) if at is None else at
    keys = at if keys is None else keys
    return scores + (slopes * (keys[None, :] - at[:, None]).to(scores.dtype)).to(scores.device)


def masked_scores(context: Context, kernel: Kernel, packed: int, q: Tensor, k: Tensor, shift: int = 0) -> Tensor:
    """Scores against the keys of the rank `shift` places before along cp, those of later keys -inf. Rows that are a whole sequence count from 0."""
    sequence = q.shape[-2]
    whole = (1, "cp") in context.buffers[kernel.reads[packed].name].shard  # heads are cut over cp, rows are not
    at, keys = (torch.arange(sequence),) * 2 if whole else (context.positions(sequence), context.positions(sequence, shift))
    later = (keys[None, :] > at[:, None]).to(q.device)
    return _products(context, kernel, packed, q, k, at, keys).masked_fill(later, -math.inf)


def attention(context: Context, kernel: Kernel, t: Tensors) -> Tensors:
    """o (rows, heads head_dim) and the log-sum-exp of the scores (heads, rows)."""
    batch, sequence, group, kv, _width = sizes(kernel)
    q, k, v = unpacked(kernel, t[0])
    scores = masked_scores(context, kernel, 0, q, k)
    lse = torch.logsumexp(scores, dim=-1)
    o = torch.exp(scores - lse[..., None]) @ v
    o = o.permute(0, 3, 1, 2, 4).reshape(batch * sequence, -1)
    return o, lse.permute(1, 2, 0, 3).reshape(kv * group, batch * sequence)


def attention_grad(context: Context, kernel: Kernel, t: Tensors) -> Tensors:
    """Derivative at qkv: scores are recomputed, probabilities follow from lse (Dao et al. 2022, appendix B.2)."""
    width = sizes(kernel)[4]
    do, qkv, o, lse = t
    q, k, v = unpacked(kernel, qkv)

    do, o = by_head(kernel, do), by_head(kernel, o)
    scores = masked_scores(context, kernel, 1, q, k)
    p = torch.exp(scores - by_query(kernel, lse)[..., None]).to(scores)
    dv = (p.transpose(-1, -2) @ do).sum(2, keepdim=True)
    ds = p * (do @ v.transpose(-1, -2) - (do * o).sum(-1, keepdim=True)) / math.sqrt(width)
    dk = (ds.transpose(-1, -2) @ q).sum(2, keepdim=True)
    return (packed_columns(kernel, ds @ k, dk, dv),)


def by_query(kernel: Kernel, lse: Tensor) -> Tensor:
    """(heads, rows) as (batch, kv, group, sequence)."""
    batch, sequence, group, kv, _ = sizes(kernel)
    return lse.reshape(kv, group, batch, sequence).permute(2, 0, 1, 3)


def by_head(kernel: Kernel, x: Tensor) -> Tensor:
    """(rows, heads width) as (batch, kv, group, sequence, width)."""
    batch, sequence, group, kv, _ = sizes(kernel)
    return x.reshape(batch, sequence, kv, group, -1).permute(0, 2, 3, 1, 4)


def _kept(x: Tensor) -> Tensor:
    """(batch, kv, group, sequence, keys) as scores are kept: (heads, rows, keys)."""
    batch, kv, group, sequence, keys = x.shape
    return x.permute(1, 2, 0, 3, 4).reshape(kv * group, batch * sequence, keys)


def _grouped(kernel: Kernel, scores: Tensor) -> Tensor:
    """The inverse of `_kept`."""
    batch, sequence, group, kv, _ = sizes(kernel)
    return scores.reshape(kv, group, batch, sequence, scores.shape[-1]).permute(2, 0, 1, 3, 4)


def attention_scores(context: Context, kernel: Kernel, t: Tensors) -> Tensors:
    """q k^T / sqrt(head_dim) of every query and every key of its sequence."""
    q, k, _v = unpacked(kernel, t[0])
    return (_kept(_products(context, kernel, 0, q, k)),)


def attention_scores_grad(_: Context, kernel: Kernel, t: Tensors) -> Tensors:
    """Derivative at qkv: dq = ds k, dk = ds^T q (both over sqrt(head_dim)), dv = p^T do."""
    ds, do, p, qkv = t
    q, k, _v = unpacked(kernel, qkv)
    ds, p = _grouped(kernel, ds) / math.sqrt(q.shape[-1]), _grouped(kernel, p)
    dv = (p.transpose(-1, -2) @ by_head(kernel, do)).sum(2, keepdim=True)
    dk = (ds.transpose(-1, -2) @ q).sum(2, keepdim=True)
    return (packed_columns(kernel, ds @ k, dk, dv),)


def attention_context(_: Context, kernel: Kernel, t: Tensors) -> Tensors:
    """Values weighed with p."""
    batch, sequence = sizes(kernel)[:2]
    o = _grouped(kernel, t[0]) @ unpacked(kernel, t[1])[2]
    return (o.permute(0, 3, 1, 2, 4).reshape(batch * sequence, -1),)


def attention_context_grad(_: Context, kernel: Kernel, t: Tensors) -> Tensors:
    """dp = do v^T."""
    return (_kept(by_head(kernel, t[0]) @ unpacked(kernel, t[1])[2].transpose(-1, -2)),)


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
