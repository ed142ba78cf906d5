"""account: what one rank of a layout holds, moves and computes, counted on its Program, with no clock but datasheet rates.

Bytes of collectives are wire bytes of the algorithm that the profile picks; seconds are those of each call alone on the network. FLOPs are
model FLOPs (full attention), seconds of compute those FLOPs at the dense peak: upper bounds of speed, as lectures use them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..collectives.plan import plan, seconds
from ..config import Run, vary
from ..cost.profile import datasheet
from ..errors import Malformed
from ..lowering import lower
from ..lowering.study import Study, lower_study
from ..model.layers import layer_attention_flops, layer_matmul_flops, parameter_tensors, parameters
from ..model.spec import Fixed, Model, Transformer
from ..parallel.placement import orders_of, stage_bounds
from ..program.ops import COMPUTE, Compute
from ..program.workload import Program, Workload
from ..report.schedules import schedule_report
from ..schedules import peak_inflight
from ..sim import simulate
from ..topology.builders import ideal
from ..topology.facts import rungs
from ..units import format_memory, format_seconds
from .account_memory import Kept, kept, state
from .account_moves import Moves, between
from .goodput_ask import count as count_of
from .settings import sweep, variant

SCHEMA = "parasim.account/1"


@dataclass(frozen=True)
class Account:
    """The tree of numbers, and the same divided by those of another layout where one was given (`over`)."""

    name: str
    tree: Mapping[str, Any]
    over: Mapping[str, Any] | None

    def to_json(self) -> dict[str, Any]:
        """The contract `parasim.account/1`; every key ends in its unit where it has one."""
        return {"schema": SCHEMA, "name": self.name, **self.tree, "over": self.over}

    def __str__(self) -> str:
        t = self.tree
        state_, memory, step = t["state"], t["memory"], t["step"]
        each = ", ".join(f"{name} {n:g}" for name, n in state_["bytes_per_parameter"].items())
        lines = [
            f"{self.name}: rank {t['rank']['rank']} of {t['world_size']} in {t['servers']} servers, {t['parameters']['model']:,} parameters",
            f"state {format_memory(state_['bytes'])} ({each} bytes per parameter of the rank), activations {format_memory(memory['activation_bytes'])} "
            f"of {format_memory(memory['capacity_bytes'])}: {'fits' if memory['fits'] else 'does not fit'}",
            f"largest model with this layout by state alone: {state_['largest_parameters']:.4g} parameters",
        ]
        lines += [f"compute at peak {format_seconds(step['compute_s'])} per step"] if step["compute_s"] else []
        for axis, row in step["axes"].items():
            lines.append(f"{axis}: {row['calls']} calls, {format_memory(row['wire_bytes'])} per step, {format_seconds(row['seconds'])} alone on the network")
        return "\n".join(lines)


def account(run: Run, rank: int = 0, versus: str | None = None, spread: float | None = None, tokens: str | None = None, until: str | None = None) -> Account:
    """The account of `rank`; `versus` (settings such as `batch.sequence=1024`): also every number over that of the run so changed.

    `spread`: the share of activations that is cut over all replicas with the state; how many then hold it. `tokens`: of a step, in whole sequences.
    `until` (`parallel.pp=1..64:2x`): the first value with which the state fits. Raises Malformed.
    """
    tree = _tree(run, rank)
    if spread is not None:
        tree["spread"] = spread_out(tree, spread, run.plan.layout.batch.micro * run.plan.layout.batch.sequence)
    if tokens is not None:
        tree["batch"]["whole_sequences"] = int(count_of("--tokens", tokens) or 0) // run.plan.layout.batch.sequence
    if until is not None:
        tree["first_that_fits"] = _first(run, rank, until)
    other = None if versus is None else _tree(vary(run, [f"{k}={v}" for k, v in variant(versus)]), rank)
    return Account(run.name, tree, None if other is None else ratios(tree, other))


def spread_out(tree: Mapping[str, Any], share: float, tokens: int) -> dict[str, Any]:
    """Replicas that share out a state of b bytes and `share` of the activations a, (b + share a) / N + (1 - share) a each: how many must be,
    and the tokens per replica beyond which no number is enough. Raises Malformed."""
    if not 0 <= share <= 1:
        raise Malformed(f"--spread {share:g} must be a share from 0 to 1")
    whole, kept_bytes, capacity = tree["state"]["whole"]["bytes"], tree["layer"]["kept"]["rank_bytes"], tree["memory"]["capacity_bytes"]
    left = capacity - (1 - share) * kept_bytes
    most = capacity / ((1 - share) * kept_bytes / tokens) if share < 1 and kept_bytes else None
    return {"share": share, "replicas_at_least": math.ceil((whole + share * kept_bytes) / left) if left > 0 else None, "most_tokens_per_replica": most}


def _first(run: Run, rank: int, until: str) -> dict[str, str | int] | None:
    key, values = sweep(until, "--until-fits")
    for value in values:
        if _tree(vary(run, [f"{key}={value}"]), rank)["memory"]["state_fits"]:
            return {key: int(value) if value.isdecimal() else value}
    return None


def ratios(mine: Any, other: Any) -> Any:
    """Number over number, place by place; equal words and lists are true, others false; what the other lacks, or has as 0, is null."""
    if isinstance(mine, Mapping):
        return {k: ratios(v, other.get(k)) if isinstance(other, Mapping) else None for k, v in mine.items()}
    if isinstance(mine, bool) or not isinstance(mine, int | float):
        return mine == other
    return mine / other if isinstance(other, int | float) and other else None


def _tree(run: Run, rank: int) -> dict[str, Any]:
    workload = lower(run.plan)
    if not 0 <= rank < workload.world:
        raise Malformed(f"--rank {rank} is not a rank of this run; legal: 0 to {workload.world - 1}")
    program = workload.bound.program_of(rank)
    layout, model = run.plan.layout, run.plan.model
    moves = Moves(workload.bound, rank, run.cluster, run.profile)
    held = kept(program)
    stages = _stages(run, workload, rank)
    layer = _layer(run, program, moves, held)
    return {
        "world_size": workload.world,
        "degrees": {axis: getattr(layout.degrees, axis) for axis in ("tp", "cp", "ep", "dp", "pp")},
        "axes_fastest_first": [axis for axis in layout.degrees.order if axis != "ep" and getattr(layout.degrees, axis) > 1],
        "servers": len({run.cluster.node_of[d] for d in run.cluster.devices[: workload.world]}),
        "batch": _batch(run, workload, rank),
        "rank": {"rank": rank, "coordinates": {a: int(c[rank]) for a, c in workload.coordinates.items()}, "node": _node(run, rank)},
        "stages": stages,
        "groups": {name: _group(run, workload, rank, name) for name in workload.groups},
        "parameters": {"model": parameters(model), "tensors": parameter_tensors(model), "rank": _elements(program)},
        "state": (states := state(program, parameters(model), _elements(program), layout, run.cluster.accelerator.memory.value)),
        "memory": _memory(run, held, states, int(workload.coordinates["pp"][rank])),
        "layer": layer,
        "step": _step(run, program, moves, layer, stages),
    }


def _node(run: Run, rank: int) -> str:
    return run.cluster.node_of[run.cluster.devices[rank]]


def _batch(run: Run, workload: Workload, rank: int) -> dict[str, Any]:
    layout = run.plan.layout
    rows, at = layout.batch.global_ // layout.degrees.dp, int(workload.coordinates["dp"][rank])
    return {
        "global": layout.batch.global_,
        "microbatches": layout.batch.microbatches,
        "rows": {"count": rows, "start": at * rows, "end": (at + 1) * rows},
        "tokens_per_device": layout.batch.global_ * layout.batch.sequence / workload.world,
        "least": layout.batch.micro * layout.degrees.dp,
        "most_devices": layout.batch.global_ * workload.world // layout.degrees.dp,
    }


def _group(run: Run, workload: Workload, rank: int, name: str) -> dict[str, int]:
    members = workload.members(rank, name).tolist() if (workload.groups[name] == rank).any() else []
    size, degrees = int(workload.groups[name].shape[1]), run.plan.layout.degrees
    servers = len({_node(run, r) for r in members})
    return {"size": size, "count": len(workload.groups[name]), "servers": servers, "holds_all_replicas": size >= degrees.replicas}


def _elements(program: Program) -> int:
    return sum(math.prod(int(n) for n in b.shape) for b in program.buffers.values() if b.category == "parameters" and b.persistent)


def _stages(run: Run, workload: Workload, rank: int) -> list[dict[str, Any]]:
    """Layers of every stage, first and last counted from 1, and whether this rank holds it."""
    mine = {op.label.stage for body in workload.program_of(rank).bodies.values() for op in body if op.label.stage >= 0}
    bounds = stage_bounds(run.plan.layout.pipeline.layers)
    return [{"stage": s, "layers": [first + 1, last], "here": s in mine} for s, (first, last) in enumerate(bounds)]


def _memory(run: Run, held: Kept, states: Mapping[str, Any], place: int) -> dict[str, Any]:
    """State and what microbatches in flight keep; `live_bytes` is the layer that full recompute has whole again."""
    layout = run.plan.layout
    orders = orders_of(layout)
    flying = peak_inflight(orders[place])
    layers = max(layout.pipeline.layers)
    activations = flying * layers * held.middle_bytes + held.live_bytes
    capacity = run.cluster.accelerator.memory.value
    total = states["bytes"] + activations
    return {
        "state_bytes": states["bytes"],
        "microbatches_in_flight": flying,
        "layers_in_flight": flying * layers,
        "kept_bytes_per_layer": held.middle_bytes,
        "live_bytes": held.live_bytes,
        "activation_bytes": activations,
        "total_bytes": total,
        "capacity_bytes": capacity,
        "state_fits": states["bytes"] <= capacity,
        "fits": total <= capacity,
    }


def _layer(run: Run, program: Program, moves: Moves, held: Kept) -> dict[str, Any]:
    """One layer in the middle of the rank's first stage, one microbatch."""
    layout, model = run.plan.layout, run.plan.model
    tokens = layout.batch.micro * layout.batch.sequence
    forward = layer_matmul_flops(model, tokens, held.layer) + layer_attention_flops(model, tokens, layout.batch.sequence)
    share = layout.degrees.tp * layout.degrees.cp
    peak = run.cluster.accelerator.peak(layout.compute_dtype)
    compute = 3 * forward / share / peak
    if isinstance(model, Fixed):
        compute = model.forward + model.input_grad + model.weight_grad
    axes = moves.layer(held.layer)
    element = tokens * int(getattr(model, "hidden", 0))
    return {
        "layer": held.layer,
        "flops": 3 * forward,
        "attention_flops": 3 * layer_attention_flops(model, tokens, layout.batch.sequence),
        "compute_s": compute,
        "forward_compute_s": compute / 3,
        "recomputed_flops_over_model": moves.recomputed(held.layer) / (3 * forward) if forward else None,
        "kept": {**_split(model, held.to_json(element)), "seconds_over": reach(run, held.middle_bytes)},
        "axes": {axis: {**row, "over_compute": row["seconds"] / compute if compute else None} for axis, row in axes.items()},
        "context": _context(run, axes.get("cp"), tokens, compute),
        "buffers": {n: {"shape": list(b.shape), "bytes": program.sizes[n]} for n, b in program.buffers.items() if n.startswith(f"L{held.layer}.")},
    }


