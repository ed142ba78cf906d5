"""Stacks: what they stand for, what overrides them, and how a report says it."""

from __future__ import annotations

from typing import Any

import pytest

from parasim.config import build, vary
from parasim.config.schema import RunKeys
from parasim.config.stack import load_stack, stack_names
from parasim.errors import InvalidLayout
from parasim.parallel.layout import Kernels

NAMES = {
    "megatron-2021", "megatron-2022", "megatron-2023", "megatron-h100", "nemo-fp8", "torch-fsdp", "torchtitan", "nanotron", "megatron-bridge",
    "deepspeed-2021", "deepspeed-zero3", "maxtext-tpu",
}  # fmt: skip
GPT: dict[str, Any] = {
    "model": {"kind": "transformer", "layers": 4, "hidden": 64, "heads": 8, "vocab": 512, "activation": "gelu"},
    "cluster": "h100-hgx-ib400",
    "devices": 8,
    "batch": {"global": 8, "sequence": 64},
    "parallel": {"tp": 2, "pp": 2},
}


def test_the_catalog() -> None:
    assert set(stack_names()) == NAMES


@pytest.mark.parametrize("name", sorted(NAMES))
def test_a_stack_is_keys_of_a_run_file(name: str) -> None:
    """Every key exists and has a legal form; the stack itself names no size, model or machine."""
    stack = load_stack(name)
    assert stack.about and stack.source
    needed = {k: GPT[k] for k in ("model", "cluster", "devices", "batch")}
    RunKeys.model_validate({**needed, **stack.keys, **stack.with_tp})
    assert not {"model", "cluster", "devices", "batch", "parallel", "profile", "stack"} & {*stack.keys, *stack.with_tp}


@pytest.mark.parametrize("name", sorted(NAMES))
def test_a_stack_resolves_or_is_refused_with_its_name(name: str) -> None:
    if load_stack(name).keys.get("zero", {}).get("stage", 0) < 3:
        plan = build(GPT | {"stack": name}).plan
        assert plan.assumptions[0].startswith(f"stack {name}: precision=")
        return
    try:
        build(GPT | {"stack": name})
    except InvalidLayout as error:
        assert all(f"(stack {name} asks for it)" in v.rule for v in error.violations)


def test_what_megatron_2022_stands_for() -> None:
    layout = build(GPT | {"stack": "megatron-2022"}).plan.layout
    assert (layout.precision, layout.kernels, layout.recompute.modules) == ("fp16", Kernels("unfused", dropout=True, loss="megatron"), ("core_attn",))
    assert layout.tensor.sequence_parallel and layout.data.mode == "flat" and layout.optimizer.gradient == "fp16"


def test_what_is_written_wins() -> None:
    run = build(GPT | {"stack": "megatron-2022", "precision": "bf16", "recompute": "full", "tensor": {"sequence_parallel": False}})
    layout = run.plan.layout
    assert (layout.precision, layout.recompute.modules, layout.recompute.early_stop) == ("bf16", ("full",), False)
    assert not layout.tensor.sequence_parallel and layout.kernels.dropout
    assert run.plan.assumptions[0] == (
        "stack megatron-2022: kernels.attention=unfused, kernels.dropout=true, kernels.loss=megatron, recompute.early_stop=false, "
        "dp.mode=flat, pipeline.comm=blocking, optimizer.step=separate, tensor.async=true"
    )


def test_sequence_parallelism_only_with_tensor_parallelism() -> None:
    run = build(GPT | {"stack": "nanotron"}, ["parallel.tp=1"])
    assert not run.plan.layout.tensor.sequence_parallel and run.plan.layout.zero.stage == 1


def test_another_stack_takes_back_what_the_first_gave() -> None:
    run = build(GPT | {"stack": "megatron-2022"})
    assert vary(run, ["stack=nanotron"]).plan.layout == build(GPT | {"stack": "nanotron"}).plan.layout
    assert vary(run, ["stack=null"]).plan.layout == build(GPT).plan.layout


def test_the_source_of_a_run_says_it_all() -> None:
    run = build(GPT | {"stack": "megatron-h100"})
    assert run.source["stack"] == "megatron-h100"
    assert run.echo["dp.bucket"] == "160 MB = 160000000 bytes"
    assert build(run.source).plan.layout == run.plan.layout


def test_what_a_stack_asks_for_and_the_layout_cannot_have_names_the_stack() -> None:
    with pytest.raises(InvalidLayout, match=r"recompute.modules=core_attn is no part of this model's layers \(stack megatron-2022 asks for it\)"):
        build(GPT | {"stack": "megatron-2022", "model": {"kind": "mlp", "layers": 4, "hidden": 64}})
