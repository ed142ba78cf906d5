"""What a model is: a decoder transformer, a deep MLP, or fixed times. Sizes only; nothing here knows a cluster or a layout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Experts:
    """A mixture of experts in place of the feed-forward of a layer (Shazeer et al. 2017, arXiv 1701.06538).

    `count` routed experts of inner width `ffn`, `topk` of them for each token; `shared_ffn` is the inner width of all shared experts together
    (DeepSeekMoE, arXiv 2401.06066; 0: none). The first `dense_layers` layers keep their dense feed-forward, after them every `every`-th has experts.
    """

    count: int
    topk: int
    ffn: int
    shared_ffn: int = 0
    dense_layers: int = 0
    every: int = 1
    score: Literal["softmax", "sigmoid"] = "softmax"

    def at(self, layer: int) -> bool:
        """Whether `layer` (from 0) has experts."""
        return layer >= self.dense_layers and (layer - self.dense_layers + 1) % self.every == 0


@dataclass(frozen=True)
class Latent:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1): widths of the compressions and of one head.

    `query_rank` 0: queries are not compressed. A head's queries and keys are `nope_dim` + `rope_dim` wide, its values `value_dim`.
    """

    kv_rank: int
    query_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int


Activation = Literal["gelu", "relu", "squared_relu", "swiglu", "geglu"]
GATED: tuple[Activation, ...] = ("swiglu", "geglu")
Bias = bool | Literal["qkv", "attention", "mlp"]
BIASED: dict[Bias, tuple[str, ...]] = {True: ("qkv", "out", "up", "down"), False: (), "qkv": ("qkv",), "attention": ("qkv", "out"), "mlp": ("up", "down")}


@dataclass(frozen=True)
class Transformer:
    """A decoder-only transformer. Widths are in elements.

    `bias` says which linear layers have biases: all (GPT), none (Llama), `qkv` (Qwen 2), `attention` or `mlp` alone.
    `norm_weights`: `all` of a norm, its `scale` only (a layer norm without bias) or `none` (OLMo). `norm_at`: norms before each branch (`pre`), on what
    it adds to the residual stream (`post`, OLMo 2) or `both` (Gemma 2). `qk_norm`: RMS norms on queries and keys, per `head` (Qwen 3) or over the
    `full` width (OLMo 2). `experts` and `latent` replace the feed-forward and the attention of its layers. `notes`: what was assumed when it was read.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    activation: Activation = "swiglu"
    norm: Literal["layer_norm", "rms_norm"] = "rms_norm"
    bias: Bias = False
    positions: Literal["learned", "rotary", "alibi", "none"] = "rotary"
    max_positions: int = 0
    tied: bool = False
    norm_weights: Literal["all", "scale", "none"] = "all"
    norm_at: Literal["pre", "post", "both"] = "pre"
    qk_norm: Literal["none", "head", "full"] = "none"
    experts: Experts | None = None
    latent: Latent | None = None
    notes: tuple[str, ...] = ()
    kind: Literal["transformer"] = "transformer"

    @property
    def gates(self) -> int:
        """Columns of the up projection per column of the activation's result: 2 when the activation is gated."""
        return 2 if self.activation in GATED else 1

    @property
    def key_dim(self) -> int:
        """Width of one head's queries and keys."""
        return self.latent.nope_dim + self.latent.rope_dim if self.latent else self.head_dim

    @property
    def value_dim(self) -> int:
        """Width of one head's values."""
        return self.latent.value_dim if self.latent else self.head_dim

    @property
    def qkv(self) -> int:
        """Columns of queries, keys and values together, as attention reads them; the keys and values of `latent` are one per query head."""
        kv = self.heads if self.latent else self.kv_heads
        return (self.heads + kv) * self.key_dim + kv * self.value_dim

    def biased(self, matrix: str) -> bool:
        """Whether the linear layer `matrix` (qkv, out, up, down) has a bias."""
        return matrix in BIASED[self.bias]

    def sparse(self, layer: int) -> bool:
        """Whether `layer` (from 0) has experts."""
        return self.experts is not None and self.experts.at(layer)


@dataclass(frozen=True)
class Mlp:
    """A deep residual MLP: x + gelu(x W1) W2 per layer, no biases, mean squared error at the end."""

    name: str
    layers: int
    hidden: int
    ffn: int
    kind: Literal["mlp"] = "mlp"


@dataclass(frozen=True)
class Fixed:
    """Given times (seconds): forward, input_grad, weight_grad of one layer and microbatch, optimizer of one step of a rank.

    `parameters` is the whole model's count, `boundary` the bytes of one message between stages,
    `saved` those that a layer keeps beside its input from its forward to its backward, per microbatch.
    """

    name: str
    layers: int
    forward: float
    input_grad: float
    weight_grad: float
    optimizer: float = 0.0
    parameters: int = 0
    boundary: int = 0
    saved: int = 0
    kind: Literal["fixed"] = "fixed"


Model = Transformer | Mlp | Fixed
