"""Import of a Hugging Face config.json: one row per family, absent optional keys mean the defaults of its class in transformers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import Malformed, Refused, Unparsable, Violation
from ..words import nearest
from .schema import count, flag, read_model
from .spec import Model

NEEDED = object()
SILU, GELU = ("silu", "swish"), ("gelu", "gelu_new", "gelu_pytorch_tanh", "gelu_fast")
GATED, PLAIN = {"swiglu": SILU, "geglu": GELU}, {"gelu": GELU, "relu": ("relu",), "squared_relu": ("relu2",)}
REQUIRED = {
    "hidden_size": "hidden",
    "num_hidden_layers": "layers",
    "num_attention_heads": "heads",
    "intermediate_size": "ffn",
    "vocab_size": "vocab",
}
EXPERT_KEYS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_intermediate_size")


@dataclass
class Reader:
    """A config being read: values by key with their checks; keys that are missing are collected."""

    config: Mapping[str, Any]
    at: str
    missing: list[str] = field(default_factory=list)

    def number(self, key: str, default: Any = NEEDED, minimum: int = 1) -> Any:
        """A whole number; `default` where the key is absent or null, which a default of NEEDED makes an error."""
        value = self.config.get(key)
        if value is None:
            self.missing += [key] if default is NEEDED else []
            return 1 if default is NEEDED else default
        return self._read(count(minimum), key)

    def flag(self, key: str, default: bool = False) -> bool:
        """true or false."""
        return default if self.config.get(key) is None else bool(self._read(flag, key))

    def _read(self, parser: Callable[[object], Any], key: str) -> Any:
        try:
            return parser(self.config[key])
        except Malformed as error:
            raise Malformed(f"{self.at}: {key}={self.config[key]}: {error}") from None

    def refuse(self, key: str, rule: str, legal: str = "") -> Refused:
        """The refusal of the value of `key`."""
        value = self.config.get(key)
        return Refused([Violation(key, str(value).lower() if isinstance(value, bool) else str(value), rule, f"{legal} ({self.at})".strip())])


Part = Callable[[Reader], Mapping[str, Any]]


@dataclass(frozen=True)
class Family:
    """How a family differs from Llama. `kv_heads`, `head_dim`, `window`, `tied` are its class's defaults (None: heads, hidden / heads, no window)."""

    fixed: Mapping[str, Any] = field(default_factory=dict)
    parts: tuple[Part, ...] = ()
    activations: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: GATED)
    act: tuple[str, str] = ("hidden_act", "silu")
    sizes: Mapping[str, Any] = field(default_factory=dict)  # defaults of REQUIRED keys, where the class's are relied on
    kv_heads: int | None = None
    head_dim: int | None = None
    tied: bool = False
    window: int | None = None
    notes: tuple[str, ...] = ()


def _biases(r: Reader) -> Mapping[str, Any]:
    attention, mlp = r.flag("attention_bias"), r.flag("mlp_bias")
    return {"bias": attention if attention == mlp else "attention" if attention else "mlp"}


def _mixtral(r: Reader) -> Mapping[str, Any]:
    return {"experts": {"count": r.number("num_local_experts", 8), "topk": r.number("num_experts_per_tok", 2), "ffn": r.number("intermediate_size")}}


def _qwen_experts(experts: int, topk: int, ffn: int, shared: int) -> Part:
    def read(r: Reader) -> Mapping[str, Any]:
        step, dense = r.number("decoder_sparse_step", 1), r.config.get("mlp_only_layers") or []
        if dense and (step > 1 or list(dense) != list(range(len(dense)))):
            raise r.refuse("mlp_only_layers", "cannot be imported: only the first layers may be dense, with decoder_sparse_step 1", "legal: [], [0], [0, 1]")
        sizes = {"count": r.number("num_experts", experts), "topk": r.number("num_experts_per_tok", topk), "ffn": r.number("moe_intermediate_size", ffn)}
        shared_ffn = r.number("shared_expert_intermediate_size", shared, 0) if shared else 0
        note = {"notes": ("the gate of the shared expert (hidden weights a layer) is left out",)} if shared_ffn else {}
        return {"experts": sizes | {"shared_ffn": shared_ffn, "every": step, "dense_layers": len(dense)}} | note

    return read


def _deepseek_experts(score: str, routed: Any, topk: Any, ffn: Any, shared: int, dense: int) -> Part:
    def read(r: Reader) -> Mapping[str, Any]:
        if r.number("moe_layer_freq", 1) != 1:
            raise r.refuse("moe_layer_freq", "cannot be imported", "legal: 1")
        width = r.number("moe_intermediate_size", ffn)
        experts = {"count": r.number("n_routed_experts", routed), "topk": r.number("num_experts_per_tok", topk), "ffn": width}
        scoring = r.config.get("scoring_func") or score
        if scoring not in ("softmax", "sigmoid"):
            raise r.refuse("scoring_func", "cannot be imported", "legal: softmax, sigmoid")
        return {
            "experts": experts
            | {"shared_ffn": r.number("n_shared_experts", shared, 0) * width, "dense_layers": r.number("first_k_dense_replace", dense, 0), "score": scoring}
        }

    return read


