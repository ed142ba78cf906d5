"""The run file: every key with its type, default, unit and meaning. Docs and error messages are made from this page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, PlainValidator, model_validator

from ..parallel.layout import PARTS, DataParallel
from .keys import Block, key
from .scalars import MOST_THINGS, Auto, Count, Flag, Name, Natural, Positive, Size, Things, Word, hint, shown, wrong
from .schema_model import ModelForm
from .stack import stack_names

PLACEMENTS = ("by-node", "round-robin")
AXES = ("tp", "cp", "ep", "dp", "pp")
Dtype = Literal["bf16", "fp16", "fp32", "fp64"]
Precision = Literal["bf16", "fp16", "fp32", "fp64", "fp8"]
Schedule = Literal[
    "naive", "gpipe", "1f1b", "interleaved-1f1b", "looped-bfs", "zb-h1", "zb-h2", "zb1p-interleaved", "zb-v", "v-half", "zb-auto", "zb-1p", "zb-2p",
    "dualpipe", "dualpipe-v",
]  # fmt: skip


def _cluster_form(value: object) -> object:
    if isinstance(value, Mapping) or (isinstance(value, str) and value.strip()):
        return value
    raise wrong(f"{shown(value)} is not a cluster; write a name of `parasim catalog clusters`, a path, or the cluster as a mapping")


def _order_form(value: object) -> tuple[str, ...]:
    if isinstance(value, list | tuple) and sorted(map(str, value)) == sorted(AXES):
        return tuple(map(str, value))
    text = f"[{', '.join(map(str, value))}]" if isinstance(value, list | tuple) else shown(value)
    raise wrong(f"{text} is not an order of the five axes; write each once, such as [{', '.join(AXES)}]")


def _cap_form(value: object) -> float | tuple[float, ...] | None:
    def number(item: object) -> bool:
        return isinstance(item, int | float) and not isinstance(item, bool) and item > 0

    if value is None or number(value):
        return value  # type: ignore[return-value]
    if isinstance(value, list | tuple) and value and all(map(number, value)):
        return tuple(value)
    raise wrong(f"{shown(value)} is not a cap of microbatches in flight; write a number above 0, a list of one per rank such as [4, 4, 4, 2], or null")


ENDS = ("first", "last")


def _layers_form(value: object) -> tuple[int, ...] | dict[str, int] | str:
    if value == "auto":
        return "auto"
    if (
        isinstance(value, Mapping)
        and value
        and set(value) <= set(ENDS)
        and all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in value.values())
    ):
        return dict(value)
    if isinstance(value, list | tuple) and value and all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in value):
        return tuple(value)
    text = f"[{', '.join(map(str, value))}]" if isinstance(value, list | tuple) else shown(value)
    legal = "auto, whole numbers of 1 or more (0 at the ends) such as [10, 10, 10, 10], or {first: 9, last: 9}"
    raise wrong(f"{text} is not auto, a list of layers per stage, or a mapping of first and last; write {legal}")


def _modules_form(value: object) -> str | tuple[str, ...]:
    """One word for the usual choices, or a list of modules."""
    names = ("none", "selective", "full")
    if isinstance(value, list | tuple) and all(isinstance(m, str) for m in value):
        strange = next((m for m in value if m not in PARTS), None)
        if strange is not None:
            raise wrong(f"{shown(strange)} is not a module that can be recomputed{hint(strange, PARTS)}")
        return tuple(value)
    if value in names:
        return str(value)
    raise wrong(f"{shown(value)} is not a way to recompute{hint(str(value), names)}")


def _recompute_form(value: object) -> object:
    """What stands alone is the modules."""
    return value if isinstance(value, Mapping | Block) else {"modules": _modules_form(value)}


def _stack_form(value: object) -> str | None:
    if value is None or value in stack_names():
        return value if value is None else str(value)
    raise wrong(f"{shown(value)} is not a stack{hint(str(value), stack_names())}")


def _load_form(value: object) -> object:
    if value == "balanced":
        return value
    if isinstance(value, Mapping) and len(value) == 1:
        name, content = next(iter(value.items()))
        number = isinstance(content, int | float) and not isinstance(content, bool)
        numbers = isinstance(content, list) and content and all(isinstance(c, int | float) and not isinstance(c, bool) for c in content)
        if (name == "zipf" and number) or (name == "shares" and numbers):
            return value
    raise wrong(f"{shown(value)} is not a load of experts; write balanced, {{zipf: 1.2}} or {{shares: [...]}}")


def _placement_form(value: object) -> str | tuple[int, ...]:
    """A name, or devices: whole numbers and ranges "8-15" (also downwards)."""
    if isinstance(value, str) and value in PLACEMENTS:
        return value
    if isinstance(value, list | tuple) and value:
        return tuple(i for entry in value for i in _devices(entry))
    raise wrong(f"{shown(value)} is no placement{hint(str(value), PLACEMENTS)}; or a list of devices and ranges such as [8-15, 0-7]")


def _devices(entry: object) -> range:
    """The devices that an entry of a placement names: 8, or 8-15."""
    first, dash, last = str(entry).replace(" ", "").partition("-")
    ends = (first, last if dash else first)
    if isinstance(entry, bool) or not all(end.isdecimal() and int(end) < MOST_THINGS for end in ends):
        raise wrong(f"{shown(entry)} is no device; write whole numbers from 0 and ranges, such as [8-15, 0-7]")
    low, high = map(int, ends)
    return range(low, high + 1) if low <= high else range(low, high - 1, -1)


class BatchKeys(Block):
    """What one step trains on."""

    global_: Count = key(..., "one step of all replicas together", "sequences", alias="global")
    micro: Count = key(1, "one microbatch of one replica", "sequences")
    sequence: Count | None = key(None, "length of a sequence; may be omitted (1) for mlp and fixed models", "tokens")


class ParallelKeys(Block):
    """Degrees of the axes: devices = tp x cp x dp x pp."""

    tp: Count = key(1, "tensor parallel", "ranks")
    pp: Count = key(1, "pipeline parallel", "ranks")
    dp: Auto = key("auto", "data parallel; auto: devices / (tp cp pp)", "ranks")
    cp: Count = key(1, "context parallel", "ranks")
    ep: Count = key(1, "expert parallel; re-tiles dp x cp", "ranks")
    order: Annotated[tuple[str, ...], PlainValidator(_order_form)] = key(AXES, "axes, neighbouring ranks first", type_="list of the five axes")


class DpKeys(Block):
    """How gradients are reduced over the replicas."""

    mode: Literal["naive", "per-parameter", "flat", "bucketed"] = key(
        "bucketed",
        "naive: one by one after the backward; per-parameter: the same, overlapped; flat: all at once after the backward; bucketed: overlapped, by buckets",
    )
    bucket: Size = key(DataParallel.bucket, "gradients reduced together when bucketed", "size", type_="size, such as 25 MiB")


def _zero_form(value: object) -> Literal[0, 1, 2, 3]:
    stages: dict[object, Literal[0, 1, 2, 3]] = {0: 0, 1: 1, 2: 2, 3: 3}
    if isinstance(value, bool) or not isinstance(value, int | float) or value not in stages:
        raise wrong(f"{shown(value)} is not a ZeRO stage; legal: 0, 1, 2, 3")
    return stages[value]


class ZeroKeys(Block):
    """What the replicas share out among them."""

    stage: Annotated[Literal[0, 1, 2, 3], PlainValidator(_zero_form)] = key(
        0, "0: nothing; 1: optimizer state; 2: and gradients; 3: and parameters", type_="`0`, `1`, `2` or `3`"
    )
    shard: Auto = key("auto", "size of the group that shares; auto: dp", "ranks")
    overlap: Flag = key(True, "whether collectives overlap compute")
    prefetch: Natural = key(1, "layers gathered ahead (stage 3)", "layers")
    limit: Count = key(2, "gathered layers alive at once (stage 3)", "layers")
    reshard_after_forward: Flag = key(True, "whether gathered layers are freed after the forward (stage 3)")
    overlap_gather: Flag = key(False, "whether parameters are gathered under the next step's forward (stages 1, 2); two steps are then simulated")
    gather: Literal["unit", "parameter"] = key(
        "unit", "unit: the parameters of a layer together; parameter: each by itself, in slices copied one by one, as DeepSpeed of 2021 (stage 3)"
    )
    keep_below: Natural = key(0, "parameters of fewer elements stay whole (gather: parameter)", "elements")


class PipelineKeys(Block):
    """How microbatches pass through the stages."""

    schedule: Schedule = key("1f1b", "order of forwards and backwards")
    chunks: Count = key(1, "stages held by one rank", "stages")
    comm: Literal["async", "stream", "blocking"] = key("async", "async: transfers run beside compute; stream: in order on one stream; blocking: compute waits")
    layers: Annotated[Any, PlainValidator(_layers_form)] = key(
        "auto",
        "layers of each stage, in order of depth; or of the first and the last one, and the rest evenly",
        "layers",
        type_="`auto`, a list of whole numbers, or `{first: n, last: n}`",
    )
    group: Count | None = key(None, "microbatches that pass one chunk before the next (interleaved schedules); null: as many as ranks", "microbatches")
    memory_cap: Annotated[Any, PlainValidator(_cap_form)] = key(
        None,
        "most microbatches in flight on a rank, or on each of them (zb-auto); null: no limit",
        "microbatches",
        type_="number, a list of one per rank, or null",
    )
    optimizer: Literal["barrier", "post-validation"] = key(
        "barrier", "barrier: the next step starts when every rank has ended; post-validation: each stage steps and goes on, and checks later"
    )
    vocabulary: Literal["ends", "parallel"] = key(
        "ends", "ends: the embedding on the first stage, the head on the last; parallel: both cut by tokens over all stages, which work on them together (1f1b)"
    )


class TensorKeys(Block):
    """How layers are cut over tp."""

    style: Literal["megatron", "all-gather"] = key("megatron", "megatron: column then row parallel; all-gather: column parallel")
    sequence_parallel: Flag = key(False, "whether norms and residuals are cut along the sequence")
    asynchronous: Flag = key(False, "whether its collectives overlap compute", alias="async")
    pieces: Count = key(1, "with sequence_parallel: parts in which rows are gathered, multiplied and scattered, beside each other's products")
    user_buffers: Flag = key(
        False, "with sequence_parallel: move these parts, as many as tp unless pieces says, by copy engines through buffers mapped within one server"
    )
    own_first: Flag = key(False, "with sequence_parallel and async: multiply this rank's rows while those of the others are gathered")


class ContextKeys(Block):
    """How attention crosses cp."""

    style: Literal["ring", "all-to-all"] = key("ring", "ring: keys and values travel; all-to-all: heads are exchanged for tokens")


class ExpertKeys(Block):
    """How tokens find experts."""

    load: Annotated[Any, PlainValidator(_load_form)] = key(
        "balanced", "share of the tokens of each expert", type_="`balanced`, `{zipf: s}` or `{shares: [...]}`"
    )
    capacity: Positive | None = key(None, "most tokens of one expert over the mean; null: no limit", "ratio")
    max_nodes: Count | None = key(None, "most nodes one token is sent to; null: no limit", "nodes")


class OptimizerKeys(Block):
    """What holds and updates the parameters."""

    name: Literal["adam"] = key("adam", "update rule")
    gradient_dtype: Dtype | None = key(None, "accumulation and reduction of gradients; omitted: precision (bf16 under fp8)")
    master: Flag | None = key(None, "fp32 copy of the parameters; omitted: true for bf16, fp16 and fp8")
    step: Literal["fused", "separate"] = key(
        "fused", "fused: one pass; separate: gradients to fp32, unscaled (fp16), their norm, clipped, update and rounded copy pass by pass, as Megatron-LM"
    )


class RecomputeKeys(Block):
    """Forward work repeated in the backward instead of kept."""

    modules: Annotated[str | tuple[str, ...], PlainValidator(_modules_form)] = key(
        "none",
        "what is repeated; selective: the attention core, full: whole layers; may stand in place of the mapping, as in recompute: full",
        type_="`none`, `selective`, `full` or a list of " + ", ".join(f"`{m}`" for m in PARTS),
    )
    layers: Count | None = key(None, "with full: layers of each stage that are repeated (block), or of a group (uniform); omitted: all, one by one", "layers")
    method: Literal["uniform", "block"] = key("uniform", "with full and layers: uniform: all layers in groups; block: the first layers of each stage")
    early_stop: Flag = key(False, "whether a repeated forward stops at the last tensor that is needed, as torch does, or runs whole, as Megatron-LM does")


class KernelKeys(Block):
    """Which kernels a layer is made of."""

    attention: Literal["tiled", "unfused"] = key("tiled", "tiled: one kernel, no scores kept; unfused: products, softmax and dropout one by one, scores kept")
    glu: Literal["fused", "unfused"] = key(
        "fused", "of gated activations: fused: one kernel; unfused: the gate's activation, which is kept, and the product, as torch runs them eagerly"
    )
    loss: Literal["fused", "unfused", "megatron"] = key(
        "fused",
        "fused: on the logits as they are; unfused: torch's cross entropy on fp32 logits, log-softmax kept; megatron: Megatron-LM's, softmax kept in fp32",
    )
    dropout: Flag = key(False, "whether there is dropout: after the embedding, on unfused attention's probabilities, on both branches of a layer")


class OffloadKeys(Block):
    """What lives in the memory of the host."""

    optimizer: Flag = key(False, "whether optimizer state does; the optimizer then steps on the host's CPU")
    parameters: Flag = key(False, "whether parameters do; layers are fetched when they are used")


PERTURBATIONS = ({"rank", "slowdown"}, {"link", "bandwidth"}, {"link", "failed"}, {"node", "failed"})


class PerturbKeys(Block):
    """One thing that is slower than it should be, or down: a rank, a link or a node."""

    rank: Natural | None = key(None, "rank that computes slowly")
    slowdown: Positive | None = key(None, "factor on its compute time", "ratio")
    link: Word | None = key(None, "link with less bandwidth")
    bandwidth: Positive | None = key(None, "fraction of its bandwidth that is left", "ratio")
    node: Natural | None = key(None, "node that is down")
    failed: Flag | None = key(None, "true: the node or link is down")

    @model_validator(mode="after")
    def _one_form(self) -> PerturbKeys:
        given = {name for name in type(self).model_fields if getattr(self, name) is not None}
        if given not in PERTURBATIONS or self.failed is False:
            text = ", ".join(f"{name}: {str(v).lower() if isinstance(v, bool) else v}" for name, v in self.model_dump(exclude_none=True).items())
            legal = "{rank: 3, slowdown: 1.5}, {link: node0.nic3, bandwidth: 0.25}, {link: node0.nic3, failed: true} or {node: 12, failed: true}"
            raise wrong(f"{{{text}}} is no perturbation; write {legal}")
        if self.bandwidth is not None and self.bandwidth > 1:
            raise wrong(f"bandwidth: {self.bandwidth:g} is more than all of it; write the fraction that is left, such as 0.25")
        return self


class RunKeys(Block):
    """A run file."""

    name: Name | None = key(None, "names the output folder; omitted: name of the file")
    model: ModelForm = key(..., "catalog name, path of an HF config.json or a model.yaml, or inline", type_="name, path or mapping")
    cluster: Annotated[Any, PlainValidator(_cluster_form)] = key(..., "catalog name, path of a cluster.yaml, or inline", type_="name, path or mapping")
    devices: Things = key(..., "ranks used; whole nodes are filled in order", "devices")
    batch: BatchKeys = key(..., "sizes of the batch")
    critical_batch: Count | None = key(
        None, "batch beyond which more data per step help little (McCandlish et al. 2018); where it is given, the time to a target is reported", "tokens"
    )
    precision: Precision = key("bf16", "of parameters and activations; fp8: bf16, with linear layers multiplied in fp8")
    stack: Annotated[str | None, PlainValidator(_stack_form)] = key(
        None, "named structural defaults, which the keys that are written override; `parasim catalog stacks` lists them", type_="name"
    )
    profile: Word | None = key(None, "catalog name or path of fitted numbers; omitted: datasheet numbers")
    placement: Annotated[str | tuple[int, ...], PlainValidator(_placement_form)] = key(
        "by-node",
        "device of each rank. by-node: fill one node after the other; round-robin: one device of each node in turn; a list: device of rank 0, 1, ...",
        type_="`by-node`, `round-robin` or a list of devices and ranges such as [8-15, 0-7]",
    )
    parallel: ParallelKeys = key(ParallelKeys(), "degrees")
    dp: DpKeys = key(DpKeys(), "data parallel")
    zero: ZeroKeys = key(ZeroKeys(), "ZeRO")
    pipeline: PipelineKeys = key(PipelineKeys(), "pipeline parallel")
    tensor: TensorKeys = key(TensorKeys(), "tensor parallel")
    context: ContextKeys = key(ContextKeys(), "context parallel")
    experts: ExpertKeys = key(ExpertKeys(), "expert parallel")
    recompute: Annotated[RecomputeKeys, BeforeValidator(_recompute_form)] = key(RecomputeKeys(), "recomputation")
    kernels: KernelKeys = key(KernelKeys(), "kernels")
    optimizer: OptimizerKeys = key(OptimizerKeys(), "optimizer")
    offload: OffloadKeys = key(OffloadKeys(), "offload")
    perturb: tuple[PerturbKeys, ...] = key((), "slow ranks, weak links, failed nodes", type_="list of mappings")
