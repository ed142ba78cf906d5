"""Mixture-of-experts layers: router, permutation by expert, one product per expert, combination; and the pass that spreads the experts over ep.

Sources: Shazeer et al. 2017 (arXiv 1701.06538), GShard (Lepikhin et al. 2020, arXiv 2006.16668, section 2.2), shared experts as in DeepSeekMoE
(Dai et al. 2024, arXiv 2401.06066). The pass follows Megatron-LM's all-to-all dispatcher: each rank routes its own tokens, an all-to-all over ep
takes the rows to the ranks of their experts, an all-gather over tp gives every tensor-parallel part of an expert the rows of all, and back the same
way. What a rank gets is known when it runs only; programs name a table of loads where a number of rows depends on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from ..model.spec import Experts
from ..parallel.routing import ARRIVING, BACK, GATHERED, OUT, SENT, slots
from ..program.ops import COMPUTE, Collective, CollectiveOp, Compute, Label, Op, Ref, replace
from .activations import activated
from .draft import Draft, collective, grad

if TYPE_CHECKING:
    from .transformer import TransformerWriter

AXIS = "ep"
# part of a layer's names -> what it holds. Rows of tokens: out. Rows of copies, by expert: copies (before the experts), made (after them)
COPIES, MADE, COUNTS = "experts.copies", "experts.made", "experts.counts"


def expert_layer(writer: TransformerWriter, n: int, x: Ref, dx: Ref, out: Ref) -> list[Op]:
    """out = sum of the topk experts' feed-forwards of x, weighted, + the shared ones; returns the backward from the gradient of out to dx."""
    experts = writer.model.experts
    assert experts is not None
    p = f"L{n}"
    routed, parts = (writer.hidden(f"{p}.combine.out"), 2) if experts.shared_ffn else (out, 1)
    pieces = [writer.hidden(f"{p}.dx{i}") for i in range(parts + 1)]
    backward = _routed(writer, experts, n, x, pieces, routed)
    if experts.shared_ffn:
        shared = writer.hidden(f"{p}.shared.out")
        back = _shared(writer, experts, n, x, pieces[2], shared)
        writer.add_forward(n, "residual_add", (routed, shared), (out,))
        names = {grad(routed): grad(out), grad(shared): grad(out)}
        backward = [_reading(o, names) for o in (*back, *backward)]
    total = pieces[0]
    for i, piece in enumerate(pieces[1:], 1):
        target = dx if i == len(pieces) - 1 else writer.hidden(f"{p}.dx.sum")
        backward.append(writer.op("I", n, "residual_add", (total, piece), (target,)))
        total = target
    return backward


def _reading(op: Op, names: Mapping[Ref, Ref]) -> Op:
    assert isinstance(op, Compute)
    return replace(op, kernels=tuple(replace(k, reads=tuple(names.get(r, r) for r in k.reads)) for k in op.kernels))


def _shared(writer: TransformerWriter, experts: Experts, n: int, x: Ref, dx: Ref, out: Ref) -> list[Op]:
    """The shared experts: a dense feed-forward of their widths together."""
    p, d, gates = f"L{n}.shared", writer.draft, writer.model.gates
    up = d.activation(f"{p}.fc1.out", (writer.rows, gates * experts.shared_ffn), cut=1)
    act = d.activation(f"{p}.act.out", (writer.rows, experts.shared_ffn), cut=1)
    up_back = writer.linear(n, f"{p}.fc1", x, up, dx, (writer.h, gates * experts.shared_ffn), "column")
    act_back = activated(writer, n, p, up, act)
    return [*writer.linear(n, f"{p}.fc2", act, out, grad(act), (experts.shared_ffn, writer.h), "row"), *act_back, *up_back]


def _routed(writer: TransformerWriter, experts: Experts, n: int, x: Ref, dx: list[Ref], out: Ref) -> list[Op]:
    """The routed experts; backward writes dx[0] through the copies and dx[1] through the router."""
    p, d, tokens = f"L{n}", writer.draft, writer.rows
    count, topk = experts.count, experts.topk
    weight = d.parameter(f"{p}.router.weight", (writer.h, count))
    writer.share((weight,))
    logits = d.activation(f"{p}.router.out", (tokens, count), rows=True)
    weights = d.activation(f"{p}.router.weights", (tokens, topk), rows=True)
    chosen = d.buffer(f"{p}.router.chosen", (tokens, topk), "activations", dtype="int32", rows=True)
    counts = d.buffer(f"{p}.{COUNTS}", (count,), "activations", dtype="int32")
    copies = d.activation(f"{p}.{COPIES}", (tokens * topk, writer.h), rows=True)
    made = d.activation(f"{p}.{MADE}", (tokens * topk, writer.h), rows=True)
    dims = (topk, slots(d.layout, experts))
    writer.add_forward(n, "linear", (x, weight), (logits,))
    writer.add_forward(n, "route", (logits,), (weights, chosen, counts), dims, role=experts.score)
    writer.add_forward(n, "permute", (x, chosen, counts), (copies,))
    feed_forward = _experts(writer, experts, n, copies, counts, made)
    writer.add_forward(n, "combine", (made, weights, chosen), (out,))
    return [
        writer.op("I", n, "combine_grad", (grad(out), made, weights, chosen), (grad(made), grad(weights))),
        *feed_forward,
        writer.op("I", n, "permute_grad", (grad(copies), chosen, counts), (dx[0],)),
        writer.op("I", n, "route_grad", (grad(weights), logits, chosen), (grad(logits),), dims, role=experts.score),
        writer.op("I", n, "linear_input_grad", (grad(logits), weight), (dx[1],)),
        writer.op("W", n, "linear_weight_grad", (x, grad(logits), grad(weight)), (grad(weight),)),
    ]


