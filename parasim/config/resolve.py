"""From the checked keys of a run file to a Plan: every `auto` gets its number, every rule of the layout is kept, every default is said."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from ..errors import InvalidLayout, Violation
from ..model.spec import Experts, Model, Transformer
from ..parallel.check import HALF, batch_violation, check
from ..parallel.heads import kv_copies
from ..parallel.layout import FULL, Batch, Context, DataParallel, Degrees, Kernels, Layout, Offload, Optimizer, Pipeline, Recompute, Routing, Tensor, Zero
from ..parallel.placement import split_layers
from ..parallel.routing import shares, slots
from ..parallel.vocabulary import padded_vocabulary
from ..program.ops import DType
from ..schedules import SCHEDULES
from ..units import format_bytes
from .hints import stage_times
from .not_yet import refusals
from .plan import Plan
from .schema import ENDS, RunKeys


def resolve(keys: RunKeys, model: Model) -> Plan:
    """The Plan of `keys` for `model`; a batch without `sequence` gets 1.

    Raises `InvalidLayout` with every broken rule and everything that is not supported yet.
    """
    degrees, batch, broken = _sizes(keys)
    broken += refusals(keys, degrees.dp)
    layout = _layout(keys, model, degrees, batch)
    seen = {(v.field, v.value) for v in broken}
    broken += (v for v in check(model, layout) if (v.field, v.value) not in seen)
    if broken:
        raise InvalidLayout(broken)
    return Plan(model, layout, (*_notes(model), *_assumptions(keys, layout, model)))


def _sizes(keys: RunKeys) -> tuple[Degrees, Batch, list[Violation]]:
    """Degrees and batch, with the violations of devices and batch. Where there are any, the sizes are stand-ins for the other checks."""
    p, b = keys.parallel, keys.batch
    model_parallel = p.tp * p.cp * p.pp
    product = f"parallel.tp={p.tp} x cp={p.cp} x pp={p.pp} = {model_parallel}"
    broken: list[Violation] = []
    dp = p.dp if isinstance(p.dp, int) else max(1, keys.devices // model_parallel)
    if keys.devices % model_parallel:
        below = keys.devices // model_parallel * model_parallel
        near = [n for n in (below, below + model_parallel) if n]
        broken.append(Violation("devices", str(keys.devices), f"must be a multiple of {product}", f"nearest legal: {', '.join(map(str, near))}"))
    elif model_parallel * dp != keys.devices:
        rule = f"times {product} is {model_parallel * dp} ranks, but devices={keys.devices}"
        broken.append(Violation("parallel.dp", str(dp), rule, f"legal: {keys.devices // model_parallel}, auto, or devices={model_parallel * dp}"))
    microbatches = b.global_ // (b.micro * dp)
    if b.global_ % (b.micro * dp):
        # dp follows from devices while that is wrong: then the batch cannot be judged
        broken += [_batch(keys, dp, product)] if not broken else []
        microbatches = max(1, microbatches)
    degrees = Degrees(p.tp, p.cp, p.ep, dp, p.pp, p.order)
    return degrees, Batch(b.micro * dp * microbatches, b.micro, b.sequence or 1, microbatches), broken


def _batch(keys: RunKeys, dp: int, product: str) -> Violation:
    plain = batch_violation(keys.batch.global_, keys.batch.micro, dp)
    if keys.parallel.dp != "auto":
        return plain
    return replace(plain, rule=f"{plain.rule} (dp is devices={keys.devices} / ({product}))")


def _layout(keys: RunKeys, model: Model, degrees: Degrees, batch: Batch) -> Layout:
    pipe, zero = keys.pipeline, keys.zero
    chunks = _chunks(keys)
    row = SCHEDULES[pipe.schedule]
    layers = _layers(pipe.layers, model.layers, row.placement.stages(degrees.pp, chunks))
    times = stage_times(model, layers, batch, _recompute(keys)) if "times" in row.knobs else None
    precision, linear = _precision(keys)
    shard = degrees.replicas if zero.shard == "auto" else int(zero.shard)
    master = keys.optimizer.master if keys.optimizer.master is not None else precision in HALF
    return Layout(
        degrees=degrees,
        batch=batch,
        precision=precision,
        linear=linear,
        data=_data(keys),
        zero=Zero(zero.stage, shard, zero.overlap, zero.prefetch, zero.limit, zero.reshard_after_forward, zero.overlap_gather, zero.gather, zero.keep_below),
        pipeline=Pipeline(pipe.schedule, chunks, pipe.comm, layers, pipe.optimizer, pipe.vocabulary, pipe.group, pipe.memory_cap, times),
        tensor=_tensor(keys, degrees.tp),
        context=Context(keys.context.style),
        recompute=_recompute(keys),
        kernels=Kernels(keys.kernels.attention, keys.kernels.dropout, keys.kernels.glu, keys.kernels.loss),
        routing=_routing(keys),
        optimizer=Optimizer(keys.optimizer.name, keys.optimizer.gradient_dtype or precision, master, keys.optimizer.step),
        offload=Offload(keys.offload.optimizer, keys.offload.parameters),
    )


def _tensor(keys: RunKeys, tp: int) -> Tensor:
    given = keys.tensor
    pieces = tp if given.user_buffers and given.pieces == 1 else given.pieces
    return Tensor(given.style, given.sequence_parallel, given.asynchronous, pieces, given.user_buffers, given.own_first)


def _precision(keys: RunKeys) -> tuple[DType, DType | None]:
    """That of parameters and activations, and the narrower one of linear layers if there is one."""
    return ("bf16", "fp8") if keys.precision == "fp8" else (keys.precision, None)


def _data(keys: RunKeys) -> DataParallel:
    """As torch's DistributedDataParallel: the first bucket is smaller unless the size of buckets is given."""
    first = keys.dp.bucket if "bucket" in keys.dp.model_fields_set else DataParallel.first
    return DataParallel(keys.dp.mode, keys.dp.bucket, first)