def _latent(r: Reader) -> Mapping[str, Any]:
    """An absent q_lora_rank is the class's 1536, null is no compression."""
    query = r.number("q_lora_rank", 0, 0) if "q_lora_rank" in r.config else 1536
    widths = {"nope_dim": r.number("qk_nope_head_dim", 128), "rope_dim": r.number("qk_rope_head_dim", 64), "value_dim": r.number("v_head_dim", 128)}
    return {"latent": {"kv_rank": r.number("kv_lora_rank", 512), "query_rank": query, **widths}, "kv_heads": None, "bias": False, "head_dim": None}


def _soft_caps(r: Reader) -> Mapping[str, Any]:
    capped = [key for key in ("attn_logit_softcapping", "final_logit_softcapping") if r.config.get(key)]
    return {"notes": (f"soft caps are left out: {', '.join(capped)}",)} if capped else {}


def _clipping(r: Reader) -> Mapping[str, Any]:
    return {"notes": ("clipping of queries, keys and values (clip_qkv) is left out",)} if r.config.get("clip_qkv") else {}


def _left_out(r: Reader) -> Mapping[str, Any]:
    extra = r.number("num_nextn_predict_layers", 0, 0)
    return {"notes": (f"multi-token prediction is left out: num_nextn_predict_layers {extra}",) if extra else ()}


OLMO_NORM = {"norm": "layer_norm", "norm_weights": "none"}
GEMMA3_SIZES = {"vocab_size": 262208, "num_attention_heads": 8}
FAMILIES: dict[str, Family] = {
    "llama": Family(parts=(_biases,)),
    "mistral": Family(kv_heads=8, window=4096),
    "mixtral": Family(parts=(_mixtral,), kv_heads=8),
    "qwen2": Family({"bias": "qkv"}, kv_heads=32),
    "qwen3": Family({"qk_norm": "head"}, (_biases,), kv_heads=32, head_dim=128),
    "qwen2_moe": Family({"bias": "qkv"}, (_qwen_experts(60, 4, 1408, 5632),), kv_heads=16),
    "qwen3_moe": Family({"qk_norm": "head"}, (_biases, _qwen_experts(128, 8, 768, 0)), kv_heads=4),
    "deepseek": Family(parts=(_deepseek_experts("softmax", NEEDED, NEEDED, NEEDED, 0, 0),)),
    "deepseek_v2": Family(parts=(_deepseek_experts("softmax", 64, NEEDED, 1407, 2, 0), _latent)),
    "deepseek_v3": Family(parts=(_deepseek_experts("sigmoid", 256, 8, 2048, 1, 3), _latent, _left_out)),
    "gemma": Family(parts=(_biases,), kv_heads=16, act=("hidden_activation", "gelu_pytorch_tanh"), head_dim=256, tied=True),
    "gemma2": Family(
        {"norm_at": "both"}, (_biases, _soft_caps), act=("hidden_activation", "gelu_pytorch_tanh"), kv_heads=4, head_dim=256, tied=True, window=4096
    ),
    "gemma3_text": Family(
        {"norm_at": "both", "qk_norm": "head"},
        (_biases, _soft_caps),
        act=("hidden_activation", "gelu_pytorch_tanh"),
        sizes=GEMMA3_SIZES,
        kv_heads=4,
        head_dim=256,
        tied=True,
        window=4096,
    ),
    "olmo": Family(OLMO_NORM, (_biases, _clipping)),
    "olmo2": Family({"norm_at": "post", "qk_norm": "full"}, (_biases,)),
    "phi3": Family(),
    "nemotron": Family(
        {"norm": "layer_norm"},
        (_biases,),
        PLAIN,
        ("hidden_act", "relu2"),
        notes=("rotary positions turn a part of each head in the original; the whole head is turned here",),
    ),
}
OTHERS = {
    "gpt_neox": "its blocks add attention and feed-forward of one input (parallel residual), which parasim does not have",
    "gptj": "its blocks add attention and feed-forward of one input (parallel residual), which parasim does not have",
    "falcon": "its blocks add attention and feed-forward of one input (parallel residual), which parasim does not have",
    "phi": "its blocks add attention and feed-forward of one input (parallel residual), which parasim does not have",
    "bloom": "it has a norm after the embedding, which parasim does not have",
    "mpt": "write it inline, or take mpt-7b or mpt-30b of the catalog",
}
KNOWN = (*FAMILIES, "gpt2", "opt", "gemma3")


def from_config(config: Mapping[str, Any], at: str, name: str = "") -> Model:
    """The Transformer that a config.json describes; `at` (its path) opens every message.

    What a model does that is not modelled (sliding windows, soft caps) is said in its `notes`. Without a model_type a config is read as Llama's
    unless its keys are another family's. Raises `Unparsable` naming every missing key, `Refused` for families that parasim does not have (with
    the reason and the nearest), `Malformed` for wrong values.
    """
    kind = config.get("model_type")
    if kind == "gemma3" and isinstance(config.get("text_config"), Mapping):
        inner = {**config["text_config"], "model_type": "gemma3_text"}
        return from_config({"notes": ["the vision encoder is left out"], **inner}, at, name)
    reader = Reader(config, at)
    _known(reader, kind)
    mapping = _gpt2(reader) if kind == "gpt2" else _opt(reader) if kind == "opt" else _decoder(reader, FAMILIES[kind or "llama"])
    if reader.missing:
        raise Unparsable(f"{at}: lacks {', '.join(dict.fromkeys(reader.missing))}")
    notes = (*([] if kind else ["config.json has no model_type: read as llama"]), *config.get("notes", ()), *mapping.pop("notes", ()))
    return read_model({"kind": "transformer", **mapping, "notes": list(notes)}, at, name=name or "hf")


