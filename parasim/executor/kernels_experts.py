"""Mixture of experts: routing, permutation by expert, one product per expert, combination, with their derivatives written out.

Routing is real: the rows that an expert gets follow from the logits. An assignment beyond an expert's capacity is dropped in the order of the
tokens (Switch Transformer, Fedus et al. 2021, arXiv 2101.03961, section 2.2).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from ..program.ops import Kernel
from .context import Context

Tensors = tuple[Tensor, ...]


def _scores(kernel: Kernel, logits: Tensor) -> Tensor:
    return logits.sigmoid() if kernel.role == "sigmoid" else logits.softmax(1)


def route(context: Context, kernel: Kernel, t: Tensors) -> Tensors:
    """Weights and names of the topk best experts of every token, and how many rows each expert gets; capacity 0 drops nothing."""
    experts, topk, capacity = (int(d) for d in kernel.dims[1:])
    best, chosen = _scores(kernel, t[0]).topk(topk, 1)
    weights = best / best.sum(1, keepdim=True)
    if capacity:
        hot = F.one_hot(chosen.reshape(-1), experts)
        place = (hot.cumsum(0) * hot).sum(1).reshape(chosen.shape)  # of the assignment among those to its expert, from 1
        chosen = chosen.masked_fill(place > capacity, experts)
    counts = torch.bincount(chosen.reshape(-1), minlength=experts + 1)[:experts]
    return weights * (chosen < experts), chosen.int(), counts.int().reshape(context.local_shape(kernel.writes[2].name))


def route_grad(_: Context, kernel: Kernel, t: Tensors) -> Tensors:
    """Through w_j = s_j / sum s, then softmax or sigmoid: ds_j = (dw_j - sum dw w) / sum s over what was chosen before anything was dropped."""
    dweights, logits, chosen = t
    experts, topk = logits.shape[1], chosen.shape[1]
    scores = _scores(kernel, logits)
    best, names = scores.topk(topk, 1)
    dweights = dweights * (chosen < experts)
    total = best.sum(1, keepdim=True)
    dbest = (dweights - (dweights * best / total).sum(1, keepdim=True)) / total
    dscores = torch.zeros_like(scores).scatter(1, names, dbest)
    if kernel.role == "sigmoid":
        return (dscores * scores * (1 - scores),)
    return (scores * (dscores - (dscores * scores).sum(1, keepdim=True)),)


def _kept(chosen: Tensor, rows: int) -> Tensor:
    """The first `rows` assignments by expert, as positions in (tokens x topk); dropped ones come last."""
    return torch.argsort(chosen.reshape(-1), stable=True)[:rows]


def permute(_: Context, __: Kernel, t: Tensors) -> Tensors:
    """A token's row for each of its experts, by expert."""
    x, chosen, counts = t
    return (x[_kept(chosen, int(counts.sum())) // chosen.shape[1]],)


def permute_grad(_: Context, __: Kernel, t: Tensors) -> Tensors:
    """dx = the sum of a token's copies."""
    dy, chosen = t[:2]
    dx = dy.new_zeros(chosen.shape[0], dy.shape[1])
    return (dx.index_add(0, _kept(chosen, len(dy)) // chosen.shape[1], dy),)


def _by_expert(counts: Tensor) -> Tensor:
    """Where each row of (experts, sources) order comes from in (sources, experts) order."""
    sources, experts = counts.shape
    block = torch.repeat_interleave(torch.arange(sources * experts), counts.reshape(-1).long())
    return torch.argsort(block % experts * sources + block // experts, stable=True)


def group(_: Context, __: Kernel, t: Tensors) -> Tensors:
    """By source and expert -> by expert and source."""
    return (t[0][_by_expert(t[1])],)


def ungroup(_: Context, __: Kernel, t: Tensors) -> Tensors:
    """By expert and source -> by source and expert."""
    return (torch.empty_like(t[0]).index_copy(0, _by_expert(t[1]), t[0]),)


def _pieces(counts: Tensor, *rows: Tensor) -> list[Tensors]:
    """The rows of every expert."""
    sizes = counts.reshape(-1, counts.shape[-1]).sum(0).tolist()
    return list(zip(*(torch.split(r, sizes) for r in rows), strict=True))


def grouped_linear(_: Context, __: Kernel, t: Tensors) -> Tensors:
    """y = x w of each row's expert."""
    return (torch.cat([x @ w for (x,), w in zip(_pieces(t[2], t[0]), t[1], strict=True)]),)


def grouped_linear_input_grad(_: Context, __: Kernel, t: Tensors) -> Tensors:
    """dx = dy w^T of each row's expert."""
    return (torch.cat([dy @ w.T for (dy,), w in zip(_pieces(t[2], t[0]), t[1], strict=True)]),)


def grouped_linear_weight_grad(context: Context, kernel: Kernel, t: Tensors) -> Tensors:
    """gw (+)= x^T dy of each expert's rows."""
    return (context.accumulate(kernel, t, 0, torch.stack([x.T @ dy for x, dy in _pieces(t[2], t[0], t[1])])),)


def combine(_: Context, __: Kernel, t: Tensors) -> Tensors:
    """y = sum over a token's experts of weight x."""
    x, weights, chosen = t
    kept = _kept(chosen, len(x))
    y = x.new_zeros(chosen.shape[0], x.shape[1])
    return (y.index_add(0, kept // chosen.shape[1], x * weights.reshape(-1)[kept, None]),)


def combine_grad(_: Context, __: Kernel, t: Tensors) -> Tensors:
    """dx = weight dy and dweights = <dy, x>, 0 for what was dropped."""
    dy, x, weights, chosen = t
    kept = _kept(chosen, len(x))
    rows = dy[kept // chosen.shape[1]]
    dweights = weights.new_zeros(weights.numel()).index_copy(0, kept, (rows * x).sum(1).to(weights))
    return rows * weights.reshape(-1)[kept, None], dweights.reshape(weights.shape)