def _routing(keys: RunKeys) -> Routing:
    """What is written under `experts`."""
    e = keys.experts
    load = {} if e.load == "balanced" else dict(e.load)
    return Routing(float(load.get("zipf", 0.0)), tuple(map(float, load.get("shares", ()))), float(e.capacity or 0.0), e.max_nodes or 0)


WAYS: dict[str, tuple[str, ...]] = {"none": (), "selective": ("core_attn",), "full": (FULL,)}


def _recompute(keys: RunKeys) -> Recompute:
    r = keys.recompute
    return Recompute(WAYS[r.modules] if isinstance(r.modules, str) else r.modules, r.layers, r.method, r.early_stop)


def _layers(written: Any, layers: int, stages: int) -> tuple[int, ...]:
    """Layers per stage; where the first or the last stage has a number of its own, the others share the rest evenly."""
    if written == "auto":
        return split_layers(layers, stages)
    if not isinstance(written, Mapping):
        return tuple(written)
    first, last = ([written[end]] if end in written else [] for end in ENDS)
    middle = stages - len(first) - len(last)
    rest = split_layers(max(layers - sum(first) - sum(last), 0), middle) if middle > 0 else ()
    return (*first, *rest, *last)


def _chunks(keys: RunKeys) -> int:
    """Stages per rank: what is written, else what the schedule has."""
    pipe = keys.pipeline
    row = SCHEDULES[pipe.schedule]
    return row.chunks if row.fixed and "chunks" not in pipe.model_fields_set else pipe.chunks


def _notes(model: Model) -> Iterator[str]:
    """What was assumed when the model was read."""
    yield from (f"model {model.name}: {note}" for note in (model.notes if isinstance(model, Transformer) else ()))


def _assumptions(keys: RunKeys, layout: Layout, model: Model) -> Iterator[str]:
    """What the user did not write and what it was taken to be, where it matters."""
    degrees, batch = layout.degrees, layout.batch
    if keys.profile is None:
        yield "profile omitted: datasheet numbers, every efficiency 1 and no overhead of software"
    if "precision" not in keys.model_fields_set:
        yield "precision omitted: bf16"
    if keys.parallel.dp == "auto":
        yield f"parallel.dp auto: {degrees.dp} (devices {keys.devices} / (tp {degrees.tp} x cp {degrees.cp} x pp {degrees.pp}))"
    if layout.linear == "fp8":
        yield "precision fp8: linear layers multiply fp8 copies with one scale per tensor, weights cast once a step; the rest is bf16, and so is what is sent"
    if "micro" not in keys.batch.model_fields_set:
        yield "batch.micro omitted: 1"
    if keys.batch.sequence is None:
        yield "batch.sequence omitted: 1"
    yield f"{batch.microbatches} microbatches of {batch.micro} per replica and step"
    if degrees.replicas > 1:
        yield from _replicas(keys, layout)
    if degrees.cp > 1:
        yield from _context(keys, layout)
    if degrees.pp > 1:
        yield from _stages(keys, layout)
    if "recompute" not in keys.model_fields_set:
        yield "recompute omitted: none, every activation is kept"
    yield from _optimizer(keys, layout)
    copies = kv_copies(model, layout)
    if copies > 1 and isinstance(model, Transformer):
        yield f"parallel.tp {degrees.tp}: each of the {model.kv_heads} key-value heads is on {copies} ranks, which sum its gradients once a step"
    padded = padded_vocabulary(model, layout) if isinstance(model, Transformer) else 0
    if isinstance(model, Transformer) and padded > model.vocab:
        more = (padded - model.vocab) * model.hidden * (1 if model.tied else 2)
        axes = {"tp": degrees.tp} | ({"pp": degrees.pp} if layout.vocabulary_parts > 1 else {})
        cut = " x ".join(f"{axis} {n}" for axis, n in axes.items())
        rows = f"vocabulary padded from {model.vocab} to {padded}, a multiple of 128 x {' x '.join(axes)}"
        yield f"parallel.{cut}: {rows}, {more} more parameters that train nothing"
    if isinstance(model, Transformer) and model.experts:
        yield from _experts(keys, layout, model.experts)


