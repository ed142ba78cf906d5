"""The dims pass: every kernel's dims from the shapes of the buffers it touches, after all cutting is done."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from types import MappingProxyType
from typing import Any

from ..program.ops import Compute, Kernel, Ref
from .draft import Draft

Dims = tuple[int | float | str, ...]
Shape = Callable[[Ref], tuple[Any, ...]]  # entries are integers, or names of load tables where routing decides


def _product(first: int, step: int = 1) -> Callable[[Kernel, Shape], Dims]:
    """A product with weights side by side, as many as its one dim says (none: 1): every `step`-th of the reads from `first` on."""

    def dims(k: Kernel, s: Shape) -> Dims:
        weights = int(k.dims[0]) if k.dims else 1
        return _beside(k, s, k.reads[first : first + step * weights : step])

    return dims


def _others(k: Kernel, s: Shape) -> Dims:
    """A product of the rows that another one, the second of the reads, has left."""
    rows, *more = _product(2)(k, s)
    return (rows - s(k.reads[1])[0], *more)


def _linear_weight_grad(k: Kernel, s: Shape) -> Dims:
    return _beside(k, s, k.writes)


def _beside(k: Kernel, s: Shape, weights: tuple[Ref, ...]) -> Dims:
    return (s(k.reads[0])[0], s(weights[0])[0], sum(s(w)[1] for w in weights), *k.dims)


def _head(k: Kernel, s: Shape) -> Dims:
    columns, inner = s(k.reads[1])
    return s(k.reads[0])[0], inner, columns


def _head_weight_grad(k: Kernel, s: Shape) -> Dims:
    columns, inner = s(k.writes[0])
    return s(k.reads[0])[0], inner, columns


def _written(k: Kernel, s: Shape) -> Dims:
    return s(k.writes[0])


def _read(k: Kernel, s: Shape) -> Dims:
    return s(k.reads[0])


def _heads(packed: int) -> Callable[[Kernel, Shape], Dims]:
    """Attention and rotary: the columns of the packed qkv tell the heads held here; `packed` is its position among the reads."""

    def dims(k: Kernel, s: Shape) -> Dims:
        batch, sequence, heads, kv_heads, head_dim, *value_dim = map(int, k.dims)
        group = heads // kv_heads
        held = s(k.reads[packed])[1] // ((group + 1) * head_dim + (value_dim or [head_dim])[0])
        return batch, sequence, held * group, held, head_dim, *value_dim

    return dims


def _parts_of_sequence(k: Kernel, s: Shape) -> Dims:
    batch, parts = map(int, k.dims)
    rows, columns = s(k.reads[0])
    return batch, rows // (batch * parts), columns, parts


def _latent_norm(of: Callable[[Kernel], Ref]) -> Callable[[Kernel, Shape], Dims]:
    """`of` the kernel's refs is as wide as the norm; x is wider by the shared key."""
    return lambda k, s: (*s(of(k)), *k.dims)


def _latent_heads(k: Kernel, s: Shape) -> Dims:
    """The packed columns tell the heads held here."""
    batch, sequence, _, nope, rope, value = map(int, k.dims)
    packed = s((k.writes if len(k.writes) == 1 else k.reads)[0])[1]
    return batch, sequence, packed // (2 * (nope + rope) + value), nope, rope, value


def _rows_of_scores(k: Kernel, s: Shape) -> Dims:
    heads, rows, sequence = s(k.writes[0])
    return heads * rows, sequence


def _grouped(k: Kernel, s: Shape) -> Dims:
    experts, inner, columns = s(k.writes[0] if k.name == "grouped_linear_weight_grad" else k.reads[1])
    return s(k.reads[0])[0], inner, columns, experts


def _copies(copies: int, tokens: int) -> Callable[[Kernel, Shape], Dims]:
    """Rows of copies and of tokens, from the operand at that place among reads and then writes."""

    def dims(k: Kernel, s: Shape) -> Dims:
        operands = (*k.reads, *k.writes)
        return (*s(operands[copies]), s(operands[tokens])[0])

    return dims


def _elements(k: Kernel, s: Shape) -> Dims:
    return (sum(prod(s(w)) for w in k.writes),)


