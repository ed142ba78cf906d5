"""Closed forms of a model: parameters, matrices, FLOPs and activation bytes, per layer and whole. Every formula has its source.

The formulas here are the independent check of what lowering emits kernel by kernel; reports use `model_flops` for MFU.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from .spec import Experts, Fixed, Latent, Mlp, Model, Transformer

FULL_ATTENTION = "full attention: every query is counted against every key (Chowdhery et al. 2022, appendix B; Narayanan et al. 2021)"
CAUSAL_ATTENTION = "causal attention: half of the query-key pairs are counted"


class Matrix(NamedTuple):
    """Weight matrices that multiply tokens: y (tokens, columns) = x (tokens, inner) w. `role` is their Megatron cut.

    There are `copies` of it in a layer, `used` of which multiply a token: experts.
    """

    name: str
    inner: int
    columns: int
    role: Literal["column", "row", "whole"]
    copies: int = 1
    used: int = 1

    @property
    def elements(self) -> int:
        """Weights of one copy."""
        return self.inner * self.columns


def attention_convention(causal: bool = False) -> str:
    """The counting convention of attention FLOPs, in words for the report."""
    return CAUSAL_ATTENTION if causal else FULL_ATTENTION


def layer_matrices(model: Model, layer: int = 0) -> tuple[Matrix, ...]:
    """Weight matrices of `layer`, in order of use. qkv packs heads + 2 kv_heads; the up matrix of a gated activation packs gate and up.

    Latent attention: DeepSeek-V2 (arXiv 2405.04434), equations 9 to 19, the shared rotary key beside the compressed keys and values (kv_down).
    """
    if isinstance(model, Transformer):
        mixing = _latent_matrices(model, model.latent) if model.latent else _attention_matrices(model)
        return mixing + (_expert_matrices(model, model.experts) if model.experts and model.sparse(layer) else _feed_forward(model, "", model.ffn))
    if isinstance(model, Mlp):
        return (Matrix("up", model.hidden, model.ffn, "column"), Matrix("down", model.ffn, model.hidden, "row"))
    return ()


def _attention_matrices(model: Transformer) -> tuple[Matrix, ...]:
    return (Matrix("qkv", model.hidden, model.qkv, "column"), Matrix("out", model.heads * model.head_dim, model.hidden, "row"))


def _latent_matrices(model: Transformer, latent: Latent) -> tuple[Matrix, ...]:
    queries = model.heads * model.key_dim
    compressed = (Matrix("q_down", model.hidden, latent.query_rank, "whole"), Matrix("q_up", latent.query_rank, queries, "column"))
    return (
        *(compressed if latent.query_rank else (Matrix("q", model.hidden, queries, "column"),)),
        Matrix("kv_down", model.hidden, latent.kv_rank + latent.rope_dim, "whole"),
        Matrix("kv_up", latent.kv_rank, model.heads * (latent.nope_dim + latent.value_dim), "column"),
        Matrix("out", model.heads * latent.value_dim, model.hidden, "row"),
    )


def _feed_forward(model: Transformer, prefix: str, ffn: int, copies: int = 1, used: int = 1) -> tuple[Matrix, ...]:
    return (
        Matrix(f"{prefix}up", model.hidden, model.gates * ffn, "column", copies, used),
        Matrix(f"{prefix}down", ffn, model.hidden, "row", copies, used),
    )


def _expert_matrices(model: Transformer, experts: Experts) -> tuple[Matrix, ...]:
    router = Matrix("router", model.hidden, experts.count, "whole")
    shared = _feed_forward(model, "shared_", experts.shared_ffn) if experts.shared_ffn else ()
    return (router, *_feed_forward(model, "expert_", experts.ffn, experts.count, experts.topk), *shared)


def norm_parameters(model: Model, width: int | None = None) -> int:
    """Parameters of one norm over `width` (default hidden): weight, and bias of a layer norm, as far as the model's norms have them."""
    if not isinstance(model, Transformer) or model.norm_weights == "none":
        return 0
    return (width or model.hidden) * (2 if model.norm == "layer_norm" and model.norm_weights == "all" else 1)


