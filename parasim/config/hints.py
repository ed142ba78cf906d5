"""Schedule hints: how long F, I and W of a stage take relative to each other, from closed-form FLOPs. They only steer schedules that search."""

from __future__ import annotations

from ..model.layers import head_flops, layer_attention_flops, layer_matmul_flops
from ..model.spec import Fixed, Model
from ..parallel.layout import FULL, Batch, Recompute
from ..schedules import Times


def stage_times(model: Model, layers: tuple[int, ...], batch: Batch, recompute: Recompute) -> tuple[Times, ...]:
    """(F, I, W) of one microbatch on each stage of so many layers: seconds of a model of given times, else FLOPs.

    Per layer F is its matrices and causal attention; I the matrices again, attention in five products instead of two, and what is recomputed; W the
    matrices. The last stage has the head, a matrix. Lookups, norms and activations count nothing, and neither does communication.
    """
    if isinstance(model, Fixed):
        return tuple((n * model.forward, n * model.input_grad, n * model.weight_grad) for n in layers)
    tokens = batch.micro * batch.sequence
    matmul = layer_matmul_flops(model, tokens)
    attention = layer_attention_flops(model, tokens, batch.sequence, causal=True)
    again = matmul + attention if FULL in recompute.modules else attention if "core_attn" in recompute.modules else 0.0
    heads = [0.0] * (len(layers) - 1) + [head_flops(model, tokens)]
    return tuple(
        (n * (matmul + attention) + head, n * (matmul + 2.5 * attention + again) + head, n * matmul + head) for n, head in zip(layers, heads, strict=True)
    )
