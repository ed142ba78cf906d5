"""The model of a published row: its printed sizes over the catalog's entry of the same shape, or over the usual choices of its family."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

from parasim.model.layers import parameters
from parasim.model.schema import read_model
from parasim.units import parse

Tree = Mapping[str, Any]
GPT_VOCAB = 51200  # Megatron's padded GPT-2 vocabulary
GPT: Tree = {"activation": "gelu", "norm": "layer_norm", "positions": "learned", "bias": True, "tied": True}
MPT: Tree = {**GPT, "vocab": 50368}  # MPTConfig's defaults, which llm-foundry's files for training (scripts/train/yamls/pretrain) leave as they are
LLAMA: Tree = {"activation": "swiglu", "norm": "rms_norm", "positions": "rotary", "bias": False, "tied": False}
SHAPE = ("layers", "hidden", "heads")
FAMILY = ("activation", "norm", "positions", "bias", "tied", "norm_weights", "norm_at", "qk_norm", "latent", "head_dim")


class NotModelled(Exception):
    """A row that parasim cannot express; the text is the reason."""


@cache
def _catalog() -> dict[str, Tree]:
    folder = files("parasim.model").joinpath("catalog")
    return {entry.name.removesuffix(".yaml"): yaml.safe_load(entry.read_text()) for entry in sorted(folder.iterdir(), key=lambda e: e.name)}


def model(row: Tree, notes: list[str]) -> dict[str, Any]:
    """The `model` of the run file. Raises `NotModelled` for hybrids, unknown latent attention and unpublished sizes."""
    given = {key: value for key, value in row["model"].items() if value is not None}
    missing = [key for key in SHAPE if not given.get(key)]
    if missing:
        raise NotModelled(f"not published: {', '.join(missing)}")
    if given.get("hybrid"):
        raise NotModelled(f"hybrid {given['hybrid']} layers are not modelled: only attention")
    like, family = _family(given, notes)
    out: dict[str, Any] = {"kind": "transformer", "name": str(given.get("name", "model"))} | dict(family)
    out |= {key: int(given[key]) for key in SHAPE}
    out["vocab"] = int(given.get("vocab") or like.get("vocab") or GPT_VOCAB)
    if "vocab" not in given:
        notes.append(f"vocabulary not published: {out['vocab']}")
    out["kv_heads"] = int(given.get("kv_heads") or like.get("kv_heads") or given["heads"])
    if given.get("head_dim"):
        out["head_dim"] = int(given["head_dim"])
    elif out.get("head_dim") is None:
        out.pop("head_dim", None)
    if out["positions"] == "learned":
        out["max_positions"] = int(row["sequence"])
    ffn = given.get("dense_ffn") or given.get("ffn_hidden") or like.get("ffn")
    if ffn:
        out["ffn"] = int(ffn)
    else:
        notes.append("width of the feed-forward not published: the usual one of its activation")
    if given.get("moe") or like.get("experts"):
        out["experts"] = _experts(given, like)
        out["bias"] = False if out.get("bias") in (True, "mlp") else out.get("bias", False)
    if given.get("sliding_window"):
        notes.append(f"sliding window of {given['sliding_window']}: attention to all earlier tokens is computed here")
    if str(given.get("attention")) == "MLA" and "latent" not in out:
        raise NotModelled("sizes of the latent attention are not published, and no model of the catalog has this shape")
    out = _activation(given, out, family, notes)
    out["tied"] = bool(given["tied_embeddings"]) if "tied_embeddings" in given else _tied(given, out, notes)
    return _cut(out, int(row["strategy"].get("tp") or 1), notes)


def _cut(out: dict[str, Any], tp: int, notes: list[str]) -> dict[str, Any]:
    """What tensor parallelism changes: a vocabulary padded to a multiple of tp, key-value heads copied to every rank."""
    if out["vocab"] % tp:
        out["vocab"] += -out["vocab"] % tp
        notes.append(f"vocabulary padded to {out['vocab']}, a multiple of tp")
    if out["kv_heads"] % tp and tp % out["kv_heads"] == 0 and out["heads"] % tp == 0 and "latent" not in out:
        notes.append(f"{out['kv_heads']} key-value heads copied to {tp} ranks")
        out["kv_heads"] = tp
    return out


def _words(name: object) -> set[str]:
    return set(re.findall(r"[a-z]+|\d+(?:\.\d+)?", str(name).lower())) - {"b"}


def _kin(name: object) -> set[str]:
    """The words of a name that may be those of a family."""
    return {word for word in _words(name) if word.isalpha() and len(word) > 1}


def _family(given: Tree, notes: list[str]) -> tuple[Tree, Tree]:
    """The catalog's entry of the same shape and family name, or nothing, and what the row does not print of its family."""
    name, printed = str(given.get("name")).lower(), {"activation": given["activation"]} if "activation" in given else {}
    same = {n: t for n, t in _catalog().items() if all(t.get(key) == given[key] for key in SHAPE) and _akin(name, n)}
    same = {n: t for n, t in same.items() if not given.get("ffn_hidden") or given.get("moe") or t.get("ffn") == given["ffn_hidden"]}
    same = {n: t for n, t in same.items() if bool(given.get("moe")) == bool(t.get("experts"))}
    like: Tree = {}
    whose = ""
    if "mpt" in name:
        like, whose = MPT, "llm-foundry's files for MPT"
    elif same:
        best = max(same, key=lambda n: len(_words(n) & _words(name)))
        like, whose = same[best], f"{best}, which has this shape"
    if like:
        if not printed:
            notes.append(f"activation, norms and positions not published: those of {whose}")
        return like, {key: like[key] for key in FAMILY if key in like} | printed
    gated = given.get("activation") in ("swiglu", "geglu")
    family = LLAMA if gated or any(word in name for word in ("llama", "mistral", "mixtral", "qwen", "deepseek")) else GPT
    if "nemotron" in name:
        family = {**LLAMA, "activation": "squared_relu", "norm": "layer_norm"}
    if not printed:
        notes.append(f"activation not published: {family['activation']}")
    return {}, {**family, **printed}


