"""Published training steps -> run files of parasim: what a row says, what is assumed where it is silent, and why a row is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from parasim.errors import Malformed, Unparsable

GPT_VOCAB = 51200  # Megatron's padded GPT-2 vocabulary
PRECISIONS = ("bf16", "fp16")
SCHEDULES = {"none": "1f1b", "1f1b": "1f1b", "gpipe": "gpipe", "naive": "naive"}
PROFILES = {"A100-80GB-SXM": "a100-megatron", "H100-80GB-SXM": "h100-megatron"}


class NotModelled(Exception):
    """A row that today's layouts cannot express; the text is the reason."""


@dataclass(frozen=True)
class Case:
    """One row as a run: `run` is the tree of a run file without its profile, `measured` the step time in seconds."""

    id: str
    source: str
    accelerator: str
    measured: float
    run: Mapping[str, Any]
    assumptions: tuple[str, ...]


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a .jsonl file, each with an id. Raises `Malformed` for a missing file, `Unparsable` for an empty or broken one."""
    if not path.is_file():
        raise Malformed(f"{path}: no such file")
    lines = [(n, line) for n, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1) if line.strip()]
    if not lines:
        raise Unparsable(f"{path}: is empty")
    for number, line in lines:
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise Unparsable(f"{path}:{number}:{error.colno}: is not JSON: {error.msg}") from None
        if not isinstance(row, dict):
            raise Unparsable(f"{path}:{number}: is not an object")
        yield {"id": f"{path.stem}-{number:04}", **row}


def source_of(row: Mapping[str, Any]) -> str:
    """The id without its number."""
    return str(row["id"]).rsplit("-", 1)[0]


def to_case(row: Mapping[str, Any]) -> Case:
    """The run that `row` describes. Raises `NotModelled` with every reason at once, also where the row is no training step."""
    missing = [key for key in ("model", "cluster", "strategy", "measured") if key not in row]
    if missing:
        raise NotModelled(f"lacks {', '.join(missing)}")
    model, strategy, cluster = row["model"], row["strategy"], row["cluster"]
    reasons = _reasons(row)
    if reasons:
        raise NotModelled("; ".join(reasons))
    notes: list[str] = []
    run = {
        "name": str(row["id"]),
        "model": _model(model, int(row["sequence"]), notes),
        "cluster": _cluster(cluster, notes),
        "devices": int(cluster["devices"]),
        "batch": _batch(row, notes),
        "precision": _precision(strategy, notes),
        "parallel": {"tp": int(strategy.get("tp", 1)), "pp": int(strategy.get("pp", 1)), "dp": _replicas(row)},
        "tensor": {"sequence_parallel": bool(strategy.get("sp")) and int(strategy.get("tp", 1)) > 1},
        "zero": {"stage": int(bool(strategy.get("distributed_optimizer") or strategy.get("zero")))},
        "dp": _data(strategy, notes),
        "pipeline": _pipeline(model, strategy, notes),
        "recompute": _recompute(strategy, notes),
        "optimizer": _optimizer(strategy, notes),
    }
    accelerator = str(cluster["accelerator"])
    return Case(str(row["id"]), source_of(row), accelerator, float(row["measured"]["step_time_s"]), run, tuple(notes))


def _reasons(row: Mapping[str, Any]) -> list[str]:
    model, strategy, cluster = row["model"], row["strategy"], row["cluster"]
    system = systems().get(str(cluster.get("accelerator")), {})
    fsdp = strategy.get("fsdp") or int(strategy.get("zero") or 0) >= 2 or strategy.get("fsdp_shard_group")
    schedule, recompute = strategy.get("schedule", "none"), strategy.get("recompute", "none")
    needed = {"sequence": row, "layers": model, "hidden": model, "heads": model, "devices": cluster, "global_batch": strategy}
    unpublished = [key for key, block in needed.items() if key not in block]
    checks = [
        (not row["measured"].get("step_time_s"), "no step time is published for this row"),
        (bool(unpublished), f"not published: {', '.join(unpublished)}"),
        ("moe" in model or strategy.get("ep", 1) != 1, "experts are not modelled yet"),
        ("hybrid" in model or model.get("attention") == "MLA", "only dense transformers with packed qkv are modelled"),
        (strategy.get("cp", 1) != 1, f"context parallelism (cp={strategy.get('cp')}) is not modelled yet"),
        (bool(fsdp), "ZeRO-2, ZeRO-3 and FSDP are not modelled yet"),
        (recompute not in ("none", "full"), f"{recompute} recompute is not modelled yet"),
        (schedule not in SCHEDULES, f"schedule {schedule} is not modelled yet"),
        (int(strategy.get("chunks") or 1) > 1 and schedule in SCHEDULES, "chunks (interleaved stages) are not modelled yet"),
        (strategy.get("vocab_method", "baseline") != "baseline", f"vocabulary parallelism ({strategy.get('vocab_method')}) is not modelled"),
        (strategy.get("precision", "bf16") not in PRECISIONS, f"precision {strategy.get('precision')} is not modelled yet"),
        (strategy.get("task", "pretrain") != "pretrain", f"task {strategy.get('task')} is not modelled: only pre-training"),
        (bool(strategy.get("cpu_offload")), "offload to the host is not modelled yet"),
        (str(cluster.get("fabric")) not in system, f"no cluster here is {cluster.get('accelerator')} on {cluster.get('fabric')}"),
    ]
    return [reason for broken, reason in checks if broken]


@cache
def systems() -> Mapping[str, Mapping[str, Mapping[str, str]]]:
    """Accelerator -> fabric -> {cluster, nic?, note?}."""
    tree: Mapping[str, Mapping[str, Mapping[str, str]]] = yaml.safe_load(files(__package__).joinpath("data/systems.yaml").read_text())
    return tree


def _model(model: Mapping[str, Any], sequence: int, notes: list[str]) -> dict[str, Any]:
    llama = model.get("activation") == "swiglu" or "llama" in str(model.get("name")).lower()
    if "vocab" not in model:
        notes.append(f"vocabulary not published: {GPT_VOCAB}")
    if "activation" not in model:
        notes.append(f"activation not published: {'swiglu' if llama else 'gelu'}")
    if "ffn_hidden" not in model:
        notes.append("width of the feed-forward not published: the usual one of its activation")
    shape = {"layers": model["layers"], "hidden": model["hidden"], "heads": model["heads"], "ffn": model.get("ffn_hidden")}
    shape |= {"kv_heads": model.get("kv_heads", model["heads"]), "vocab": model.get("vocab", GPT_VOCAB)}
    family = (
        {"activation": "swiglu", "norm": "rms_norm", "positions": "rotary", "bias": False}
        if llama
        else {"activation": "gelu", "norm": "layer_norm", "positions": "learned", "bias": True, "max_positions": sequence}
    )
    return {"kind": "transformer", "name": str(model.get("name", "model"))} | shape | family | {"tied": bool(model.get("tied_embeddings", not llama))}


def _cluster(cluster: Mapping[str, Any], notes: list[str]) -> Any:
    system = systems()[str(cluster["accelerator"])][str(cluster["fabric"])]
    notes += [system["note"]] if "note" in system else []
    return system["cluster"]


def _replicas(row: Mapping[str, Any]) -> int:
    strategy = row["strategy"]
    return int(strategy.get("dp") or int(row["cluster"]["devices"]) // (int(strategy.get("tp", 1)) * int(strategy.get("pp", 1))) or 1)


def _batch(row: Mapping[str, Any], notes: list[str]) -> dict[str, int]:
    """An unpublished micro-batch is 1 in a pipeline, whose bubble wants many, and else the largest of 4, 2, 1 that divides a replica's batch."""
    strategy = row["strategy"]
    micro = strategy.get("micro_batch")
    if micro is None:
        replica = int(strategy["global_batch"]) // _replicas(row)
        micro = 1 if int(strategy.get("pp", 1)) > 1 else next(n for n in (4, 2, 1) if replica % n == 0)
        notes.append(f"micro-batch not published: {micro}")
    return {"global": int(strategy["global_batch"]), "micro": int(micro), "sequence": int(row["sequence"])}


