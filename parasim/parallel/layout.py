"""Layout: everything that says how a model is cut, resolved (no `auto` left). One block per concern, each read by one lowering pass."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from ..program.ops import DType

AXIS_ORDER = ("tp", "cp", "ep", "dp", "pp")


@dataclass(frozen=True)
class Degrees:
    """Sizes of the axes. world = tp cp dp pp; ep re-tiles dp cp. `order` is fastest first."""

    tp: int = 1
    cp: int = 1
    ep: int = 1
    dp: int = 1
    pp: int = 1
    order: tuple[str, ...] = AXIS_ORDER

    @property
    def world(self) -> int:
        """Number of ranks."""
        return self.tp * self.cp * self.dp * self.pp

    @property
    def replicas(self) -> int:
        """Ranks that hold the same dense parameters: those along dp and cp."""
        return self.dp * self.cp


@dataclass(frozen=True)
class Batch:
    """`global_` and `micro` in sequences (rows for an MLP), `sequence` in tokens. `microbatches` per replica and step."""

    global_: int
    micro: int
    sequence: int
    microbatches: int


@dataclass(frozen=True)
class DataParallel:
    """How gradients are reduced over dp; `bucket` and `first` (the cap of a stage's first bucket, if smaller) in bytes of gradients."""

    mode: Literal["naive", "per-parameter", "flat", "bucketed"] = "bucketed"
    bucket: int = 25 * 2**20
    first: int = 2**20


@dataclass(frozen=True)
class Zero:
    """ZeRO stage and its knobs; `shard` is the size of the shard group.

    `gather`, at stage 3: the parameters of a layer together, in one buffer; or each by itself, from and into a list of one slice per rank, as
    DeepSpeed of 2021 does it, where those of fewer than `keep_below` elements stay whole.
    """

    stage: Literal[0, 1, 2, 3] = 0
    shard: int = 1
    overlap: bool = True
    prefetch: int = 1
    limit: int = 2
    reshard_after_forward: bool = True
    overlap_gather: bool = False
    gather: Literal["unit", "parameter"] = "unit"
    keep_below: int = 0


@dataclass(frozen=True)
class Pipeline:
    """`layers` per stage, in order of depth; `chunks` stages per rank (of a whole rank's share of the depth each, where two ranks hold every stage).

    `vocabulary`: the embedding on the first stage and the head on the last one, or both cut by tokens over all ranks of pp (Yeung et al. 2024,
    arXiv 2411.05288). `group` microbatches per group of interleaved schedules. `times` are hints for schedules that search, seconds or any other
    unit: (F, I, W) of one microbatch on every rank; `memory_cap` the microbatches in flight that they may use.
    """

    schedule: str = "1f1b"
    chunks: int = 1
    comm: Literal["async", "stream", "blocking"] = "async"
    layers: tuple[int, ...] = ()
    optimizer: Literal["barrier", "post-validation"] = "barrier"
    vocabulary: Literal["ends", "parallel"] = "ends"
    group: int | None = None
    memory_cap: float | tuple[float, ...] | None = None
    times: tuple[tuple[float, float, float], ...] | None = None


@dataclass(frozen=True)
class Tensor:
    """Tensor parallel style; `asynchronous` overlaps its collectives with compute, in `pieces` with the products that need or make what they move,
    through `user_buffers` by copy engines; `own_first`: a rank multiplies its own rows while those of the others are gathered."""

    style: Literal["megatron", "all-gather"] = "megatron"
    sequence_parallel: bool = False
    asynchronous: bool = False
    pieces: int = 1
    user_buffers: bool = False
    own_first: bool = False


@dataclass(frozen=True)
class Context:
    """How attention crosses cp. `ring`: keys and values travel, every rank has chunks r and 2 cp - 1 - r of the sequence, so that causal work is
    even. `all-to-all`: every rank has a block of the sequence, and exchanges heads for tokens around attention (DeepSpeed-Ulysses)."""

    style: Literal["ring", "all-to-all"] = "ring"


@dataclass(frozen=True)
class Optimizer:
    """`gradient` is the dtype gradients are accumulated and reduced in; `master` keeps an fp32 copy of low-precision parameters. `step`: one pass, or
    as many as Megatron-LM makes over that copy."""

    name: Literal["adam"] = "adam"
    gradient: DType = "bf16"
    master: bool = True
    step: Literal["fused", "separate"] = "fused"


@dataclass(frozen=True)
class Routing:
    """Where the tokens of expert layers go: evenly (zipf 0, no shares), in proportion to (expert + 1)^-zipf, or by given `shares` of assignments.

    `capacity`: a rank sends an expert at most that many times its even share and drops the rest (0: dropless). `max_nodes`: the servers that one
    token's experts are on at most, to each of which it is sent once (0: no limit).
    """

    zipf: float = 0.0
    shares: tuple[float, ...] = ()
    capacity: float = 0.0
    max_nodes: int = 0

    @property
    def uneven(self) -> bool:
        """Do some experts get more than others?"""
        return bool(self.zipf) or len(set(self.shares)) > 1


FULL = "full"
SPARSE = ("moe", "moe_act", "shared_experts")  # modules of PARTS that layers with experts have; the feed-forward modules are those of other layers
PARTS: dict[str, tuple[str, ...]] = {  # module -> the parts of a layer it is made of, as buffers are named; Megatron-LM's names where it has them
    "layernorm": ("norm1", "norm2", "postnorm1", "postnorm2"),
    "qkv": ("qkv", "q", "q_down", "q_up", "kv_down", "kv_up"),
    "rotary": ("rotary",),
    "mla_up_proj": ("q_up", "kv_up", "rotary"),
    "core_attn": ("attention",),
    "proj": ("proj",),
    "residual": ("middle",),
    "mlp": ("fc1", "act", "fc2"),
    "act": ("act",),
    "moe": ("router", "experts", "shared", "combine", "fc2"),
    "moe_act": ("experts.act",),
    "shared_experts": ("shared",),
}


@dataclass(frozen=True)
class Recompute:
    """`modules` of PARTS, or FULL alone, whose forward is repeated in the backward; none: everything is kept.

    `layers` and `method` choose layers for FULL as Megatron-LM does: block, the first `layers` of each stage one by one; uniform, all in groups
    of `layers`. `early_stop`: a repeated forward stops when the last needed tensor is there (torch), else it runs whole (Megatron-LM).
    """

    modules: tuple[str, ...] = ()
    layers: int | None = None
    method: Literal["uniform", "block"] = "uniform"
    early_stop: bool = False


@dataclass(frozen=True)
class Kernels:
    """Which kernels a model is made of: attention in one tiled kernel or unfused with all scores kept; with or without dropout; a gated activation in
    one kernel or two; the loss on the logits as they are, or on fp32 copies of them as torch or as Megatron-LM has it."""

    attention: Literal["tiled", "unfused"] = "tiled"
    dropout: bool = False
    glu: Literal["fused", "unfused"] = "fused"
    loss: Literal["fused", "unfused", "megatron"] = "fused"


@dataclass(frozen=True)
class Offload:
    """What lives in the memory of the host: optimizer state, whose step then runs there, and with it the parameters."""

    optimizer: bool = False
    parameters: bool = False


@dataclass(frozen=True)
class Layout:
    """The whole layout of one run. `precision` is that of parameters and activations, `linear` the narrower one of linear layers' products."""

    degrees: Degrees
    batch: Batch
    precision: DType = "bf16"
    linear: DType | None = None
    data: DataParallel = field(default_factory=DataParallel)
    zero: Zero = field(default_factory=Zero)
    pipeline: Pipeline = field(default_factory=Pipeline)
    tensor: Tensor = field(default_factory=Tensor)
    context: Context = field(default_factory=Context)
    recompute: Recompute = field(default_factory=Recompute)
    kernels: Kernels = field(default_factory=Kernels)
    routing: Routing = field(default_factory=Routing)
    optimizer: Optimizer = field(default_factory=Optimizer)
    offload: Offload = field(default_factory=Offload)

    @property
    def vocabulary_parts(self) -> int:
        """Parts of the embedding and the head over pp, one per rank; 1 where they are on the first and the last stage."""
        return self.degrees.pp if self.pipeline.vocabulary == "parallel" else 1

    @property
    def compute_dtype(self) -> DType:
        """The dtype that most FLOPs run in: MFU counts against its peak."""
        return self.linear or self.precision
