"""A run file from the arguments of Megatron-LM: `torchrun ... pretrain_gpt.py --num-layers 32 ...`, or the lines of a shell script that hold them.

Names and defaults are those of Megatron-LM's megatron/training/arguments.py. What has no meaning for the time of a step is left out and said.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Any

from ..errors import Malformed, Unparsable
from .imported import Imported, put

Flags = Mapping[str, str | None]
VOCABULARY = 50304  # GPT-2's 50,257, padded to a multiple of 128 as Megatron-LM pads
NEEDED = ("num-layers", "hidden-size", "num-attention-heads", "seq-length")
COUNTS: Mapping[str, tuple[str, ...]] = {
    "num-layers": ("model", "layers"),
    "hidden-size": ("model", "hidden"),
    "num-attention-heads": ("model", "heads"),
    "ffn-hidden-size": ("model", "ffn"),
    "kv-channels": ("model", "head_dim"),
    "vocab-size": ("model", "vocab"),
    "max-position-embeddings": ("model", "max_positions"),
    "seq-length": ("batch", "sequence"),
    "micro-batch-size": ("batch", "micro"),
    "global-batch-size": ("batch", "global"),
    "tensor-model-parallel-size": ("parallel", "tp"),
    "pipeline-model-parallel-size": ("parallel", "pp"),
    "context-parallel-size": ("parallel", "cp"),
    "expert-model-parallel-size": ("parallel", "ep"),
    "num-experts": ("model", "experts", "count"),
    "moe-router-topk": ("model", "experts", "topk"),
    "moe-ffn-hidden-size": ("model", "experts", "ffn"),
}
SWITCHES = (
    "bf16", "fp16", "swiglu", "squared-relu", "untie-embeddings-and-output-weights", "disable-bias-linear", "sequence-parallel", "use-distributed-optimizer",
    "overlap-grad-reduce", "recompute-activations", "group-query-attention", "qk-layernorm", "add-qkv-bias",
)  # fmt: skip
WORDS = ("normalization", "position-embedding-type", "recompute-granularity", "num-query-groups", "num-layers-per-virtual-pipeline-stage", "fp8-format")
LAUNCHER = ("nproc-per-node", "nnodes")


def from_megatron(text: str, name: str, cluster: str, devices: int | None) -> Imported:
    """The run that the arguments in `text` ask for on `cluster`; devices are those of the launcher where none are given.

    Raises Malformed (no devices, a value that is no number, no vocabulary), Unparsable where it holds no such arguments.
    """
    flags = _flags(text)
    missing = [f"--{flag}" for flag in NEEDED if not flags.get(flag)]
    if missing:
        raise Unparsable(f"{name}: {', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing; are these arguments of Megatron-LM?")
    keys: dict[str, Any] = {"model": {"kind": "transformer", "vocab": VOCABULARY}, "cluster": cluster, "devices": devices or _launched(flags)}
    for flag, path in COUNTS.items():
        if flags.get(flag) is not None:
            put(keys, path, _count(flags, flag))
    _model(flags, keys)
    _layout(flags, keys)
    keys["batch"].setdefault("global", keys["batch"].setdefault("micro", 1) * keys["devices"])
    known = {*COUNTS, *SWITCHES, *WORDS, *LAUNCHER}
    assumed = () if "vocab-size" in flags else (f"no --vocab-size: {VOCABULARY} tokens",)
    return Imported(keys, tuple(sorted(f"--{flag}" for flag in flags if flag not in known)), assumed)


def _flags(text: str) -> Flags:
    """Flag (dashes for underscores) -> value, None for a switch; comments and everything before the first flag are skipped."""
    bare = re.sub(r"(^|\s)#.*", " ", text).replace("\\\n", " ")
    found: dict[str, str | None] = {}
    last = ""
    for word in shlex.split(bare.replace("(", " ").replace(")", " ")):
        if word.startswith("--"):
            last, _, value = word[2:].partition("=")
            last = last.replace("_", "-")
            found[last] = value or None
        elif last and found[last] is None:
            found[last] = word
    return found


def _count(flags: Flags, flag: str) -> int:
    value = flags[flag] or ""
    if not value.isdecimal() or int(value) < 1:
        raise Malformed(f"--{flag} {value!r} is not a whole number of 1 or more; write shell variables out")
    return int(value)


def _launched(flags: Flags) -> int:
    if not flags.get("nproc-per-node"):
        raise Malformed("how many devices? Give --devices N, or torchrun's --nproc-per-node and --nnodes with the arguments")
    return _count(flags, "nproc-per-node") * (_count(flags, "nnodes") if flags.get("nnodes") else 1)


def _model(flags: Flags, keys: dict[str, Any]) -> None:
    """Form of a layer: Megatron's defaults are GELU, layer norms with bias, biases, learned positions, a tied embedding."""
    model = keys["model"]
    model["activation"] = "swiglu" if "swiglu" in flags else "squared_relu" if "squared-relu" in flags else "gelu"
    model["norm"] = "rms_norm" if flags.get("normalization") == "RMSNorm" else "layer_norm"
    model["bias"] = ("qkv" if "add-qkv-bias" in flags else False) if "disable-bias-linear" in flags else True
    model["positions"] = "rotary" if flags.get("position-embedding-type") == "rope" else "learned"
    model["tied"] = "untie-embeddings-and-output-weights" not in flags
    if model["positions"] == "rotary":
        model.pop("max_positions", None)
    else:
        model.setdefault("max_positions", keys["batch"]["sequence"])
    if "ffn" not in model:
        model["ffn"] = 4 * model["hidden"]
    if "group-query-attention" in flags and flags.get("num-query-groups"):
        model["kv_heads"] = _count(flags, "num-query-groups")
    if "qk-layernorm" in flags:
        model["qk_norm"] = "head"
    if "experts" in model:
        model["experts"].setdefault("topk", 2)
        model["experts"].setdefault("ffn", model["ffn"])


def _layout(flags: Flags, keys: dict[str, Any]) -> None:
    """Precision, ZeRO, reduction, recomputation, chunks."""
    keys["precision"] = "fp8" if "fp8-format" in flags else "bf16" if "bf16" in flags else "fp16" if "fp16" in flags else "fp32"
    keys["zero"] = {"stage": 1 if "use-distributed-optimizer" in flags else 0}
    keys["dp"] = {"mode": "bucketed" if "overlap-grad-reduce" in flags else "flat"}
    keys["optimizer"] = {"gradient_dtype": "fp32"}
    if "sequence-parallel" in flags:
        keys["tensor"] = {"sequence_parallel": True}
    granularity = "selective" if "recompute-activations" in flags else flags.get("recompute-granularity")
    if granularity in ("full", "selective"):
        keys["recompute"] = granularity
    if flags.get("num-layers-per-virtual-pipeline-stage"):
        stages = keys.get("parallel", {}).get("pp", 1)
        chunks = keys["model"]["layers"] // stages // _count(flags, "num-layers-per-virtual-pipeline-stage")
        keys["pipeline"] = {"schedule": "interleaved-1f1b", "chunks": max(chunks, 1)} if chunks > 1 else {}