def _experts(keys: RunKeys, layout: Layout, experts: Experts) -> Iterator[str]:
    """The load that was assumed: it decides who waits for whom."""
    routing = layout.routing
    if routing.uneven:
        most = float(shares(layout, experts).max()) * experts.count
        way = f"zipf {routing.zipf:g}" if routing.zipf else "the shares given"
        yield f"experts.load {way}: the most wanted expert gets {most:.2f} times its even share of every rank's tokens, in every layer and microbatch"
    else:
        omitted = " omitted" if "load" not in keys.experts.model_fields_set else ""
        yield f"experts.load{omitted}: balanced, every expert gets as many tokens as any other"
    rows = slots(layout, experts)
    dropped = f"{routing.capacity:g}: {rows} rows of a rank per expert, the rest is dropped" if rows else "null: no token is dropped"
    yield f"experts.capacity {dropped}"
    if layout.degrees.ep > 1:
        yield "experts: copying the counts of an exchange to the host is not timed; exchanges are not overlapped with compute"
    if routing.max_nodes:
        yield f"experts.max_nodes {routing.max_nodes}: every token goes to as many servers, once to each"


def _replicas(keys: RunKeys, layout: Layout) -> Iterator[str]:
    if "stage" not in keys.zero.model_fields_set:
        yield "zero.stage omitted: 0, every replica holds the whole optimizer state"
    if "mode" not in keys.dp.model_fields_set:
        yield f"dp.mode omitted: bucketed, {format_bytes(layout.data.bucket)} of gradients at a time"
    elif keys.dp.mode != "bucketed" and "bucket" in keys.dp.model_fields_set:
        yield f"dp.bucket has no effect when dp.mode is {keys.dp.mode}"
    if "mode" in keys.dp.model_fields_set and layout.zero.stage == 3:
        yield f"dp.mode: no effect at zero.stage 3, where gradients are reduced {'layer by layer' if layout.zero.gather == 'unit' else 'one by one'}"
    if layout.zero.stage and layout.zero.shard == 1:
        yield "zero.shard 1: nothing is shared out, whatever zero.stage"
    idle = [name for name in ("prefetch", "limit", "reshard_after_forward", "gather", "keep_below") if name in keys.zero.model_fields_set]
    if idle and layout.zero.stage < 3:
        yield f"zero.{', zero.'.join(idle)}: no effect below zero.stage 3"
    if layout.zero.keep_below and layout.zero.gather == "unit":
        yield "zero.keep_below: no effect where zero.gather is unit"
    if layout.zero.overlap_gather and layout.zero.stage not in (1, 2):
        yield f"zero.overlap_gather: no effect at zero.stage {layout.zero.stage}, which gathers no parameters after the optimizer"


def _context(keys: RunKeys, layout: Layout) -> Iterator[str]:
    omitted = " omitted" if "style" not in keys.context.model_fields_set else ""
    if layout.context.style == "ring":
        yield f"context.style{omitted}: ring, rank r of cp holds chunks r and {2 * layout.degrees.cp - 1} - r of {2 * layout.degrees.cp} of every sequence"
    else:
        yield f"context.style{omitted}: all-to-all, rank r of cp holds block r of {layout.degrees.cp} of every sequence"
    yield "parallel.cp: gradients are reduced, and under zero shared, over dp x cp"


def _stages(keys: RunKeys, layout: Layout) -> Iterator[str]:
    if "schedule" not in keys.pipeline.model_fields_set:
        yield "pipeline.schedule omitted: 1f1b"
    if layout.pipeline.chunks != keys.pipeline.chunks:
        yield f"pipeline.chunks omitted: {layout.pipeline.chunks}, as {layout.pipeline.schedule} has"
    if layout.pipeline.times is not None:
        yield f"pipeline.schedule {layout.pipeline.schedule}: searched with F, I and W of every stage in proportion to their FLOPs (fixed models: their times)"
    if keys.pipeline.layers == "auto" and len(set(layout.pipeline.layers)) > 1:
        yield f"pipeline.layers auto: {list(layout.pipeline.layers)}"


def _optimizer(keys: RunKeys, layout: Layout) -> Iterator[str]:
    gradient, precision = layout.optimizer.gradient, layout.precision
    if keys.optimizer.gradient_dtype is None:
        more = " (Megatron-LM's own default for bf16 is fp32)" if precision == "bf16" else ""
        yield f"optimizer.gradient_dtype omitted: {gradient}, the precision; gradients are accumulated and reduced in it{more}"
    if keys.optimizer.master is None and precision in HALF:
        yield "optimizer.master omitted: true, an fp32 copy of the parameters is kept and updated"
