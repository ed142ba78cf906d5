"""What a model is: a dense decoder transformer, a deep MLP, or fixed times. Sizes only; nothing here knows a cluster or a layout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Transformer:
    """A decoder-only transformer. Widths are in elements; `bias` adds biases to every linear layer (GPT), `positions` learned or rotary."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    activation: Literal["gelu", "swiglu"] = "swiglu"
    norm: Literal["layer_norm", "rms_norm"] = "rms_norm"
    bias: bool = False
    positions: Literal["learned", "rotary"] = "rotary"
    max_positions: int = 0
    tied: bool = False
    kind: Literal["transformer"] = "transformer"


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

    `parameters` is the whole model's count, `boundary` the bytes of one message between stages.
    """

    name: str
    layers: int
    forward: float
    input_grad: float
    weight_grad: float
    optimizer: float = 0.0
    parameters: int = 0
    boundary: int = 0
    kind: Literal["fixed"] = "fixed"


Model = Transformer | Mlp | Fixed
