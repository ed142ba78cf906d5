"""A trace of torch.profiler beside a prediction: of a GPU, written out by hand in Kineto's form, and of this processor, recorded here.

The form: pytorch/kineto, libkineto/src/output_json.cpp. Kernels are complete events of category `kernel` with `stream`, `correlation` and `External
id` in their args, copies `gpu_memcpy`; ops of torch are `cpu_op` with the same `External id` and, under record_shapes, "Input Dims", "Input type" and
"Concrete Inputs"; steps are annotations ProfilerStep#n on the host (`user_annotation`) and on the device (`gpu_user_annotation`).
"""

from __future__ import annotations

import gzip
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import parasim as ps
from parasim.calibrating import calibrate_files
from parasim.cost.profile import load_profile
from parasim.errors import Refused, Unparsable
from parasim.html import Side, page
from parasim.report import rank_times, step_window
from parasim.traces.beside import lay_beside, timeline_of
from parasim.traces.kinds import kind_of, transfer_op
from parasim.traces.kineto import Traced, read_kineto
from parasim.traces.shares import Simulated
from parasim.traces.torch_ops import flops_of

from ..conftest import Cli

RUN = {
    "model": {"kind": "transformer", "name": "small", "layers": 2, "hidden": 1024, "heads": 8, "ffn": 4096, "vocab": 1024},
    "cluster": "h100-hgx-ib400",
    "devices": 2,
    "batch": {"global": 2, "micro": 1, "sequence": 1024},
}
GROUP = {"Collective name": "allreduce", "In msg nelems": 1024, "Out msg nelems": 1024, "dtype": "BFloat16", "Group size": 2, "Process Group Name": "0"}
MM = {"Input Dims": [[1024, 4096], [4096, 1024]], "Input type": ["c10::BFloat16", "c10::BFloat16"]}
FLASH = {"Input Dims": [[1, 8, 1024, 128]] * 3, "Input type": ["c10::BFloat16"] * 3, "Concrete Inputs": ["", "", "", "0.", "True", "False", ""]}
HOST, DEVICE = 77, 0


