"""FLOPs of ops of torch from the shapes that its profiler records (record_shapes=True)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

Shape = Sequence[int]


class Attention(NamedTuple):
    """Where an op of attention has its queries, followed by keys and values, and its flag `is_causal`; `heads` is the dimension of heads.

    `products` counts matrix products over all pairs of queries and keys: 2 forward, 5 backward (FlashAttention-2, Dao 2023, section 3)."""

    query: int
    causal: int
    heads: int
    products: int


# Positions of arguments as in aten's native_functions.yaml.
ATTENTIONS: Mapping[str, Attention] = {
    "aten::scaled_dot_product_attention": Attention(0, 5, 1, 2),
    "aten::_scaled_dot_product_flash_attention": Attention(0, 4, 1, 2),
    "aten::_scaled_dot_product_flash_attention_for_cpu": Attention(0, 4, 1, 2),
    "aten::_scaled_dot_product_efficient_attention": Attention(0, 6, 1, 2),
    "aten::_scaled_dot_product_cudnn_attention": Attention(0, 6, 1, 2),
    "aten::_flash_attention_forward": Attention(0, 8, 2, 2),
    "aten::_scaled_dot_product_flash_attention_backward": Attention(1, 11, 1, 5),
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": Attention(1, 7, 1, 5),
    "aten::_flash_attention_backward": Attention(1, 11, 2, 5),
}
# First of the two matrices that an op multiplies.
PRODUCTS: Mapping[str, int] = {"aten::mm": 0, "aten::bmm": 0, "aten::_scaled_mm": 0, "aten::addmm": 1, "aten::baddbmm": 1, "aten::linear": 0}


def flops_of(name: str, args: Mapping[str, Any]) -> float:
    """FLOPs of an op, 2 per multiply-add, causal attention at half of all pairs; 0 where they are not known."""
    shapes = args.get("Input Dims")
    if not isinstance(shapes, Sequence) or isinstance(shapes, str):
        return 0.0
    if name in PRODUCTS:
        return _product(name, shapes)
    return _attention(ATTENTIONS[name], shapes, args.get("Concrete Inputs")) if name in ATTENTIONS else 0.0


def _shape(shapes: Sequence[Any], i: int, least: int) -> Shape | None:
    found = shapes[i] if i < len(shapes) else None
    fine = isinstance(found, list) and len(found) >= least and all(isinstance(n, int) and n >= 0 for n in found)
    return found if fine else None


def _product(name: str, shapes: Sequence[Any]) -> float:
    """2 m k n, times the matrices of a batch"""
    a, b = _shape(shapes, PRODUCTS[name], 2), _shape(shapes, PRODUCTS[name] + 1, 2)
    if a is None or b is None:
        return 0.0
    return 2.0 * prod(a) * (b[0] if name == "aten::linear" else b[-1])


def _attention(form: Attention, shapes: Sequence[Any], concrete: Any) -> float:
    """2 b h s t d for each product, half of it where causal"""
    query, key = _shape(shapes, form.query, 4), _shape(shapes, form.query + 1, 4)
    if query is None or key is None:
        return 0.0
    causal = isinstance(concrete, Sequence) and form.causal < len(concrete) and concrete[form.causal] == "True"
    keys = key[1] if form.heads == 2 else key[2]
    return (0.5 if causal else 1.0) * form.products * 2.0 * prod(query) * keys
