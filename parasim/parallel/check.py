"""The rules a layout must keep for its model, as data: what is broken, by which value, and the nearest legal ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from ..errors import InvalidLayout, Violation
from ..model.spec import Experts, Fixed, Mlp, Model, Transformer
from .layout import FULL, PARTS, Layout
from .placement import orders_of, stages_of

HALF = ("bf16", "fp16")
SHOWN_AT_MOST = 12


def check(model: Model, layout: Layout) -> tuple[Violation, ...]:
    """Every rule that `layout` breaks for `model`; empty when it is legal. Fields are paths of the run file.

    Any number of microbatches (1 or more) is legal for naive, gpipe and 1f1b.
    """
    beyond = tuple(_sizes(model, layout))
    if beyond:
        return beyond
    rules = (_tensor, _context, _sequence_parallel, _pipeline, _vocabulary, _batch, _zero, _dtypes, _model, _recompute, _kernels, _offload, _experts)
    return tuple(v for rule in rules for v in rule(model, layout))


MOST_LAYERS, MOST_MICROBATCHES = 2**13, 2**14  # beyond that a typo is likelier than a run, and the answer would take minutes


def _sizes(model: Model, layout: Layout) -> Iterator[Violation]:
    m = layout.batch.microbatches
    if model.layers > MOST_LAYERS:
        yield Violation("model.layers", str(model.layers), "is more than is simulated", f"at most {MOST_LAYERS}")
    if m > MOST_MICROBATCHES:
        rule = f"is {m} microbatches per replica (batch.micro={layout.batch.micro}, dp={layout.degrees.dp}), more than is simulated"
        yield Violation("batch.global", str(layout.batch.global_), rule, f"at most {MOST_MICROBATCHES * layout.batch.micro * layout.degrees.dp}")


def divisors(number: int) -> list[int]:
    """The divisors of `number`, in order."""
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)})


def legal(values: Iterable[int], wanted: int) -> str:
    """ "legal: ..." with all the values in order, or the nearest to `wanted` when there are many."""
    options = sorted(set(values))
    if len(options) <= SHOWN_AT_MOST:
        return f"legal: {', '.join(map(str, options))}"
    near = sorted(sorted(options, key=lambda v: abs(v - wanted))[:6])
    return f"nearest legal: {', '.join(map(str, near))}"


def _tensor(model: Model, layout: Layout) -> Iterator[Violation]:
    tp = layout.degrees.tp
    if tp == 1:
        return
    if isinstance(model, Fixed):
        yield Violation("parallel.tp", str(tp), "cannot cut a model of fixed times", "legal: 1")
        return
    for name in ("heads", "ffn") if isinstance(model, Transformer) else ("ffn",):
        size = getattr(model, name)
        if size % tp:
            yield Violation("parallel.tp", str(tp), f"must divide model.{name}={size}", legal(divisors(size), tp))
    if layout.tensor.style == "all-gather" and model.hidden % tp:
        yield Violation("parallel.tp", str(tp), f"must divide model.hidden={model.hidden}", legal(divisors(model.hidden), tp))
    if isinstance(model, Transformer):
        yield from _key_values(model, tp)
        if model.qk_norm == "full":
            yield Violation("parallel.tp", str(tp), "cuts the heads that model.qk_norm=full takes one norm over", "legal: 1, or model.qk_norm=head")


def _key_values(model: Transformer, tp: int) -> Iterator[Violation]:
    """Key-value heads are cut, or each is on as many ranks as any other."""
    kv = model.heads if model.latent else model.kv_heads
    if kv % tp and tp % kv:
        fit = [t for t in divisors(model.heads) if kv % t == 0 or t % kv == 0]
        yield Violation("parallel.tp", str(tp), f"must divide model.kv_heads={kv}, or be a multiple of them (which are copied then)", legal(fit, tp))


def _context(model: Model, layout: Layout) -> Iterator[Violation]:
    """The sequence is cut over cp: in chunks, two per rank, or in blocks whose ranks exchange heads."""
    cp, style, sequence = layout.degrees.cp, layout.context.style, layout.batch.sequence
    if cp == 1:
        return
    if not isinstance(model, Transformer):
        yield Violation("parallel.cp", str(cp), "cuts the sequence of attention, and this model has none", "legal: 1")
        return
    if layout.kernels.attention == "unfused":
        yield Violation("kernels.attention", "unfused", f"keeps scores of whole sequences, with parallel.cp={cp} not modelled", "legal: tiled")
    if style == "ring":
        if sequence % (2 * cp):
            fit = [n // 2 for n in divisors(sequence) if n % 2 == 0] or [1]
            yield Violation("parallel.cp", str(cp), f"must divide batch.sequence={sequence} into 2 cp chunks", legal(fit, cp))
        return
    if sequence % cp:
        yield Violation("parallel.cp", str(cp), f"must divide batch.sequence={sequence}", legal(divisors(sequence), cp))
    heads = max(1, (model.heads if model.latent else model.kv_heads) // layout.degrees.tp)
    if heads % cp:
        rule = f"must divide the {heads} key-value heads of a rank (model.kv_heads / tp), which context.style=all-to-all exchanges"
        yield Violation("parallel.cp", str(cp), rule, f"{legal(divisors(heads), cp)}, or context.style=ring")


def _sequence_parallel(model: Model, layout: Layout) -> Iterator[Violation]:
    tp, cp, batch, pieces = layout.degrees.tp, layout.degrees.cp, layout.batch, layout.tensor.pieces
    if not layout.tensor.sequence_parallel:
        if layout.tensor.user_buffers:
            yield Violation("tensor.user_buffers", "true", "move what sequence parallelism gathers", "legal: false, or tensor.sequence_parallel=true")
        elif layout.tensor.own_first:
            yield Violation("tensor.own_first", "true", "is about rows that sequence parallelism gathers", "legal: false, or tensor.sequence_parallel=true")
        elif pieces > 1:
            yield Violation("tensor.pieces", str(pieces), "cuts what sequence parallelism gathers", "legal: 1, or tensor.sequence_parallel=true")
        return
    if layout.tensor.style == "all-gather":
        rule = "cuts the rows of what row-parallel layers add up, and tensor.style=all-gather has none"
        yield Violation("tensor.sequence_parallel", "true", rule, "set it to false, or tensor.style to megatron")
    elif tp == 1:
        yield Violation("tensor.sequence_parallel", "true", "needs parallel.tp of 2 or more, not 1", "set it to false, or raise parallel.tp")
    elif batch.sequence // cp * batch.micro % tp:
        per = f" / cp={cp}" if cp > 1 else ""
        rule = f"must divide the tokens of a microbatch, batch.sequence={batch.sequence}{per} x batch.micro={batch.micro}"
        yield Violation("parallel.tp", str(tp), f"{rule}, under tensor.sequence_parallel", legal(divisors(batch.sequence // cp * batch.micro), tp))
    elif (rows := batch.sequence // cp * batch.micro // tp) % pieces:
        yield Violation("tensor.pieces", str(pieces), f"must divide the {rows} tokens of a microbatch on a rank of tp", legal(divisors(rows), pieces))
    elif pieces > 1 and layout.kernels.dropout:
        yield Violation("kernels.dropout", "true", "draws its masks by rank, whose rows lie otherwise in tensor.pieces", "legal: false, or tensor.pieces=1")
    yield from _own_first(layout)


def _own_first(layout: Layout) -> Iterator[Violation]:
    how = layout.tensor
    if not how.own_first:
        return
    if not how.asynchronous:
        yield Violation("tensor.own_first", "true", "goes on while rows are gathered", "legal: false, or tensor.async=true")
    if how.pieces > 1:
        yield Violation("tensor.own_first", "true", f"gathers rows at once, not in tensor.pieces={how.pieces}", "legal: false, or tensor.pieces=1")
    if layout.linear is not None:
        yield Violation("tensor.own_first", "true", f"multiplies no {layout.linear} copies", "legal: false, or precision=bf16")


def _pipeline(model: Model, layout: Layout) -> Iterator[Violation]:
    pp, pipeline = layout.degrees.pp, layout.pipeline
    stages, layers = stages_of(layout), pipeline.layers
    ends = {i for i in (0, len(layers) - 1) if isinstance(model, Transformer)}  # may hold the embedding, or the head, alone
    if stages > model.layers + sum(layers[i] == 0 for i in ends if layers):
        chunks = f" x pipeline.chunks={pipeline.chunks}" if pipeline.chunks > 1 else ""
        rule = f"is {stages} stages{chunks}, more than model.layers={model.layers}"
        yield Violation("parallel.pp", str(pp), rule, f"at most {model.layers * pp // stages}")
        return
    text = f"[{', '.join(map(str, layers))}]"
    if len(layers) != stages:
        rule = f"has {len(layers)} entries, but there are {stages} stages (parallel.pp={pp} x pipeline.chunks={pipeline.chunks})"
        yield Violation("pipeline.layers", text, rule, f"write {stages} entries, or auto")
    if sum(layers) != model.layers:
        rule = f"sums to {sum(layers)}, but model.layers={model.layers}"
        yield Violation("pipeline.layers", text, rule, f"write numbers that sum to {model.layers}, or auto")
    if len(layers) == stages:
        yield from _schedule(layout)
    if any(n < 1 for i, n in enumerate(layers) if i not in ends or n < 0):
        yield Violation("pipeline.layers", text, "leaves a stage without a layer", "write 1 or more for every stage, or auto")


def _vocabulary(model: Model, layout: Layout) -> Iterator[Violation]:
    """Where all ranks of a pipeline share embedding and head, their passes stand between the stages of 1f1b."""
    pipeline = layout.pipeline
    if layout.vocabulary_parts == 1:
        return
    if not isinstance(model, Transformer):
        yield Violation("pipeline.vocabulary", "parallel", "cuts embedding and head, and this model has none", "legal: ends")
        return
    if pipeline.schedule != "1f1b":
        yield Violation(
            "pipeline.vocabulary", "parallel", f"has its passes placed in 1f1b, not in pipeline.schedule={pipeline.schedule}", "legal: ends, or 1f1b"
        )
    if pipeline.comm != "async":
        rule = f"meets all ranks between messages, which pipeline.comm={pipeline.comm} would hold up for good"
        yield Violation("pipeline.vocabulary", "parallel", rule, "legal: ends, or pipeline.comm=async")
    if 0 in pipeline.layers:
        rule = "leaves a stage without a layer, where pipeline.vocabulary=parallel takes embedding and head away"
        yield Violation("pipeline.layers", f"[{', '.join(map(str, pipeline.layers))}]", rule, "write 1 or more for every stage, or auto")
    if layout.offload.parameters:
        yield Violation("offload.parameters", "true", "fetches layers, and is not modelled with pipeline.vocabulary=parallel", "legal: false, or ends")


SCHEDULE_FIELDS = {"ranks": "parallel.pp", "chunks": "pipeline.chunks", "microbatches": "batch: microbatches per replica"}


def _schedule(layout: Layout) -> Iterator[Violation]:
    """What the schedule itself does not allow."""
    try:
        orders_of(layout)
    except InvalidLayout as e:
        for v in e.violations:
            yield Violation(SCHEDULE_FIELDS.get(v.field, f"pipeline.{v.field}"), v.value, f"{v.rule} (pipeline.schedule={layout.pipeline.schedule})", v.legal)


def _batch(model: Model, layout: Layout) -> Iterator[Violation]:
    batch, dp = layout.batch, layout.degrees.dp
    share = batch.micro * dp
    if batch.microbatches < 1 or batch.global_ != share * batch.microbatches:
        yield batch_violation(batch.global_, batch.micro, dp)
    if isinstance(model, Transformer) and model.positions == "learned" and batch.sequence > model.max_positions:
        rule = f"is longer than model.max_positions={model.max_positions}, the rows of its learned positions"
        yield Violation("batch.sequence", str(batch.sequence), rule, f"at most {model.max_positions}")


def _beyond_batch(global_: int, dp: int) -> Violation:
    """The refusal of more replicas than a batch has sequences."""
    return Violation(
        "parallel.dp",
        str(dp),
        f"is more than batch.global={global_}; a rank needs at least one sequence",
        f"legal: at most {global_}",
        {"largest_legal_dp": global_},
    )


def batch_violation(global_: int, micro: int, dp: int) -> Violation:
    """The refusal of a batch that does not split into whole microbatches, with the nearest global batches and dp that do."""
    if dp > global_:
        return _beyond_batch(global_, dp)
    share = micro * dp
    below, above = global_ // share * share, -(-global_ // share) * share
    batches = [b for b in (below, above) if b] + ([above + share] if not below else [])
    near = sorted(sorted(divisors(global_ // micro), key=lambda d: abs(d - dp))[:3]) if global_ % micro == 0 else []
    ways = f"legal batch.global near it: {', '.join(map(str, batches))}"
    ways += f"; legal dp for it: {', '.join(map(str, near))}" if near else ""
    return Violation("batch.global", str(global_), f"must be a multiple of batch.micro={micro} x dp={dp} = {share}", ways, _uneven(global_, micro, dp))


def _uneven(global_: int, micro: int, dp: int) -> dict[str, Any]:
    """Slices as even as can be, the weights that make the mean of their means the mean of the batch, the largest batch below and dp that would do."""
    slices = [global_ // dp + (r < global_ % dp) for r in range(dp)]
    legal_dp = [d for d in divisors(global_ // micro) if d <= dp] if global_ % micro == 0 else []
    below = global_ // (micro * dp) * micro * dp
    return {
        "slices": slices,
        "weights": [n / global_ for n in slices],
        "largest_legal_dp": max(legal_dp, default=None),
        "largest_legal_batch": below or None,
    }


def _zero(model: Model, layout: Layout) -> Iterator[Violation]:
    zero, dp = layout.zero, layout.degrees.replicas
    if zero.stage and dp % zero.shard:
        yield Violation(
            "zero.shard", str(zero.shard), f"must divide dp={dp}" if layout.degrees.cp == 1 else f"must divide dp x cp = {dp}", legal(divisors(dp), zero.shard)
        )
    if zero.overlap_gather and not zero.overlap:
        yield Violation("zero.overlap_gather", "true", "contradicts zero.overlap=false", "legal: false, or zero.overlap=true")


def _dtypes(model: Model, layout: Layout) -> Iterator[Violation]:
    precision, optimizer = layout.precision, layout.optimizer
    allowed = (precision, "fp32") if precision in HALF else (precision,)
    if optimizer.gradient not in allowed:
        rule = f"cannot hold the gradients of precision={precision}"
        yield Violation("optimizer.gradient_dtype", optimizer.gradient, rule, f"legal: {', '.join(allowed)}")
    if optimizer.master and precision not in HALF:
        rule = f"is an fp32 copy of bf16 or fp16 parameters, but precision={precision}"
        yield Violation("optimizer.master", "true", rule, "legal: false")


def _model(model: Model, layout: Layout) -> Iterator[Violation]:
    if isinstance(model, Mlp | Fixed):
        return
    if model.heads % model.kv_heads:
        yield Violation("model.kv_heads", str(model.kv_heads), f"must divide model.heads={model.heads}", legal(divisors(model.heads), model.kv_heads))
    name, turned = ("latent.rope_dim", model.latent.rope_dim) if model.latent else ("head_dim", model.head_dim)
    if model.positions == "rotary" and turned % 2:
        yield Violation(f"model.{name}", str(turned), "must be even for rotary positions", f"nearest legal: {turned - 1}, {turned + 1}")


def _recompute(model: Model, layout: Layout) -> Iterator[Violation]:
    again = layout.recompute
    parts = _parts(model)
    for module in again.modules:
        if module != FULL and module not in parts:
            yield Violation("recompute.modules", module, "is no part of this model's layers", f"legal: {', '.join(('none', 'full', *parts))}")
    if again.layers is not None and FULL not in again.modules:
        yield Violation("recompute.layers", str(again.layers), "chooses among whole layers", "leave it out, or write recompute.modules: full")


def _parts(model: Model) -> tuple[str, ...]:
    """The modules that layers of the model have."""
    if not isinstance(model, Transformer):
        return ("mlp", "act") if isinstance(model, Mlp) else ()
    missing = {"qkv" if model.latent else "mla_up_proj"}
    missing |= set() if model.experts else {"moe", "moe_act"}
    missing |= set() if model.experts and model.experts.shared_ffn else {"shared_experts"}
    return tuple(p for p in PARTS if p not in missing)


def _kernels(model: Model, layout: Layout) -> Iterator[Violation]:
    kernels = layout.kernels
    if kernels.dropout and not isinstance(model, Transformer):
        yield Violation("kernels.dropout", "true", "is modelled for transformers", "legal: false")
    if kernels.attention == "unfused" and not isinstance(model, Transformer):
        yield Violation("kernels.attention", kernels.attention, "needs a transformer", "legal: tiled")


def _offload(model: Model, layout: Layout) -> Iterator[Violation]:
    what, zero = layout.offload, layout.zero
    if isinstance(model, Fixed) and (what.optimizer or what.parameters):
        yield Violation("offload", "true", "has nothing to move in a model of fixed times", "legal: {optimizer: false, parameters: false}")
    if what.parameters and not what.optimizer:
        yield Violation("offload.parameters", "true", "needs the optimizer's state on the host too", "set offload.optimizer to true as well")
    if what.parameters and zero.stage and layout.degrees.replicas > 1:
        rule = f"is modelled for parameters that are whole on every replica, not with zero.stage={zero.stage}"
        yield Violation("offload.parameters", "true", rule, "legal: false, or zero.stage 0")


def _experts(model: Model, layout: Layout) -> Iterator[Violation]:
    """Expert parallelism re-tiles dp x cp and cuts the experts of a layer; a load must be one that topk different experts per token can have."""
    degrees, routing = layout.degrees, layout.routing
    if not isinstance(model, Transformer) or model.experts is None:
        if degrees.ep > 1:
            yield Violation("parallel.ep", str(degrees.ep), "needs experts, and this model has none", "legal: 1")
        for name, value in (("load", routing.zipf or routing.shares), ("capacity", routing.capacity), ("max_nodes", routing.max_nodes)):
            if value:
                yield Violation(f"experts.{name}", str(value), "needs experts, and this model has none", "leave it out")
        return
    experts, replicas = model.experts, degrees.replicas
    if replicas % degrees.ep:
        yield Violation("parallel.ep", str(degrees.ep), f"must divide dp x cp = {replicas}", legal(divisors(replicas), degrees.ep))
    if experts.count % degrees.ep:
        yield Violation("parallel.ep", str(degrees.ep), f"must divide model.experts.count={experts.count}", legal(divisors(experts.count), degrees.ep))
    if experts.topk > experts.count:
        yield Violation("model.experts.topk", str(experts.topk), f"is more than model.experts.count={experts.count}", f"at most {experts.count}")
    if model.biased("up") or model.biased("down"):
        yield Violation("model.bias", str(model.bias).lower(), "cannot be laid out in the feed-forward of experts yet", "legal: false, qkv, attention")
    yield from _cut_experts(model, experts, layout)
    yield from _routing(experts, layout)


def _cut_experts(model: Transformer, experts: Experts, layout: Layout) -> Iterator[Violation]:
    """Tensor parallelism cuts every expert; each rank routes its own part of the sequence (Megatron-LM asks for sequence parallelism, too)."""
    tp = layout.degrees.tp
    if tp == 1:
        return
    if not layout.tensor.sequence_parallel:
        yield Violation("tensor.sequence_parallel", "false", f"must be true for experts with parallel.tp={tp}", "legal: true, or parallel.tp=1")
    for name in ("ffn", "shared_ffn"):
        size = getattr(experts, name)
        if size % tp:
            yield Violation("parallel.tp", str(tp), f"must divide model.experts.{name}={size}", legal(divisors(size), tp))


def _routing(experts: Experts, layout: Layout) -> Iterator[Violation]:
    routing = layout.routing
    if routing.shares:
        text = f"{len(routing.shares)} shares"
        if len(routing.shares) != experts.count:
            yield Violation("experts.load", text, f"must be one per expert, model.experts.count={experts.count}", f"legal: {experts.count} shares")
        total = sum(routing.shares)
        if min(routing.shares) < 0 or abs(total - 1) > 1e-3:
            yield Violation("experts.load", text, f"must be parts of 1; they sum to {total:g}", "divide them by their sum")
        elif max(routing.shares) > 1 / experts.topk + 1e-3:
            rule = f"gives one expert {max(routing.shares):g} of all assignments, but each of a token's model.experts.topk={experts.topk} experts is another"
            yield Violation("experts.load", text, rule, f"at most {1 / experts.topk:g} each")
    if not 0 <= routing.zipf <= MOST_ZIPF:
        yield Violation("experts.load", f"zipf {routing.zipf:g}", "is no exponent of experts' popularity", f"legal: 0 (even) to {MOST_ZIPF}")
    if routing.max_nodes and routing.uneven:
        yield Violation("experts.max_nodes", str(routing.max_nodes), "is modelled for a balanced load", "legal: null, or experts.load: balanced")
    if routing.max_nodes and routing.capacity:
        yield Violation("experts.max_nodes", str(routing.max_nodes), "is modelled without capacity", "legal: null, or experts.capacity: null")
    if routing.max_nodes > experts.topk:
        yield Violation("experts.max_nodes", str(routing.max_nodes), f"limits nothing beyond model.experts.topk={experts.topk}", f"at most {experts.topk}")


MOST_ZIPF = 10