def op(name: str, ts: float, dur: float, number: int, tid: int = HOST, category: str = "cpu_op", **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": name, "pid": HOST, "tid": tid, "ts": ts, "dur": dur, "args": {"External id": number, **args}}


def kernel(name: str, ts: float, dur: float, number: int, stream: int = 7, category: str = "kernel", **args: Any) -> dict[str, Any]:
    more = {"External id": number, "device": 0, "stream": stream, "correlation": number + 1000, **args}
    return {"ph": "X", "cat": category, "name": name, "pid": DEVICE, "tid": stream, "ts": ts, "dur": dur, "args": more}


def step(number: int, ts: float, dur: float) -> list[dict[str, Any]]:
    """A step of the host, and 50 us later of the device, with what runs in it: 300 us of products, 100 of attention, 60 bound by memory, a copy of
    10; an all-reduce of 200 us, of which the last 80 are beside nothing."""
    base = 100 * number
    host, at = ts, ts + 50
    return [
        op(f"ProfilerStep#{number}", host, dur, base, category="user_annotation"),
        kernel(f"ProfilerStep#{number}", at, dur, base, category="gpu_user_annotation"),
        op("aten::mm", host + 1, 5, base + 1, **MM),
        op("aten::_scaled_dot_product_flash_attention", host + 10, 5, base + 2, **FLASH),
        op("autograd::engine::evaluate_function: MmBackward0", host + 20, 20, base + 3, HOST + 1),
        op("aten::mm", host + 21, 5, base + 4, HOST + 1, **MM),
        op("aten::mul", host + 27, 5, base + 5, HOST + 1),
        op("record_param_comms", host + 33, 2, base + 6, HOST + 1, **GROUP),
        op("Optimizer.step#AdamW.step", host + 50, 9, base + 7, category="user_annotation"),
        op("aten::_foreach_add_", host + 51, 5, base + 8),
        kernel("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64", at, 100, base + 1),
        kernel("void flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128>>(Flash_fwd_params)", at + 100, 100, base + 2),
        kernel("nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NNT", at + 200, 200, base + 4),
        kernel("void at::native::vectorized_elementwise_kernel<4, at::native::BinaryFunctor>", at + 420, 20, base + 5),
        kernel("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", at + 320, 200, base + 6, 20),
        kernel("void at::native::multi_tensor_apply_kernel<at::native::TensorListMetadata<4>>", at + 520, 40, base + 8),
        kernel("Memcpy DtoD (Device -> Device)", at + 560, 10, base + 8, category="gpu_memcpy"),
    ]


@pytest.fixture
def traced(tmp_path: Path) -> Path:
    """Steps of 600, 700 and 900 us: the second counts."""
    events = [*step(1, 1000, 600), *step(2, 2000, 700), *step(3, 3000, 900)]
    path = tmp_path / "rank1.pt.trace.json.gz"
    path.write_bytes(gzip.compress(json.dumps({"distributedInfo": {"backend": "nccl", "rank": 1, "world_size": 2}, "traceEvents": events}).encode()))
    return path


@pytest.fixture(scope="module")
def run() -> Simulated:
    result = ps.simulate_run(ps.build(RUN))
    return Simulated(result.run, result.workload.bound, result.timeline)


def test_what_a_step_of_the_device_holds(traced: Path) -> None:
    found = read_kineto(traced)
    assert (found.rank, found.on_gpu, len(found.steps), len(found.activities)) == (1, True, 3, 21)
    low, high = found.step
    assert (low, high) == pytest.approx((2050e-6, 2750e-6))
    within = found.within(found.step)
    assert [(a.kind, a.phase, round(a.seconds * 1e6)) for a in within] == [
        ("matmul", "F", 100), ("attention", "F", 100), ("matmul", "B", 200), ("transfer", "B", 200), ("memory", "B", 20), ("memory", "S", 40),
        ("memory", "S", 10),
    ]  # fmt: skip
    transfer = next(a for a in within if a.kind == "transfer")
    assert (transfer.op, transfer.nbytes, transfer.ranks, transfer.stream) == ("all_reduce", 2048, 2, "stream 20")
    # 2 m k n; causal: half of two products of 2 b h s s d
    assert within[0].flops == 2 * 1024 * 4096 * 1024 and within[0].dtype == "bf16"
    assert within[1].flops == 0.5 * 2 * 2 * 8 * 1024 * 1024 * 128


def test_measured_seconds_by_kind_and_state(run: Simulated, traced: Path) -> None:
    found = lay_beside(run, read_kineto(traced))
    kinds = {row.kind: (round(row.measured * 1e6), row.measured_calls) for row in found.rows}
    assert kinds == {"products (GEMM)": (300, 2), "attention": (100, 1), "bound by memory": (70, 3), "all_reduce": (200, 1)}
    states = {row.kind: row.measured * 1e6 for row in found.states}
    # busy 0 to 400 and 420 to 440 and 520 to 570; the all-reduce alone 400 to 420 and 440 to 520; nothing after 570
    assert states == pytest.approx({"compute": 470, "exposed communication": 100, "idle": 130}, rel=1e-6)
    assert (found.rank, found.measured_step) == (1, pytest.approx(700e-6))


def test_predicted_seconds_are_those_of_the_timeline(run: Simulated, traced: Path) -> None:
    found = lay_beside(run, read_kineto(traced))
    window = step_window(run.timeline)
    times = rank_times(run.timeline, window)[run.part(1).rank]
    assert [row.predicted for row in found.states] == pytest.approx([times.compute, times.exposed.sum(), times.idle])
    assert sum(row.predicted for row in found.states) == pytest.approx(found.predicted_step)
    part = run.part(1)
    computes = part["kind"] == 0
    by_kind = {row.kind: row.predicted for row in found.rows}
    assert by_kind["products (GEMM)"] + by_kind["attention"] + by_kind["bound by memory"] == pytest.approx((part.end - part.start)[computes].sum())
    assert by_kind["all_reduce"] == pytest.approx((part.end - part.start)[~computes].sum())
    # 3 products per product of the forward: 4 linear layers in each of 2 layers, and the head
    assert next(row.predicted_calls for row in found.rows if row.kind == "products (GEMM)") == 3 * (2 * 4 + 1)


def test_the_command_prints_draws_and_gives_json(traced: Path, tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "run.yaml").write_text(json.dumps(RUN))
    answer = cli("compare", tmp_path / "run.yaml", traced, "--json", "--out", tmp_path / "both.svg")
    assert answer.code == 0, answer.err
    found = json.loads(answer.out)
    assert found["schema"] == "parasim.beside/1" and found["rank"] == 1 and found["measured_step_s"] == pytest.approx(700e-6)
    assert {k["kind"]: k["measured_calls"] for k in found["kinds"]}["products (GEMM)"] == 2
    assert found["step_error"] == pytest.approx(found["predicted_step_s"] / 700e-6 - 1)
    assert (tmp_path / "both.svg").read_text().lstrip().startswith("<?xml")
    text = cli("compare", tmp_path / "run.yaml", traced).out
    assert "exposed communication" in text and "note: 3 steps are marked" in text and "measured 700 us" in text
    assert cli("compare", traced, tmp_path / "run.yaml").code == 2
    assert cli("compare", tmp_path / "timeline.npz", traced).code == 2


def test_both_stand_in_one_page(run: Simulated, traced: Path, tmp_path: Path, cli: Cli) -> None:
    timeline = timeline_of(read_kineto(traced))
    assert timeline.streams == ("compute", "stream 20") and timeline.meta["source"] == "measured"
    assert [timeline.phases[p] for p in timeline.ops["phase"]] == ["F", "F", "B", "all_reduce", "B", "S", "S"]
    assert timeline.makespan == pytest.approx(570e-6) and np.all(timeline.ops["start"] >= 0)
    result = ps.simulate_run(ps.build(RUN))
    text = page(result.side, Side("traced", timeline))
    assert '"called":"predicted"' in text and '"called":"measured"' in text
    (tmp_path / "run.yaml").write_text(json.dumps(RUN))
    assert cli("report", tmp_path / "run.yaml", traced, "--html", tmp_path / "both.html").code == 0
    text = (tmp_path / "both.html").read_text()
    assert "rank1.pt.trace.json.gz" in text and '"products (GEMM)","seconds",' in text and "kinds are compared above" in text
    # the trace alone, and beside a timeline, which knows no kernels
    assert cli("report", traced, "--html", tmp_path / "alone.html").code == 0
    result.timeline.save(tmp_path / "t.npz")
    assert cli("report", tmp_path / "t.npz", traced, "--html", tmp_path / "t.html").code == 0
    assert cli("report", traced, "--html", tmp_path / "x.html", "--set", "devices=4").code == 2


def test_kernels_of_a_trace_become_a_profile(traced: Path, tmp_path: Path) -> None:
    said = calibrate_files("kineto", [traced], "h100-hgx-ib400", tmp_path / "p.yaml")
    profile = load_profile(tmp_path / "p.yaml")
    # three steps of 2 x 8.59 GFLOP in 300 us, against 989.4 TFLOP/s of bf16 (NVIDIA H100 datasheet)
    assert profile.get("compute.matmul_efficiency") == pytest.approx(2 * 2 * 1024 * 4096 * 1024 / 300e-6 / 989.4e12, rel=2e-3)
    assert profile.get("compute.attention_efficiency") == pytest.approx(2 * 8 * 1024 * 1024 * 128 / 100e-6 / 989.4e12, rel=2e-3)
    assert "collective.all_reduce.latency" in profile.numbers
    assert "no FLOPs, bytes or peak" in said  # of what is bound by memory a trace does not tell the bytes


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_64x3_tn", "matmul"),
        ("void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_256x128_32x3_nn_align8>", "matmul"),
        ("fmha_cutlassF_bf16_aligned_64x64_rf_sm80", "attention"),
        ("void flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel", "attention"),
        ("triton_poi_fused_add_mul_silu_0", "memory"),
        ("ncclDevKernel_ReduceScatter_Sum_f32_RING_LL", "transfer"),
        ("gloo:all_reduce", "transfer"),
        ("linear_weight_grad", "matmul"),
        ("attention_grad", "attention"),
        ("adam", "memory"),
    ],
)
def test_kinds_by_name(name: str, kind: str) -> None:
    assert kind_of(name) == kind


