"""The cases of the numeric proof: small models and how they are cut, in fp64."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from parasim.config.plan import Plan
from parasim.model.spec import Experts, Latent, Mlp, Transformer
from parasim.parallel.layout import Batch, Context, DataParallel, Degrees, Kernels, Layout, Offload, Optimizer, Pipeline, Recompute, Routing, Tensor, Zero
from parasim.schedules import SCHEDULES

ROWS = 6  # rows of one microbatch of the MLP
MLP = Mlp("proof-mlp", layers=4, hidden=8, ffn=12)
DEEP = replace(MLP, name="proof-deep-mlp", layers=8)
GPT = Transformer("proof-gpt", 2, 16, 4, 4, 4, 32, 24, activation="gelu", norm="layer_norm", bias=True, positions="learned", max_positions=8)
LLAMA = Transformer("proof-llama", 2, 16, 4, 2, 4, 24, 20)
GEMMA = replace(LLAMA, name="proof-gemma", activation="geglu", norm_at="both", tied=True, head_dim=6, norm="rms_norm")
QWEN = replace(LLAMA, name="proof-qwen", bias="qkv", qk_norm="head")
OLMO = replace(LLAMA, name="proof-olmo", norm_at="post", qk_norm="full")
MPT = replace(GPT, name="proof-mpt", activation="squared_relu", bias=False, positions="alibi", norm_weights="scale")
PLAIN = replace(GPT, name="proof-plain-norms", activation="relu", bias="attention", positions="none", norm_weights="none")
COMPRESSED = Latent(kv_rank=6, query_rank=8, nope_dim=6, rope_dim=4, value_dim=5)
LATENT = replace(LLAMA, name="proof-latent", kv_heads=4, latent=COMPRESSED)
MOE = replace(LLAMA, name="proof-moe", experts=Experts(count=4, topk=2, ffn=12, shared_ffn=8))
DEEPSEEK = replace(MOE, experts=Experts(count=4, topk=2, ffn=12, dense_layers=1, score="sigmoid"))
BUCKET = 2000  # bytes: a few matrices of the MLP


@dataclass(frozen=True)
class Case:
    """A model and how it is cut; microbatches per replica and step."""

    model: Mlp | Transformer
    degrees: Degrees
    microbatches: int = 2
    blocks: Mapping[str, Any] | None = None
    schedule: str = "1f1b"
    comm: str = "async"
    chunks: int = 1
    optimizer: str = "barrier"
    vocabulary: str = "ends"

    def plan(self) -> Plan:
        """The Plan in fp64."""
        d, m = self.degrees, self.microbatches
        micro, sequence = (ROWS, 1) if isinstance(self.model, Mlp) else (2, 8)
        stages = SCHEDULES[self.schedule].placement.stages(d.pp, self.chunks)
        share = self.model.layers // stages
        layout = Layout(
            degrees=d,
            batch=Batch(micro * m * d.dp, micro, sequence, m),
            precision="fp64",
            optimizer=Optimizer(gradient="fp64"),
            pipeline=Pipeline(self.schedule, self.chunks, self.comm, (share,) * stages, self.optimizer, self.vocabulary),  # type: ignore[arg-type]
            **(self.blocks or {}),
        )
        return Plan(self.model, layout)

    def alone(self) -> Case:
        """The same global batch on one rank per replica, gradients summed at the end, with the same kernels and nothing recomputed.

        Dropout's masks are those of the cut run; that replicas add up is proven on MLPs against plain autograd.
        """
        kernels = {k: b for k, b in (self.blocks or {}).items() if k in ("kernels", "routing")}
        return Case(self.model, Degrees(dp=self.degrees.dp), self.microbatches, {**kernels, **_data("flat")})


def _data(mode: str, zero: int = 0, shard: int = 2, **knobs: Any) -> dict[str, Any]:
    return {"data": DataParallel(mode, BUCKET, BUCKET // 2), "zero": Zero(zero, shard, **knobs) if zero else Zero()}  # type: ignore[arg-type]


SP = {"tensor": Tensor(sequence_parallel=True)}
SP_ASYNC = {"tensor": Tensor(sequence_parallel=True, asynchronous=True)}
OWN_FIRST = {"tensor": Tensor(sequence_parallel=True, asynchronous=True, own_first=True)}
COLUMNS = {"tensor": Tensor("all-gather")}
MODULES = ("layernorm", "rotary", "core_attn", "proj", "residual", "mlp")
UNFUSED = {"kernels": Kernels("unfused", dropout=True)}
SCALED: dict[str, Any] = {"linear": "fp64"}  # the program of fp8 with copies that lose no digit
HOST = Offload(optimizer=True, parameters=True)
EXCHANGE = {"context": Context("all-to-all")}
CASES: dict[str, Case] = {
    "dp2-flat": Case(MLP, Degrees(dp=2), blocks=_data("flat")),
    "dp2-bucketed": Case(MLP, Degrees(dp=2), blocks=_data("bucketed")),
    "dp2-zero1": Case(MLP, Degrees(dp=2), blocks=_data("bucketed", 1)),
    "dp2-naive": Case(MLP, Degrees(dp=2), blocks=_data("naive")),
    "dp4-per-parameter": Case(MLP, Degrees(dp=4), blocks=_data("per-parameter")),
    "dp4-zero1-hsdp": Case(MLP, Degrees(dp=4), blocks=_data("bucketed", 1)),
    "dp2-zero2": Case(MLP, Degrees(dp=2), blocks=_data("bucketed", 2)),
    "dp4-zero2-flat": Case(MLP, Degrees(dp=4), blocks=_data("flat", 2, 4)),
    "dp4-zero2-hsdp": Case(MLP, Degrees(dp=4), blocks=_data("bucketed", 2)),
    "dp2-zero1-ahead": Case(MLP, Degrees(dp=2), blocks=_data("bucketed", 1, overlap_gather=True)),
    "pp2-dp2-zero2-ahead": Case(MLP, Degrees(pp=2, dp=2), 4, _data("bucketed", 2, overlap_gather=True)),
    "dp2-zero3": Case(MLP, Degrees(dp=2), blocks=_data("bucketed", 3)),
    "dp4-zero3-ahead": Case(MLP, Degrees(dp=4), 1, _data("bucketed", 3, 4, prefetch=3, limit=4)),
    "dp4-zero3-hsdp": Case(MLP, Degrees(dp=4), blocks=_data("bucketed", 3)),
    "dp2-zero3-kept": Case(MLP, Degrees(dp=2), blocks=_data("bucketed", 3, reshard_after_forward=False)),
    "dp2-zero3-blocking": Case(MLP, Degrees(dp=2), blocks=_data("bucketed", 3, overlap=False)),
    "dp2-zero3-recompute": Case(MLP, Degrees(dp=2), blocks={**_data("bucketed", 3), "recompute": Recompute(("full",))}),
    "dp2-zero3-by-parameter": Case(MLP, Degrees(dp=2), blocks={**_data("bucketed", 3, gather="parameter"), "recompute": Recompute(("full",))}),
    "gpt-dp4-zero3-by-parameter": Case(GPT, Degrees(dp=4), blocks=_data("bucketed", 3, 4, gather="parameter", keep_below=20, overlap=False)),
    "dp4-zero3-hsdp-by-parameter": Case(MLP, Degrees(dp=4), blocks=_data("bucketed", 3, gather="parameter", prefetch=2, limit=3)),
    "dp2-zero3-offload": Case(MLP, Degrees(dp=2), blocks={**_data("bucketed", 3), "offload": Offload(True)}),
    "pp2-dp2-zero2-zb-h1": Case(MLP, Degrees(pp=2, dp=2), 4, _data("bucketed", 2), "zb-h1"),
    "pp2-dp2-zero3": Case(MLP, Degrees(pp=2, dp=2), 4, _data("bucketed", 3)),
    "pp2-dp2-zero3-kept-zb-v": Case(MLP, Degrees(pp=2, dp=2), 4, _data("bucketed", 3, reshard_after_forward=False), "zb-v", chunks=2),
    "pp2-dp2-zero3-zb-h1": Case(MLP, Degrees(pp=2, dp=2), 4, _data("bucketed", 3), "zb-h1"),
    "llama-tp2-dp2-zero3-sp": Case(LLAMA, Degrees(tp=2, dp=2), blocks={**_data("bucketed", 3), **SP}),
    "gpt-pp2-dp2-zero2": Case(replace(GPT, tied=True), Degrees(pp=2, dp=2), 4, _data("bucketed", 2)),
    "gpt-pp2-dp2-zero3-zb-v": Case(replace(GPT, layers=4, tied=True), Degrees(pp=2, dp=2), 4, _data("bucketed", 3), "zb-v", chunks=2),
    "tp2": Case(MLP, Degrees(tp=2)),
    "tp2-sp": Case(MLP, Degrees(tp=2), blocks=SP),
    "pp2-gpipe": Case(MLP, Degrees(pp=2), 4, schedule="gpipe"),
    "pp2-1f1b": Case(MLP, Degrees(pp=2), 4),
    "pp2-1f1b-stream": Case(MLP, Degrees(pp=2), 4, comm="stream"),
    "pp2-naive": Case(MLP, Degrees(pp=2), 4, schedule="naive"),
    "pp2-interleaved": Case(MLP, Degrees(pp=2), 4, schedule="interleaved-1f1b", chunks=2),
    "pp4-interleaved": Case(DEEP, Degrees(pp=4), 8, schedule="interleaved-1f1b", chunks=2),
    "pp2-looped-bfs": Case(MLP, Degrees(pp=2), 4, schedule="looped-bfs", chunks=2),
    "pp4-zb-h1": Case(DEEP, Degrees(pp=4), 8, schedule="zb-h1"),
    "pp4-zb-h2": Case(DEEP, Degrees(pp=4), 8, schedule="zb-h2"),
    "pp2-zb1p-interleaved": Case(MLP, Degrees(pp=2), 4, schedule="zb1p-interleaved", chunks=2),
    "pp4-zb-v": Case(DEEP, Degrees(pp=4), 8, schedule="zb-v", chunks=2),
    "pp4-v-half": Case(DEEP, Degrees(pp=4), 8, schedule="v-half", chunks=2),
    "pp4-zb-auto": Case(DEEP, Degrees(pp=4), 8, schedule="zb-auto"),
    "pp4-zb-1p": Case(DEEP, Degrees(pp=4), 4, schedule="zb-1p"),
    "pp4-zb-2p": Case(DEEP, Degrees(pp=4), 8, schedule="zb-2p"),
    "pp4-zb-h2-post-validation": Case(DEEP, Degrees(pp=4), 8, schedule="zb-h2", optimizer="post-validation"),
    "pp2-dp2-zero1-post-validation": Case(MLP, Degrees(pp=2, dp=2), 4, _data("bucketed", 1), optimizer="post-validation"),
    "pp2-dualpipe": Case(MLP, Degrees(pp=2), 4, schedule="dualpipe", chunks=2),
    "pp4-dualpipe": Case(DEEP, Degrees(pp=4), 8, schedule="dualpipe", chunks=2),
    "pp2-dp2-dualpipe-zero1": Case(MLP, Degrees(pp=2, dp=2), 8, _data("bucketed", 1), "dualpipe", chunks=2),
    "pp2-dp2-dualpipe-zero2": Case(MLP, Degrees(pp=2, dp=2), 4, _data("bucketed", 2), "dualpipe", chunks=2),
    "pp2-dp2-dualpipe-v-zero3": Case(MLP, Degrees(pp=2, dp=2), 4, _data("bucketed", 3), "dualpipe-v", chunks=2),
    "pp2-dualpipe-v": Case(MLP, Degrees(pp=2), 4, schedule="dualpipe-v", chunks=2),
    "pp4-dualpipe-v": Case(DEEP, Degrees(pp=4), 8, schedule="dualpipe-v", chunks=2),
    "pp2-dp2-zb-v-zero1": Case(MLP, Degrees(pp=2, dp=2), 4, _data("bucketed", 1), "zb-v", chunks=2),
    "pp2-dp2-zero1": Case(MLP, Degrees(pp=2, dp=2), 4, blocks=_data("bucketed", 1)),
    "pp2-recompute": Case(MLP, Degrees(pp=2), 4, blocks={"recompute": Recompute(("full",))}),
    "pp2-recompute-uniform": Case(DEEP, Degrees(pp=2), 4, blocks={"recompute": Recompute(("full",), 2)}),
    "pp2-recompute-early-stop": Case(DEEP, Degrees(pp=2), 4, blocks={"recompute": Recompute(("full",), 2, "block", early_stop=True)}),
    "pp4-zb-h1-recompute": Case(DEEP, Degrees(pp=4), 8, {"recompute": Recompute(("full",))}, "zb-h1"),
    "gpt-tp2-selective-unfused-dropout": Case(GPT, Degrees(tp=2), blocks={**UNFUSED, "recompute": Recompute(("core_attn",))}),
    "gpt-tp2-sp-modules-dropout": Case(GPT, Degrees(tp=2), blocks={**SP, **UNFUSED, "recompute": Recompute(("layernorm", "core_attn", "act"))}),
    "gpt-pp2-full-dropout": Case(GPT, Degrees(pp=2), 4, {**UNFUSED, "recompute": Recompute(("full",))}),
    "llama-pp2-zb-h1-modules": Case(LLAMA, Degrees(pp=2), 4, {"recompute": Recompute(MODULES)}, "zb-h1"),
    "llama-tp2-sp-scaled": Case(LLAMA, Degrees(tp=2), blocks={**SP, **SCALED}),
    "gpt-pp2-zb-h1-scaled-modules": Case(GPT, Degrees(pp=2), 4, {**SCALED, "recompute": Recompute(("core_attn", "mlp"))}, "zb-h1"),
    "dp2-offload-optimizer": Case(MLP, Degrees(dp=2), blocks={**_data("bucketed"), "offload": Offload(optimizer=True)}),
    "pp2-dp2-zero1-offload": Case(MLP, Degrees(pp=2, dp=2), 4, {**_data("bucketed", 1), "offload": Offload(optimizer=True)}),
    "dp2-zero3-offload-recompute": Case(
        MLP, Degrees(dp=2), blocks={**_data("bucketed", 3), "offload": Offload(optimizer=True), "recompute": Recompute(("full",), early_stop=True)}
    ),
    "pp2-interleaved-offload-parameters": Case(DEEP, Degrees(pp=2), 4, {"offload": HOST}, "interleaved-1f1b", chunks=2),
    "gpt-tp2-offload-parameters-recompute": Case(replace(GPT, tied=True), Degrees(tp=2), blocks={"offload": HOST, "recompute": Recompute(("full",))}),
    "tp2-async": Case(MLP, Degrees(tp=2), blocks={"tensor": Tensor(asynchronous=True)}),
    "tp4-columns": Case(MLP, Degrees(tp=4), blocks=COLUMNS),
    "gpt-tp2-pieces": Case(GPT, Degrees(tp=2), blocks={"tensor": Tensor(sequence_parallel=True, pieces=2)}),
    "gpt-tp2-pieces-async": Case(GPT, Degrees(tp=2), blocks={"tensor": Tensor(sequence_parallel=True, asynchronous=True, pieces=4)}),
    "gpt-tp2-columns-async": Case(GPT, Degrees(tp=2), blocks={"tensor": Tensor("all-gather", asynchronous=True)}),
    "llama-tp2-pp2-columns-recompute": Case(LLAMA, Degrees(tp=2, pp=2), 4, {**COLUMNS, "recompute": Recompute(("full",))}),
    "gpt-tp4-sp-async": Case(GPT, Degrees(tp=4), blocks=SP_ASYNC),
    "llama-tp4-own-first": Case(LLAMA, Degrees(tp=4), blocks=OWN_FIRST),
    "gpt-tp2-pp2-own-first-recompute": Case(GPT, Degrees(tp=2, pp=2), 4, {**OWN_FIRST, "recompute": Recompute(("full",))}, "zb-h1"),
    "llama-tp2-pp2-zb-h1-sp-async": Case(LLAMA, Degrees(tp=2, pp=2), 4, SP_ASYNC, "zb-h1"),
    "llama-tp2-pieces-scaled-zb-h1": Case(
        LLAMA, Degrees(tp=2, pp=2), 4, {"tensor": Tensor(sequence_parallel=True, asynchronous=True, pieces=2, user_buffers=True), **SCALED}, "zb-h1"
    ),
    "llama-tp2-sp-async-scaled-recompute": Case(LLAMA, Degrees(tp=2), blocks={**SP_ASYNC, **SCALED, "recompute": Recompute(("full",))}),
    "llama-pp2-vocabulary": Case(LLAMA, Degrees(pp=2), 4, vocabulary="parallel"),
    "gpt-pp4-vocabulary-padded-dropout": Case(replace(GPT, layers=4, vocab=21), Degrees(pp=4), 8, UNFUSED, vocabulary="parallel"),
    "gemma-pp2-tp2-sp-vocabulary-tied": Case(
        GEMMA, Degrees(tp=2, pp=2), 4, {**SP_ASYNC, "kernels": Kernels(loss="megatron"), "recompute": Recompute(("full",))}, vocabulary="parallel"
    ),
    "gpt-pp2-dp2-zero1-vocabulary-tied": Case(replace(GPT, tied=True), Degrees(pp=2, dp=2), 4, _data("bucketed", 1), vocabulary="parallel"),
    "llama-pp2-dp2-zero2-vocabulary": Case(LLAMA, Degrees(pp=2, dp=2), 4, _data("bucketed", 2), vocabulary="parallel"),
    "llama-pp2-dp2-zero3-vocabulary": Case(LLAMA, Degrees(pp=2, dp=2), 4, _data("bucketed", 3), vocabulary="parallel"),
    "gpt-tp2-sp": Case(GPT, Degrees(tp=2), blocks=SP),
    "gpt-pp2": Case(replace(GPT, tied=True), Degrees(pp=2), 4),
    "gpt-pp2-zb-v": Case(replace(GPT, layers=4, tied=True), Degrees(pp=2), 4, schedule="zb-v", chunks=2),
    "llama-tp2-pp2-zb-h1-sp": Case(LLAMA, Degrees(tp=2, pp=2), 4, SP, "zb-h1"),
    "gemma-tp2-sp": Case(GEMMA, Degrees(tp=2), blocks=SP),
    "gemma-pp2-zb-h1": Case(GEMMA, Degrees(pp=2), 4, schedule="zb-h1"),
    "qwen-tp2": Case(QWEN, Degrees(tp=2)),
    "qwen-tp2-sp-pp2": Case(QWEN, Degrees(tp=2, pp=2), 4, blocks=SP),
    "olmo-pp2": Case(OLMO, Degrees(pp=2), 4, blocks={"recompute": Recompute(("full",))}),
    "mpt-tp2": Case(MPT, Degrees(tp=2)),
    "mpt-tp2-unfused-dropout": Case(MPT, Degrees(tp=2), blocks=UNFUSED),
    "plain-norms-tp2-sp": Case(PLAIN, Degrees(tp=2), blocks=SP),
    "latent-tp2": Case(LATENT, Degrees(tp=2)),
    "latent-tp2-sp": Case(LATENT, Degrees(tp=2), blocks=SP),
    "latent-pp2-tp2-modules": Case(LATENT, Degrees(tp=2, pp=2), 4, blocks={**SP, "recompute": Recompute(("layernorm", "mla_up_proj", "core_attn", "act"))}),
    "latent-plain-queries-pp2": Case(replace(LATENT, latent=replace(COMPRESSED, query_rank=0)), Degrees(pp=2), 4),
    "gpt-pp2-tp2-sp-dualpipe": Case(replace(GPT, tied=True), Degrees(tp=2, pp=2), 4, SP, "dualpipe", chunks=2),
    "llama-pp2-tp2-dualpipe-v": Case(replace(LLAMA, layers=4), Degrees(tp=2, pp=2), 4, None, "dualpipe-v", "stream", 2),
    "llama-tp2": Case(LLAMA, Degrees(tp=2)),
    "llama-tp2-sp-eager-padded": Case(replace(LLAMA, vocab=21), Degrees(tp=2), blocks={**SP, "kernels": Kernels(glu="unfused", loss="unfused")}),
    "gemma-tp2-pp2-zb-h1-eager-act-padded": Case(
        replace(GEMMA, vocab=19), Degrees(tp=2, pp=2), 4, {"kernels": Kernels(glu="unfused", loss="megatron"), "recompute": Recompute(("act",))}, "zb-h1"
    ),
    "moe-ep2-tp2-sp-eager": Case(MOE, Degrees(tp=2, dp=2, ep=2), blocks={**SP, "kernels": Kernels(glu="unfused", loss="megatron")}),
    "llama-tp4-copied-kv": Case(LLAMA, Degrees(tp=4)),
    "qwen-tp4-sp-copied-kv-recompute": Case(QWEN, Degrees(tp=4), blocks={**SP_ASYNC, **SCALED, "recompute": Recompute(("full",))}),
    "llama-tp4-pp2-zb-h1-copied-kv-all-gather": Case(LLAMA, Degrees(tp=4, pp=2), 4, COLUMNS, "zb-h1"),
    "qwen-tp4-dp2-zero3-copied-kv": Case(QWEN, Degrees(tp=4, dp=2), blocks={**_data("bucketed", 3), **SP}),
    "llama-tp4-cp2-ring-copied-kv": Case(LLAMA, Degrees(tp=4, cp=2), blocks=SP),
    "llama-tp2-padded": Case(replace(LLAMA, vocab=21), Degrees(tp=2)),
    "gpt-tp2-sp-dp2-zero1-padded-tied": Case(replace(GPT, vocab=23, tied=True), Degrees(tp=2, dp=2), blocks={**SP, **_data("bucketed", 1)}),
    "llama-tp2-dp2-zero3-padded": Case(replace(LLAMA, vocab=21), Degrees(tp=2, dp=2), blocks=_data("bucketed", 3)),
    "llama-pp2-tp2-sp": Case(LLAMA, Degrees(tp=2, pp=2), 4, blocks=SP),
    "llama-cp2-ring": Case(LLAMA, Degrees(cp=2)),
    "llama-cp2-all-to-all": Case(LLAMA, Degrees(cp=2), blocks=EXCHANGE),
    "llama-cp4-ring": Case(LLAMA, Degrees(cp=4)),
    "llama-cp2-tp2-sp-ring": Case(LLAMA, Degrees(tp=2, cp=2), blocks=SP),
    "llama-cp2-pp2-ring": Case(LLAMA, Degrees(cp=2, pp=2), 4),
    "llama-cp2-dp2-zero1-ring": Case(LLAMA, Degrees(cp=2, dp=2), blocks=_data("bucketed", 1, 4)),
    "gpt-cp2-tp2-sp-all-to-all-full": Case(GPT, Degrees(tp=2, cp=2), blocks={**EXCHANGE, **SP, "recompute": Recompute(("full",))}),
    "mpt-cp2-ring-core": Case(MPT, Degrees(cp=2), blocks={"recompute": Recompute(("core_attn",))}),
    "mpt-cp2-tp2-all-to-all": Case(MPT, Degrees(tp=2, cp=2), blocks=EXCHANGE),
    "latent-cp4-ring-zero3": Case(LATENT, Degrees(cp=4), blocks=_data("bucketed", 3, 4)),
    "llama-cp2-pp2-dualpipe-ring": Case(replace(LLAMA, layers=4), Degrees(cp=2, pp=2), 4, None, "dualpipe", chunks=2),
    "llama-cp2-pp2-dualpipe-v-all-to-all": Case(replace(LLAMA, layers=4), Degrees(cp=2, pp=2), 4, EXCHANGE, "dualpipe-v", chunks=2),
    "llama-cp2-pp2-interleaved-ring": Case(replace(LLAMA, layers=4), Degrees(cp=2, pp=2), 4, None, "interleaved-1f1b", chunks=2),
    "llama-cp2-pp2-zb-v-all-to-all": Case(replace(LLAMA, layers=4), Degrees(cp=2, pp=2), 4, EXCHANGE, "zb-v", "stream", 2),
    "llama-cp2-dp2-zero3-hsdp-ring": Case(LLAMA, Degrees(cp=2, dp=2), blocks=_data("bucketed", 3)),
    "llama-cp2-ring-scaled": Case(LLAMA, Degrees(cp=2), blocks={**SCALED, "recompute": Recompute(("full",))}),
    "llama-cp2-all-to-all-offload-parameters": Case(LLAMA, Degrees(cp=2), blocks={**EXCHANGE, "offload": HOST}),
    "moe-ep2-pp2-dualpipe": Case(replace(MOE, layers=4), Degrees(dp=2, ep=2, pp=2), 4, schedule="dualpipe", chunks=2),
    "moe-ep2-pp2-dualpipe-v-zero1": Case(replace(MOE, layers=4), Degrees(dp=2, ep=2, pp=2), 4, _data("bucketed", 1), "dualpipe-v", chunks=2),
    "moe-ep2-zero2": Case(MOE, Degrees(dp=2, ep=2), blocks=_data("bucketed", 2)),
    "moe-ep2-dp4-zero3": Case(MOE, Degrees(dp=4, ep=2), blocks=_data("bucketed", 3, 4)),
    "moe-ep2-tp2-sp-dp4-zero3-hsdp": Case(MOE, Degrees(tp=2, dp=4, ep=2), 1, {**_data("bucketed", 3), **SP}),
    "moe-ep2-dp4-zero3-kept-pp": Case(DEEPSEEK, Degrees(dp=2, ep=2, pp=2), 4, _data("bucketed", 3, reshard_after_forward=False)),
    "moe-ep2-pp2-dualpipe-zero2": Case(replace(MOE, layers=4), Degrees(dp=2, ep=2, pp=2), 4, _data("bucketed", 2), "dualpipe", chunks=2),
    "moe-ep2-recompute-moe": Case(DEEPSEEK, Degrees(dp=2, ep=2), blocks={"recompute": Recompute(("layernorm", "moe"))}),
    "moe-ep2-tp2-sp-recompute-moe-act": Case(MOE, Degrees(tp=2, dp=2, ep=2), blocks={**SP, "recompute": Recompute(("moe_act", "shared_experts", "mlp"))}),
    "llama-dp2-zero3-scaled-recompute": Case(LLAMA, Degrees(dp=2), blocks={**_data("bucketed", 3), **SCALED, "recompute": Recompute(("full",))}),
    "llama-pp2-dp2-zero3-scaled-kept-zb-h1": Case(LLAMA, Degrees(pp=2, dp=2), 4, {**_data("bucketed", 3, reshard_after_forward=False), **SCALED}, "zb-h1"),
    "moe-cp2-ep2-pp2-interleaved": Case(replace(MOE, layers=4), Degrees(cp=2, ep=2, pp=2), 4, None, "interleaved-1f1b", chunks=2),
    "moe-cp2-ep2-ring": Case(MOE, Degrees(cp=2, ep=2)),
    "moe-tp2-sp": Case(MOE, Degrees(tp=2), blocks=SP),
    "moe-ep2": Case(MOE, Degrees(dp=2, ep=2), blocks={"recompute": Recompute(("full",))}),
    "moe-ep4": Case(MOE, Degrees(dp=4, ep=4), blocks=_data("bucketed")),
    "moe-ep2-dp4-zero1": Case(MOE, Degrees(dp=4, ep=2), blocks=_data("bucketed", 1, 4)),
    "moe-ep2-capacity": Case(MOE, Degrees(dp=2, ep=2), blocks={"routing": Routing(capacity=1.0)}),
    "moe-ep2-tp2-sp": Case(MOE, Degrees(tp=2, dp=2, ep=2), blocks=SP),
    "moe-ep2-pp2-zb-h1": Case(DEEPSEEK, Degrees(dp=2, ep=2, pp=2), 4, schedule="zb-h1"),
}


SEVERAL = ("interleaved-1f1b", "looped-bfs", "zb1p-interleaved", "zb-v", "v-half", "dualpipe", "dualpipe-v")  # schedules of two stages per rank
TWICE = ("dualpipe", "dualpipe-v")  # defined from twice as many microbatches as ranks on


def _every() -> dict[str, Case]:
    """Every schedule on 2 and 4 ranks with 4 and 8 microbatches where it is defined, but for what stands above; the forms of data and tensor parallelism
    on 2 and 4 ranks alike."""
    have = {(c.schedule, c.degrees, c.microbatches) for c in CASES.values() if isinstance(c.model, Mlp) and not c.blocks}
    out: dict[str, Case] = {}
    for schedule, ranks, m in product(SCHEDULES, (2, 4), (4, 8)):
        case = Case(DEEP, Degrees(pp=ranks), m, schedule=schedule, chunks=2 if schedule in SEVERAL else 1)
        if (schedule, case.degrees, m) not in have and not (schedule in TWICE and m < 2 * ranks):
            out[f"pp{ranks}-{schedule}-m{m}"] = case
    return out | {
        "dp2-per-parameter": Case(MLP, Degrees(dp=2), blocks=_data("per-parameter")),
        "dp4-naive": Case(MLP, Degrees(dp=4), blocks=_data("naive")),
        "dp4-flat": Case(MLP, Degrees(dp=4), blocks=_data("flat")),
        "dp4-bucketed": Case(MLP, Degrees(dp=4), blocks=_data("bucketed")),
        "dp4-zero1": Case(MLP, Degrees(dp=4), blocks=_data("bucketed", 1, 4)),
        "tp4": Case(MLP, Degrees(tp=4)),
        "tp2-columns": Case(MLP, Degrees(tp=2), blocks=COLUMNS),
    }


CASES |= _every()
