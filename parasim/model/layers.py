"""Closed forms of a model: parameters, matrices, FLOPs and activation bytes, per layer and whole. Every formula has its source.

The formulas here are the independent check of what lowering emits kernel by kernel; reports use `model_flops` for MFU.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from .spec import Fixed, Mlp, Model, Transformer

FULL_ATTENTION = "full attention: every query is counted against every key (Chowdhery et al. 2022, appendix B; Narayanan et al. 2021)"
CAUSAL_ATTENTION = "causal attention: half of the query-key pairs are counted"


class Matrix(NamedTuple):
    """A weight matrix that multiplies every token: y (tokens, columns) = x (tokens, inner) w. `role` is its Megatron cut."""

    name: str
    inner: int
    columns: int
    role: Literal["column", "row"]


def attention_convention(causal: bool = False) -> str:
    """The counting convention of attention FLOPs, in words for the report."""
    return CAUSAL_ATTENTION if causal else FULL_ATTENTION


def layer_matrices(model: Model) -> tuple[Matrix, ...]:
    """Weight matrices of one layer, in order of use. qkv packs heads + 2 kv_heads; a swiglu's up matrix packs gate and up."""
    if isinstance(model, Transformer):
        gates = 2 if model.activation == "swiglu" else 1
        return (
            Matrix("qkv", model.hidden, (model.heads + 2 * model.kv_heads) * model.head_dim, "column"),
            Matrix("out", model.heads * model.head_dim, model.hidden, "row"),
            Matrix("up", model.hidden, gates * model.ffn, "column"),
            Matrix("down", model.ffn, model.hidden, "row"),
        )
    if isinstance(model, Mlp):
        return (Matrix("up", model.hidden, model.ffn, "column"), Matrix("down", model.ffn, model.hidden, "row"))
    return ()


def norm_parameters(model: Model) -> int:
    """Parameters of one norm: weight, and bias of a layer norm."""
    if not isinstance(model, Transformer):
        return 0
    return model.hidden * (2 if model.norm == "layer_norm" else 1)


def layer_parameters(model: Model) -> int:
    """Parameters of one layer: its matrices, their biases (one per column) and two norms."""
    matrices = layer_matrices(model)
    biases = sum(m.columns for m in matrices) if isinstance(model, Transformer) and model.bias else 0
    if isinstance(model, Fixed):
        return model.parameters // model.layers
    return sum(m.inner * m.columns for m in matrices) + biases + 2 * norm_parameters(model)


def embedding_parameters(model: Model) -> int:
    """Token rows and, when positions are learned, position rows."""
    if not isinstance(model, Transformer):
        return 0
    return model.hidden * (model.vocab + (model.max_positions if model.positions == "learned" else 0))


def head_parameters(model: Model) -> int:
    """Parameters of the language-model head that are its own: none when it is tied to the embedding."""
    return model.vocab * model.hidden if isinstance(model, Transformer) and not model.tied else 0


def parameters(model: Model) -> int:
    """Exact number of trainable parameters, tied weights counted once."""
    if isinstance(model, Fixed):
        return model.parameters
    final_norm = norm_parameters(model)
    return embedding_parameters(model) + model.layers * layer_parameters(model) + final_norm + head_parameters(model)


def layer_matmul_flops(model: Model, tokens: float) -> float:
    """Forward FLOPs of one layer's matrices on `tokens` tokens: 2 per multiply-add; attention scores are not included."""
    return 2.0 * tokens * sum(m.inner * m.columns for m in layer_matrices(model))


def layer_attention_flops(model: Model, tokens: float, sequence: int, causal: bool = False) -> float:
    """Forward FLOPs of one layer's q k^T and its product with v: 4 tokens sequence heads head_dim, half of it when `causal`."""
    if not isinstance(model, Transformer):
        return 0.0
    return 4.0 * tokens * sequence * model.heads * model.head_dim * (0.5 if causal else 1.0)


def head_flops(model: Model, tokens: float) -> float:
    """Forward FLOPs of the language-model head: 2 tokens hidden vocab."""
    return 2.0 * tokens * model.hidden * model.vocab if isinstance(model, Transformer) else 0.0


def forward_flops(model: Model, tokens: float, sequence: int, causal: bool = False) -> float:
    """FLOPs of one forward pass over `tokens` tokens in sequences of `sequence`. Matrices and attention only, as MFU counts them."""
    layer = layer_matmul_flops(model, tokens) + layer_attention_flops(model, tokens, sequence, causal)
    return model.layers * layer + head_flops(model, tokens)


def model_flops(model: Model, tokens: float, sequence: int, causal: bool = False) -> float:
    """FLOPs of one training step over `tokens` tokens: the forward pass and twice that for the backward, without any recompute.

    For a GPT with f = 4 h this is 72 B s L h^2 (1 + s/(6h) + V/(12 L h)), equation 3 of Narayanan et al. 2021 less its recompute.
    `causal` picks the convention that `attention_convention` prints. A Fixed model has given times and no FLOPs: 0.
    """
    return 3.0 * forward_flops(model, tokens, sequence, causal)


def layer_activation_bytes(
    model: Model,
    micro: int,
    sequence: int,
    *,
    tp: int = 1,
    sequence_parallel: bool = False,
    attention: Literal["materialised", "tiled"] = "tiled",
    dropout: bool = False,
    recompute: Literal["none", "selective", "full"] = "none",
    element: int = 2,
) -> float:
    """Bytes that one layer keeps from forward to backward for one micro-batch of `micro` sequences, per rank.

    With gelu, f = 4 h, kv_heads = heads, dropout and materialised scores it is s b h (10 + 24/t + 5 a s/(h t)), or all of it over t with
    sequence parallelism (Korthikanti et al. 2022, equations 2 and 4); "selective" recompute drops the attention core's, the last term (equation 6);
    "full" keeps the layer's input, 2 s b h. Tiled attention
    keeps the log-sum-exp of each head's rows (fp32) in place of the scores. Saved are the inputs of both norms and of qkv and up, then qkv, attention
    output, the up projection and its activation; dropout adds a byte per element of two masks and of the scores' mask.
    """
    tokens = micro * sequence
    if not isinstance(model, Transformer):
        widths = (model.hidden + 2 * model.ffn / tp) if isinstance(model, Mlp) and recompute == "none" else getattr(model, "hidden", 0)
        return float(element * tokens * widths)
    whole = tp if sequence_parallel else 1
    if recompute == "full":
        return element * tokens * model.hidden / whole
    qkv, _, up, _ = (m.columns for m in layer_matrices(model))
    masks = 2 * model.hidden if dropout else 0
    kept = tokens * (element * 4 * model.hidden + masks) / whole
    cut = element * tokens * (qkv + model.heads * model.head_dim + up + model.ffn) / tp
    pairs = tokens * sequence * model.heads / tp
    scores = pairs * (2 * element + 1 if dropout else element) if attention == "materialised" else 4.0 * tokens * model.heads / tp
    return kept + cut + (0.0 if recompute == "selective" else scores)
