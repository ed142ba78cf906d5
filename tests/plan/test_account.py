"""What a rank holds, moves and computes, against closed forms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from parasim.config import build, vary
from parasim.errors import Malformed
from parasim.model.layers import parameter_tensors
from parasim.plan.account import account, ratios

SWITCH = {"name": "switch", "accelerator": "h100-sxm", "node": {"count": 1, "devices": 64, "scale_up": {"kind": "switch", "bandwidth": "450 GB/s"}}}
GPT: dict[str, Any] = {
    "model": {"kind": "transformer", "layers": 2, "hidden": 256, "heads": 4, "ffn": 1024, "activation": "gelu", "vocab": 512, "positions": "none"},
    "cluster": SWITCH,
    "devices": 4,
    "batch": {"global": 2, "micro": 2, "sequence": 128},
    "parallel": {"tp": 4},
    "kernels": {"attention": "unfused", "dropout": True},
}
MLP: dict[str, Any] = {
    "model": {"kind": "mlp", "layers": 2, "hidden": 1024, "ffn": 1024},
    "cluster": SWITCH,
    "devices": 4,
    "batch": {"global": 128, "micro": 32},
    "precision": "fp32",
    "dp": {"mode": "naive"},
}


@pytest.mark.parametrize(
    ("settings", "per_sbh"),
    [([], 10 + 24 / 4), (["tensor.sequence_parallel=true"], 34 / 4), (["recompute=selective"], 10 + 24 / 4), (["recompute=full"], 2)],
)
def test_what_a_layer_keeps(settings: list[str], per_sbh: float) -> None:
    """Korthikanti et al. 2022, equations 2 to 6: sbh (10 + 24/t), all over t with sequence parallelism, 2sbh with full recompute; 5 a s^2 b / t."""
    kept = account(vary(build(GPT), settings)).to_json()["layer"]["kept"]
    sbh = 128 * 2 * 256
    core = 0 if any("recompute" in s for s in settings) else 5 * 4 * 128**2 * 2 / 4
    assert kept["other_bytes"] == per_sbh * sbh and kept["attention_core_bytes"] == core and kept["bytes"] == per_sbh * sbh + core


def test_tensor_parallel_transfers_of_a_layer() -> None:
    """Two all-reduces of b s h each way, 2 (t-1)/t of them on the wire: 8 b s h (t-1)/t elements; compute 72 b s h^2 (1 + s/6h) / t FLOPs."""
    layer = account(build(GPT)).to_json()["layer"]
    tp, sbh = layer["axes"]["tp"], 128 * 2 * 256
    assert tp["wire_elements"] == 8 * sbh * 3 / 4 and tp["wire_bytes"] == 2 * tp["wire_elements"]
    assert tp["forward"]["ops"]["all_reduce"] == tp["backward"]["ops"]["all_reduce"] == 2
    assert layer["flops"] == pytest.approx(72 * sbh * 256 * (1 + 128 / (6 * 256)))
    assert layer["compute_s"] == pytest.approx(layer["flops"] / 4 / 989e12)
    again = account(vary(build(GPT), ["recompute=full"])).to_json()["layer"]
    assert again["axes"]["tp"]["ops"]["all_reduce"] == 6 and again["recomputed_flops_over_model"] == pytest.approx(1 / 3)


def test_replicas_of_an_mlp() -> None:
    """128 rows over 4 ranks; four all-reduces of 4 MiB, each 2 x 3/4 of it; they stand between the backward and the optimizer."""
    tree = account(build(MLP), rank=2).to_json()
    assert tree["batch"]["rows"] == {"count": 32, "start": 64, "end": 96} and tree["parameters"] == {"model": 2**22, "tensors": 4, "rank": 2**22}
    dp = tree["step"]["axes"]["dp"]
    assert dp["ops"]["all_reduce"] == 4 and dp["wire_bytes"] == 4 * 4 * 2**20 * 1.5 and dp["between"] == "backward and optimizer step"
    assert tree["groups"]["dp"] == {"size": 4, "count": 1, "servers": 1, "holds_all_replicas": True}
    assert "128 rows" not in str(account(build(MLP))) and "4,194,304 parameters" in str(account(build(MLP)))


def test_gradients_hide_behind_the_backward_from_c_over_w_tokens() -> None:
    """4 P T / C >= 2 x 2 P (n-1)/n / W in bf16: T = 989e12 / 450e9 x 3/4 rows."""
    bf16 = vary(build(MLP), ["precision=bf16", "dp.mode=flat"])
    assert account(bf16).to_json()["step"]["axes"]["dp"]["hides_from_tokens_per_rank"] == pytest.approx(989e12 / 450e9 * 3 / 4)


def test_state_and_the_largest_model() -> None:
    """Mixed precision: 2 + 2 + 4 + 4 + 4 bytes; ZeRO-1 on 4: 4 + 12/4 of them; 80 GB hold 80e9 / 7 parameters."""
    run = vary(build(MLP), ["precision=bf16", "zero.stage=1"])
    state = account(run).to_json()["state"]
    assert state["bytes_per_parameter"] == {"parameters": 2, "gradients": 2, "master": 4, "m": 4, "v": 4, "total": 16}
    assert state["bytes"] == 7 * 2**22 and state["largest_parameters"] == pytest.approx(80e9 / 7)
    assert state["first_iteration_bytes_per_parameter"] == [2, 4, 7] and state["whole"]["devices_at_least"] == 1


def test_numbers_over_those_of_another_layout() -> None:
    found = account(vary(build(MLP), ["zero.stage=3"]), versus="zero.stage=0").to_json()["over"]
    assert found["step"]["axes"]["dp"]["wire_bytes"] == pytest.approx(1.5) and found["degrees"]["dp"] == 1
    assert ratios({"a": 2, "b": "x", "c": 1}, {"a": 4, "b": "y", "c": 0}) == {"a": 0.5, "b": False, "c": None}


def test_spread_tokens_and_the_first_value_that_fits() -> None:
    run = vary(build(MLP), ["model.hidden=65536", "model.ffn=65536", "precision=bf16", "dp.mode=flat"])  # 2^34 parameters: 275 GB of state
    tree = account(run, spread=0.5, tokens="1000", until="zero.stage=0..3").to_json()
    kept = tree["layer"]["kept"]["rank_bytes"]
    assert tree["spread"]["replicas_at_least"] == -(-(16 * 2**34 + kept / 2) // (80e9 - kept / 2))
    assert tree["spread"]["most_tokens_per_replica"] == pytest.approx(80e9 / (kept / 2 / 32))
    assert tree["batch"]["whole_sequences"] == 1000 and tree["first_that_fits"] == {"zero.stage": 3}  # 4, 7/4 + 2... of 16 bytes: 68.7 GB
    with pytest.raises(Malformed, match="share"):
        account(run, spread=2.0)
    with pytest.raises(Malformed, match="rank"):
        account(run, rank=4)


def test_a_ring_of_contexts() -> None:
    """c-1 steps of 2 x 2 B x s/c x kv width; contiguous causal chunks: the last rank has 2c-1 times the work of the first, zig-zag pairs none."""
    ring = {**GPT, "devices": 4, "parallel": {"cp": 4}, "kernels": {}, "batch": {"global": 1, "micro": 1, "sequence": 128}}
    context = account(build(ring)).to_json()["layer"]["context"]
    assert (context["steps"], context["bytes_per_step"]) == (3, 2 * 2 * 32 * 256)
    assert context["work_last_over_first"] == {"contiguous": 7.0, "zigzag": 1.0}
    assert context["hides_from_tokens_per_rank"] == pytest.approx(989e12 / 450e9)  # 4 T^2 h / C >= 4 T h / W


def test_layers_in_flight_and_what_fixed_layers_keep(tmp_path: Path) -> None:
    fixed = {"kind": "fixed", "layers": 8, "forward": "1 ms", "input_grad": "1 ms", "weight_grad": "1 ms", "boundary": "2 MB", "saved": "10 MB"}
    run = build({"model": fixed, "cluster": SWITCH, "devices": 4, "batch": {"global": 8, "micro": 1}, "parallel": {"pp": 4}})
    plain, full = account(run).to_json(), account(vary(run, ["recompute=full"])).to_json()
    assert plain["memory"]["layers_in_flight"] == 8 and plain["memory"]["activation_bytes"] == 8 * 12e6
    assert full["memory"]["activation_bytes"] == 8 * 2e6 + 10e6  # inputs, and one layer whole again
    assert plain["step"]["pipeline"]["bubble"] == {"over_ideal_limit": 0.5, "over_ideal": pytest.approx(3 / 8), "share_of_step": pytest.approx(3 / 11)}
    assert plain["stages"][1] == {"stage": 1, "layers": [3, 4], "here": False}


def test_tensors_of_a_model_that_packs_nothing() -> None:
    """Nine of a gated layer (4 of attention, 3 of the feed-forward, 2 norms), embedding, last norm, head."""
    model = {"kind": "transformer", "layers": 48, "hidden": 1600, "heads": 25, "ffn": 6400, "vocab": 10000}
    assert parameter_tensors(build({**GPT, "model": model, "parallel": {}, "devices": 1}).plan.model) == 435
