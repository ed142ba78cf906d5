"""ZeRO-3 as DeepSpeed of 2021 has it: every parameter gathered, and every gradient reduced, by itself, in lists of one slice per rank."""

from __future__ import annotations

from collections import Counter

import pytest
from layouts import HIDDEN, MLP, collectives, lowered, ops

from parasim.model.layers import parameters
from parasim.program.ops import COMPUTE, Collective, Compute, Op
from parasim.program.workload import Program, buffer_bytes

D, FFN, LAYERS = 4, MLP["ffn"], MLP["layers"]
MATRIX = 2 * HIDDEN * FFN  # bytes of one of the two matrices of a layer, bf16
ALONE = {"stage": 3, "gather": "parameter"}


def slices(op: Op, name: str) -> bool:
    return isinstance(op, Compute) and op.kernels[0].name == name


@pytest.mark.parametrize("m", [1, 3])
def test_one_gather_and_one_reduction_per_parameter(m: int) -> None:
    """Forward and backward gather each of the 2 x 6 matrices; with two whole at once nothing stays from one to the other but the last."""
    _, w = lowered("mlp", dp=D, m=m, zero=ALONE)
    found = Counter(collectives(w.programs[0], "dp"))
    gathers, reductions = (sum(n for (op, _), n in found.items() if op == kind) for kind in ("all_gather", "reduce_scatter"))
    assert {size for _, size in found} == {MATRIX}
    assert reductions == m * 2 * LAYERS
    assert m * (4 * LAYERS - 2) <= gathers <= m * 4 * LAYERS
    assert all(len(o.reads) == len(o.writes) == 1 for o in ops(w.programs[0]) if isinstance(o, Collective))


def test_slices_are_copied_out_of_a_gather_and_into_a_reduction() -> None:
    """gather, then copies of D slices from the list to the parameter; copies from the gradient to the list, then the reduction."""
    program = lowered("mlp", dp=D, zero=ALONE)[1].programs[0]
    order = [o for o in ops(program) if isinstance(o, Collective) or slices(o, "copy_slices")]
    for first, second in zip(order[::2], order[1::2], strict=True):
        moved, copied = (first, second) if isinstance(first, Collective) else (second, first)
        assert isinstance(moved, Collective) and isinstance(copied, Compute)
        (kernel,) = copied.kernels
        assert kernel.dims == (HIDDEN * FFN, D) and moved.stream == copied.stream
        if moved.op == "all_gather":
            assert first is moved and kernel.reads == moved.writes and f"{kernel.writes[0].name}.slices" == kernel.reads[0].name
        else:
            assert first is copied and kernel.writes == moved.reads and f"{kernel.reads[0].name}.slices" == kernel.writes[0].name


def test_the_host_waits_for_the_device_before_every_list() -> None:
    """A list on the compute stream before each transfer, which is fenced behind it, and the launches of its copies after each gather."""
    program = lowered("mlp", dp=D, m=1, zero=ALONE)[1].programs[0]
    order = ops(program)
    moved = [i for i, o in enumerate(order) if isinstance(o, Collective)]
    lists = [i for i, o in enumerate(order) if slices(o, "list_slices")]
    assert all(order[i].stream == COMPUTE and order[i].kernels[0].dims == (D,) for i in lists)
    for i in moved:
        gather = order[i].op == "all_gather"
        assert (i - 1 in lists) == gather and (i - 2 in lists) == (not gather)
        assert (i + 1 in lists) == gather
    assert all(COMPUTE in order[i].after for i in moved[1:])
    assert len(lists) == sum(2 if order[i].op == "all_gather" else 1 for i in moved)


@pytest.mark.parametrize("overlap", [True, False])
def test_what_overlaps(overlap: bool) -> None:
    """Without `overlap` compute waits for reductions; gathers run `prefetch` ahead on a stream of their own all the same."""
    program = lowered("mlp", dp=D, zero=ALONE | {"overlap": overlap})[1].programs[0]
    streams = {o.op: o.stream for o in ops(program) if isinstance(o, Collective)}
    assert streams == {"all_gather": "dp.gather", "reduce_scatter": "dp.reduce" if overlap else COMPUTE}


def whole(program: Program) -> set[str]:
    return {n for n, b in program.buffers.items() if b.category == "parameters" and not b.of}


def test_small_parameters_stay_whole() -> None:
    """Those of fewer elements: norms and biases, gathered once a step after the optimizer; their optimizer state is shared out as that of others is."""
    plan, w = lowered("gpt", dp=D, m=2, zero=ALONE | {"keep_below": 4 * HIDDEN + 1})
    program = w.programs[0]
    small = {n for n in whole(program) if program.buffers[n].shape[0] in (HIDDEN, 3 * HIDDEN, 4 * HIDDEN)}
    assert whole(program) == small and len(small) == 6 * 8 + 2  # two norms and four biases per layer, two numbers each norm; the last norm
    assert all(len(program.buffers[n].shape) == 1 for n in small)
    gathered = Counter(r.name.removesuffix(".slices") for o in ops(program) if isinstance(o, Collective) and o.op == "all_gather" for r in o.writes)
    assert {gathered[n] for n in small} == {1}
    state = sum(buffer_bytes(b) for b in program.buffers.values() if b.category == "optimizer")
    assert 0 <= state - 12 * parameters(plan.model) / D < 12 * D * len(gathered)  # master, m and v, padded
