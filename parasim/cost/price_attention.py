"""FLOPs and bytes of the kernels of attention: tiled, in blocks of a ring, unfused, and what is done to packed queries, keys and values.

A batch b of sequences s with a heads, k of keys and values; queries and keys are d wide, values e; w bytes of the dtype.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from ..program.ops import Kernel
from .price import STATISTIC, dims, width


def _attention_sizes(kernel: Kernel) -> tuple[float, float, float]:
    """(pairs b a s^2, elements of qkv b s ((a + k) d + k e), elements of o b s a e); d wide are queries and keys, e = d or value_dim the values"""
    batch, sequence, heads, kv_heads, head_dim, *_ = dims(kernel)
    tokens, value_dim = batch * sequence, _value_dim(kernel)
    return batch * heads * sequence**2, tokens * ((heads + kv_heads) * head_dim + kv_heads * value_dim), tokens * heads * value_dim


def _value_dim(kernel: Kernel) -> float:
    sizes = dims(kernel)
    return sizes[5 if len(sizes) > 5 else 4]


def _log_sum_exp(kernel: Kernel) -> float:
    batch, sequence, heads, *_ = dims(kernel)
    return STATISTIC * batch * sequence * heads


def pair_flops(keys: float, values: float) -> Callable[[Kernel], float]:
    """b a s^2 (`keys` d + `values` e): tiled and causal 1 and 1 forward (the causal half of q k^T and scores v), 3 and 2 backward (five products
    instead of two); unfused twice as much for each product, later keys too"""
    return lambda kernel: _attention_sizes(kernel)[0] * (keys * dims(kernel)[4] + values * _value_dim(kernel))


def attention_bytes(kernel: Kernel) -> float:
    """w (qkv + o) + 4 lse"""
    _, qkv, out = _attention_sizes(kernel)
    return width(kernel) * (qkv + out) + _log_sum_exp(kernel)


def attention_grad_bytes(kernel: Kernel) -> float:
    """w (do + qkv + o + dqkv) + 4 lse"""
    _, qkv, out = _attention_sizes(kernel)
    return width(kernel) * (2 * qkv + 2 * out) + _log_sum_exp(kernel)


def _block_sizes(kernel: Kernel) -> tuple[float, float, float]:
    """Elements of queries b s a d, of keys and values b s k (d + e), of outputs b s a e"""
    batch, sequence, heads, kv_heads, head_dim, *_ = dims(kernel)
    tokens, value_dim = batch * sequence, _value_dim(kernel)
    return tokens * heads * head_dim, tokens * kv_heads * (head_dim + value_dim), tokens * heads * value_dim


def block_bytes(kernel: Kernel) -> float:
    """w (q + kv + 2 o) + 8 lse: outputs are read and written"""
    q, kv, out = _block_sizes(kernel)
    return width(kernel) * (q + kv + 2 * out) + 2 * _log_sum_exp(kernel)


def block_grad_bytes(kernel: Kernel) -> float:
    """w (do + o + q + 2 dq + kv + dkv) + 4 lse"""
    q, kv, out = _block_sizes(kernel)
    return width(kernel) * (3 * q + 2 * kv + 2 * out) + _log_sum_exp(kernel)


def kv_bytes(passes: float) -> Callable[[Kernel], float]:
    """`passes` w kv"""
    return lambda kernel: passes * width(kernel) * _block_sizes(kernel)[1]


def blocks_bytes(kernel: Kernel) -> float:
    """2 w elements: read and written"""
    *sizes, _ = dims(kernel)
    parts = dims(kernel)[-1] if len(sizes) > 2 else 1.0  # rows of a sequence are those of one part
    return 2 * width(kernel) * prod(sizes) * parts


def scores_bytes(scores: float, qkv: float, out: float) -> Callable[[Kernel], float]:
    """w (`scores` b a s^2 + `qkv` b s ((a + k) d + k e) + `out` b s a e)"""

    def nbytes(kernel: Kernel) -> float:
        batch, sequence, heads, *_ = dims(kernel)
        _, packed, wide = _attention_sizes(kernel)
        return width(kernel) * (scores * batch * heads * sequence**2 + qkv * packed + out * wide)

    return nbytes


def half_core_bytes(dim: int) -> Callable[[Kernel], float]:
    """w b s (a + k) d of queries and keys (`dim` 4), or e of outputs and values (-1), + w b a s^2 scores"""

    def nbytes(kernel: Kernel) -> float:
        batch, sequence, heads, kv_heads, *_ = dims(kernel)
        return width(kernel) * batch * sequence * ((heads + kv_heads) * dims(kernel)[dim] + heads * sequence)

    return nbytes


def packed_bytes(passes: float, vectors: bool = False) -> Callable[[Kernel], float]:
    """`passes` w qkv; with `vectors` the norms' weights and their gradients too, d each"""

    def nbytes(kernel: Kernel) -> float:
        small = (len(kernel.reads) + len(kernel.writes) - passes) * dims(kernel)[4] if vectors else 0.0
        return width(kernel) * (passes * _attention_sizes(kernel)[1] + small)

    return nbytes


def latent_norm_bytes(passes: float) -> Callable[[Kernel], float]:
    """w (`passes` r (c + rope) + c): x, its norm with the rest, their gradients; the weights"""

    def nbytes(kernel: Kernel) -> float:
        rows, columns, rope = dims(kernel)
        return width(kernel) * (passes * rows * (columns + rope) + columns)

    return nbytes


def latent_rotary_bytes(kernel: Kernel) -> float:
    """w b s (q a (n + r) + kv a (n + v) + shared key r + packed a (2 (n + r) + v)): read and written"""
    batch, sequence, heads, nope, rope, value = dims(kernel)
    return width(kernel) * batch * sequence * (heads * (3 * (nope + rope) + nope + 2 * value) + rope)