def _akin(name: str, entry: str) -> bool:
    """Whether a published name may mean an entry of the catalog: it has no word of a family, or one of the entry's ("GPT 16B" is no Nemotron of its shape)."""
    return not _kin(name) or any(word in name for word in _kin(entry))


def _experts(given: Tree, like: Tree) -> dict[str, Any]:
    moe, known = given.get("moe") or {}, like.get("experts") or {}
    ffn = int(moe.get("expert_ffn") or known.get("ffn") or given.get("ffn_hidden") or 0)
    if not ffn or not (moe.get("experts") or known.get("count")):
        raise NotModelled("number or width of the experts is not published")
    shared = int(moe["shared_experts"]) * ffn if moe.get("shared_experts") else int(known.get("shared_ffn", 0))
    dense = given.get("dense_layers")
    out = {"count": int(moe.get("experts") or known["count"]), "topk": int(moe.get("topk") or known.get("topk") or 2), "ffn": ffn, "shared_ffn": shared}
    out["dense_layers"] = len(dense) if isinstance(dense, list) else int(known.get("dense_layers", 0) if dense is None else dense)
    return out | {key: known[key] for key in ("every", "score") if key in known}


def count(tree: Tree) -> float:
    """Parameters of a model as a run file writes it."""
    return float(parameters(read_model(tree, "model")))


def _miss(tree: Tree, given: Tree) -> float:
    """How far the parameters of a model are from the published number, over that."""
    return abs(count(tree) / (float(given["params_b"]) * parse("1 GB", "bytes")) - 1)


def _activation(given: Tree, out: dict[str, Any], family: Tree, notes: list[str]) -> dict[str, Any]:
    """Where neither the row nor the catalog says the activation, a gated one if that is much nearer to the published number of parameters."""
    if "activation" in given or not given.get("params_b") or "experts" in out or "latent" in out:
        return out
    other = {**out, "activation": "gelu" if out["activation"] == "swiglu" else "swiglu"}
    miss, miss_other = (_miss(tree, given) for tree in (out, other))
    if miss > 0.1 and miss_other < miss / 2:
        notes.append(f"with {other['activation']} the model has its published {given['params_b']} billion parameters")
        return other
    return out


def _tied(given: Tree, out: dict[str, Any], notes: list[str]) -> bool:
    """Where the row does not say whether embedding and head are one matrix: as its family, unless the other is much nearer to the published parameters."""
    if not given.get("params_b"):
        return bool(out["tied"])
    miss, miss_other = (_miss({**out, "tied": tied}, given) for tied in (out["tied"], not out["tied"]))
    if miss > 0.01 and miss_other < miss / 2:
        how = "two matrices" if out["tied"] else "one matrix"
        notes.append(f"with embedding and head as {how} the model has its published {given['params_b']} billion parameters")
        return not out["tied"]
    return bool(out["tied"])
