"""The layout of a published row: degrees, batch, schedule, sharding, recomputation, and what is assumed where its source is silent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from parasim.schedules import SCHEDULES

from .row_model import NotModelled

Tree = Mapping[str, Any]
INTERLEAVED = "interleaved-1f1b"
NARROW = ("fp8", "mxfp8", "nvfp4")
SERVER = 8  # devices of a server where they are not published
MICRO = (1, 2, 4, 8)  # sequences of a micro-batch that is not published
CHUNKS = 6  # of a rank at most, where their number is not published
MAPPED = ("nemo-fp8", "megatron-bridge")  # whose configurations overlap tensor-parallel messages in user buffers
WAITING = ("megatron-2021", "megatron-2022")  # Megatron-LM overlaps the messages of interleaved schedules since 2023 (overlap_p2p_comm)
VOCABULARIES = ("baseline", "redis", "vocab-1")


def layout(row: Tree, stack: str, model: Tree, notes: list[str]) -> dict[str, Any]:
    """devices, batch, precision, parallel and so on of a run file over the defaults of `stack`. Raises `NotModelled` with every reason."""
    strategy = row["strategy"]
    reasons = _reasons(strategy)
    if reasons:
        raise NotModelled("; ".join(reasons))
    degrees, devices = _degrees(row, notes)
    if degrees["ep"] > 1 and not model.get("experts"):
        notes.append(f"ep {degrees['ep']} without experts: no effect")
        degrees["ep"] = 1
    run: dict[str, Any] = {"devices": devices, "parallel": degrees, "batch": _batch(row, degrees, notes), "precision": _precision(row, notes)}
    sharded = _zero(strategy, degrees, notes)
    if "param-gather" in str(strategy.get("overlap", "")):
        sharded["overlap_gather"] = True
    if run["precision"] == "fp8" and sharded.get("stage") == 3:
        notes.append("parameters are shared out (stage 3), but fp8 copies of them stay whole here: gradients and optimizer state only (stage 2)")
        sharded["stage"] = 2
    run |= {"zero": sharded} if sharded else {}
    run |= _data(strategy, stack, degrees, notes)
    run["pipeline"] = _pipeline(row, stack, model, degrees, run["batch"], notes)
    run |= {"tensor": _tensor(row, model, stack, degrees, notes)} if degrees["tp"] > 1 else {}
    run |= _recompute(strategy, stack, notes)
    run |= {"kernels": {"glu": "fused"}} if strategy.get("compile") else {}  # blocks are compiled, the loss is not (torchtitan, train.py of 2024)
    if strategy.get("grad_accum_dtype"):
        run["optimizer"] = {"gradient_dtype": strategy["grad_accum_dtype"]}
    if strategy.get("cpu_offload"):
        run["offload"] = {"optimizer": True}
    if degrees["cp"] > 1 and "a2a" in str(strategy.get("cp_type")).lower():
        run["context"] = {"style": "all-to-all"}
    return run


def _reasons(strategy: Tree) -> list[str]:
    task, method = str(strategy.get("task") or "pretrain").lower(), str(strategy.get("vocab_method") or "baseline")
    schedule = strategy.get("schedule") or "none"
    checks = [
        ("lora" in task or "peft" in task, f"task {task}: adapters are not modelled"),
        (method not in VOCABULARIES, f"vocabulary parallelism ({method}) is not modelled"),
        (schedule not in ("none", *SCHEDULES), f"schedule {schedule} is not modelled"),
        (str(strategy.get("precision") or "bf16") not in ("bf16", "fp16", "fp32", *NARROW), f"precision {strategy.get('precision')} is not modelled"),
    ]
    return [reason for broken, reason in checks if broken]


def _degrees(row: Tree, notes: list[str]) -> tuple[dict[str, Any], int]:
    strategy = row["strategy"]
    tp, pp, cp, ep = (max(1, int(strategy.get(axis) or 1)) for axis in ("tp", "pp", "cp", "ep"))
    devices = int(row["cluster"].get("devices") or 0) or tp * pp * cp * int(strategy.get("dp") or 1)
    if devices % (tp * pp * cp):
        raise NotModelled(f"devices {devices} are no multiple of tp {tp} x pp {pp} x cp {cp}")
    dp = devices // (tp * pp * cp)
    if strategy.get("dp") and int(strategy["dp"]) != dp:
        notes.append(f"dp {strategy['dp']} as printed is not devices / (tp pp cp): {dp}")
    return {"tp": tp, "pp": pp, "cp": cp, "ep": ep, "dp": dp}, devices


def _batch(row: Tree, degrees: Tree, notes: list[str]) -> dict[str, Any]:
    """An unpublished micro-batch is one of MICRO that divide a replica's batch: who publishes a step, publishes the fastest."""
    strategy, dp = row["strategy"], degrees["dp"]
    micro, count = strategy.get("micro_batch"), strategy.get("grad_accum") or strategy.get("num_microbatches")
    total = strategy.get("global_batch")
    if total is None and micro and count:
        total = int(micro) * int(count) * dp
    if total is None and micro and row["measured"].get("layer_forward_ms"):
        total = int(micro) * dp  # one microbatch shows the time of a layer
    if total is None:
        raise NotModelled("not published: global_batch")
    replica = int(total) // dp
    if micro is None and count and replica % int(count) == 0:
        micro = replica // int(count)
    out: dict[str, Any] = {"global": int(total), "micro": micro and int(micro), "sequence": int(row["sequence"])}
    if micro is None:
        some = [n for n in MICRO if replica % n == 0] or [1]
        notes.append(f"micro-batch not published: of {', '.join(map(str, some))} the fastest that fits" if len(some) > 1 else "micro-batch not published: 1")
        out["micro"] = some if len(some) > 1 else some[0]
    return out


