"""The keys of a model that is written inline in a run file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BeforeValidator, Discriminator, PlainValidator, Tag

from .keys import Block, key
from .scalars import Count, Duration, Flag, Natural, Size, Things, Word, hint, shown, wrong


class MixtureKeys(Block):
    """A mixture of experts in place of the feed-forward of layers."""

    count: Count = key(..., "routed experts of one layer", "experts")
    topk: Count = key(..., "experts that each token is sent to", "experts")
    ffn: Count = key(..., "inner width of one expert", "elements")
    shared_ffn: Natural = key(0, "inner width of all shared experts together; 0: none", "elements")
    dense_layers: Natural = key(0, "first layers that keep their dense feed-forward", "layers")
    every: Count = key(1, "after those, every n-th layer has experts", "layers")
    score: Literal["softmax", "sigmoid"] = key("softmax", "of the router")


class LatentKeys(Block):
    """Multi-head latent attention (DeepSeek-V2)."""

    kv_rank: Count = key(..., "width of the compressed keys and values", "elements")
    query_rank: Natural = key(0, "width of the compressed queries; 0: not compressed", "elements")
    nope_dim: Count = key(..., "part of a head's queries and keys without positions", "elements")
    rope_dim: Count = key(..., "part of a head's queries and keys with rotary positions, shared by all keys", "elements")
    value_dim: Count = key(..., "width of one head's values", "elements")


def _bias_form(value: object) -> bool | str:
    if isinstance(value, bool) or value in ("qkv", "attention", "mlp"):
        return value
    raise wrong(f"{shown(value)} does not say which linear layers have biases; legal: true, false, qkv, attention, mlp")


def _notes_form(value: object) -> tuple[str, ...]:
    if isinstance(value, list | tuple) and all(isinstance(v, str) for v in value):
        return tuple(value)
    raise wrong(f"{shown(value)} is not a list of texts")


class TransformerKeys(Block):
    """A decoder transformer."""

    kind: Literal["transformer"] = key("transformer", "this form")
    name: Word | None = key(None, "what reports call it")
    layers: Things = key(..., "transformer blocks", "layers")
    hidden: Count = key(..., "width of the residual stream", "elements")
    heads: Count = key(..., "query heads of one layer", "heads")
    vocab: Count = key(..., "rows of the embedding and of the head", "tokens")
    kv_heads: Count | None = key(None, "key-value heads of one layer; omitted: heads", "heads")
    head_dim: Count | None = key(None, "width of one head; omitted: hidden / heads", "elements")
    ffn: Count | None = key(None, "inner width of the feed-forward; omitted: 4 hidden, or 8/3 hidden up to a multiple of 256 when gated", "elements")
    activation: Literal["gelu", "relu", "squared_relu", "swiglu", "geglu"] = key("swiglu", "of the feed-forward; swiglu and geglu are gated")
    norm: Literal["layer_norm", "rms_norm"] | None = key(None, "normalisation; omitted: rms_norm with a gated activation, else layer_norm")
    bias: Annotated[bool | str, PlainValidator(_bias_form)] = key(
        False, "which linear layers have biases", type_="`true` (all), `false` (none), `qkv`, `attention` or `mlp`"
    )
    positions: Literal["learned", "rotary", "alibi", "none"] = key("rotary", "position information")
    max_positions: Natural = key(0, "rows of the table of learned positions", "tokens")
    tied: Flag = key(False, "whether the head shares the embedding's weight")
    norm_weights: Literal["all", "scale", "none"] = key("all", "weights of a norm; scale: a layer norm without bias; none: OLMo's")
    norm_at: Literal["pre", "post", "both"] = key("pre", "pre: norms before each branch; post: on what it adds (OLMo 2); both (Gemma 2)")
    qk_norm: Literal["none", "head", "full"] = key("none", "RMS norms on queries and keys: per head (Qwen 3) or over the full width (OLMo 2)")
    experts: MixtureKeys | None = key(None, "mixture of experts in place of feed-forwards", type_="mapping, see below")
    latent: LatentKeys | None = key(None, "multi-head latent attention in place of attention", type_="mapping, see below")
    notes: Annotated[tuple[str, ...], PlainValidator(_notes_form)] = key((), "said among the assumptions of a report", type_="list of texts")


class MlpKeys(Block):
    """A deep residual MLP."""

    kind: Literal["mlp"] = key(..., "this form")
    name: Word | None = key(None, "what reports call it")
    layers: Things = key(..., "residual blocks", "layers")
    hidden: Count = key(..., "width of the residual stream", "elements")
    ffn: Count | None = key(None, "inner width; omitted: 4 hidden", "elements")


class FixedKeys(Block):
    """Given times instead of a model, for studies and tests."""

    kind: Literal["fixed"] = key(..., "this form")
    name: Word | None = key(None, "what reports call it")
    layers: Things = key(..., "layers, each of the times below", "layers")
    forward: Duration = key(..., "forward of one layer and microbatch", "time")
    input_grad: Duration = key(..., "gradient of the input, one layer and microbatch", "time")
    weight_grad: Duration = key(..., "gradient of the weights, one layer and microbatch", "time")
    optimizer: Duration = key(0.0, "optimizer step of one rank", "time")
    parameters: Natural = key(0, "of the whole model; 7.5e9 is fine", "parameters")
    boundary: Size = key(0, "one message between neighbouring stages", "size")
    saved: Size = key(0, "what a layer keeps beside its input from its forward to its backward, one microbatch", "size")


MODEL_KINDS: dict[str, type[Block]] = {"transformer": TransformerKeys, "mlp": MlpKeys, "fixed": FixedKeys}


def _model_form(value: object) -> object:
    """Refuses what is neither a name nor a mapping of a known kind."""
    if isinstance(value, Mapping):
        kind = value.get("kind", "transformer")
        if not isinstance(kind, str) or kind not in MODEL_KINDS:
            raise wrong(f"kind: {shown(kind)} is not a kind of model{hint(str(kind), MODEL_KINDS)}")
    elif not isinstance(value, str) or not value.strip():
        raise wrong(f"{shown(value)} is not a model; write a name of `parasim catalog models`, a path, or {{kind: transformer | mlp | fixed, ...}}")
    return value


def _model_tag(value: object) -> str:
    return str(value.get("kind", "transformer")) if isinstance(value, Mapping) else "name"


ModelForm = Annotated[
    Annotated[Word, Tag("name")] | Annotated[TransformerKeys, Tag("transformer")] | Annotated[MlpKeys, Tag("mlp")] | Annotated[FixedKeys, Tag("fixed")],
    Discriminator(_model_tag),
    BeforeValidator(_model_form),
]