def reach(run: Run, nbytes: float) -> dict[str, float]:
    """Seconds of `nbytes` at the datasheet rate of each rung that reaches a device."""
    return {rung.name: nbytes / rung.bandwidth for rung in rungs(run.cluster)}


def _split(model: Model, kept_json: dict[str, Any]) -> dict[str, Any]:
    """Queries, keys and values are one tensor; its parts by their widths."""
    each = kept_json["bytes_per_element"]
    if isinstance(model, Transformer) and "qkv.out" in each:
        values = each["qkv.out"] * (model.heads if model.latent else model.kv_heads) * model.value_dim / model.qkv
        each |= {"queries and keys": each["qkv.out"] - values, "values": values}
    return kept_json


def _context(run: Run, row: Mapping[str, Any] | None, tokens: int, compute: float) -> dict[str, Any] | None:
    """Context parallelism of a layer: from how many tokens per rank a block of (full) attention hides the keys and values of the next one, both of
    a ring's step; and the causal work of the last rank over the first with contiguous chunks of a long sequence, and with zig-zag pairs of chunks."""
    cp = run.plan.layout.degrees.cp
    if row is None or cp == 1:
        return None
    model, batch = run.plan.model, run.plan.layout.batch
    whole = layer_matmul_flops(model, tokens) + layer_attention_flops(model, tokens, batch.sequence)
    attention = compute / 3 * layer_attention_flops(model, tokens, batch.sequence) / whole
    per_step = row["forward"]["seconds"] / (cp - 1)
    areas = [(i + 1) ** 2 - i**2 for i in range(2 * cp)]  # of a triangle, by chunk
    pairs = [areas[i] + areas[2 * cp - 1 - i] for i in range(cp)]
    blocks = [areas[2 * i] + areas[2 * i + 1] for i in range(cp)]
    return {
        "steps": cp - 1,
        "bytes_per_step": row["forward"]["wire_bytes"] / (cp - 1),
        "hides_from_tokens_per_rank": batch.sequence / cp * per_step / (attention / cp) if attention else None,
        "work_last_over_first": {"contiguous": blocks[-1] / blocks[0], "zigzag": pairs[-1] / pairs[0]},
    }


