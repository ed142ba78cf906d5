"""Kernels -> seconds on an accelerator: a roofline of FLOPs and of the bytes that must cross the device's memory.

Bytes are the minimal traffic of the kernel as written: each operand is read once and each result written once, in the kernel's dtype
(tokens and labels are int32, statistics fp32: 4 bytes); a kernel that accumulates also reads what it writes. FLOPs are those of matrix products and attention,
2 per multiply-add; elementwise work is bound by memory and counts none, which is also how MFU and HFU count. The formula of each kernel
stands beside its name in PRICES, with r rows, i inner, c columns, w bytes of the dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..program.ops import DTYPE_BYTES, Kernel
from .price import STATISTIC, Price, accumulates, dims, width
from .price_attention import (
    attention_bytes,
    attention_grad_bytes,
    block_bytes,
    block_grad_bytes,
    blocks_bytes,
    half_core_bytes,
    kv_bytes,
    latent_norm_bytes,
    latent_rotary_bytes,
    packed_bytes,
    pair_flops,
    scores_bytes,
)

WIDE = DTYPE_BYTES["bf16"]  # what products of fp8 copies are written in
INDEX, MASK = DTYPE_BYTES["int32"], DTYPE_BYTES["uint8"]


def _none(kernel: Kernel) -> float:
    return 0.0


def _product_flops(kernel: Kernel) -> float:
    """2 r i c"""
    rows, inner, columns = dims(kernel)[:3]
    return 2.0 * rows * inner * columns


def _product_bytes(kernel: Kernel) -> float:
    """w (r i + i c + r c), + w c with a bias, + w i c where a weight gradient accumulates"""
    rows, inner, columns, weights = (*dims(kernel), 1)[:4]
    elements = rows * inner + inner * columns + rows * columns
    if accumulates(kernel):
        elements += inner * columns
    elif len(kernel.reads) > 1 + weights:
        elements += columns
    return width(kernel) * elements


def _others_bytes(kernel: Kernel) -> float:
    """w (r i + i c + r c) of the r rows that are multiplied, + w c with a bias"""
    rows, inner, columns, weights = (*dims(kernel), 1)[:4]
    biased = len(kernel.reads) > 2 + weights
    return width(kernel) * (rows * inner + inner * columns + rows * columns + (columns if biased else 0))


def _scaled_bytes(kernel: Kernel) -> float:
    """w (r i + i c) of the copies and 2 r c of the result, + 2 c with a bias; a weight gradient has w (r i + r c) + 2 i c, twice that where it
    accumulates, an input gradient w (r c + i c) + 2 r i"""
    rows, inner, columns, weights = (*dims(kernel), 1)[:4]
    sizes = {"scaled_linear": rows * columns, "scaled_linear_input_grad": rows * inner, "scaled_linear_weight_grad": inner * columns}
    result = sizes[kernel.name]
    operands = rows * inner + inner * columns + rows * columns - result
    more = result if accumulates(kernel) else columns if kernel.name == "scaled_linear" and len(kernel.reads) > 2 + 2 * weights else 0
    return width(kernel) * operands + WIDE * (result + more)


def _cast_bytes(kernel: Kernel) -> float:
    """(w + 1) elements: read in the run's dtype, written in fp8"""
    return (width(kernel) + DTYPE_BYTES["fp8"]) * dims(kernel)[0]


def _grouped_flops(kernel: Kernel) -> float:
    """2 r i c: every row is multiplied by one expert's weight"""
    rows, inner, columns, _ = dims(kernel)
    return 2.0 * rows * inner * columns


def _grouped_bytes(kernel: Kernel) -> float:
    """w (r i + e i c + r c) with e experts of which every weight is used, + w e i c where a weight gradient accumulates"""
    rows, inner, columns, experts = dims(kernel)
    weights = experts * inner * columns * (2 if accumulates(kernel) else 1)
    return width(kernel) * (rows * (inner + columns) + weights)


def _routed_bytes(logits: float) -> Callable[[Kernel], float]:
    """w (`logits` r e + r k) of scores and weights, + 4 r k of what is chosen"""

    def nbytes(kernel: Kernel) -> float:
        rows, experts, topk, *_ = dims(kernel)
        return width(kernel) * rows * (logits * experts + topk) + INDEX * rows * topk

    return nbytes


def _permuted_bytes(copies: float, tokens: float) -> Callable[[Kernel], float]:
    """w c (`copies` r + `tokens` t): r copies of the rows of t tokens, each read or written that often"""

    def nbytes(kernel: Kernel) -> float:
        rows, columns, here = dims(kernel)
        return width(kernel) * columns * (copies * rows + tokens * here)

    return nbytes