def _small_norms(model: Transformer) -> int:
    """Parameters of the RMS norms on queries and keys and on the compressions of latent attention."""
    latent = model.latent.query_rank + model.latent.kv_rank if model.latent else 0
    heads = {"none": 0, "head": 2, "full": model.heads + model.kv_heads}[model.qk_norm]
    return latent + heads * model.head_dim


def layer_parameters(model: Model, layer: int = 0) -> int:
    """Parameters of `layer`: its matrices, their biases (one per column) and its norms."""
    if isinstance(model, Fixed):
        return model.parameters // model.layers
    matrices = layer_matrices(model, layer)
    weights = sum(m.copies * m.elements for m in matrices)
    if isinstance(model, Mlp):
        return weights
    biases = sum(m.columns for m in matrices if model.biased(m.name))
    return weights + biases + (4 if model.norm_at == "both" else 2) * norm_parameters(model) + _small_norms(model)


def embedding_parameters(model: Model) -> int:
    """Token rows and, when positions are learned, position rows."""
    if not isinstance(model, Transformer):
        return 0
    return model.hidden * (model.vocab + (model.max_positions if model.positions == "learned" else 0))


def head_parameters(model: Model) -> int:
    """Parameters of the language-model head that are its own: none when it is tied to the embedding."""
    return model.vocab * model.hidden if isinstance(model, Transformer) and not model.tied else 0


def _kinds(model: Model) -> tuple[tuple[int, int], ...]:
    """(a layer of each kind, how many there are of it): layers with experts and layers without."""
    sparse = [isinstance(model, Transformer) and model.sparse(n) for n in range(model.layers)]
    return tuple((sparse.index(kind), sparse.count(kind)) for kind in sorted(set(sparse)))


def parameters(model: Model) -> int:
    """Exact number of trainable parameters, tied weights counted once."""
    if isinstance(model, Fixed):
        return model.parameters
    final_norm = norm_parameters(model)
    layers = sum(count * layer_parameters(model, n) for n, count in _kinds(model))
    return embedding_parameters(model) + layers + final_norm + head_parameters(model)


def parameter_tensors(model: Model) -> int:
    """Number of parameter tensors where nothing is packed: queries, keys and values, and gate and up, each by itself. Fixed: one per layer."""
    if not isinstance(model, Transformer):
        return model.layers if isinstance(model, Fixed) else 2 * model.layers
    norm = norm_parameters(model) // model.hidden
    total = norm + (0 if model.tied else 1) + 1 + (model.positions == "learned")
    for n, count in _kinds(model):
        for m in layer_matrices(model, n):
            parts = 3 if m.name == "qkv" else model.gates if m.name.endswith("up") and m.name not in ("q_up", "kv_up") else 1
            total += count * m.copies * parts * (2 if model.biased(m.name) else 1)
        small = {"none": 0, "head": 2, "full": 2}[model.qk_norm] + (2 if model.latent and model.latent.query_rank else 1 if model.latent else 0)
        total += count * ((4 if model.norm_at == "both" else 2) * norm + small)
    return total


def active_parameters(model: Model) -> int:
    """Parameters that take part in one token's forward pass: all but the experts that it is not sent to. Embedding and head count."""
    idle = sum(count * sum((m.copies - m.used) * m.elements for m in layer_matrices(model, n)) for n, count in _kinds(model))
    return parameters(model) - idle


def layer_matmul_flops(model: Model, tokens: float, layer: int = 0) -> float:
    """Forward FLOPs of the matrices of `layer` on `tokens` tokens: 2 per multiply-add; attention scores are not included."""
    return 2.0 * tokens * sum(m.used * m.elements for m in layer_matrices(model, layer))


def layer_attention_flops(model: Model, tokens: float, sequence: int, causal: bool = False) -> float:
    """Forward FLOPs of one layer's q k^T and its product with v: 2 tokens sequence heads (key_dim + value_dim), half of it when `causal`."""
    if not isinstance(model, Transformer):
        return 0.0
    return 2.0 * tokens * sequence * model.heads * (model.key_dim + model.value_dim) * (0.5 if causal else 1.0)


