"""Import of a Hugging Face config.json of the Llama family: dense decoders with rotary positions, RMS norm and a gated feed-forward."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import Malformed, Refused, Unparsable, Violation
from .schema import count, flag, read_model
from .spec import Model

FAMILY = ("llama", "mistral")
REQUIRED = {
    "hidden_size": "hidden",
    "num_hidden_layers": "layers",
    "num_attention_heads": "heads",
    "intermediate_size": "ffn",
    "vocab_size": "vocab",
}
EXPERT_KEYS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_intermediate_size")
NOT_LLAMA = {
    "gpt2": "a GPT-2 config has n_embd, n_layer, n_head, learned positions and an ungated feed-forward; write it as an inline model "
    "{kind: transformer, activation: gelu, bias: true, positions: learned, ...}",
    "mixtral": "mixtures of experts are not supported yet",
}


def from_config(config: Mapping[str, Any], at: str, name: str = "") -> Model:
    """The Transformer that a config.json describes; `at` (its path) opens every message.

    Absent optional keys mean what transformers' LlamaConfig says: num_key_value_heads = num_attention_heads, head_dim = hidden_size /
    num_attention_heads, no biases, untied embeddings. A sliding window is read as full attention. Raises `Unparsable` naming every missing
    key, `Refused` for models of another shape (with the reason), `Malformed` for wrong values.
    """
    _refuse_other_families(config, at)
    missing = [key for key in REQUIRED if config.get(key) is None]
    if missing:
        raise Unparsable(f"{at}: lacks {', '.join(missing)}")
    mapping = {ours: _checked(config, theirs, at) for theirs, ours in REQUIRED.items()}
    mapping |= {ours: _checked(config, theirs, at) for theirs, ours in _optional(config).items()}
    mapping |= {"activation": "swiglu", "norm": "rms_norm", "positions": "rotary", "bias": _bias(config, at), "tied": _tied(config, at)}
    return read_model({"kind": "transformer", **mapping}, at, name=name or "hf")


def _optional(config: Mapping[str, Any]) -> dict[str, str]:
    pairs = {"num_key_value_heads": "kv_heads", "head_dim": "head_dim"}
    return {theirs: ours for theirs, ours in pairs.items() if config.get(theirs) is not None}


def _checked(config: Mapping[str, Any], key: str, at: str) -> Any:
    try:
        return count()(config[key])
    except Malformed as error:
        raise Malformed(f"{at}: {key}={config[key]}: {error}") from None


def _flag(config: Mapping[str, Any], key: str, at: str) -> bool:
    value = config.get(key)
    try:
        return flag(False if value is None else value)
    except Malformed as error:
        raise Malformed(f"{at}: {key}={value}: {error}") from None


def _tied(config: Mapping[str, Any], at: str) -> bool:
    return _flag(config, "tie_word_embeddings", at)


def _bias(config: Mapping[str, Any], at: str) -> bool:
    attention, mlp = _flag(config, "attention_bias", at), _flag(config, "mlp_bias", at)
    if attention != mlp:
        rule = f"must equal mlp_bias={str(mlp).lower()}: biases on only some linear layers are not supported"
        raise Refused([Violation("attention_bias", str(attention).lower(), rule, at)])
    return attention


def _refuse_other_families(config: Mapping[str, Any], at: str) -> None:
    kind = config.get("model_type")
    experts = [key for key in EXPERT_KEYS if config.get(key)]
    if kind in NOT_LLAMA or (kind is not None and "moe" in str(kind)) or "n_embd" in config or experts:
        default = NOT_LLAMA["mixtral"] if experts or "moe" in str(kind) else NOT_LLAMA["gpt2"]
        rule = f"cannot be imported: {NOT_LLAMA.get(str(kind), default)}"
        raise Refused([Violation("model_type", str(kind), rule, at)])
    activation = config.get("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise Refused([Violation("hidden_act", str(activation), "cannot be imported: the gated feed-forward must use silu", at)])
    if kind is not None and kind not in FAMILY:
        rule = "cannot be imported: only dense models of the Llama family can"
        raise Refused([Violation("model_type", str(kind), rule, f"legal: {', '.join(FAMILY)} ({at})")])
