"""Where gradients are reduced and layers are gathered, read off the Programs; and what `verify` says where one of these is lost."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from layouts import collectives, keys, lowered, ops

from parasim.config import build
from parasim.lowering import lower
from parasim.model.layers import parameters
from parasim.program.checks import verify
from parasim.program.ops import Collective, Compute, Op
from parasim.program.workload import Program, Workload, buffer_bytes

D = 4


def dp(op: Op, kind: str = "") -> bool:
    return isinstance(op, Collective) and op.group.startswith("dp") and kind in ("", op.op)


@pytest.mark.parametrize("stage", [2, 3])
@pytest.mark.parametrize("shard", [2, 4])
@pytest.mark.parametrize(
    "more",
    [
        {"model": "gpt", "tp": 2, "sp": True, "pp": 2, "recompute": "full"},
        {"model": "gpt", "pp": 2, "m": 5},
        {"model": "llama-tied", "pp": 3, "pipeline": {"comm": "blocking", "schedule": "zb-h1"}},
        {"model": "llama-tied", "pp": 3, "pipeline": {"schedule": "zb-v"}, "m": 6},
        {"model": "gpt", "tp": 2, "data": {"mode": "naive"}, "optimizer": {"gradient_dtype": "fp32"}},
        {"model": "llama", "data": {"mode": "flat"}, "recompute": ["mlp"], "zero": {"reshard_after_forward": False, "overlap": False}},
    ],
    ids=str,
)
def test_combinations_are_sound(stage: int, shard: int, more: dict[str, Any]) -> None:
    """`lower` verifies; every rank of a replica together holds each parameter once."""
    plan, w = lowered(**{"dp": D} | more | {"zero": {"stage": stage, "shard": shard} | more.get("zero", {})})
    if stage == 3 and plan.layout.degrees.tp == 1:
        shares = [b for p in w.programs for b in p.buffers.values() if b.category == "parameters"]
        total = sum(buffer_bytes(b) for b in shares) * shard / 2
        tied = len(w.programs) > 1 and plan.model.tied and plan.layout.pipeline.schedule != "zb-v"  # held at both ends
        assert 0 <= total - parameters(plan.model) - tied * 64 * 32 < shard * len(shares)  # padding


def test_the_first_bucket_of_torch() -> None:
    """1 MiB, then the cap of 25 MiB: 2,048 x 6,144 in bf16 is 24 MiB a matrix, so one is the first bucket and two are the next."""
    big = {"kind": "mlp", "layers": 3, "hidden": 2048, "ffn": 6144}
    w = lower(build(keys("mlp", dp=2) | {"model": big}).plan)
    sizes = [w.programs[0].nbytes(o.reads) for o in w.programs[0].bodies["B0!"] if dp(o)]
    assert sizes == [24 * 2**20, 48 * 2**20, 48 * 2**20, 24 * 2**20]
    w = lower(build(keys("mlp", dp=2, data={"bucket": "25 MiB"}) | {"model": big}).plan)
    assert [w.programs[0].nbytes(o.reads) for o in w.programs[0].bodies["B0!"] if dp(o)] == [48 * 2**20] * 3


@pytest.mark.parametrize("m", [1, 3])
@pytest.mark.parametrize("mode", ["naive", "per-parameter"])
def test_one_collective_per_tensor(mode: str, m: int) -> None:
    """Once per step whatever m: microbatches accumulate (no_sync). Naive ones all follow the last backward op."""
    _, w = lowered("gpt", dp=2, m=m, data={"mode": mode})
    program = w.programs[0]
    names = [r.name for o in ops(program) if dp(o) for r in o.reads]
    assert all(len(o.reads) == 1 for o in ops(program) if dp(o))
    assert sorted(names) == sorted(n for n, b in program.buffers.items() if b.category == "gradients")
    inside = any(dp(o) for c in program.calls if c.body != "step" for o in program.bodies[c.body])
    assert inside == (mode == "per-parameter")


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
def test_a_gradient_is_reduced_after_its_last_w(schedule: str) -> None:
    _, w = lowered("mlp", pp=2, dp=2, data={"mode": "per-parameter"}, pipeline={"schedule": schedule})
    for program in w.programs:
        seen: Counter[str] = Counter()
        for o in ops(program):
            if isinstance(o, Compute):
                seen.update(r.name for k in o.kernels if k.name == "linear_weight_grad" for r in k.writes)
            elif dp(o):
                assert seen[o.reads[0].name] == 4


@pytest.mark.parametrize("stage", [2, 3])
@pytest.mark.parametrize("more", [{}, {"pp": 2}, {"tp": 2, "sp": True}, {"pp": 2, "pipeline": {"schedule": "zb-h1"}}], ids=str)
def test_gradients_are_reduced_in_every_microbatch(stage: int, more: dict[str, Any]) -> None:
    plan, w = lowered("llama", dp=D, m=4, zero={"stage": stage}, **more)
    for program in w.programs:
        reduced = Counter(r.name for o in ops(program) if dp(o, "reduce_scatter") for r in o.reads)
        assert set(reduced.values()) == {4}
        assert not any(b.category == "gradients" and not b.of for b in program.buffers.values())
    if not more:
        held = sum(buffer_bytes(b) for b in w.programs[0].buffers.values() if b.category == "gradients")
        assert 0 <= held - 2 * parameters(plan.model) / D < 2 * len(reduced)  # padding


def runs(program: Program) -> int:
    """The most units of parameters that are whole at once, by list order of first gather and last use."""
    r = program.resolved
    last = np.maximum.reduceat(r.last_users, r.last_start[:-1])
    mine = [(b, end) for b, end, g in zip(r.birth, last, r.generation_buffer, strict=True) if r.buffers[g].endswith("fc1.weight") and b >= 0]
    return max(sum(b <= t <= end for b, end in mine) for t in range(len(r)))


@pytest.mark.parametrize(("limit", "prefetch"), [(1, 1), (2, 1), (3, 1), (3, 2), (4, 3)])
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_at_most_limit_layers_are_whole(limit: int, prefetch: int, recompute: str) -> None:
    _, w = lowered("mlp", dp=2, zero={"stage": 3, "limit": limit, "prefetch": prefetch}, recompute=recompute)
    assert runs(w.programs[0]) == min(limit, prefetch + 1)
    assert collectives(w.programs[0], "dp").count(("all_gather", 2 * 2 * 32 * 64)) == 2 * 6 * 4  # twice per layer and microbatch


def test_gathered_once_per_step_in_a_pipeline() -> None:
    """torch's pipelines over FSDP with reshard_after_forward off: one gather per layer, whatever m."""
    _, w = lowered("mlp", pp=2, dp=2, m=6, zero={"stage": 3, "reshard_after_forward": False})
    assert [sum(dp(o, "all_gather") for o in ops(p)) for p in w.programs] == [3, 3]