def _dropout_bytes(kernel: Kernel) -> float:
    """(2 w + 1) elements: in, out and the mask"""
    return (2 * width(kernel) + MASK) * dims(kernel)[0]


def _dropout_add_bytes(kernel: Kernel) -> float:
    """(3 w + 1) r c, + w c with a bias"""
    rows, columns = dims(kernel)
    return _residual_bytes(kernel) + MASK * rows * columns


def _elementwise(full: float, vectors: float = 0.0, extra: float = 0.0) -> Callable[[Kernel], float]:
    """w (`full` r c + `vectors` c), + `extra` w c for each written operand that is also read"""

    def nbytes(kernel: Kernel) -> float:
        rows, columns = dims(kernel)[:2]
        again = extra * sum(ref in kernel.reads for ref in kernel.writes)
        return width(kernel) * (full * rows * columns + (vectors + again) * columns)

    return nbytes


def _norm_bytes(full: int) -> Callable[[Kernel], float]:
    """w (`full` r c + c for every vector read or written)"""

    def nbytes(kernel: Kernel) -> float:
        rows, columns = dims(kernel)[:2]
        return width(kernel) * columns * (full * rows + len(kernel.reads) + len(kernel.writes) - full)

    return nbytes


def _residual_bytes(kernel: Kernel) -> float:
    """3 w r c, + w c with a bias"""
    rows, columns = dims(kernel)
    return width(kernel) * (3 * rows * columns + (columns if len(kernel.reads) > 2 else 0))


def _embedding_bytes(kernel: Kernel) -> float:
    """4 r tokens + w r c rows of the table read and r c written, + w r c positions read"""
    rows, columns = dims(kernel)
    return INDEX * rows + width(kernel) * rows * columns * (3 if len(kernel.reads) > 2 else 2)


def _embedding_grad_bytes(kernel: Kernel) -> float:
    """4 r tokens + w r c of dx, + 2 w r c read and written per table (only touched rows; r c where it is written afresh)"""
    rows, columns = dims(kernel)
    tables = sum(2 if ref in kernel.reads else 1 for ref in kernel.writes)
    return INDEX * rows + width(kernel) * rows * columns * (1 + tables)


def _stats_bytes(kernel: Kernel) -> float:
    """logits once: w r c, + 4 r labels + 12 r statistics"""
    rows, columns = dims(kernel)[:2]
    return width(kernel) * rows * columns + (INDEX + 3 * STATISTIC) * rows


def _loss_bytes(kernel: Kernel) -> float:
    """12 r c statistics, c the shards of the vocabulary, and the loss"""
    rows, shards, _ = dims(kernel)
    return 3.0 * STATISTIC * rows * shards + STATISTIC


def _loss_grad_bytes(kernel: Kernel) -> float:
    """logits read and their gradient written: 2 w r c, + 4 r labels + 12 r statistics"""
    rows, columns = dims(kernel)[:2]
    return 2.0 * width(kernel) * rows * columns + (INDEX + 3 * STATISTIC) * rows


def _convert_bytes(kernel: Kernel) -> float:
    """(w + 4) elements: read in one dtype and written in the other; 2 w where the run's is wider than fp32"""
    return (width(kernel) + max(width(kernel), STATISTIC)) * dims(kernel)[0]


def _flat_bytes(passes: float) -> Callable[[Kernel], float]:
    """`passes` w elements"""
    return lambda kernel: passes * width(kernel) * dims(kernel)[0]


def _adam_bytes(kernel: Kernel) -> float:
    """p, g, m, v read and p, m, v written in fp32 (or the run's wider state): 7 x 4 elements, + 2 elements for the rounded copy. In passes (a role, which
    names the dtype of g): + w_g + 4 where g is first copied to fp32, + 8 where it is unscaled, + 12 for its norm and clipping, + 4: p is read again"""
    state = max(width(kernel), STATISTIC)
    copy = DTYPE_BYTES["bf16"] if len(kernel.writes) > 3 else 0
    passes = 0
    if kernel.role:
        scaled, _, gradient = kernel.role.rpartition(" ")
        own = DTYPE_BYTES[gradient]
        passes = (own + STATISTIC if own < STATISTIC else 0) + (2 * STATISTIC if scaled else 0) + 4 * STATISTIC
    return (7 * state + copy + passes) * dims(kernel)[0]