def _step(run: Run, program: Program, moves: Moves, layer: Mapping[str, Any], stages: list[dict[str, Any]]) -> dict[str, Any]:
    """All that the rank does in a step; `layers` holds layers x microbatches times the middle layer, without embedding and head."""
    m = run.plan.layout.batch.microbatches
    count = m * sum(s["layers"][1] - s["layers"][0] + 1 for s in stages if s["here"])
    compute = count * layer["compute_s"]
    many = {
        axis: {k: row[k] * count for k in ("calls", "wire_bytes", "wire_elements", "seconds")} | {"over_compute": row["over_compute"]}
        for axis, row in layer["axes"].items()
    }
    axes = {a: {**row, "over_compute": row["seconds"] / compute if compute else None, "between": between(program, a)} for a, row in moves.step().items()}
    for row in many.values():
        row["elements_over"] = {a: row["wire_elements"] / other["wire_elements"] for a, other in axes.items() if other["wire_elements"]}
    if "dp" in axes:
        axes["dp"] |= _replicas(run, axes["dp"], compute, m)
    return {
        "layer_microbatches": count,
        "compute_s": compute,
        "axes": axes,
        "layers": {"axes": many, "compute_s": compute},
        "compute_ops": sum(isinstance(op, Compute) and op.stream == COMPUTE for c in program.calls for op in program.bodies[c.body]),
        "pipeline": _pipeline(run),
    }


