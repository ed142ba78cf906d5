"""The rules of a layout, each broken once: the field, the value, the rule and what is legal."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parasim.model.spec import Fixed, Mlp, Transformer
from parasim.parallel.check import check, divisors, legal
from parasim.parallel.layout import Batch, Context, Degrees, Kernels, Layout, Optimizer, Pipeline, Tensor, Zero

MODEL = Transformer("t", layers=8, hidden=512, heads=64, kv_heads=8, head_dim=8, ffn=1024, vocab=50257)
FLAT = Mlp("m", layers=8, hidden=512, ffn=1024)
TIMES = Fixed("f", layers=8, forward=1.0, input_grad=1.0, weight_grad=1.0)


def layout(*, tp: int = 1, dp: int = 1, pp: int = 1, layers: tuple[int, ...] = (), microbatches: int = 4, micro: int = 1, sequence: int = 64) -> Layout:
    stages = layers or tuple(8 // pp for _ in range(pp))
    batch = Batch(micro * dp * microbatches, micro, sequence, microbatches)
    return Layout(Degrees(tp=tp, dp=dp, pp=pp), batch, pipeline=Pipeline(layers=stages))


def messages(model: Transformer | Mlp | Fixed, of: Layout) -> list[str]:
    return [str(v) for v in check(model, of)]


@pytest.mark.parametrize("model", [replace(MODEL, vocab=512), FLAT, TIMES])
@pytest.mark.parametrize("schedule", ["naive", "gpipe", "1f1b"])
@pytest.mark.parametrize("microbatches", [1, 2, 3, 7])
def test_any_number_of_microbatches_is_legal(model: Transformer | Mlp | Fixed, schedule: str, microbatches: int) -> None:
    of = layout(pp=4, dp=2, microbatches=microbatches)
    assert messages(model, replace(of, pipeline=replace(of.pipeline, schedule=schedule))) == []


def test_tensor_parallel() -> None:
    assert messages(MODEL, layout(tp=6)) == [
        "parallel.tp=6 must divide model.heads=64; legal: 1, 2, 4, 8, 16, 32, 64",
        "parallel.tp=6 must divide model.ffn=1024; legal: 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024",
        "parallel.tp=6 must divide model.kv_heads=8, or be a multiple of them (which are copied then); legal: 1, 2, 4, 8, 16, 32, 64",
    ]
    # more ranks than key-value heads, which are copied: legal where every head is on as many
    assert messages(replace(MODEL, vocab=512), layout(tp=16)) == []
    assert messages(replace(MODEL, vocab=512, heads=12, kv_heads=4, ffn=960), layout(tp=6)) == [
        "parallel.tp=6 must divide model.kv_heads=4, or be a multiple of them (which are copied then); legal: 1, 2, 4, 12"
    ]
    assert messages(FLAT, layout(tp=3)) == ["parallel.tp=3 must divide model.ffn=1024; legal: 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024"]
    assert messages(TIMES, layout(tp=2)) == ["parallel.tp=2 cannot cut a model of fixed times; legal: 1"]
    columns = replace(layout(tp=8), tensor=Tensor(style="all-gather"))
    assert messages(replace(FLAT, hidden=12), columns) == ["parallel.tp=8 must divide model.hidden=12; legal: 1, 2, 3, 4, 6, 12"]


def test_sequence_parallel() -> None:
    def parallel(of: Layout) -> Layout:
        return replace(of, tensor=Tensor(sequence_parallel=True))

    assert messages(FLAT, parallel(layout(tp=4))) == []
    assert messages(FLAT, parallel(layout())) == ["tensor.sequence_parallel=true needs parallel.tp of 2 or more, not 1; set it to false, or raise parallel.tp"]
    assert messages(FLAT, parallel(layout(tp=4, micro=3, sequence=2))) == [
        "parallel.tp=4 must divide the tokens of a microbatch, batch.sequence=2 x batch.micro=3, under tensor.sequence_parallel; legal: 1, 2, 3, 6"
    ]


def test_pipeline() -> None:
    assert messages(TIMES, layout(pp=16, layers=16 * (1,))) == ["parallel.pp=16 is 16 stages, more than model.layers=8; at most 8"]
    assert messages(TIMES, layout(pp=2, layers=(8, 0))) == ["pipeline.layers=[8, 0] leaves a stage without a layer; write 1 or more for every stage, or auto"]
    assert messages(TIMES, layout(pp=2, layers=(5, 4))) == ["pipeline.layers=[5, 4] sums to 9, but model.layers=8; write numbers that sum to 8, or auto"]
    assert messages(TIMES, layout(pp=2, layers=(3, 3, 2))) == [
        "pipeline.layers=[3, 3, 2] has 3 entries, but there are 2 stages (parallel.pp=2 x pipeline.chunks=1); write 2 entries, or auto"
    ]


def test_batch() -> None:
    of = replace(layout(dp=3), batch=Batch(global_=10, micro=1, sequence=64, microbatches=3))
    assert messages(TIMES, of) == [
        "batch.global=10 must be a multiple of batch.micro=1 x dp=3 = 3; legal batch.global near it: 9, 12; legal dp for it: 1, 2, 5"
    ]
    learned = replace(MODEL, positions="learned", max_positions=32)
    assert messages(learned, layout()) == ["batch.sequence=64 is longer than model.max_positions=32, the rows of its learned positions; at most 32"]


def test_zero_optimizer_and_model() -> None:
    assert messages(TIMES, replace(layout(dp=4), zero=Zero(stage=1, shard=3))) == ["zero.shard=3 must divide dp=4; legal: 1, 2, 4"]
    assert messages(TIMES, replace(layout(), zero=Zero(stage=1))) == []
    assert messages(TIMES, replace(layout(), precision="fp16", optimizer=Optimizer(gradient="bf16"))) == [
        "optimizer.gradient_dtype=bf16 cannot hold the gradients of precision=fp16; legal: fp16, fp32"
    ]
    odd = replace(MODEL, kv_heads=7, head_dim=9)
    assert messages(odd, layout()) == [
        "model.kv_heads=7 must divide model.heads=64; legal: 1, 2, 4, 8, 16, 32, 64",
        "model.head_dim=9 must be even for rotary positions; nearest legal: 8, 10",
    ]


@given(st.integers(1, 3000))
def test_divisors(number: int) -> None:
    assert divisors(number) == [d for d in range(1, number + 1) if number % d == 0]


def test_long_lists_are_cut_to_the_nearest() -> None:
    assert legal(range(1, 100), 50) == "nearest legal: 47, 48, 49, 50, 51, 52"


def test_context_parallel() -> None:
    def of(cp: int, style: str = "ring", tp: int = 1, sequence: int = 64) -> Layout:
        base = layout(tp=tp, sequence=sequence)
        return replace(base, degrees=replace(base.degrees, cp=cp), context=Context(style))  # type: ignore[arg-type]

    model = replace(MODEL, vocab=512)
    assert messages(model, of(4)) == []
    assert messages(model, of(3)) == ["parallel.cp=3 must divide batch.sequence=64 into 2 cp chunks; legal: 1, 2, 4, 8, 16, 32"]
    assert messages(model, of(2, "all-to-all", tp=4)) == []
    assert messages(model, of(4, "all-to-all", tp=4)) == [
        "parallel.cp=4 must divide the 2 key-value heads of a rank (model.kv_heads / tp), which context.style=all-to-all exchanges; "
        "legal: 1, 2, or context.style=ring"
    ]
    assert messages(model, of(4, "all-to-all", sequence=66)) == ["parallel.cp=4 must divide batch.sequence=66; legal: 1, 2, 3, 6, 11, 22, 33, 66"]
    assert messages(FLAT, of(2)) == ["parallel.cp=2 cuts the sequence of attention, and this model has none; legal: 1"]
    unfused = replace(of(2), kernels=Kernels("unfused"))
    assert messages(model, unfused) == ["kernels.attention=unfused keeps scores of whole sequences, with parallel.cp=2 not modelled; legal: tiled"]