DIMS: Mapping[str, Callable[[Kernel, Shape], Dims]] = MappingProxyType(
    {
        "sample": lambda k, s: (prod(s(k.writes[0])), k.dims[0]) if k.dims else s(k.writes[0]),
        "delay": lambda k, s: k.dims,
        "linear": _product(1),
        "linear_input_grad": _product(1),
        "linear_weight_grad": _linear_weight_grad,
        "linear_others": _others,
        "linear_input_grad_others": _others,
        "cast": lambda k, s: (prod(s(k.writes[0])),),
        "scaled_linear": _product(2, 2),
        "scaled_linear_input_grad": _product(2, 2),
        "scaled_linear_weight_grad": _linear_weight_grad,
        "bias_grad": _read,
        "head": _head,
        "head_input_grad": _head,
        "head_weight_grad": _head_weight_grad,
        "gelu": _written,
        "gelu_grad": _written,
        "swiglu": _written,
        "swiglu_grad": _read,
        "geglu": _written,
        "geglu_grad": _read,
        "relu": _written,
        "relu_grad": _written,
        "squared_relu": _written,
        "squared_relu_grad": _written,
        "gate_silu": _written,
        "gate_silu_grad": lambda k, s: s(k.reads[0]),
        "gate_gelu": _written,
        "gate_gelu_grad": lambda k, s: s(k.reads[0]),
        "gate_product": _written,
        "gate_product_grad": _read,
        "layer_norm": _written,
        "layer_norm_input_grad": _written,
        "layer_norm_weight_grad": _read,
        "rms_norm": _written,
        "rms_norm_input_grad": _written,
        "rms_norm_weight_grad": _read,
        "rotary": _heads(0),
        "rotary_grad": _heads(0),
        "qk_norm": _heads(0),
        "qk_norm_input_grad": _heads(0),
        "qk_norm_weight_grad": _heads(0),
        "latent_norm": _latent_norm(lambda k: k.writes[0]),
        "latent_norm_input_grad": _latent_norm(lambda k: k.reads[0]),
        "latent_norm_weight_grad": _latent_norm(lambda k: k.reads[0]),
        "latent_rotary": _latent_heads,
        "latent_rotary_grad": _latent_heads,
        "attention": _heads(0),
        "attention_grad": _heads(1),
        "attention_block": _heads(0),
        "attention_block_grad": _heads(1),
        "kv_slice": _heads(0),
        "kv_slice_grad": _heads(1),
        "split_rows": lambda k, s: (*s(k.reads[0]), len(k.writes)),
        "join_rows": lambda k, s: (s(k.writes[0])[0], prod(s(k.writes[0])[1:]), len(k.reads)),
        "columns_to_blocks": lambda k, s: (*s(k.reads[0]), k.dims[0]),
        "blocks_to_columns": lambda k, s: (*s(k.writes[0]), k.dims[0]),
        "blocks_to_sequence": _parts_of_sequence,
        "sequence_to_blocks": _parts_of_sequence,
        "attention_scores": _heads(0),
        "attention_scores_grad": _heads(3),
        "attention_context": _heads(1),
        "attention_context_grad": _heads(1),
        "causal_softmax": _rows_of_scores,
        "causal_softmax_grad": _rows_of_scores,
        "route": lambda k, s: (*s(k.reads[0]), *k.dims),
        "route_grad": lambda k, s: (*s(k.reads[1]), *k.dims),
        "permute": _copies(3, 0),
        "permute_grad": _copies(0, 3),
        "group": _written,
        "ungroup": _written,
        "grouped_linear": _grouped,
        "grouped_linear_input_grad": _grouped,
        "grouped_linear_weight_grad": _grouped,
        "combine": _copies(0, 3),
        "combine_grad": _copies(1, 0),
        "dropout": lambda k, s: (prod(s(k.writes[0])),),
        "dropout_grad": lambda k, s: (prod(s(k.writes[0])),),
        "dropout_add": _written,
        "embedding": _written,
        "embedding_weight_grad": lambda k, s: s(k.reads[1]),
        "cross_entropy_stats": lambda k, s: (*s(k.reads[0]), *k.dims),
        "cross_entropy": lambda k, s: (s(k.reads[0])[1], s(k.reads[0])[0], k.dims[0]),
        "cross_entropy_grad": lambda k, s: (*s(k.reads[0]), *k.dims),
        "convert": _elements,
        "log_softmax": lambda k, s: (*s(k.reads[0]), *k.dims),
        "log_softmax_grad": lambda k, s: (*s(k.reads[0]), k.dims[0]),
        "likelihood_grad": lambda k, s: (*s(k.writes[0]), k.dims[0]),
        "vocabulary_softmax": lambda k, s: (*s(k.reads[0]), *k.dims),
        "vocabulary_softmax_grad": lambda k, s: (*s(k.writes[0]), k.dims[0]),
        "mean_squared_error": lambda k, s: (*s(k.reads[0]), k.dims[0]),
        "residual_add": _written,
        "column_slice": _written,
        "zero": _elements,
        "accumulate": _elements,
        "squared_norm": lambda k, s: (sum(prod(s(r)) for r in k.reads if r not in k.writes),),
        "flat_slice": _elements,
        "adam": lambda k, s: (prod(s(k.reads[0])),),
        "host_adam": lambda k, s: (prod(s(k.reads[0])),),
        "list_slices": lambda k, s: k.dims,
        "copy_slices": lambda k, s: (*_elements(k, s), *k.dims),
        "copy_to_host": _elements,
        "copy_from_host": _elements,
    }
)


def dims(draft: Draft) -> None:
    """Fill in the dims of every kernel."""

    def shape(ref: Ref) -> tuple[Any, ...]:
        return draft.buffers[ref.name].shape

    for key, body in draft.bodies.items():
        draft.bodies[key] = [_filled(op, shape) if isinstance(op, Compute) else op for op in body]


def _filled(op: Compute, shape: Shape) -> Compute:
    kernels = tuple(Kernel(k.name, k.reads, k.writes, DIMS[k.name](k, shape), k.dtype, k.role, k.parts) for k in op.kernels)
    return Compute(label=op.label, stream=op.stream, after=op.after, window=op.window, kernels=kernels, workspace=op.workspace)