def _data(strategy: Mapping[str, Any], notes: list[str]) -> dict[str, str]:
    overlaps = bool(strategy.get("dp_overlap", "grad-reduce" in str(strategy.get("overlap", ""))))
    if int(strategy.get("dp", 1)) > 1 and "dp_overlap" not in strategy and "overlap" not in strategy:
        notes.append("overlap of the gradient reduction not published: none")
    return {"mode": "bucketed", "bucket": "160 MB"} if overlaps else {"mode": "flat"}


def _pipeline(model: Mapping[str, Any], strategy: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
    ranks, layers = int(strategy.get("pp", 1)), int(model["layers"])
    if ranks > 1 and "schedule" not in strategy:
        notes.append("schedule not published: 1f1b")
    out: dict[str, Any] = {"schedule": SCHEDULES[strategy.get("schedule", "none")]}
    if layers % ranks and (layers + 2) % ranks == 0:
        each = (layers + 2) // ranks
        notes.append("first and last stage hold one layer fewer")
        out["layers"] = [each - 1, *[each] * (ranks - 2), each - 1]
    return out


def _precision(strategy: Mapping[str, Any], notes: list[str]) -> str:
    if "precision" not in strategy:
        notes.append("precision not published: bf16")
    return str(strategy.get("precision", "bf16"))


def _recompute(strategy: Mapping[str, Any], notes: list[str]) -> str:
    if "recompute" not in strategy:
        notes.append("recompute not published: none")
    return str(strategy.get("recompute", "none"))


def _optimizer(strategy: Mapping[str, Any], notes: list[str]) -> dict[str, str]:
    """Megatron reduces bf16 gradients in fp32 and fp16 ones as they are."""
    dtype = strategy.get("grad_accum_dtype") or ("fp32" if strategy.get("precision", "bf16") == "bf16" else "fp16")
    if int(strategy.get("dp", 1)) > 1 and "grad_accum_dtype" not in strategy:
        notes.append(f"dtype of the gradient reduction not published: {dtype}, Megatron's default")
    return {"gradient_dtype": dtype}