def test_hybrid_groups() -> None:
    """dp = 4 cut into neighbours that share and replicas of a share; ranks of a stage with tp 2 are 2 apart."""
    _, w = lowered("mlp", tp=2, dp=4, zero={"stage": 3, "shard": 2})
    assert w.groups["dp.shard"].tolist() == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert w.groups["dp.replica"].tolist() == [[0, 4], [1, 5], [2, 6], [3, 7]]


# ---- mutations


def without(w: Workload, wanted: Any) -> str:
    """What `verify` says when every op that is `wanted` is dropped."""
    cut = tuple(replace(p, bodies={n: tuple(o for o in b if not wanted(o)) for n, b in p.bodies.items()}) for p in w.programs)
    assert cut != w.programs
    return "\n".join(map(str, verify(replace(w, programs=cut))))


SUM = "accumulate"


@pytest.mark.parametrize(
    ("zero", "wanted", "words"),
    [
        ({"stage": 2}, lambda o: dp(o, "reduce_scatter"), "before anything wrote it"),
        ({"stage": 2}, lambda o: dp(o, "all_gather"), "is not gathered from dp.bucket"),
        ({"stage": 2}, lambda o: isinstance(o, Compute) and o.kernels[0].name == SUM, "is reduced and never used"),
        ({"stage": 3}, lambda o: dp(o, "all_gather"), "before anything wrote it"),
        ({"stage": 3}, lambda o: isinstance(o, Compute) and o.kernels[0].name == SUM, "is reduced and never used"),
        ({"stage": 1, "shard": 2}, lambda o: dp(o) and o.group == "dp.replica", "before it is summed over dp.replica"),
        ({"stage": 3, "shard": 2}, lambda o: dp(o) and o.group == "dp.replica", "is reduced over dp.replica 0 times, due once"),
    ],
)
def test_a_lost_op_is_found(zero: dict[str, Any], wanted: Any, words: str) -> None:
    _, w = lowered("mlp", dp=4, zero=zero, data={"mode": "bucketed", "bucket": "4 KiB"})
    assert words in without(w, wanted)


def test_a_gradient_reduced_twice_is_found() -> None:
    _, w = lowered("mlp", dp=2, zero={"stage": 2})
    p = w.programs[0]
    body = [o for op in p.bodies["B0"] for o in ((op, op) if dp(op, "reduce_scatter") else (op,))]
    text = "\n".join(map(str, verify(replace(w, programs=(replace(p, bodies={**p.bodies, "B0": tuple(body)}),)))))
    assert "is reduced over dp 2 times, due once" in text


def test_a_gradient_added_to_after_its_reduction_is_found() -> None:
    _, w = lowered("mlp", dp=2, zero={"stage": 2})
    p = w.programs[0]
    early = sorted(p.bodies["B0"], key=lambda o: not dp(o, "reduce_scatter"))
    assert "before anything wrote it" in "\n".join(map(str, verify(replace(w, programs=(replace(p, bodies={**p.bodies, "B0": tuple(early)}),)))))


def test_a_tied_embedding_on_one_rank_is_gathered_for_both_its_uses() -> None:
    _, w = lowered("llama-tied", dp=2, zero={"stage": 3, "limit": 1})
    names = [r.name for o in w.programs[0].bodies["F0"] if dp(o, "all_gather") for r in o.writes]
    assert names.count("embedding.weight") == 2


@pytest.mark.parametrize("stage", [1, 2])
def test_a_forward_before_its_gather_is_found(stage: int) -> None:
    """A step of old weights: the next step's first forward is called before the optimizer's call, or a gather of the first step is lost."""
    _, w = lowered("mlp", dp=2, zero={"stage": stage, "overlap_gather": True})
    assert w.steps == 2 and verify(w) == ()
    p = w.programs[0]
    calls = list(p.calls)
    at = next(i for i, c in enumerate(calls) if c.step == 1)
    lost = [*calls[: at - 1], calls[at - 1]._replace(body="lost"), *calls[at:]]
    body = tuple(o for o in p.bodies["step"] if not dp(o, "all_gather"))
    text = "\n".join(map(str, verify(replace(w, programs=(replace(p, calls=tuple(lost), bodies={**p.bodies, "lost": body}),)))))
    assert "reads L0.fc1.weight before it is gathered from dp.bucket" in text