PRICES: Mapping[str, Price] = {
    "sample": Price(_none, _none, "memory"),  # the data loader has the microbatch ready
    "delay": Price(_none, _none, "time"),
    "linear": Price(_product_flops, _product_bytes, "matmul"),
    "linear_input_grad": Price(_product_flops, _product_bytes, "matmul"),
    "linear_weight_grad": Price(_product_flops, _product_bytes, "matmul"),
    "linear_others": Price(_product_flops, _others_bytes, "matmul"),
    "linear_input_grad_others": Price(_product_flops, _others_bytes, "matmul"),
    "cast": Price(_none, _cast_bytes, "memory"),
    "scaled_linear": Price(_product_flops, _scaled_bytes, "matmul"),
    "scaled_linear_input_grad": Price(_product_flops, _scaled_bytes, "matmul"),
    "scaled_linear_weight_grad": Price(_product_flops, _scaled_bytes, "matmul"),
    "bias_grad": Price(_none, _elementwise(1, 1, extra=1), "memory"),  # dy read; gb written
    "head": Price(_product_flops, _product_bytes, "matmul"),
    "head_input_grad": Price(_product_flops, _product_bytes, "matmul"),
    "head_weight_grad": Price(_product_flops, _product_bytes, "matmul"),
    "gelu": Price(_none, _elementwise(2), "memory"),  # x, y
    "gelu_grad": Price(_none, _elementwise(3), "memory"),  # dy, x, dx
    "swiglu": Price(_none, _elementwise(3), "memory"),  # x of 2 c, y
    "swiglu_grad": Price(_none, _elementwise(5), "memory"),  # dy, x of 2 c, dx of 2 c
    "geglu": Price(_none, _elementwise(3), "memory"),  # x of 2 c, y
    "geglu_grad": Price(_none, _elementwise(5), "memory"),  # dy, x of 2 c, dx of 2 c
    "relu": Price(_none, _elementwise(2), "memory"),
    "relu_grad": Price(_none, _elementwise(3), "memory"),
    "squared_relu": Price(_none, _elementwise(2), "memory"),
    "squared_relu_grad": Price(_none, _elementwise(3), "memory"),
    "gate_silu": Price(_none, _elementwise(2), "memory"),  # gate, a
    "gate_silu_grad": Price(_none, _elementwise(7), "memory"),  # da, gate, dgate; dgate, dup, put together in dx of 2 c
    "gate_gelu": Price(_none, _elementwise(2), "memory"),  # gate, a
    "gate_gelu_grad": Price(_none, _elementwise(7), "memory"),  # da, gate, dgate; dgate, dup, put together in dx of 2 c
    "gate_product": Price(_none, _elementwise(3), "memory"),  # a, up, y
    "gate_product_grad": Price(_none, _elementwise(5), "memory"),  # dy, a, up, da, dup
    "layer_norm": Price(_none, _norm_bytes(2), "memory"),  # x, y; w, b
    "layer_norm_input_grad": Price(_none, _norm_bytes(3), "memory"),  # dy, x, dx; w
    "layer_norm_weight_grad": Price(_none, _norm_bytes(2), "memory"),  # dy, x; gw, gb
    "rms_norm": Price(_none, _elementwise(2, 1), "memory"),  # x, y; w
    "rms_norm_input_grad": Price(_none, _elementwise(3, 1), "memory"),  # dy, x, dx; w
    "rms_norm_weight_grad": Price(_none, _elementwise(2, 1, extra=1), "memory"),  # dy, x; gw
    "rotary": Price(_none, packed_bytes(2), "memory"),
    "rotary_grad": Price(_none, packed_bytes(2), "memory"),
    "qk_norm": Price(_none, packed_bytes(2, vectors=True), "memory"),
    "qk_norm_input_grad": Price(_none, packed_bytes(3, vectors=True), "memory"),
    "qk_norm_weight_grad": Price(_none, packed_bytes(2, vectors=True), "memory"),
    "latent_norm": Price(_none, latent_norm_bytes(2), "memory"),
    "latent_norm_input_grad": Price(_none, latent_norm_bytes(3), "memory"),
    "latent_norm_weight_grad": Price(_none, _norm_bytes(2), "memory"),
    "latent_rotary": Price(_none, latent_rotary_bytes, "memory"),
    "latent_rotary_grad": Price(_none, latent_rotary_bytes, "memory"),
    "attention": Price(pair_flops(1, 1), attention_bytes, "attention"),
    "attention_grad": Price(pair_flops(3, 2), attention_grad_bytes, "attention"),
    "attention_block": Price(pair_flops(1, 1), block_bytes, "attention"),  # two chunks per rank: half of the pairs, whatever the shift
    "attention_block_grad": Price(pair_flops(3, 2), block_grad_bytes, "attention"),
    "kv_slice": Price(_none, kv_bytes(2), "memory"),
    "kv_slice_grad": Price(_none, kv_bytes(3), "memory"),
    "split_rows": Price(_none, _none, "view"),
    "join_rows": Price(_none, _none, "view"),
    "columns_to_blocks": Price(_none, blocks_bytes, "memory"),
    "blocks_to_columns": Price(_none, blocks_bytes, "memory"),
    "blocks_to_sequence": Price(_none, blocks_bytes, "memory"),
    "sequence_to_blocks": Price(_none, blocks_bytes, "memory"),
    "attention_scores": Price(pair_flops(2, 0), half_core_bytes(4), "matmul"),
    "attention_scores_grad": Price(pair_flops(4, 2), scores_bytes(2, 2, 1), "matmul"),  # dscores, p; qkv, dqkv; do
    "attention_context": Price(pair_flops(0, 2), half_core_bytes(-1), "matmul"),
    "attention_context_grad": Price(pair_flops(0, 2), half_core_bytes(-1), "matmul"),
    "causal_softmax": Price(_none, _elementwise(1.5), "memory"),  # the causal half of the scores; p
    "causal_softmax_grad": Price(_none, _elementwise(2), "memory"),  # the causal halves of dp and p; dscores
    "route": Price(_none, _routed_bytes(1), "memory"),
    "route_grad": Price(_none, _routed_bytes(2), "memory"),  # logits, dlogits
    "permute": Price(_none, _permuted_bytes(1, 1), "memory"),  # copies written, a token read once
    "permute_grad": Price(_none, _permuted_bytes(1, 1), "memory"),
    "group": Price(_none, _elementwise(2), "memory"),
    "ungroup": Price(_none, _elementwise(2), "memory"),
    "grouped_linear": Price(_grouped_flops, _grouped_bytes, "matmul"),
    "grouped_linear_input_grad": Price(_grouped_flops, _grouped_bytes, "matmul"),
    "grouped_linear_weight_grad": Price(_grouped_flops, _grouped_bytes, "matmul"),
    "combine": Price(_none, _permuted_bytes(1, 1), "memory"),
    "combine_grad": Price(_none, _permuted_bytes(2, 1), "memory"),  # x, dx; dy
    "dropout": Price(_none, _dropout_bytes, "memory"),
    "dropout_grad": Price(_none, _dropout_bytes, "memory"),
    "dropout_add": Price(_none, _dropout_add_bytes, "memory"),
    "embedding": Price(_none, _embedding_bytes, "memory"),
    "embedding_weight_grad": Price(_none, _embedding_grad_bytes, "memory"),
    "cross_entropy_stats": Price(_none, _stats_bytes, "memory"),
    "cross_entropy": Price(_none, _loss_bytes, "memory"),
    "cross_entropy_grad": Price(_none, _loss_grad_bytes, "memory"),
    "convert": Price(_none, _convert_bytes, "memory"),
    "log_softmax": Price(_none, _elementwise(2), "memory"),  # logits, l
    "likelihood_grad": Price(_none, _elementwise(1), "memory"),  # dl
    "log_softmax_grad": Price(_none, _elementwise(3), "memory"),  # dl, l, dlogits
    "vocabulary_softmax": Price(_none, _elementwise(7), "memory"),  # logits shifted; exponential; sum; quotient: all but the sum written too
    "vocabulary_softmax_grad": Price(_none, _elementwise(2), "memory"),  # p, read and written
    "mean_squared_error": Price(_none, _elementwise(3), "memory"),  # y, target, dy
    "residual_add": Price(_none, _residual_bytes, "memory"),
    "column_slice": Price(_none, _elementwise(2), "memory"),  # the part, read and written
    "zero": Price(_none, _flat_bytes(1), "memory"),
    "accumulate": Price(_none, _flat_bytes(3), "memory"),
    "squared_norm": Price(_none, _flat_bytes(1), "memory"),
    "list_slices": Price(_none, _none, "memory", lambda kernel: dims(kernel)[0]),
    "copy_slices": Price(_none, _flat_bytes(2), "memory", lambda kernel: dims(kernel)[1]),
    "flat_slice": Price(_none, _flat_bytes(2), "memory"),
    "adam": Price(_none, _adam_bytes, "memory"),
    "copy_to_host": Price(_none, _flat_bytes(1), "link"),
    "copy_from_host": Price(_none, _flat_bytes(1), "link"),
    "host_adam": Price(_none, _adam_bytes, "host"),
}


def signature(kernel: Kernel) -> tuple[object, ...]:
    """What the price of a kernel depends on: kernels of one signature cost the same."""
    return kernel.name, kernel.dims, kernel.dtype, kernel.role, kernel.parts, len(kernel.reads), tuple([ref in kernel.reads for ref in kernel.writes])


def flops(kernel: Kernel) -> float:
    """FLOPs of the matrix products in `kernel`; 0 for elementwise work and given times."""
    return PRICES[kernel.name].flops(kernel)


def bytes_moved(kernel: Kernel) -> float:
    """Bytes that `kernel` reads from and writes to the device's memory at least."""
    return PRICES[kernel.name].bytes(kernel)