def _known(r: Reader, kind: Any) -> None:
    if kind is None:
        foreign = [key for key in ("n_embd", "num_local_experts", "num_experts", "n_routed_experts", "kv_lora_rank", "text_config") if r.config.get(key)]
        if foreign:
            raise Unparsable(f"{r.at}: lacks model_type, and {', '.join(foreign)} is no key of llama; legal: {', '.join(KNOWN)}")
    elif not isinstance(kind, str):
        raise Malformed(f"{r.at}: model_type={kind}: must be a name; legal: {', '.join(KNOWN)}")
    elif kind not in FAMILIES and kind not in ("gpt2", "opt"):
        raise r.refuse("model_type", f"cannot be imported: {OTHERS.get(kind, 'this family is not known')}", nearest(kind, KNOWN))


def _decoder(r: Reader, family: Family) -> dict[str, Any]:
    """A decoder with the keys of LlamaConfig."""
    mapping: dict[str, Any] = {ours: r.number(theirs, family.sizes.get(theirs, NEEDED)) for theirs, ours in REQUIRED.items()}
    mapping |= {"kv_heads": r.number("num_key_value_heads", family.kv_heads), "head_dim": r.number("head_dim", family.head_dim)}
    key, default = family.act
    mapping |= {"activation": _activation(r, family.activations, key, default), "norm": "rms_norm", "positions": "rotary", "bias": False}
    mapping["tied"] = r.flag("tie_word_embeddings", family.tied)
    notes = [*family.notes, *_window(r, family)]
    mapping |= family.fixed
    for part in family.parts:
        found = dict(part(r))
        notes += found.pop("notes", ())
        mapping |= found
    foreign = [key for key in EXPERT_KEYS if r.config.get(key)]
    if foreign and "experts" not in mapping:
        raise r.refuse(foreign[0], f"cannot be imported: model_type={r.config.get('model_type')} has no experts", "leave it out")
    return mapping | {"notes": notes}


def _activation(r: Reader, names: Mapping[str, tuple[str, ...]], key: str, default: str) -> str:
    value = r.config.get(key) or default
    for ours, theirs in names.items():
        if value in theirs:
            return ours
    legal = ", ".join(t for theirs in names.values() for t in theirs)
    raise r.refuse(key, "cannot be imported", f"legal: {legal}")


def _window(r: Reader, family: Family) -> Iterator[str]:
    """Qwen writes a window and whether it is used; null is none, absent the class's."""
    window = r.number("sliding_window", None, 0) if "sliding_window" in r.config else family.window
    if window and r.flag("use_sliding_window", True):
        yield f"attention over a sliding window of {window} tokens, in all or some layers, is taken as full causal attention"


def _gpt2(r: Reader) -> dict[str, Any]:
    """GPT2Config: n_inner = 4 n_embd, 1024 positions, tied, biases everywhere."""
    mapping = {"hidden": r.number("n_embd"), "layers": r.number("n_layer"), "heads": r.number("n_head"), "vocab": r.number("vocab_size", 50257)}
    activation = _activation(r, PLAIN, "activation_function", "gelu_new")
    mapping |= {"ffn": r.number("n_inner", None), "max_positions": r.number("n_positions", 1024), "tied": r.flag("tie_word_embeddings", True)}
    return mapping | {"activation": activation, "norm": "layer_norm", "positions": "learned", "bias": True}


def _opt(r: Reader) -> dict[str, Any]:
    """OPTConfig: two more rows of positions than max_position_embeddings, ReLU, tied; norms before the branches only."""
    sizes = {"hidden_size": "hidden", "num_hidden_layers": "layers", "num_attention_heads": "heads", "ffn_dim": "ffn", "vocab_size": "vocab"}
    mapping = {ours: r.number(theirs) for theirs, ours in sizes.items()}
    if not r.flag("do_layer_norm_before", True):
        raise r.refuse("do_layer_norm_before", "cannot be imported", "legal: true")
    if r.number("word_embed_proj_dim", mapping["hidden"]) != mapping["hidden"]:
        raise r.refuse("word_embed_proj_dim", f"cannot be imported: must equal hidden_size={mapping['hidden']}")
    mapping |= {"max_positions": r.number("max_position_embeddings", 2048) + 2, "tied": r.flag("tie_word_embeddings", True)}
    return mapping | {
        "activation": _activation(r, PLAIN, "activation_function", "relu"),
        "norm": "layer_norm",
        "positions": "learned",
        "bias": r.flag("enable_bias", True),
    }