def test_collectives_by_name() -> None:
    assert transfer_op("ncclDevKernel_AllGather_RING_LL") == "all_gather"
    assert transfer_op("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)") == "messages"
    assert transfer_op("gloo:all_reduce") == "all_reduce"
    assert transfer_op("ncclKernel_Broadcast", "_allgather_base") == "all_gather"  # what torch says counts


def test_flops_of_ops() -> None:
    assert flops_of("aten::addmm", {"Input Dims": [[8], [2, 3], [3, 5]]}) == 2 * 2 * 3 * 5
    assert flops_of("aten::bmm", {"Input Dims": [[4, 2, 3], [4, 3, 5]]}) == 2 * 4 * 2 * 3 * 5
    assert flops_of("aten::linear", {"Input Dims": [[7, 2, 3], [5, 3], []]}) == 2 * 7 * 2 * 3 * 5
    # forward full: two products over all pairs; backward causal: half of five; tokens first in _flash_attention_forward
    assert flops_of("aten::scaled_dot_product_attention", {"Input Dims": [[1, 2, 16, 4]] * 3}) == 2 * 2 * 2 * 16 * 16 * 4
    causal = ["", "", "", "", "", "", "0.", "True"]
    shapes = {"Input Dims": [[1, 2, 16, 4]] * 5, "Concrete Inputs": causal}
    assert flops_of("aten::_scaled_dot_product_flash_attention_for_cpu_backward", shapes) == 0.5 * 5 * 2 * 2 * 16 * 16 * 4
    assert flops_of("aten::_flash_attention_forward", {"Input Dims": [[1, 16, 2, 4]] * 3}) == 2 * 2 * 2 * 16 * 16 * 4
    assert flops_of("aten::mul", {"Input Dims": [[2, 3], [2, 3]]}) == flops_of("aten::mm", {}) == flops_of("aten::mm", {"Input Dims": [[2], "x"]}) == 0


