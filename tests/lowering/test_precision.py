"""fp8: which products run on scaled copies, what is kept, what is sent, and what an accelerator without it answers."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from layouts import HIDDEN, TOKENS, counted, held, kept, keys, lowered, ops

from parasim.config import build
from parasim.cost.profile import Profile, datasheet
from parasim.cost.timing import seconds
from parasim.errors import InvalidLayout, Refused
from parasim.lowering import lower
from parasim.program.ops import Compute, Kernel, Ref
from parasim.program.workload import Program
from parasim.provenance import Number

LAYERS = 6
CUTS: list[dict[str, Any]] = [{}, {"tp": 2}, {"tp": 2, "sp": True}, {"pp": 2}]


def kernels(program: Program) -> Counter[tuple[str, str]]:
    return Counter((k.name, k.dtype) for o in ops(program) if isinstance(o, Compute) for k in o.kernels)


@pytest.mark.parametrize("cut", CUTS, ids=str)
@pytest.mark.parametrize("model", ["gpt", "llama", "mlp"])
def test_linear_layers_multiply_fp8_and_the_rest_is_bf16(model: str, cut: dict[str, Any]) -> None:
    m, linear = 3, 2 if model == "mlp" else 4
    _, w = lowered(model, m=m, precision="fp8", **cut)
    found = sum((kernels(p) for p in w.programs), Counter())
    for name in ("scaled_linear", "scaled_linear_input_grad", "scaled_linear_weight_grad"):
        assert found[name, "fp8"] == m * linear * LAYERS
    assert {name for name, dtype in found if dtype == "fp8"} == {n for n, _ in found if n.startswith("scaled")}
    assert not any(n.startswith("linear") for n, _ in found)
    # inputs forward and output gradients backward once per linear layer and microbatch, before they are gathered where sequence parallelism
    # does; weights once a step
    assert found["cast", "bf16"] == 2 * linear * m * LAYERS + linear * LAYERS


@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_what_is_sent_and_persists_does_not_change(cut: dict[str, Any]) -> None:
    """But for the rows that are gathered for products on copies alone: two inputs forward, and backward the same again and two output gradients, of a
    layer and microbatch; a byte per element in place of two, and a scale of 4 bytes of each rank."""
    m, layers = 3, 6
    wide, narrow = (lowered("gpt", m=m, precision=p, **cut)[1].programs for p in ("bf16", "fp8"))
    whole, rows = 2 * TOKENS * HIDDEN, 6 * m * layers
    for a, b in zip(wide, narrow, strict=True):
        expected = counted(a, "tp")
        if cut.get("sp"):
            expected += Counter({("all_gather", whole // 2): rows, ("all_gather", 2 * 4): rows})
            expected -= Counter({("all_gather", whole): rows})
        assert counted(b, "tp") == expected
        assert [held(a, c) for c in ("parameters", "gradients", "optimizer")] == [held(b, c) for c in ("parameters", "gradients", "optimizer")]


def test_copies_are_kept_in_place_of_what_they_were_made_of() -> None:
    """Per token of a GPT layer, bf16: norm outputs 2 h + 2 h, GELU 8 h of the linear layers' inputs become a byte per element; attention's
    output stays for its own backward, with a copy of h more. Each copy has a scale of 4 bytes."""
    wide, narrow = (lowered("gpt", m=2, precision=p)[1].programs[0] for p in ("bf16", "fp8"))
    assert kept(wide, 2) - kept(narrow, 2) == TOKENS * HIDDEN * (1 + 1 + 4 - 1) - 4 * 4


def test_under_zero_3_weights_are_cast_whenever_they_are_gathered() -> None:
    """Forward and backward of every microbatch gather a layer and cast its weights, the copies go with the layer; all else is as without ZeRO."""
    m = 3
    zero, plain = (lowered("gpt", m=m, dp=2, precision="fp8", zero={"stage": s})[1].programs[0] for s in (3, 0))
    weights = 4 * LAYERS
    assert kernels(zero)["cast", "bf16"] - kernels(plain)["cast", "bf16"] == 2 * m * weights - weights
    copies = [b for n, b in zero.buffers.items() if n.endswith(".weight.scaled")]
    assert len(copies) == weights and all(b.category == "gathered" and not b.persistent for b in copies)
    products = ("scaled_linear", "scaled_linear_input_grad", "scaled_linear_weight_grad")
    assert {k: kernels(zero)[k, "fp8"] for k in products} == {k: kernels(plain)[k, "fp8"] for k in products}


def test_weight_copies_are_a_byte_per_element_of_the_linear_layers() -> None:
    _, w = lowered("gpt", precision="fp8")
    copies = [n for n in w.programs[0].buffers if n.endswith("weight.scaled")]
    assert sum(w.programs[0].sizes[n] for n in copies) == LAYERS * 12 * HIDDEN**2


def test_accelerators_without_fp8_refuse() -> None:
    with pytest.raises(Refused, match=r"precision=fp8 has no peak on accelerator a100-sxm-80; known: bf16, fp16, fp32, fp64, tf32"):
        build(keys("gpt", precision="fp8") | {"cluster": "a100-hgx-ib200"})


def test_time_of_a_product() -> None:
    """Twice the bf16 peak of an H100: 1979 TFLOP/s; a profile may give fp8 an efficiency of its own."""
    h100 = build(keys("gpt", precision="fp8")).cluster.accelerator
    k = Kernel("scaled_linear", (Ref("x"), Ref("s"), Ref("w"), Ref("t")), (Ref("y"),), (8192, 8192, 8192), "fp8")
    work = 2 * 8192**3
    assert seconds(k, h100, datasheet()) == pytest.approx(work / 1979e12)
    half = {"compute.matmul_efficiency": Number(0.5, "1", "test", "assumed")}
    assert seconds(k, h100, Profile("half", numbers=half)) == pytest.approx(work / (1979e12 * 0.5))
    own = half | {"compute.fp8_efficiency": Number(0.4, "1", "test", "assumed")}
    assert seconds(k, h100, Profile("own", numbers=own)) == pytest.approx(work / (1979e12 * 0.4))


STATES: list[tuple[dict[str, Any], str, bool]] = [({}, "bf16", True), ({"gradient_dtype": "fp32"}, "fp32", True), ({"master": False}, "bf16", False)]


@pytest.mark.parametrize(("written", "gradient", "master"), STATES)
def test_optimizer_state_is_that_of_bf16(written: dict[str, Any], gradient: str, master: bool) -> None:
    plan = build(keys("gpt", precision="fp8", optimizer=written)).plan
    assert (plan.layout.precision, plan.layout.compute_dtype) == ("bf16", "fp8")
    assert (plan.layout.optimizer.gradient, plan.layout.optimizer.master) == (gradient, master)
    assert lower(plan).world == 1


def test_gradients_are_not_fp8() -> None:
    with pytest.raises(InvalidLayout, match="cannot hold the gradients"):
        build(keys("gpt", precision="fp8", optimizer={"gradient_dtype": "fp16"}))