def _replicas(run: Run, row: Mapping[str, Any], compute: float, m: int) -> dict[str, Any]:
    """From how many tokens per rank and step compute hides the transfers of parameters and gradients: ZeRO-3's, three passes, under all of it, gradients
    alone under the backward. And the best number of buckets where overheads are not hidden: exposed s/(n w) + n o is least at n = sqrt(s/(w o))."""
    layout = run.plan.layout
    tokens = m * layout.batch.micro * layout.batch.sequence / layout.degrees.cp
    under = compute if layout.zero.stage == 3 else compute * 2 / 3
    devices = [run.cluster.devices[r] for r in range(layout.degrees.dp)] if layout.degrees.replicas == layout.degrees.world else []
    return {"hides_from_tokens_per_rank": tokens * row["seconds"] / under if under else None, "buckets": _buckets(run, devices, row)}


def _buckets(run: Run, devices: list[str], row: Mapping[str, Any]) -> dict[str, float] | None:
    if len(devices) < 2 or {op for op, n in row["ops"].items() if n} != {"all_reduce"}:
        return None
    size = row["wire_bytes"] * len(devices) / (2 * (len(devices) - 1))
    one, two = (seconds(plan("all_reduce", n * size, devices, run.cluster, run.profile), run.cluster, run.profile) for n in (1.0, 2.0))
    moving, call = two - one, 2 * one - two
    if call <= 0:
        return None
    best = math.sqrt(moving / call)
    return {"call_s": call, "moving_s": moving, "best_count": best, "best_bytes": size / best, "least_exposed_s": moving / best + best * call}


def _pipeline(run: Run) -> dict[str, Any]:
    """The bare schedule, messages free, under F = I = W = 1: what it costs over the work of its busiest rank."""
    layout = run.plan.layout
    orders = orders_of(layout)
    study = lower_study(Study(orders, max(1, layout.pipeline.chunks), (1.0, 1.0, 1.0)))
    report = schedule_report(orders, simulate(study, ideal(len(orders), 0.0), datasheet(), fold=False))
    plain = layout.pipeline.chunks == 1 and layout.pipeline.schedule in ("gpipe", "1f1b")
    limit = len(orders) / layout.batch.microbatches if plain else None  # (p - 1) / m for ever more ranks at this many microbatches per rank
    bubbles = {"over_ideal_limit": limit, "over_ideal": report.bubble_over_ideal, "share_of_step": report.bubble_makespan}
    return {"schedule": layout.pipeline.schedule, "ranks": len(orders), "microbatches": layout.batch.microbatches, "bubble": bubbles}
