"""A Llama-like transformer trained on one process by plain autograd: the reference where no Program on one rank holds the same parameters.

RMS norms before the branches, rotary positions, grouped queries, a gated feed-forward, a head of its own; biases and norms of queries and keys as
Qwen has them. Written from the papers, not from the kernels; names and starting values are those of an executed Program.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from parasim.executor.context import Context
from parasim.executor.kernels_state import adam_step, initial_value, sample_tokens
from parasim.model.spec import Transformer
from parasim.parallel.layout import Layout

Values = dict[str, Tensor]


def trained_by_autograd(model: Transformer, layout: Layout, steps: int) -> dict[str, Any]:
    """Full parameters by name after `steps` Adam steps in fp64, as numpy arrays; queries apart from keys and values, as ranks with copies hold them."""
    values = {name: initial_value(name, shape) for name, shape in _shapes(model).items()}
    moments = {name: (torch.zeros_like(v), torch.zeros_like(v)) for name, v in values.items()}
    for step in range(steps):
        leaves = {name: v.clone().requires_grad_() for name, v in values.items()}
        loss = _loss(model, layout, leaves, step)
        for name, gradient in zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True):
            values[name], *state = adam_step(values[name], gradient, *moments[name], Context({}, {}, step))
            moments[name] = (state[0], state[1])
    return {name: v.numpy() for name, v in values.items()}


def _shapes(m: Transformer) -> dict[str, tuple[int, ...]]:
    queries, keys = m.heads * m.head_dim, 2 * m.kv_heads * m.head_dim
    out: dict[str, tuple[int, ...]] = {"embedding.weight": (m.vocab, m.hidden), "head.weight": (m.vocab, m.hidden), "final_norm.weight": (m.hidden,)}
    for n in range(m.layers):
        layer: dict[str, tuple[int, ...]] = {
            "norm1.weight": (m.hidden,),
            "q.weight": (m.hidden, queries),
            "kv.weight": (m.hidden, keys),
            "proj.weight": (queries, m.hidden),
            "norm2.weight": (m.hidden,),
            "fc1.weight": (m.hidden, 2 * m.ffn),
            "fc2.weight": (m.ffn, m.hidden),
        }
        layer |= {"q.bias": (queries,), "kv.bias": (keys,)} if m.biased("qkv") else {}
        layer |= {f"{x}_norm.weight": (m.head_dim,) for x in "qk"} if m.qk_norm == "head" else {}
        out |= {f"L{n}.{name}": shape for name, shape in layer.items()}
    return out


def _loss(m: Transformer, layout: Layout, p: Values, step: int) -> Tensor:
    """Mean cross entropy of the global batch."""
    batch = layout.batch

    def drawn(role: str) -> Tensor:
        where = [(d, i) for d in range(layout.degrees.dp) for i in range(batch.microbatches)]
        return torch.cat([sample_tokens(role, step, d, i, (batch.micro, batch.sequence), m.vocab) for d, i in where])

    x = p["embedding.weight"][drawn("input")]
    for n in range(m.layers):
        layer = {name.removeprefix(f"L{n}."): v for name, v in p.items() if name.startswith(f"L{n}.")}
        x = x + _attention(m, layer, _norm(x, layer["norm1.weight"])) @ layer["proj.weight"]
        up = _norm(x, layer["norm2.weight"]) @ layer["fc1.weight"]  # gate and up alternate
        x = x + (F.silu(up[..., 0::2]) * up[..., 1::2]) @ layer["fc2.weight"]
    logits = _norm(x, p["final_norm.weight"]) @ p["head.weight"].T
    return F.cross_entropy(logits.flatten(0, 1), drawn("target").flatten(), reduction="sum") / (batch.global_ * batch.sequence)


def _norm(x: Tensor, weight: Tensor) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight


def _attention(m: Transformer, p: Values, x: Tensor) -> Tensor:
    """Causal attention; kv.weight packs, per key-value head, its key and its value."""
    b, s, _ = x.shape
    q, kv = x @ p["q.weight"], x @ p["kv.weight"]
    if m.biased("qkv"):
        q, kv = q + p["q.bias"], kv + p["kv.bias"]
    q = q.reshape(b, s, m.heads, m.head_dim).transpose(1, 2)
    k, v = kv.reshape(b, s, m.kv_heads, 2, m.head_dim).permute(3, 0, 2, 1, 4)
    if m.qk_norm == "head":
        q, k = _norm(q, p["q_norm.weight"]), _norm(k, p["k_norm.weight"])
    q, k = _rotated(q), _rotated(k)
    k, v = (t.repeat_interleave(m.heads // m.kv_heads, 1) for t in (k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, s, -1)


def _rotated(x: Tensor) -> Tensor:
    """Each pair (i, i + width / 2) as a complex number, turned by position x 10000^(-2 i / width) (Su et al. 2021, section 3.2.2)."""
    half = x.shape[-1] // 2
    rate = torch.exp(-math.log(10000.0) * torch.arange(half, dtype=torch.float64) / half)
    turn = torch.polar(torch.ones(1, dtype=torch.float64), torch.arange(x.shape[-2])[:, None] * rate)
    turned = torch.complex(x[..., :half].contiguous(), x[..., half:].contiguous()) * turn
    return torch.cat((turned.real, turned.imag), -1)
