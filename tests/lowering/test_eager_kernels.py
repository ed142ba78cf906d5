"""Gated activations and losses that run as several kernels, as torch has them without a compiler: what they keep and what is alive at the peak."""

from __future__ import annotations

import pytest
from layouts import LLAMA, TOKENS, kept, keys, lowered, ops

from parasim.config import build
from parasim.lowering import lower
from parasim.memory import memory_peak
from parasim.program.ops import Compute
from parasim.sim import simulate

FFN, VOCAB = LLAMA["ffn"], 100_000


@pytest.mark.parametrize("tp", [1, 2])
def test_an_unfused_glu_keeps_the_activation_of_its_gate(tp: int) -> None:
    """Gate, up and product, 3 f a token in bf16; unfused also silu(gate)."""
    fused, unfused = (kept(lowered("llama", tp=tp, kernels={"glu": glu})[1].programs[0], 2) for glu in ("fused", "unfused"))
    assert unfused - fused == 2 * TOKENS * FFN // tp


def test_an_unfused_glu_that_is_recomputed_keeps_gate_and_up_only() -> None:
    fused, unfused = (kept(lowered("llama", kernels={"glu": glu}, recompute=["act"])[1].programs[0], 2) for glu in ("fused", "unfused"))
    assert unfused == fused


def test_a_plain_activation_has_no_gate() -> None:
    fused, unfused = (lowered("gpt", kernels={"glu": glu})[1].programs[0] for glu in ("fused", "unfused"))
    assert fused == unfused


def peak(loss: str, tp: int) -> float:
    """Peak bytes of a model whose logits are most of its memory."""
    tree = keys("llama", tp=tp, m=2, kernels={"loss": loss})
    run = build(tree | {"model": {**LLAMA, "vocab": VOCAB, "layers": 1}})
    return memory_peak(simulate(lower(run.plan), run.cluster, run.profile), 0).nbytes


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize(
    ("loss", "wide"),
    [
        ("unfused", 4 + 4 + 4),  # log-softmax, its gradient and that of the logits
        ("megatron", 4 + 4),  # the logits and softmax
    ],
)
def test_bytes_of_a_logit_at_the_peak(loss: str, wide: int, tp: int) -> None:
    """Fused: the logits and their gradient, 2 + 2. Norms, statistics and gradients of hidden states are less than a logit's byte here."""
    assert (peak(loss, tp) - peak("fused", tp)) / (TOKENS * VOCAB / tp) == pytest.approx(wide - 4, abs=0.01)


def test_kernels_of_the_losses() -> None:
    def names(loss: str) -> set[str]:
        program = lowered("llama", kernels={"loss": loss})[1].programs[0]
        return {k.name for o in ops(program) if isinstance(o, Compute) for k in o.kernels}

    shared = names("unfused") & names("megatron")
    assert names("fused") - shared == {"cross_entropy_grad"}
    assert names("unfused") - shared == {"log_softmax", "log_softmax_grad", "likelihood_grad"}
    assert names("megatron") - shared == {"vocabulary_softmax", "vocabulary_softmax_grad"}
    assert "convert" in shared
