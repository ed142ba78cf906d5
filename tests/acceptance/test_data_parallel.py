"""What `parasim run --json` says of data parallelism and ZeRO, against closed forms.

Bytes that a rank sends per step over d ranks with m microbatches (ring algorithms; Rajbhandari et al. 2020, section 7): an all-reduce of N
bytes 2N(d-1)/d, a reduce-scatter or all-gather N(d-1)/d.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ..conftest import Cli

PARAMETERS = 7_500_000_000  # of the ZeRO paper's figure 1


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def ran(
    cli: Cli, model: dict[str, Any], devices: int, *, m: int = 1, link: str = "200 GB/s", latency: str = "0 s", refused: bool = False, **more: Any
) -> dict[str, Any]:
    """The report of a model of fixed times on `devices` devices of one switch (JSON is YAML)."""
    keys = {
        "model": {"kind": "fixed", "forward": "0 s", "input_grad": "0 s", "weight_grad": "0 s", "optimizer": "0 s", "boundary": "0 B"} | model,
        "cluster": {
            "name": "one-switch",
            "accelerator": "h100-sxm",
            "node": {"count": 1, "devices": devices, "scale_up": {"kind": "switch", "bandwidth": link, "latency": latency}},
        },
        "devices": devices,
        "batch": {"global": m * devices, "micro": 1},
    }
    Path("run.yaml").write_text(json.dumps(keys | more), encoding="utf-8")
    answer = cli("run", "run.yaml", "--json")
    assert answer.code in (0, 1), answer.err  # 1: refused, or does not fit, which is said with the report
    return {"err": answer.err} if refused else json.loads(answer.out)


def sent(cli: Cli, zero: dict[str, Any], d: int = 64, m: int = 1, **more: Any) -> float:
    report = ran(cli, {"layers": 4, "parameters": PARAMETERS}, d, m=m, zero=zero, **more)
    return float(report["comm_bytes"]["dp"])


@pytest.mark.parametrize(
    ("zero", "m", "passes"),
    [
        *(({"stage": s}, 1, passes) for s, passes in enumerate((2, 2, 2, 3))),
        *(({"stage": s}, 8, passes) for s, passes in enumerate((2, 2, 8 + 1, 3 * 8))),
        ({"stage": 3, "reshard_after_forward": False}, 8, 2 * 8),
        ({"stage": 3, "overlap": False}, 2, 3 * 2),
    ],
)
def test_traffic_per_step(cli: Cli, zero: dict[str, Any], m: int, passes: int) -> None:
    """2, 2, m + 1, 3m times N(d-1)/d; 2m where gathered layers stay for the backward."""
    assert sent(cli, zero, m=m) == pytest.approx(passes * 2 * PARAMETERS * 63 / 64, rel=1e-6)  # shards are padded


@pytest.mark.parametrize(("stage", "widths"), [(0, 4 + 4), (1, 4 + 2), (3, 2 + 2 + 4)])
def test_traffic_with_fp32_gradients(cli: Cli, stage: int, widths: int) -> None:
    """All-reduce 2 x 4 bytes; reduce-scatter of 4 and gather of 2: a quarter less; stage 3 two gathers of 2 and a reduce-scatter of 4."""
    traffic = sent(cli, {"stage": stage}, optimizer={"gradient_dtype": "fp32"})
    assert traffic == pytest.approx(widths * PARAMETERS * 63 / 64, rel=1e-6)


@pytest.mark.parametrize(("stage", "m", "whole", "shards"), [(1, 4, 2, 1), (2, 4, 4 + 1, 4), (3, 4, 3 * 4, 4)])
def test_traffic_of_hybrid_sharding(cli: Cli, stage: int, m: int, whole: int, shards: int) -> None:
    """Shard groups of 8, 8 replicas: `whole` passes of N(8-1)/8 inside the group, `shards` all-reduces of N/8 over the replicas."""
    n = 2 * PARAMETERS
    traffic = sent(cli, {"stage": stage, "shard": 8}, m=m)
    assert traffic == pytest.approx(whole * n * 7 / 8 + shards * 2 * n / 8 * 7 / 8, rel=1e-6)


@pytest.mark.parametrize(
    ("d", "stage", "gigabytes"), [(64, 0, 120), (64, 1, 31.40625), (64, 2, 16.640625), (64, 3, 1.875), (4, 2, 41.25), (4, 3, 30), (16, 3, 7.5)]
)
def test_memory_of_the_zero_table(cli: Cli, d: int, stage: int, gigabytes: float) -> None:
    """Rajbhandari et al. 2020, figure 1 and table 1: 16, 4 + 12/d, 2 + 14/d, 16/d bytes per parameter."""
    memory = ran(cli, {"layers": 30, "parameters": PARAMETERS}, d, zero={"stage": stage})["memory"]["by_category"]
    assert sum(memory[c] for c in ("parameters", "gradients", "optimizer")) == pytest.approx(gigabytes * 1e9, rel=1e-6)


def test_whole_layers_of_stage_3_can_outweigh_stage_2(cli: Cli) -> None:
    """Two ranks, four big layers, N parameters, gathered three ahead. Stage 2 holds (2 + 14/2) N bytes, the gradients
    of the layer in work and of the one being reduced (2 x 2/4 N) and the part of it that arrives (1/4 N). Stage 3 holds 16/2 N, the same of
    gradients, and the three layers below that are whole (3 x 2/4 N)."""
    model = {"layers": 4, "parameters": 1e9, "forward": "20 ms", "weight_grad": "20 ms"}
    peak = {s: ran(cli, model, 2, zero={"stage": s, "prefetch": 3, "limit": 4})["memory"] for s in (2, 3)}
    assert (peak[2]["peak_bytes"], peak[3]["peak_bytes"]) == (10.25e9, 10.75e9)
    assert peak[3]["by_category"]["gathered"] == 2.5e9


def test_the_limit_bounds_whole_layers(cli: Cli) -> None:
    """Eight layers of 2 GB in bf16: without gradients at the peak of a forward, `limit` of them are whole."""
    model = {"layers": 8, "parameters": 8e9, "forward": "20 ms"}
    for limit, prefetch in ((1, 0), (2, 1), (3, 2), (2, 3)):
        memory = ran(cli, model, 8, zero={"stage": 3, "limit": limit, "prefetch": prefetch})["memory"]
        assert memory["by_category"]["gathered"] <= (limit + 1) * 2e9  # and one gradient


# ---- overlap

S, W, OVERHEAD = 7_992_940_800, 200e9, 50e-6  # bytes of gradients, bytes/s, seconds per call: two latencies of 25 us


def exposed(cli: Cli, layers: int, **dp: Any) -> tuple[float, float]:
    """(exposed, overlapped) seconds over dp where computing gradients takes as long as sending them; two ranks: an all-reduce takes s/w + o."""
    model = {"layers": layers, "weight_grad": f"{S / W / layers} s", "parameters": S // 2}
    times = ran(cli, model, 2, latency="25 us", dp=dp)["time_s"]
    return times["exposed"]["dp"], times["overlapped"]["dp"]


@pytest.mark.parametrize("buckets", [1, 4, 8])
def test_exposed_time_of_buckets(cli: Cli, buckets: int) -> None:
    """Bucket k is ready at k s/(n w); each takes s/(n w) + o in turn: s/(n w) + n o stick out. 10.19 ms with 4."""
    out, inside = exposed(cli, 280, mode="bucketed", bucket=f"{int(S / buckets * 0.999)} B")
    assert out == pytest.approx(S / (buckets * W) + buckets * OVERHEAD, rel=1e-6)
    assert (inside > 0) == (buckets > 1)


def test_the_best_bucket_is_in_between(cli: Cli) -> None:
    """s/(n w) + n o is least at n = sqrt(s/(w o)) = 28.3: falls before, rises after."""
    counts = (1, 10, 28, 70, 280)
    out = [exposed(cli, 280, mode="bucketed", bucket=f"{int(S / n * 0.999)} B")[0] for n in counts]
    assert min(out) == out[2] == pytest.approx(0.002827311, rel=1e-6)
    assert out[0] > out[1] > out[2] < out[3] < out[4]


def test_flat_saves_the_calls_of_naive(cli: Cli) -> None:
    """naive - flat = (tensors - 1) o; overlapped one by one comes between flat and buckets while the calls are cheap."""
    (naive, _), (flat, hidden), (single, _) = (exposed(cli, 70, mode=mode) for mode in ("naive", "flat", "per-parameter"))
    assert naive - flat == pytest.approx(69 * OVERHEAD, rel=1e-6) and hidden == 0
    assert flat == pytest.approx(S / W + OVERHEAD, rel=1e-9)
    assert single == pytest.approx(S / (70 * W) + 70 * OVERHEAD, rel=1e-6)


@pytest.mark.parametrize(("keep", "step"), [(False, 27e-3), (True, 26e-3)])
def test_the_fsdp_timeline(cli: Cli, keep: bool, step: float) -> None:
    """Four layers, F 2, B 4, gather 1, reduce-scatter 1 ms, one ahead: the first gather and the last reduce-scatter stick out, and the backward's
    first gather where the last layer was freed."""
    model = {"layers": 4, "forward": "2 ms", "input_grad": "2 ms", "weight_grad": "2 ms", "parameters": 4 * 200_000_000}  # 0.4 GB a layer, half is sent
    report = ran(cli, model, 2, zero={"stage": 3, "reshard_after_forward": not keep})
    assert report["step_time_s"] == pytest.approx(step, rel=1e-9)
    assert report["time_s"]["exposed"]["dp"] == pytest.approx(step - 24e-3, rel=1e-9)
    assert report["time_s"]["overlapped"]["dp"] == pytest.approx((4 if keep else 8) * 1e-3 + 4e-3 - (step - 24e-3), rel=1e-9)


def test_without_prefetch_every_gather_sticks_out(cli: Cli) -> None:
    """8 gathers and the last reduce-scatter of 1 ms each, and three gathers that share the link with a reduce-scatter. Nothing overlaps: 12 of 1 ms."""
    model = {"layers": 4, "forward": "2 ms", "input_grad": "2 ms", "weight_grad": "2 ms", "parameters": 4 * 200_000_000}
    assert ran(cli, model, 2, zero={"stage": 3, "prefetch": 0})["time_s"]["exposed"]["dp"] == pytest.approx(12e-3, rel=1e-9)
    assert ran(cli, model, 2, zero={"stage": 3, "overlap": False})["time_s"]["exposed"]["dp"] == pytest.approx(12e-3, rel=1e-9)


def test_shard_must_divide_dp(cli: Cli) -> None:
    answer = ran(cli, {"layers": 4, "parameters": 100}, 8, zero={"stage": 3, "shard": 3}, refused=True)
    assert "zero.shard=3 must divide dp=8; legal: 1, 2, 4, 8" in answer["err"]


# ---- the parameter gather under the next forward


@pytest.mark.parametrize(("ahead", "step"), [(False, 29e-3), (True, 26e-3)])
def test_the_parameter_gather_under_the_next_forward(cli: Cli, ahead: bool, step: float) -> None:
    """24 ms of compute; the last reduce-scatter sticks out, and 4 gathers of 1 ms, or the first of them alone. The traffic of a step is the same."""
    model = {"layers": 4, "forward": "2 ms", "input_grad": "2 ms", "weight_grad": "2 ms", "parameters": 4 * 200_000_000}
    report = ran(cli, model, 2, zero={"stage": 1, "overlap_gather": ahead}, dp={"mode": "per-parameter"})
    assert report["step_time_s"] == pytest.approx(step, rel=1e-9)
    assert report["time_s"]["compute"] == pytest.approx(24e-3, rel=1e-9)
    assert report["time_s"]["exposed"]["dp"] == pytest.approx(step - 24e-3, rel=1e-9)
    assert report["time_s"]["overlapped"]["dp"] == pytest.approx((6 if ahead else 3) * 1e-3, rel=1e-9)
    assert report["comm_bytes"]["dp"] == pytest.approx(2 * 1.6e9 / 2, rel=1e-9)


def test_a_pipeline_meets_before_the_optimizer(cli: Cli) -> None:
    """Two ranks of two stages, 2 replicas: nothing of the next step is done in the bubble; (m + p - 1) of 4 x 6 ms / 2, then the reduction of the
    first stage's first layer and the first gather of its parameters."""
    model = {"layers": 4, "forward": "2 ms", "input_grad": "2 ms", "weight_grad": "2 ms", "parameters": 4 * 200_000_000}
    more = {"parallel": {"pp": 2}, "dp": {"mode": "per-parameter"}, "batch": {"global": 8, "micro": 1}}
    step = {a: ran(cli, model, 4, zero={"stage": 1, "overlap_gather": a}, **more)["step_time_s"] for a in (False, True)}
    assert step[False] == pytest.approx((4 + 1) * 12e-3 + 1e-3 + 2e-3, rel=1e-9)
    assert step[True] == pytest.approx((4 + 1) * 12e-3 + 1e-3 + 1e-3, rel=1e-9)


def test_a_gather_without_overlap_cannot_lie_under_the_next_step(cli: Cli) -> None:
    answer = ran(cli, {"layers": 4, "parameters": 100}, 8, zero={"stage": 1, "overlap": False, "overlap_gather": True}, refused=True)
    assert "zero.overlap_gather=true contradicts zero.overlap=false" in answer["err"]