def head_flops(model: Model, tokens: float) -> float:
    """Forward FLOPs of the language-model head: 2 tokens hidden vocab."""
    return 2.0 * tokens * model.hidden * model.vocab if isinstance(model, Transformer) else 0.0


def forward_flops(model: Model, tokens: float, sequence: int, causal: bool = False) -> float:
    """FLOPs of one forward pass over `tokens` tokens in sequences of `sequence`. Matrices and attention only, as MFU counts them."""
    matrices = sum(count * layer_matmul_flops(model, tokens, n) for n, count in _kinds(model))
    return matrices + model.layers * layer_attention_flops(model, tokens, sequence, causal) + head_flops(model, tokens)


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
    layer: int = 0,
    tp: int = 1,
    sequence_parallel: bool = False,
    attention: Literal["materialised", "tiled"] = "tiled",
    dropout: bool = False,
    recompute: Literal["none", "selective", "full"] = "none",
    element: int = 2,
) -> float:
    """Bytes that `layer` keeps from forward to backward for one micro-batch of `micro` sequences, per rank.

    With gelu, f = 4 h, kv_heads = heads, dropout and materialised scores it is s b h (10 + 24/t + 5 a s/(h t)), or all of it over t with
    sequence parallelism (Korthikanti et al. 2022, equations 2 and 4); "selective" recompute drops the attention core's, the last term (equation 6);
    "full" keeps the layer's input, 2 s b h. Tiled attention keeps the log-sum-exp of each head's rows (fp32) in place of the scores. Saved are the
    inputs of all norms and of qkv and up, then qkv (once more before norms on queries and keys), attention output, the up projection and its
    activation; dropout adds a byte per element of two masks and of the scores' mask. Latent attention keeps its compressions before and after
    their norms.
    """
    tokens = micro * sequence
    if not isinstance(model, Transformer):
        widths = (model.hidden + 2 * model.ffn / tp) if isinstance(model, Mlp) and recompute == "none" else getattr(model, "hidden", 0)
        return float(element * tokens * widths)
    whole = tp if sequence_parallel else 1
    if recompute == "full":
        return element * tokens * model.hidden / whole
    masks = 2 * model.hidden if dropout else 0
    uncut, cut = _kept_by_attention(model)
    uncut_ffn, cut_ffn = _kept_by_feed_forward(model, layer)
    kept = tokens * (element * (uncut + uncut_ffn) + masks) / whole + element * tokens * (cut + cut_ffn) / tp
    pairs = tokens * sequence * model.heads / tp
    scores = pairs * (2 * element + 1 if dropout else element) if attention == "materialised" else 4.0 * tokens * model.heads / tp
    return kept + (0.0 if recompute == "selective" else scores)


def _kept_by_attention(model: Transformer) -> tuple[int, int]:
    """Elements per token that the attention of a layer keeps, (not cut, cut) by tensor parallelism: without scores."""
    ends = (3 if model.norm_at == "both" else 2) * model.hidden
    small = 2 * (model.latent.query_rank + model.latent.kv_rank) + model.latent.rope_dim if model.latent else 0
    return ends + small, model.qkv * (1 if model.qk_norm == "none" else 2) + model.heads * model.value_dim


def _kept_by_feed_forward(model: Transformer, layer: int) -> tuple[int, int]:
    """The same of the feed-forward. Experts keep, for each token sent to one, its input and output beside up and activation, and the router's
    scores of every expert."""
    ends = (3 if model.norm_at == "both" else 2) * model.hidden
    widths = {m.name: m for m in layer_matrices(model, layer)}
    if not model.sparse(layer):
        return ends, widths["up"].columns + model.ffn
    up, shared = widths["expert_up"], widths.get("shared_up")
    sent = up.used * (2 * model.hidden + up.columns + widths["expert_down"].inner)
    return ends + widths["router"].columns, sent + (shared.columns + widths["shared_down"].inner if shared else 0)
