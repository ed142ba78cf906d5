"""Every layout lowers to a sound Workload, and what the ranks hold together is the model: each parameter once per replica."""

from __future__ import annotations

from itertools import product
from math import prod
from typing import Any

import pytest
from layouts import lowered

from parasim.model.layers import parameters
from parasim.program.checks import verify
from parasim.program.ops import Buffer
from parasim.program.workload import Workload

CASES: list[dict[str, Any]] = [
    *({"model": m, "tp": t, "sp": s} for m in ("mlp", "gpt", "llama") for t, s in ((1, False), (2, False), (2, True), (4, False), (4, True))),
    *({"model": m, "pp": p, "pipeline": {"schedule": s}} for m in ("mlp", "gpt") for p in (2, 4) for s in ("1f1b", "gpipe", "naive")),
    *({"model": "llama-tied", "pp": 2, "pipeline": {"comm": c}, "recompute": r} for c, r in product(("async", "stream", "blocking"), ("none", "full"))),
    *({"model": "mlp", "dp": 2, "pp": 2, "zero": {"stage": z}, "data": {"mode": d}} for z, d in product((0, 1), ("flat", "bucketed"))),
    *(
        {"model": "gpt", "tp": 2, "sp": s, "pp": 4, "dp": 2, "zero": {"stage": z}, "recompute": r}
        for s, z, r in product((False, True), (0, 1), ("none", "full"))
    ),
    *({"model": "mlp", "dp": 4, "zero": {"stage": 1, "shard": s}, "data": {"mode": d}} for s, d in product((1, 2, 4), ("naive", "per-parameter", "flat"))),
    {"model": "llama", "pp": 3, "m": 5, "pipeline": {"layers": [1, 3, 2]}},
    {"model": "gpt", "pp": 4, "tp": 2, "sp": True, "pipeline": {"comm": "blocking", "layers": [1, 2, 2, 1]}},
    {"model": "gpt-untied", "pp": 2, "dp": 2, "tp": 2, "sp": True, "zero": {"stage": 1}, "pipeline": {"comm": "stream"}},
    {"model": "gpt", "pp": 2, "dp": 2, "zero": {"stage": 1}, "data": {"mode": "flat"}, "m": 1},
    {"model": "llama", "pp": 6, "m": 2, "precision": "fp32"},
    {"model": "llama-tied", "dp": 3, "pp": 2, "zero": {"stage": 1}, "data": {"mode": "bucketed", "bucket": "1 KiB"}, "optimizer": {"gradient_dtype": "fp32"}},
]


def workload(case: dict[str, Any]) -> tuple[Any, Workload]:
    return lowered(**case)


def elements(buffer: Buffer) -> int:
    return prod(int(n) for n in buffer.shape)


def distinct(w: Workload, category: str) -> dict[tuple[str, tuple[int, ...]], Buffer]:
    """Buffers of a category over all ranks, told apart by name and the coordinates along the axes they are cut by."""
    out: dict[tuple[str, tuple[int, ...]], Buffer] = {}
    for rank in range(w.world):
        for b in w.program_of(rank).buffers.values():
            if b.category == category and b.persistent:
                out[b.name, tuple(int(w.coordinates[axis][rank]) for _, axis in b.shard)] = b
    return out


@pytest.mark.parametrize("case", CASES, ids=str)
def test_sound_and_whole(case: dict[str, Any]) -> None:
    plan, w = workload(case)
    assert verify(w) == ()
    assert sum(elements(b) for b in distinct(w, "parameters").values()) == parameters(plan.model)
    assert sum(elements(b) for b in distinct(w, "gradients").values()) == parameters(plan.model)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_rank_holds_a_gradient_per_parameter(case: dict[str, Any]) -> None:
    plan, w = workload(case)
    for program in w.programs:
        for b in program.buffers.values():
            if b.category == "parameters":
                g = program.buffers[f"{b.name}.grad"]
                assert (g.shape, g.shard, g.dtype) == (b.shape, b.shard, plan.layout.optimizer.gradient)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_actions_are_those_of_the_schedule(case: dict[str, Any]) -> None:
    """Each microbatch has one forward and one backward per stage; the optimizer comes last, once."""
    plan, w = workload(case)
    for c, program in enumerate(w.programs):
        names = [(call.body.rstrip("!"), call.microbatches) for call in program.calls]
        for i in range(plan.layout.batch.microbatches):
            assert names.count((f"F{c}", (i,))) == names.count((f"B{c}", (i,))) == 1
            assert names.index((f"F{c}", (i,))) < names.index((f"B{c}", (i,)))
        assert [n for n, _ in names].count("step") == 1 and names[-1] == ("step", ())