def _precision(row: Tree, notes: list[str]) -> str:
    written = row["strategy"].get("precision")
    if str(row["cluster"].get("accelerator")).startswith("V100") and written in (None, "bf16"):
        notes.append("V100 multiplies no bf16: fp16")
        return "fp16"
    if written is None:
        notes.append("precision not published: bf16")
    if written in ("mxfp8", "nvfp4"):
        notes.append(f"precision {written}: as fp8, whose products are the narrowest modelled")
    return "fp8" if written in NARROW else str(written or "bf16")


def _zero(strategy: Tree, degrees: Tree, notes: list[str]) -> dict[str, Any]:
    """Stage and group: `fsdp` by its word or as the size of its group, else `fsdp_shard_group`, `zero` and `distributed_optimizer`."""
    fsdp, group, dp = strategy.get("fsdp"), strategy.get("fsdp_shard_group"), degrees["dp"]
    sized = isinstance(fsdp, int) and not isinstance(fsdp, bool)
    if sized or (group and int(group) > 1):
        size = int(fsdp if sized else group)  # type: ignore[arg-type]
        if size > dp:
            notes.append(f"parameters shared by {size} ranks as printed: by the {dp} replicas here")
        return {"stage": 3, "shard": min(size, dp)}
    if fsdp:
        return {"stage": 2 if "GRAD_OP" in str(fsdp) else 3}
    if strategy.get("zero") is not None:
        return {"stage": int(strategy["zero"])}
    return {"stage": int(bool(strategy["distributed_optimizer"]))} if "distributed_optimizer" in strategy else {}


def _data(strategy: Tree, stack: str, degrees: Tree, notes: list[str]) -> dict[str, Any]:
    printed = "dp_overlap" in strategy or "grad-reduce" in str(strategy.get("overlap", ""))
    if not printed:
        if degrees["dp"] > 1:
            notes.append(f"overlap of the gradient reduction not published: as stack {stack}")
        return {}
    overlaps = bool(strategy.get("dp_overlap", True))
    return {"dp": {"mode": "bucketed", "bucket": "160 MB"} if overlaps else {"mode": "flat"}}


def _tensor(row: Tree, model: Tree, stack: str, degrees: Tree, notes: list[str]) -> dict[str, bool]:
    """User buffers where a row or its stack has them, inside a server: as many parts as ranks."""
    strategy, tp, cluster = row["strategy"], degrees["tp"], row["cluster"]
    if model.get("experts") and strategy.get("sp") is False:
        notes.append("experts under tensor parallelism: with sequence parallelism, as Megatron-Core asks for")
        strategy = {**strategy, "sp": True}
    out = {"sequence_parallel": bool(strategy["sp"])} if strategy.get("sp") is not None else {}
    if "userbuffers" in str(strategy.get("overlap", "")) or stack in MAPPED:
        whole = int(row["sequence"]) // degrees["cp"] % tp**2 == 0  # whatever the micro-batch
        near = tp <= int(cluster.get("scale_up_domain") or cluster.get("per_node") or SERVER)
        out["user_buffers"] = out.get("sequence_parallel", True) and whole and near
        if not out["user_buffers"]:
            notes.append(f"tensor-parallel messages of {tp} ranks: not through user buffers")
    if strategy.get("async_tp") or strategy.get("tp_async"):
        return out | {"async": True}
    return out | ({"async": False, "own_first": False} if strategy.get("tp_async") is False else {})