def _experts(writer: TransformerWriter, experts: Experts, n: int, copies: Ref, counts: Ref, made: Ref) -> list[Op]:
    """Up projection (with its gate), activation and down projection of every expert on its own rows."""
    p, d, gates = f"L{n}.experts", writer.draft, writer.model.gates
    rows, h, f = writer.rows * experts.topk, writer.h, experts.ffn
    w1 = d.parameter(f"{p}.fc1.weight", (experts.count, h, gates * f), cut=2)
    w2 = d.parameter(f"{p}.fc2.weight", (experts.count, f, h), cut=1)
    d.experts |= {w1.name, w2.name}
    up, act = d.activation(f"{p}.fc1.out", (rows, gates * f), cut=1), d.activation(f"{p}.act.out", (rows, f), cut=1)
    writer.add_forward(n, "grouped_linear", (copies, w1, counts), (up,), role="column")
    act_back = activated(writer, n, p, up, act)
    writer.add_forward(n, "grouped_linear", (act, w2, counts), (made,), role="row")
    return [
        writer.op("I", n, "grouped_linear_input_grad", (grad(made), w2, counts), (grad(act),), role="row"),
        writer.op("W", n, "grouped_linear_weight_grad", (act, grad(made), counts, grad(w2)), (grad(w2),), role="row"),
        *act_back,
        writer.op("I", n, "grouped_linear_input_grad", (grad(up), w1, counts), (grad(copies),), role="column"),
        writer.op("W", n, "grouped_linear_weight_grad", (copies, grad(up), counts, grad(w1)), (grad(w1),), role="column"),
    ]


# ---- the pass


def experts(draft: Draft) -> None:
    """Spread the experts over ep: cut their weights, send rows to them and back."""
    sparse = [n for n in range(draft.plan.model.layers) if f"L{n}.{COUNTS}" in draft.buffers]
    if not sparse:
        return
    for n in sparse:
        _rows(draft, n)
    if draft.layout.degrees.ep > 1 or draft.layout.degrees.tp > 1:
        for key, body in draft.bodies.items():
            draft.bodies[key] = [new for op in body for new in _spread(draft, op)]


def _rows(draft: Draft, n: int) -> None:
    """Shapes of layer n: rows that routing decides, experts of this rank."""
    degrees, p = draft.layout.degrees, f"L{n}"
    here = draft.plan.model.experts.count // degrees.ep  # type: ignore[union-attr]
    for name in [f"{p}.experts.{fc}.weight{g}" for fc in ("fc1", "fc2") for g in ("", ".grad")]:
        buffer = draft.buffers[name]
        if degrees.ep > 1:
            draft.buffers[name] = replace(buffer, shape=(here, *buffer.shape[1:]), shard=((0, AXIS), *buffer.shard))
    draft.buffers[f"{p}.{COUNTS}"] = replace(draft.buffers[f"{p}.{COUNTS}"], shape=(degrees.ep, here))
    sent: str | int = SENT if draft.layout.routing.capacity or degrees.ep > 1 else ""
    nodes, topk = draft.layout.routing.max_nodes, draft.plan.model.experts.topk  # type: ignore[union-attr]
    if nodes and degrees.ep > 1:  # a row per token and server leaves this rank
        sent = draft.buffers[f"{p}.{COPIES}"].shape[0] * nodes // topk  # type: ignore[operator]
    held = (GATHERED if degrees.tp > 1 else ARRIVING) if degrees.ep > 1 or degrees.tp > 1 else sent
    leaving = [f"{p}.{x}{g}" for x in (COPIES, MADE) for g in ("", ".grad")]
    inside = [name for name in draft.buffers if name.startswith((f"{p}.experts.fc1.out", f"{p}.experts.act."))]
    for names, rows in ((leaving, sent), (inside, held)):
        for name in names if rows else ():
            buffer = draft.buffers[name]
            draft.buffers[name] = replace(buffer, shape=(rows, *buffer.shape[1:]), shard=tuple(s for s in buffer.shard if s[0] != 0))


AROUND, LEAVING = ("grouped_linear", "route"), (f".{COPIES}", f".{MADE}.grad")  # kernels, and the ends of names of buffers, that rows travel around


