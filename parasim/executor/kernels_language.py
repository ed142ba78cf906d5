"""Embedding and losses; the vocabulary may be cut along an axis, named by the shard of the buffers."""

from __future__ import annotations

import torch
from torch import Tensor

from ..program.ops import Kernel
from .context import TORCH_DTYPES, Context

Tensors = tuple[Tensor, ...]


def _local_ids(context: Context, ids: Tensor, buffer: str, dim: int, rows: int) -> tuple[Tensor, Tensor]:
    """Ids relative to this rank's shard of the vocabulary, and whether they lie in it."""
    local = ids.reshape(-1).long() - context.shard_of(buffer, dim).index * rows
    mine = (local >= 0) & (local < rows)
    return local.clamp(0, rows - 1), mine


def _positions(context: Context, tokens: Tensor, table: int) -> Tensor:
    """Position of every row: tokens of shape (batch, sequence) say where a sequence ends, flat ones fill the table."""
    sequence = tokens.shape[1] if tokens.dim() > 1 else min(table, tokens.numel())
    return context.positions(sequence).repeat(tokens.numel() // sequence).to(tokens.device)


def embedding(context: Context, kernel: Kernel, t: Tensors) -> Tensors:
    """Rows of w, zero for tokens of other shards; shard 0 adds the positions, so that the sum over shards has them once."""
    tokens, w = t[:2]
    name = kernel.reads[1].name
    local, mine = _local_ids(context, tokens, name, 0, w.shape[0])
    x = w[local] * mine[:, None].to(w)
    if len(t) > 2 and context.shard_of(name, 0).index == 0:
        x = x + t[2][_positions(context, tokens, t[2].shape[0])]
    return (x,)


def embedding_weight_grad(context: Context, kernel: Kernel, t: Tensors) -> Tensors:
    """Scatter-add of dx into this shard's rows, and into the positions (every shard holds all of them)."""
    tokens, dx = t[:2]
    name = kernel.writes[0].name
    rows = context.local_shape(name)[0]
    local, mine = _local_ids(context, tokens, name, 0, rows)
    gw = dx.new_zeros(rows, dx.shape[1]).index_add_(0, local, dx * mine[:, None].to(dx))
    out = [context.accumulate(kernel, t, 0, gw)]
    if len(kernel.writes) > 1:
        table = context.local_shape(kernel.writes[1].name)[0]
        gp = dx.new_zeros(table, dx.shape[1]).index_add_(0, _positions(context, tokens, table), dx)
        out.append(context.accumulate(kernel, t, 1, gp))
    return tuple(out)


def cross_entropy_stats(context: Context, kernel: Kernel, t: Tensors) -> Tensors:
    """Per row of this shard's logits: max, sum of exp(logit - max), logit of the label (0 if on another shard)."""
    logits, labels = _unpadded(context, kernel, t[0], 2), t[1]
    local, mine = _local_ids(context, labels, kernel.reads[0].name, 1, logits.shape[1])
    top = logits.max(1).values
    total = torch.exp(logits - top[:, None]).sum(1)
    label = logits.gather(1, local[:, None])[:, 0] * mine.to(logits)
    return (torch.stack((top, total, label), dim=1)[None],)


def _unpadded(context: Context, kernel: Kernel, logits: Tensor, at: int) -> Tensor:
    """Logits of columns that are padding are the lowest number there is; dims[at] is the vocabulary where there are such columns."""
    if len(kernel.dims) <= at:
        return logits
    first = context.shard_of(kernel.reads[0].name, 1).index * logits.shape[1]
    padding = torch.arange(first, first + logits.shape[1], device=logits.device) >= int(kernel.dims[at])
    return logits.masked_fill(padding, torch.finfo(logits.dtype).min)


def _combined(stats: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Max, sum of exp and label logit over all shards' stats (shards, rows, 3)."""
    top = stats[:, :, 0].max(0).values
    total = (stats[:, :, 1] * torch.exp(stats[:, :, 0] - top)).sum(0)
    return top, total, stats[:, :, 2].sum(0)


def cross_entropy(_: Context, kernel: Kernel, t: Tensors) -> Tensors:
    """Sum over rows of log sum exp - label logit, over scale."""
    top, total, label = _combined(t[0])
    return (((top + torch.log(total) - label).sum() / float(kernel.dims[2])).reshape(1),)


def cross_entropy_grad(context: Context, kernel: Kernel, t: Tensors) -> Tensors:
    """(softmax - one-hot) / scale on this shard's columns."""
    logits, labels, stats = _unpadded(context, kernel, t[0], 3), t[1], t[2]
    local, mine = _local_ids(context, labels, kernel.reads[0].name, 1, logits.shape[1])
    top, total, _ = _combined(stats)
    grad = torch.exp(logits - top[:, None]) / total[:, None]
    grad = grad.scatter_add(1, local[:, None], -mine[:, None].to(grad))
    return (grad / float(kernel.dims[2]),)


def convert(context: Context, kernel: Kernel, t: Tensors) -> Tensors:
    """x in the dtype of y."""
    return (t[0].to(TORCH_DTYPES[context.buffers[kernel.writes[0].name].dtype]),)


def log_softmax(context: Context, kernel: Kernel, t: Tensors) -> Tensors:
    """logits - log sum exp over all shards."""
    top, total, _ = _combined(t[1])
    return (_unpadded(context, kernel, t[0], 2) - (top + torch.log(total))[:, None],)


def likelihood_grad(context: Context, kernel: Kernel, t: Tensors) -> Tensors:
    """-1 / scale at the label, where it lies in this shard."""
    name = kernel.writes[0].name
    dtype = TORCH_DTYPES[context.buffers[name].dtype]
    out = torch.zeros(context.local_shape(name), dtype=dtype, device=t[0].device)
    local, mine = _local_ids(context, t[0], name, 1, out.shape[1])
    return (out.scatter_add(1, local[:, None], -mine[:, None].to(dtype) / float(kernel.dims[2])),)


def log_softmax_grad(_: Context, kernel: Kernel, t: Tensors) -> Tensors:
    """dl - softmax x (the sum of a row of dl, which is -1 / scale)."""
    return (t[0] + torch.exp(t[1]) / float(kernel.dims[2]),)


def vocabulary_softmax(context: Context, kernel: Kernel, t: Tensors) -> Tensors:
    """exp(logits - max) / sum exp, both over all shards."""
    top, total, _ = _combined(t[1])
    return (torch.exp(_unpadded(context, kernel, t[0], 2) - top[:, None]) / total[:, None],)


def vocabulary_softmax_grad(context: Context, kernel: Kernel, t: Tensors) -> Tensors:
    """(p - one-hot) / scale on this shard's columns."""
    labels, p = t
    local, mine = _local_ids(context, labels, kernel.reads[1].name, 1, p.shape[1])
    return (p.scatter_add(1, local[:, None], -mine[:, None].to(p)) / float(kernel.dims[2]),)


def mean_squared_error(_: Context, kernel: Kernel, t: Tensors) -> Tensors:
    """Sum of squared differences over scale, and its derivative with respect to y."""
    difference = t[0] - t[1]
    scale = float(kernel.dims[2])
    return ((difference * difference).sum().reshape(1) / scale, 2 * difference / scale)