def _pipeline(row: Tree, stack: str, model: Tree, degrees: Tree, batch: Tree, notes: list[str]) -> dict[str, Any]:
    strategy, ranks, layers = row["strategy"], degrees["pp"], int(model["layers"])
    if ranks == 1:
        return {"schedule": "1f1b"}
    written, chunks = strategy.get("schedule"), int(strategy.get("chunks") or 0)
    if written is None:
        notes.append(f"schedule not published: {INTERLEAVED if chunks > 1 else '1f1b'}")
    name = "1f1b" if written in (None, "none") else str(written)
    name = INTERLEAVED if name == "1f1b" and chunks > 1 else name
    if name == INTERLEAVED and chunks < 2:
        chunks = _chunks(layers, ranks, stack)
        notes.append(f"chunks not published: {chunks}")
        name = INTERLEAVED if chunks > 1 else "1f1b"
    out: dict[str, Any] = {"schedule": name} | ({"chunks": chunks} if name == INTERLEAVED else {})
    out |= {"optimizer": "post-validation"} if name.startswith("zb-") else {}  # as the code of Qi et al. 2023 steps (arXiv 2401.10241, section 4)
    out |= {"comm": "async"} if name != "1f1b" else {}  # Megatron-LM overlaps the messages of interleaved schedules, zero-bubble codes all
    stages = SCHEDULES[name].placement.stages(ranks, chunks if name == INTERLEAVED else SCHEDULES[name].chunks)
    if strategy.get("vocab_method") == "redis":
        notes.append("layers redistributed: the last stage holds fewer by the FLOPs of the head")
        out["layers"] = _redistributed(model, layers, stages)
    elif strategy.get("vocab_method") == "vocab-1":
        if name != "1f1b":
            raise NotModelled(f"vocabulary parallelism (vocab-1) in {name} is not modelled")
        notes.append("embedding and head cut over the pipeline, two meetings of all ranks between a last forward and its backward")
        out |= {"vocabulary": "parallel", "comm": "async"}
    elif stack == "nanotron" and len(dealt := _balanced(model, layers, stages)) == stages:
        notes.append("layers dealt out by their cost and that of the head, as nanotron does")
        out["layers"] = dealt
    elif layers % stages and (layers + 2) % stages == 0:
        each = (layers + 2) // stages
        notes.append("first and last stage hold one layer fewer")
        out["layers"] = [each - 1, *[each] * (stages - 2), each - 1]
    return out


def _chunks(layers: int, ranks: int, stack: str) -> int:
    """Chunks per rank that deal out the layers evenly, else with first and last stage one layer short. The most where messages are overlapped, as who
    publishes a step publishes the fastest; the least in stacks from before that, which wait for each."""
    even, short = ([v for v in range(2, CHUNKS + 1) if (layers + spare) % (ranks * v) == 0] for spare in (0, 2))
    found = even or short or [2 if layers >= 2 * ranks else 1]
    return found[0] if stack in WAITING else found[-1]


def _balanced(model: Tree, layers: int, stages: int) -> list[int]:
    """Layers per stage as nanotron deals them out: in order, to a rank until it passes its share of the cost, the head counting by its weights.

    Where that leaves ranks over, the head is alone on one of them (the step of the 8.86B model on 16 stages leaves no room for layers beside it),
    the next stands first with the embedding, and for others a stage of several layers is cut in two.
    """
    h, ffn, heads = model["hidden"], model["ffn"], model["heads"]
    width = heads * (model.get("head_dim") or h // heads)
    head = model["vocab"] * h / (4 * width * h + 3 * ffn * h)
    share, out = (layers + head) / stages, [0]
    for done in range(1, layers + 1):
        out[-1] += 1
        if done > share * len(out) and len(out) < stages:
            out.append(0)
    out += [0] if len(out) < stages and out[-1] else []
    out = [0, *out] if len(out) < stages else out
    while len(out) < stages and max(out) > 1:
        at = out.index(max(out))
        out[at : at + 1] = [out[at] - out[at] // 2, out[at] // 2]
    return out


def _redistributed(model: Tree, layers: int, stages: int) -> list[int]:
    """Layers per stage with the head counted as layers of equal FLOPs: 2 h V of 24 h^2 per token. A head that outweighs its share is alone."""
    head = model["vocab"] / (12 * model["hidden"])
    last = max(0, round((layers + head) / stages - head))
    each, more = divmod(layers - last, stages - 1)
    return [each + (i < more) for i in range(stages - 1)] + [last]


def _recompute(strategy: Tree, stack: str, notes: list[str]) -> dict[str, Any]:
    """The stack's own form where it is the stack that recomputes selectively (torchtitan)."""
    written = strategy.get("recompute")
    if written is None:
        notes.append("recompute not published: none")
        return {"recompute": {"modules": "none"}}
    if written == "selective" and stack == "torchtitan":
        return {}
    if written not in ("none", "selective", "full"):
        raise NotModelled(f"{written} recompute is not modelled")
    return {"recompute": {"modules": written}}