def _spread(draft: Draft, op: Op) -> Iterator[Op]:
    """Around the ops of an expert layer: to the experts after what writes rows by token's rank, and back before what reads them."""
    kernel = op.kernels[0] if isinstance(op, Compute) else None
    if kernel is None or not isinstance(op, Compute) or not (kernel.name.startswith(AROUND) or any(r.name.endswith(LEAVING) for r in kernel.writes)):
        yield op
        return
    p = f"L{op.label.layer}"
    counts, copies, made = Ref(f"{p}.{COUNTS}", 0), Ref(f"{p}.{COPIES}", 0), Ref(f"{p}.{MADE}", 0)
    way = _Way(draft, op.label, p)
    inside = {counts: way.counts, **{r: Ref(f"{r.name}.here", 0) for r in (copies, made, grad(copies), grad(made))}}
    if kernel.name.startswith("grouped_linear"):
        for ref in inside.values():
            way.declare(ref)
        kernel = replace(kernel, reads=tuple(inside.get(r, r) for r in kernel.reads), writes=tuple(inside.get(r, r) for r in kernel.writes))
        yield replace(op, kernels=(kernel,))
        for target in (made, grad(copies)):
            if inside[target] in kernel.writes:
                yield from way.back(inside[target], target)
        return
    yield op
    if kernel.name == "route":
        yield from way.announce(counts)
    for source in (copies, grad(made)):
        if source in kernel.writes:
            yield from way.out(source, inside[source])


class _Way:
    """The way of rows to the experts and back, in one layer."""

    def __init__(self, draft: Draft, label: Label, prefix: str) -> None:
        self.draft, self.label, self.p = draft, label, prefix
        d = draft.layout.degrees
        self.ep, self.tp = d.ep, d.tp
        self.count = draft.plan.model.experts.count  # type: ignore[union-attr]
        self.mine = Ref(f"{prefix}.{COUNTS}", 0)
        self.arrived = Ref(f"{prefix}.{COUNTS}.arrived", 0) if self.ep > 1 else self.mine
        self.counts = Ref(f"{prefix}.{COUNTS}.here", 0)  # (sources, experts of this rank)

    def declare(self, ref: Ref) -> None:
        """Buffers at the experts: counts, and rows of all sources."""
        if ref == self.counts:
            self.draft.buffer(ref.name, (self.tp * self.ep, self.count // self.ep), "activations", dtype="int32")
        else:
            self._rows_buffer(ref, GATHERED if self.tp > 1 else ARRIVING)

    def _rows_buffer(self, ref: Ref, rows: str) -> Ref:
        h = int(self.draft.buffers[f"{self.p}.{COPIES}"].shape[1])
        self.draft.buffer(ref.name, (rows, h), "activations")
        return ref

    def _collective(
        self, op: CollectiveOp, source: Ref, target: Ref, group: str, splits: tuple[Ref, Ref] | None = None, load: str = "", axis: str = ""
    ) -> Collective:
        made = collective(self.label, op, group, (source,), (target,), COMPUTE, axis=axis or group)
        routing = self.draft.layout.routing
        nodes = routing.max_nodes and bool(load)
        return replace(made, splits=splits, load=load if routing.uneven else "", copies="per_node" if nodes else "per_rank")

    def announce(self, counts: Ref) -> Iterator[Op]:
        """Tell every rank how many rows its experts get."""
        self.declare(self.counts)
        if self.ep > 1:
            target = self.counts if self.tp == 1 else self.arrived
            self.draft.buffer(self.arrived.name, (self.ep, self.count // self.ep), "activations", dtype="int32")
            yield self._collective("all_to_all", counts, target, "ep")
        if self.tp > 1:
            yield self._collective("all_gather", self.arrived, self.counts, "tp")

    @property
    def _ends(self) -> tuple[Ref, Ref]:
        """Rows per expert that this rank sends and gets over ep."""
        return self.mine, self.arrived if self.tp > 1 else self.counts

    def out(self, source: Ref, target: Ref) -> Iterator[Op]:
        """Rows of this rank's tokens -> the rows of this rank's experts, by expert."""
        self.declare(target)
        at = source
        if self.ep > 1:
            at = self._rows_buffer(Ref(f"{source.name}.arrived", 0), ARRIVING)
            yield self._collective("all_to_all", source, at, "ep", self._ends, OUT)
        if self.tp > 1:
            whole = self._rows_buffer(Ref(f"{source.name}.whole", 0), GATHERED)
            yield self._collective("all_gather", at, whole, "tp", (self.counts, self.counts))
            at = whole
        yield self.draft.op(self.label, "group", (at, self.counts), (target,))

    def back(self, source: Ref, target: Ref) -> Iterator[Op]:
        """The reverse: over tp partial sums are added up."""
        at = self._rows_buffer(Ref(f"{source.name}.by_source", 0), GATHERED if self.tp > 1 else ARRIVING)
        yield self.draft.op(self.label, "ungroup", (source, self.counts), (at,))
        if self.tp > 1:
            summed = target if self.ep == 1 else self._rows_buffer(Ref(f"{source.name}.summed", 0), ARRIVING)
            yield self._collective("reduce_scatter", at, summed, "tp", (self.counts, self.counts))
            at = summed
        if self.ep > 1:
            sent, got = self._ends
            yield self._collective("all_to_all", at, target, "ep", (got, sent), BACK)