def test_traces_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"traceEvents": []}')
    with pytest.raises(Refused, match="holds no kernel of a GPU and no op of torch"):
        read_kineto(tmp_path / "a.json")
    (tmp_path / "b.json").write_text('{"traceEvents": [')
    with pytest.raises(Unparsable, match="is not JSON"):
        read_kineto(tmp_path / "b.json")


# ---- a trace that torch records here


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two steps of a small stack on this processor, profiled as its documentation says."""
    torch = pytest.importorskip("torch")
    from torch import nn
    from torch.profiler import ProfilerActivity, profile, schedule

    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64), nn.LayerNorm(64))
    optimizer = torch.optim.AdamW(model.parameters())
    x, q = torch.randn(128, 64), torch.randn(1, 2, 64, 32, requires_grad=True)
    with profile(activities=[ProfilerActivity.CPU], schedule=schedule(wait=0, warmup=1, active=2, repeat=1), record_shapes=True) as found:
        for _ in range(3):
            loss = model(x).square().mean() + nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            found.step()
    path = tmp_path_factory.mktemp("trace") / "cpu.json"
    found.export_chrome_trace(str(path))
    return path


def test_a_recorded_trace_holds_what_was_run(recorded: Path) -> None:
    found = read_kineto(recorded)
    assert not found.on_gpu and len(found.steps) == 2
    within = found.within(found.step)
    products = [(a.phase, a.flops) for a in within if a.kind == "matmul"]
    # two linear layers of 2 x 128 x 64 x 256 FLOPs: forward once; backward twice, but the first needs no gradient of its input
    assert products == [("F", 2 * 128 * 64 * 256)] * 2 + [("B", 2 * 128 * 64 * 256)] * 3
    assert [a.phase for a in within if a.kind == "attention"] == ["F", "B"]
    assert {a.phase for a in within} == {"F", "B", "S"}
    assert all(a.end <= b.start + 1e-9 for a, b in pairwise(within) if a.stream == b.stream)


def test_a_recorded_trace_beside_a_prediction(recorded: Path) -> None:
    keys = {"model": {"kind": "mlp", "layers": 1, "hidden": 64, "ffn": 256}, "cluster": "loopback", "devices": 1, "batch": {"global": 128, "micro": 128}}
    result = ps.simulate_run(ps.build({**keys, "precision": "fp32"}))
    traced: Traced = read_kineto(recorded)
    found = lay_beside(Simulated(result.run, result.workload.bound, result.timeline), traced)
    assert sum(row.measured for row in found.states) == pytest.approx(found.measured_step, rel=1e-9)
    assert 0 < sum(row.measured for row in found.rows) <= found.measured_step
    assert any("processor" in note for note in found.notes)
