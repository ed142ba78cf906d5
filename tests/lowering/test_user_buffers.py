"""Tensor parallelism through user buffers: parts beside each other, moved by copy engines, and what they do and do not slow."""

from __future__ import annotations

from typing import Any

import pytest
from layouts import keys

from parasim.config import build
from parasim.config.run import Run
from parasim.cost.profile import Profile
from parasim.cost.timing import seconds
from parasim.errors import InvalidLayout
from parasim.lowering import lower
from parasim.program.ops import Collective, Compute, Kernel, Ref
from parasim.provenance import Number
from parasim.report import Report, summarize
from parasim.sim import simulate

LARGE: dict[str, Any] = {
    "model": {"kind": "transformer", "layers": 4, "hidden": 8192, "heads": 64, "vocab": 32768, "tied": True},
    "cluster": "h100-hgx-ib400",
    "profile": "h100-megatron",
    "devices": 8,
    "batch": {"global": 1, "micro": 1, "sequence": 8192},
    "parallel": {"tp": 8},
}


def run_of(**tensor: Any) -> Run:
    return build(LARGE | {"tensor": {"sequence_parallel": True, **tensor}})


def reported(run: Run, profile: Profile | None = None) -> Report:
    return summarize(simulate(lower(run.plan), run.cluster, profile or run.profile), run)


def test_as_many_parts_as_ranks_unless_said() -> None:
    assert run_of(user_buffers=True).plan.layout.tensor.pieces == 8
    assert run_of(user_buffers=True, pieces=4).plan.layout.tensor.pieces == 4
    assert run_of().plan.layout.tensor.pieces == 1


def test_needs_sequence_parallelism() -> None:
    with pytest.raises(InvalidLayout, match=r"tensor\.user_buffers=true move what sequence parallelism gathers; legal: false, or "):
        build(keys("gpt", tp=2, tensor={"user_buffers": True}))


def test_the_transfers_are_copies_of_the_direct_algorithm() -> None:
    workload = lower(run_of(user_buffers=True).plan)
    moved = [o for b in workload.programs[0].bodies.values() for o in b if isinstance(o, Collective) and o.stream == "tp.async"]
    assert {(o.op, o.copied, o.algorithm) for o in moved} == {(op, True, "user-buffers") for op in ("all_gather", "reduce_scatter")}


def test_parts_share_the_time_of_the_whole() -> None:
    """Eight parts of 1,024 rows, side by side, take together as long as the product of 8,192 rows; alone each takes longer than an eighth."""
    run = run_of()
    whole, part = (Kernel("linear", (Ref("x"), Ref("w")), (Ref("y"),), (rows, 8192, 1024), "bf16") for rows in (8192, 1024))
    price = lambda k: seconds(k, run.cluster.accelerator, run.profile)  # noqa: E731
    beside = Kernel(part.name, part.reads, part.writes, part.dims, part.dtype, parts=8)
    assert 8 * price(beside) == pytest.approx(price(whole), rel=1e-12)
    assert 8 * price(part) > price(whole)
    program = lower(run_of(user_buffers=True).plan).programs[0]
    assert {k.parts for b in program.bodies.values() for o in b if isinstance(o, Compute) for k in o.kernels if k.name == "linear"} == {8}


def test_hides_more_than_parts_of_a_library_and_than_none() -> None:
    none, parts, copies = (reported(run_of(**how)).step_time for how in ({}, {"pieces": 8}, {"user_buffers": True}))
    assert copies < parts < none


def test_copies_slow_no_compute() -> None:
    """A profile that slows compute beside collectives only: the same step with it and without, as nothing else runs beside compute."""
    slow = Profile("slow", "nccl", {"overlap.slowdown.collective": Number(0.5, "1", "test", "assumed")})
    plain = Profile("plain", "nccl", {})
    run = run_of(user_buffers=True)
    assert reported(run, slow).step_time == pytest.approx(reported(run, plain).step_time, rel=1e-12)
    run = run_of(pieces=8)
    assert reported(run, slow).step_time > reported(run, plain).step_time


@pytest.mark.parametrize(
    ("degrees", "devices", "message"),
    [
        ({"tp": 16}, 16, "the tensor-parallel group of ranks 0-15 spans 2; legal: false, or parallel.tp=8"),
        (
            {"tp": 4, "order": ["dp", "tp", "cp", "pp", "ep"]},
            32,
            "ranks 0, 8, 16, 24 spans 4; legal: false, or a placement that keeps",
        ),
    ],
)
def test_a_group_maps_buffers_on_one_server_only(degrees: dict[str, Any], devices: int, message: str) -> None:
    """Transformer Engine maps user buffers within one NVLink domain; the servers here have eight GPUs."""
    wide = LARGE | {"devices": devices, "batch": {"global": 8, "micro": 1, "sequence": 8192}, "tensor": {"sequence_parallel": True, "user_buffers": True}}
    with pytest.raises(InvalidLayout) as refused:
        build(wide | {"parallel": degrees})
    (violation,) = refused.value.violations
    assert (violation.field, violation.value) == ("tensor.user_buffers", "true") and message in str(violation)
    build(wide | {"parallel": degrees, "tensor": {"sequence_parallel": True}})
    build(wide | {"parallel": {"tp": 8}})
    with pytest.raises(InvalidLayout, match="user_buffers"):
        build(wide | {"parallel": {"tp": 8}, "placement": "round-robin"})


def test_a_rack_that_shares_nvlink_is_one_server_for_buffers() -> None:
    """NVL72: 16 of its GPUs map each other's buffers."""
    rack = LARGE | {"cluster": "nvl72-ib400", "devices": 16, "parallel": {"tp": 16}}
    assert build(rack | {"tensor": {"sequence_parallel": True, "user_buffers": True}}).plan.layout.tensor.pieces == 16
