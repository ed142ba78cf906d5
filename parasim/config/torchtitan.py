"""A run file from a config of torchtitan (TOML): its sections model, training, parallelism, activation_checkpoint.

Names and defaults are those of torchtitan's config/job_config.py; what has no meaning for the time of a step is left out and said.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from typing import Any

from ..errors import Malformed, Unparsable
from ..model.catalog import load_model
from ..model.spec import Transformer
from ..words import nearest
from .imported import Imported, put

# Flavours by model: a name of the catalog, or the sizes. Endings such as _flex choose a kernel of attention.
FLAVOURS: Mapping[str, Mapping[str, Any]] = {
    "llama3": {
        "debugmodel": {"kind": "transformer", "layers": 6, "hidden": 256, "heads": 16, "ffn": 768, "vocab": 2048},
        "1B": "llama3.2-1b",
        "3B": "llama3.2-3b",
        "8B": "llama3.1-8b",
        "70B": "llama3.1-70b",
        "405B": "llama3.1-405b",
    },
    "qwen3": {size: f"qwen3-{size.lower()}" for size in ("0.6B", "1.7B", "4B", "8B", "14B", "32B", "30B-A3B", "235B-A22B")},
    "deepseek_v3": {"671B": "deepseek-v3"},
}
ENDING = re.compile(r"_(flex|varlen)(_attn)?$")
SCHEDULES = {
    "gpipe": "gpipe",
    "1f1b": "1f1b",
    "interleaved1f1b": "interleaved-1f1b",
    "loopedbfs": "looped-bfs",
    "interleavedzerobubble": "zb1p-interleaved",
    "zbvzerobubble": "zb-v",
    "dualpipev": "dualpipe-v",
}
ONE_STAGE = ("gpipe", "1f1b")  # schedules of one stage per rank; the others have two unless layers per stage are given
DTYPES = {"bfloat16": "bf16", "float32": "fp32", "float16": "fp16"}
DDP_BUCKET = "100 MiB"  # bucket_cap_mb of its apply_ddp


def from_torchtitan(text: str, name: str, cluster: str, devices: int | None) -> Imported:
    """The run that a config asks for on `cluster`; devices are the product of its degrees where none are given.

    Raises Unparsable (no TOML, no sections of torchtitan), Malformed with file and line (a value of the wrong kind, an unknown model or schedule,
    devices that nothing says).
    """
    config = _Config(text, name)
    keys: dict[str, Any] = {"model": _model(config), "cluster": cluster, "stack": "torchtitan"}
    degrees = {axis: config.count("parallelism", f"{word}_parallel_degree", 1) for axis, word in (("tp", "tensor"), ("pp", "pipeline"), ("cp", "context"))}
    replicas = config.count("parallelism", "data_parallel_replicate_degree", 1)
    shard = _shard(config, degrees, replicas, devices)
    keys["devices"] = devices or degrees["tp"] * degrees["pp"] * degrees["cp"] * replicas * shard
    experts = config.count("parallelism", "expert_parallel_degree", 1)
    keys["parallel"] = {axis: n for axis, n in (*degrees.items(), ("ep", experts)) if n > 1}
    _batch(config, keys, degrees["pp"], replicas * shard)
    _data(config, keys, degrees["pp"], replicas, shard)
    _tensor(config, keys, degrees)
    _pipeline(config, keys, degrees["pp"])
    _recompute(config, keys, degrees["pp"])
    _precision(config, keys)
    return Imported({k: v for k, v in keys.items() if v != {}}, tuple(config.unused()), tuple(config.assumed))


class _Config:
    """A parsed config that knows its lines, and which of its keys were asked for."""

    def __init__(self, text: str, name: str) -> None:
        self.name, self.lines = name, text.splitlines()
        try:
            self.tree = tomllib.loads(text)
        except tomllib.TOMLDecodeError as e:
            place = re.search(r"\(at (?:line (\d+), column (\d+)|end of document)\)", str(e))
            at = f"{place[1]}:{place[2]}" if place and place[1] else str(max(len(self.lines), 1))
            raise Unparsable(f"{name}:{at}: is not TOML: {re.sub(r' *[(]at .*', '', str(e))}") from e
        lacking = [s for s in ("model", "training") if not isinstance(self.tree.get(s), dict)]
        if lacking:
            raise Unparsable(f"{name}: lacks {' and '.join(f'[{s}]' for s in lacking)}; is this a config of torchtitan?")
        self.asked: set[tuple[str, str]] = set()
        self.assumed: list[str] = []

    def get(self, section: str, key: str, default: Any) -> Any:
        """The value of a key, else `default`."""
        self.asked.add((section, key))
        part = self.tree.get(section)
        return part.get(key, default) if isinstance(part, dict) else default

    def count(self, section: str, key: str, default: int, least: int = 1) -> int:
        """A whole number of `least` or more. Raises Malformed."""
        value = self.get(section, key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise Malformed(self.wrong(section, key, f"{value!r} is not a whole number of {least} or more"))
        return value

    def word(self, section: str, key: str, default: str) -> str:
        """A text. Raises Malformed."""
        value = self.get(section, key, default)
        if not isinstance(value, str):
            raise Malformed(self.wrong(section, key, f"{value!r} is not a text"))
        return value

    def flag(self, section: str, key: str) -> bool:
        """true or false, false where it is missing. Raises Malformed."""
        value = self.get(section, key, False)
        if not isinstance(value, bool):
            raise Malformed(self.wrong(section, key, f"{value!r} is neither true nor false"))
        return value

    def wrong(self, section: str, key: str, message: str) -> str:
        """A message with its place: file:line where the key is written."""
        inside = ""
        for number, line in enumerate(self.lines, 1):
            header = re.match(r"\s*\[([^\]]+)\]", line)
            inside = header[1].strip() if header else inside
            if inside == section and re.match(rf"\s*\"?{re.escape(key)}\"?\s*=", line):
                return f"{self.name}:{number}: {section}.{key}: {message}"
        return f"{self.name}: {section}.{key}: {message}"

    def unused(self) -> list[str]:
        """section.key of everything that nothing asked for."""
        found = []
        for section, part in self.tree.items():
            if isinstance(part, dict):
                found += [f"{section}.{key}" for key in part if (section, key) not in self.asked]
            else:
                found.append(section)
        return sorted(found)


def _model(config: _Config) -> Any:
    name, flavour = config.word("model", "name", "llama3"), config.word("model", "flavor", "debugmodel")
    if name not in FLAVOURS:
        raise Malformed(config.wrong("model", "name", f"{name!r} is not known; {nearest(name, FLAVOURS)}; write a run file with its config.json instead"))
    flavours = FLAVOURS[name]
    bare = ENDING.sub("", flavour)
    if bare not in flavours:
        raise Malformed(config.wrong("model", "flavor", f"{flavour!r} of {name} is not known; {nearest(bare, flavours)}"))
    return flavours[bare]


def _layers(keys: Mapping[str, Any]) -> int:
    model = keys["model"]
    if isinstance(model, dict):
        return int(model["layers"])
    spec = load_model(model)
    assert isinstance(spec, Transformer), "every flavour is a transformer"
    return spec.layers


def _shard(config: _Config, degrees: Mapping[str, int], replicas: int, devices: int | None) -> int:
    """Ranks over which parameters are sharded; -1 takes what is left of `devices`. Raises Malformed."""
    shard = config.count("parallelism", "data_parallel_shard_degree", -1, -1)
    if shard == 0:
        raise Malformed(config.wrong("parallelism", "data_parallel_shard_degree", "0 is neither -1 nor a whole number of 1 or more"))
    others = degrees["tp"] * degrees["pp"] * degrees["cp"] * replicas
    if shard > 0 and devices is not None and devices != others * shard:
        raise Malformed(f"--devices {devices} is not the product of the degrees in {config.name}: {others * shard}")
    if shard > 0:
        return shard
    if devices is None:
        raise Malformed(f"how many devices? data_parallel_shard_degree of {config.name} is -1, which takes what is left: give --devices N")
    if devices % others:
        raise Malformed(f"--devices {devices} is not a multiple of {others}, the product of the other degrees in {config.name}")
    return devices // others


def _batch(config: _Config, keys: dict[str, Any], pp: int, dp: int) -> None:
    local = config.count("training", "local_batch_size", config.count("training", "batch_size", 8))
    whole = config.count("training", "global_batch_size", -1, -1)
    micro = config.count("parallelism", "pipeline_parallel_microbatch_size", 1)
    keys["batch"] = {"global": whole if whole > 0 else local * dp, "micro": micro if pp > 1 else local}
    keys["batch"]["sequence"] = config.count("training", "seq_len", 2048)


def _data(config: _Config, keys: dict[str, Any], pp: int, replicas: int, shard: int) -> None:
    """FSDP over `shard` ranks (HSDP with replicas), or DDP."""
    policy = config.word("parallelism", "fsdp_reshard_after_forward", "default")
    if policy not in ("default", "always", "never"):
        raise Malformed(config.wrong("parallelism", "fsdp_reshard_after_forward", f"{policy!r} is not known; legal: default, always, never"))
    if shard > 1:
        keys["zero"] = {"stage": 3, "reshard_after_forward": pp == 1 if policy == "default" else policy == "always"}
        if replicas > 1:
            keys["zero"]["shard"] = shard
    else:
        keys["zero"] = {"stage": 0}
        keys["dp"] = {"mode": "bucketed", "bucket": DDP_BUCKET}
    if config.flag("training", "enable_cpu_offload"):
        keys["offload"] = {"optimizer": True, "parameters": shard > 1}


def _tensor(config: _Config, keys: dict[str, Any], degrees: Mapping[str, int]) -> None:
    if config.flag("parallelism", "enable_async_tensor_parallel") and degrees["tp"] > 1:
        put(keys, ("tensor", "pieces"), degrees["tp"])
    if config.flag("parallelism", "disable_loss_parallel") and degrees["tp"] > 1:
        config.assumed.append("the loss is parallel all the same")
    method = config.word("parallelism", "context_parallel_rotate_method", "allgather")
    if degrees["cp"] > 1:
        config.assumed.append(f"context parallelism by {method} is taken as a ring")


def _pipeline(config: _Config, keys: dict[str, Any], pp: int) -> None:
    said = config.word("parallelism", "pipeline_parallel_schedule", "1F1B")
    schedule = SCHEDULES.get(said.lower().replace("schedule", ""))
    if schedule is None:
        raise Malformed(config.wrong("parallelism", "pipeline_parallel_schedule", f"{said!r} is not known; {nearest(said.lower(), SCHEDULES)}"))
    per_stage = config.get("parallelism", "pipeline_parallel_layers_per_stage", None)
    if pp == 1:
        return
    chunks = 1 if schedule in ONE_STAGE else 2
    if per_stage is not None:
        stages = -(-_layers(keys) // config.count("parallelism", "pipeline_parallel_layers_per_stage", 1))
        chunks = max(1, -(-stages // pp))
    keys["pipeline"] = {"schedule": schedule, "chunks": chunks}


def _recompute(config: _Config, keys: dict[str, Any], pp: int) -> None:
    mode = config.word("activation_checkpoint", "mode", "selective")
    option = str(config.get("activation_checkpoint", "selective_ac_option", "2"))
    if mode not in ("none", "selective", "full"):
        raise Malformed(config.wrong("activation_checkpoint", "mode", f"{mode!r} is not known; legal: none, selective, full"))
    if mode == "selective" and option == "op":
        return  # what the stack does
    every = 1 if mode == "full" else int(option) if option.isdecimal() else 0
    if mode == "none":
        keys["recompute"] = "none"
    elif every < 1:
        raise Malformed(config.wrong("activation_checkpoint", "selective_ac_option", f"{option!r} is neither 'op' nor a whole number of 1 or more"))
    elif every == 1:
        keys["recompute"] = {"modules": "full", "early_stop": True}
    else:
        layers = max(1, _layers(keys) // (pp * keys.get("pipeline", {}).get("chunks", 1)) // every)
        keys["recompute"] = {"modules": "full", "layers": layers, "method": "block", "early_stop": True}
        config.assumed.append(f"one layer in {every} is recomputed: the first {layers} of each stage here")


def _precision(config: _Config, keys: dict[str, Any]) -> None:
    said = config.word("training", "mixed_precision_param", "bfloat16")
    reduced = config.word("training", "mixed_precision_reduce", "float32")
    for key, value in (("mixed_precision_param", said), ("mixed_precision_reduce", reduced)):
        if value not in DTYPES:
            raise Malformed(config.wrong("training", key, f"{value!r} is not known; legal: {', '.join(DTYPES)}"))
    converters = config.get("model", "converters", [])
    converters = converters.split(",") if isinstance(converters, str) else converters
    keys["precision"] = "fp8" if any("float8" in str(c) for c in converters) else DTYPES[said]
    keys["optimizer"] = {"gradient_dtype": DTYPES[reduced]}
    if config.flag("compile", "enable") or config.get("training", "compile", False):
        keys["kernels"] = {"glu": "fused"}
        config.assumed.append("compiled: gated activations are one kernel; other fusions are not modelled")
