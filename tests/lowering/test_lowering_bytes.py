"""Bytes on the wire and bytes in memory against closed forms, term by term."""

from __future__ import annotations

import re
from collections import Counter
from math import prod
from typing import Any

import numpy as np
import pytest
from layouts import HIDDEN, MODELS, SEQUENCE, counted, held, kept, keys, lowered, messages, ops

from parasim.config import build
from parasim.cost.pricing import flops
from parasim.errors import InvalidLayout
from parasim.lowering import lower
from parasim.memory import memory_peak
from parasim.model.layers import parameters
from parasim.program.ops import CATEGORIES, Collective, Compute
from parasim.sim import simulate

MICRO, LAYERS = 2, 6
ROWS = MICRO * SEQUENCE
WHOLE = ROWS * HIDDEN * 2  # bytes of a hidden-wide activation in bf16
STATS = ROWS * 3 * 4  # fp32 (max, sum, label's logit) of every row


@pytest.mark.parametrize("model", ["llama", "gpt", "mlp"])
@pytest.mark.parametrize("t", [2, 4])
@pytest.mark.parametrize("m", [1, 3])
def test_tensor_parallel_all_reduces(model: str, t: int, m: int) -> None:
    """Shoeybi et al. 2019, section 3: two all-reduces forward and two backward per transformer layer, one of each per MLP."""
    _, w = lowered(model, tp=t, m=m)
    per_layer = 2 if model == "mlp" else 4
    ends = 0 if model == "mlp" else 2  # the embedding's output, the head's input gradient
    due = Counter({("all_reduce", WHOLE): m * (per_layer * LAYERS + ends)})
    if model != "mlp":
        due["all_gather", t * STATS] = m  # vocabulary-parallel loss
    assert counted(w.programs[0], "tp") == due


@pytest.mark.parametrize("model", ["llama", "gpt", "mlp"])
@pytest.mark.parametrize("t", [2, 4])
def test_sequence_parallelism_moves_as_much_and_gathers_once_more(model: str, t: int) -> None:
    """Korthikanti et al. 2022, section 4.2.2: an all-gather and a reduce-scatter replace each all-reduce (a ring all-reduce is the two), and the
    backward gathers the input of each column-parallel matrix again, because only a shard of it is kept."""
    m = 3
    blocks = 1 if model == "mlp" else 2  # column-parallel matrices of a layer: (qkv,) up
    _, w = lowered(model, tp=t, m=m, sp=True)
    got = counted(w.programs[0], "tp")
    ends = 0 if model == "mlp" else 1
    # forward: scatter after each row-parallel matrix; backward: scatter each column-parallel input gradient; embedding out, head in
    assert got.pop(("reduce_scatter", WHOLE)) == m * (2 * blocks * LAYERS + 2 * ends)
    # forward gather, backward gather of the row-parallel output gradient, and again of the kept input; head twice, embedding's gradient once
    assert got.pop(("all_gather", WHOLE)) == m * (3 * blocks * LAYERS + 3 * ends)
    if model != "mlp":
        assert got.pop(("all_gather", t * STATS)) == m
        # once per step: gradients of norms (weight, and bias of layer norm) and of row-parallel biases come from this rank's rows only
        per_layer = {"llama": 2 * HIDDEN, "gpt": (2 * 2 + 2) * HIDDEN}[model]
        final = {"llama": HIDDEN, "gpt": 2 * HIDDEN}[model]
        assert got.pop(("all_reduce", 2 * (per_layer * LAYERS + final))) == 1
    assert not got


@pytest.mark.parametrize("model", ["llama", "gpt", "mlp"])
@pytest.mark.parametrize("t", [2, 4])
def test_column_parallel_layers_gather_their_outputs(model: str, t: int) -> None:
    """Per block of two layers: forward the first one's (elementwise) output and the second one's output are gathered; backward the first of
    these is reduce-scattered and the input gradient of the block all-reduced."""
    m, blocks = 3, 1 if model == "mlp" else 2
    _, w = lowered(model, m=m, tp=t, tensor={"style": "all-gather"})
    inner = ROWS * 2 * {"llama": 96, "gpt": 4 * HIDDEN, "mlp": 64}[model]  # the ffn-wide activation in bf16
    due = Counter({("all_gather", inner): m * LAYERS, ("all_gather", WHOLE): m * LAYERS * (2 * blocks - 1)})
    due += Counter({("reduce_scatter", inner): m * LAYERS, ("all_reduce", WHOLE): m * blocks * LAYERS})
    if model != "mlp":
        due["reduce_scatter", WHOLE] = m * LAYERS  # attention's output, as wide as hidden
        due["all_reduce", WHOLE] += 2 * m  # the embedding's output, the head's input gradient
        due["all_gather", t * STATS] = m
    assert counted(w.programs[0], "tp") == due


@pytest.mark.parametrize("given", [{}, {"sp": True}], ids=str)
def test_asynchronous_collectives_are_the_same_on_another_stream(given: dict[str, Any]) -> None:
    """Backward of column-parallel layers (two a block, and the head): the input gradient's sum, and under sequence parallelism the input's gather."""
    cut = {"model": "gpt", "tp": 2, "m": 1, "sp": "sp" in given}
    _, waited = lowered(**cut)
    _, beside = lowered(**{**cut, "sp": False}, tensor={"sequence_parallel": "sp" in given, "async": True})
    assert counted(beside.programs[0], "tp") == counted(waited.programs[0], "tp")
    streams = Counter(o.op for o in ops(beside.programs[0]) if isinstance(o, Collective) and o.stream == "tp.async")
    n = 2 * LAYERS + 1
    assert streams == (Counter(reduce_scatter=n, all_gather=n) if "sp" in given else Counter(all_reduce=n))
    assert not [o for o in ops(waited.programs[0]) if o.stream == "tp.async"]
    # the sum is issued between the two products, the gather before both
    order = [o.op if isinstance(o, Collective) else k.name for o in ops(beside.programs[0]) for k in getattr(o, "kernels", (o,))]
    at = order.index("head_input_grad")
    total, gather = ("reduce_scatter", ["all_gather"]) if "sp" in given else ("all_reduce", [])
    assert order[at - len(gather) : at + 3] == [*gather, "head_input_grad", total, "head_weight_grad"]
    everything = ops(beside.programs[0])
    for i, op in enumerate(everything):  # what runs beside a transfer does not wait for it
        if op.stream == "tp.async":
            following = next(o for o in everything[i + 1 :] if isinstance(o, Compute))
            assert not set(op.writes) & set(following.reads)


def test_own_rows_are_multiplied_while_those_of_the_others_arrive() -> None:
    """Two column-parallel products of a block forward and two row-parallel input gradients: a quarter of the rows before the gather is waited for."""
    given: dict[str, Any] = {"model": "gpt", "tp": 4, "m": 1}
    _, beside = lowered(**given, tensor={"sequence_parallel": True, "async": True})
    _, own = lowered(**given, tensor={"sequence_parallel": True, "async": True, "own_first": True})
    assert counted(own.programs[0], "tp") == counted(beside.programs[0], "tp")
    parted, plain = ([k for o in ops(w.programs[0]) if isinstance(o, Compute) for k in o.kernels] for w in (own, beside))
    for name in ("linear", "linear_input_grad"):
        split = [k for k in parted if k.name == f"{name}_others"]
        assert len(split) == 2 * LAYERS
        rows = max(int(k.dims[0]) for k in plain if k.name == name)
        assert {k.dims[0] for k in split} == {rows * 3 // 4}
        assert {k.dims[0] for k in parted if k.name == name} == {rows, rows // 4}
    assert sum(map(flops, parted)) == sum(map(flops, plain))
    everything = ops(own.programs[0])
    for i, op in enumerate(everything):
        if isinstance(op, Compute) and op.kernels[0].name.endswith("_others"):
            before = [o for o in everything[:i] if set(o.writes) & set(op.reads)]
            assert [type(o) for o in before[-2:]] == [Collective, Compute] and before[-2].stream == "tp.async"
            assert not set(before[-2].writes) & set(before[-1].reads)  # the product of own rows does not wait for the gather


@pytest.mark.parametrize(
    ("tensor", "rule"),
    [
        ({"async": True}, "is about rows that sequence parallelism gathers; legal: false, or tensor.sequence_parallel=true"),
        ({"sequence_parallel": True}, "goes on while rows are gathered; legal: false, or tensor.async=true"),
        ({"sequence_parallel": True, "async": True, "pieces": 2}, "gathers rows at once, not in tensor.pieces=2; legal: false, or tensor.pieces=1"),
    ],
)
def test_own_rows_first_needs_a_gather_beside_them(tensor: dict[str, Any], rule: str) -> None:
    with pytest.raises(InvalidLayout, match=re.escape(f"tensor.own_first=true {rule}")):
        build(keys("gpt", tp=2, tensor={**tensor, "own_first": True}))


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_recompute_repeats_the_forward_collectives(recompute: str) -> None:
    _, w = lowered("gpt", tp=2, m=3, recompute=recompute)
    extra = 2 * LAYERS if recompute == "full" else 0
    assert counted(w.programs[0], "tp")["all_reduce", WHOLE] == 3 * (4 * LAYERS + 2 + extra)


@pytest.mark.parametrize("mode", ["flat", "bucketed"])
@pytest.mark.parametrize("gradient", ["bf16", "fp32"])
@pytest.mark.parametrize("cut", [{}, {"tp": 2, "sp": True}, {"pp": 2}, {"tp": 2, "pp": 2}], ids=str)
def test_data_parallel_bytes(mode: str, gradient: str, cut: dict[str, Any]) -> None:
    """An all-reduce of every gradient once; ZeRO-1 reduce-scatters gradients and gathers parameters (Rajbhandari et al. 2020, section 7.1)."""
    given: dict[str, Any] = {"dp": 2, "data": {"mode": mode, "bucket": "4 KiB"}, "optimizer": {"gradient_dtype": gradient}, **cut}
    _, whole = lowered("gpt", **given)
    _, sharded = lowered("gpt", zero={"stage": 1}, **given)
    for program in whole.programs:
        sums = counted(program, "dp")
        assert {op for op, _ in sums} == {"all_reduce"}
        assert sum(n * k for (_, n), k in sums.items()) == held(program, "gradients")
    for program in sharded.programs:
        sums = counted(program, "dp")
        assert sum(n * k for (op, n), k in sums.items() if op == "reduce_scatter") == held(program, "gradients")
        # the gathered buffers are the parameters; padding makes the shards together a little larger, never the buffers
        assert sum(n * k for (op, n), k in sums.items() if op == "all_gather") == held(program, "parameters")


@pytest.mark.parametrize("model", ["gpt", "llama"])
def test_buckets_close_at_their_size_and_fill_in_backward_order(model: str) -> None:
    size = 4096
    _, w = lowered(model, dp=2, data={"mode": "bucketed", "bucket": f"{size} B"})
    program = w.programs[0]
    buckets = [o for o in program.bodies["B0!"] if isinstance(o, Collective) and o.group == "dp"]
    nbytes = [program.nbytes(b.reads) for b in buckets]
    closing = [b.reads[-1].name.split(".")[:2] for b in buckets]  # a norm's weight and bias come from one op
    last = [program.nbytes(tuple(r for r in b.reads if r.name.split(".")[:2] == c)) for b, c in zip(buckets, closing, strict=True)]
    assert len(buckets) > 5 and all(n >= size for n in nbytes[:-1])
    assert all(n - x < size for n, x in zip(nbytes[:-1], last, strict=False))  # without its last gradient it was still open
    layers = [int(r.name[1 : r.name.index(".")]) for b in buckets for r in b.reads if r.name.startswith("L")]
    assert layers == sorted(layers, reverse=True)


@pytest.mark.parametrize("schedule", ["naive", "gpipe", "1f1b"])
@pytest.mark.parametrize("comm", ["async", "stream", "blocking"])
@pytest.mark.parametrize("p", [2, 3])
def test_pipeline_messages(schedule: str, comm: str, p: int) -> None:
    """One activation up and one gradient down per boundary and microbatch; sequence parallelism cuts them."""
    m = 4
    for sp, nbytes in ((False, WHOLE), (True, WHOLE // 2)):
        _, w = lowered("llama", tp=2, sp=sp, pp=p, m=m, pipeline={"schedule": schedule, "comm": comm})
        sent = [n for program in w.programs for n in messages(program)]
        assert sent == [nbytes] * (2 * m * (p - 1))


def test_a_tied_embedding_is_summed_over_its_two_holders_once() -> None:
    _, w = lowered("gpt", pp=3, tp=2)
    for c, program in enumerate(w.programs):
        assert counted(program, "embedding") == ({("all_reduce", 64 * HIDDEN * 2 // 2): 1} if c != 1 else {})  # vocabulary 64, bf16, tp 2
    assert w.groups["embedding"].tolist() == [[0, 4], [1, 5]]


@pytest.mark.parametrize(("t", "sp"), [(1, False), (2, False), (2, True), (4, True)])
def test_activations_of_a_gpt_layer(t: int, sp: bool) -> None:
    """Korthikanti et al. 2022, equations 1, 2 and 4, for tiled attention without dropout.

    In units of s b (tokens of a microbatch), bf16, h hidden, a heads, f = 4 h:
      their 10 h not cut by t: two norm inputs 2 h + 2 h, the two masks h + h (no dropout: 0), inputs of qkv and of fc1 2 h + 2 h   -> 8 h
      their 24 h / t: q, k, v 6 h; attention's output 2 h; fc1's output 8 h and its GELU 8 h                                        -> 24 h / t
      their 5 a s / (h t) h, scores, softmax and mask: tiled attention keeps only the fp32 log-sum-exp per head and row             -> 4 a / t
    Sequence parallelism divides the first line by t too.
    """
    _, w = lowered("gpt", tp=t, sp=sp, m=2)
    h, a = HIDDEN, 8
    due = ROWS * (8 * h / (t if sp else 1) + 24 * h / t + 4 * a / t)
    assert [kept(w.programs[0], n) for n in (1, 2, 3)] == [due] * 3


@pytest.mark.parametrize(("t", "sp"), [(1, False), (2, False), (2, True)])
def test_activations_of_a_llama_layer(t: int, sp: bool) -> None:
    """Norm inputs and outputs 4 x 2 h; rotated q, k, v 2 (a + 2 k) d (the unrotated ones are not kept); attention 2 a d; gate and up 4 f, product 2 f."""
    _, w = lowered("llama", tp=t, sp=sp, m=2)
    h, a, k, d, f = HIDDEN, 8, 4, HIDDEN // 8, 96
    due = ROWS * (8 * h / (t if sp else 1) + (2 * (a + 2 * k) * d + 2 * a * d + 6 * f + 4 * a) / t)
    assert [kept(w.programs[0], n) for n in (1, 2, 3)] == [due] * 3


def test_activations_of_an_mlp_layer() -> None:
    """Input 2 h, the up projection and its GELU 2 f each."""
    _, w = lowered("mlp", m=2)
    assert kept(w.programs[0], 2) == ROWS * (2 * HIDDEN + 4 * 64)


@pytest.mark.parametrize("model", ["gpt", "llama", "mlp"])
@pytest.mark.parametrize(("t", "sp"), [(1, False), (2, False), (2, True)])
def test_full_recompute_keeps_the_inputs_only(model: str, t: int, sp: bool) -> None:
    _, w = lowered(model, tp=t, sp=sp, m=2, recompute="full")
    assert [kept(w.programs[0], n) for n in (1, 2, 3)] == [WHOLE / (t if sp else 1)] * 3  # 2 s b h


def simulated(model: str, **layout: Any) -> Any:
    run = build(keys(model, **layout))
    return simulate(lower(run.plan), run.cluster, run.profile)


def most_alive(timeline: Any, rank: int, buffer: str) -> int:
    """Most instances of a buffer alive at once on a rank."""
    rows = timeline.memory[(timeline.memory["rank"] == timeline.representative[rank]) & (timeline.memory["buffer"] == timeline.buffers.index(buffer))]
    rows = rows[np.lexsort((rows["delta"] > 0, rows["time"]))]
    return int(np.cumsum(np.sign(rows["delta"])).max())


@pytest.mark.parametrize("comm", ["async", "stream", "blocking"])
@pytest.mark.parametrize("m", [2, 4, 7])
def test_microbatches_in_flight(comm: str, m: int) -> None:
    """1F1B holds min(m, p - r) microbatches on rank r, GPipe m, the naive pipeline 1 from the start of F to the end of B."""
    p = 3
    for schedule, due in (("1f1b", [min(m, p - r) for r in range(p)]), ("gpipe", [m] * p), ("naive", [1] * p)):
        t = simulated("gpt", pp=p, m=m, pipeline={"schedule": schedule, "comm": comm})
        assert [most_alive(t, r, f"L{2 * r}.fc1.out") for r in range(p)] == due, schedule


def test_activation_peak_grows_by_a_stage_per_microbatch_in_flight() -> None:
    """Ranks 1 and 2 of 4 hold like stages: their peaks differ by what one microbatch leaves in one of them."""
    t = simulated("mlp", pp=4, m=8, pipeline={"layers": [1, 2, 2, 1]})
    _, w = lowered("mlp", pp=4, m=8, pipeline={"layers": [1, 2, 2, 1]})
    one = 2 * ROWS * (2 * HIDDEN + 4 * 64)  # two layers, see above
    peaks = [memory_peak(t, r).by_category["activations"] for r in (1, 2)]
    assert peaks[0] - peaks[1] == one
    assert [c for c in (memory_peak(t, r).by_category for r in range(4)) if set(c) != set(CATEGORIES)] == []
    assert sum(held(p, "parameters") for p in w.programs) == 2 * parameters(build(keys("mlp")).plan.model)


@pytest.mark.parametrize("model", ["gpt", "llama"])
@pytest.mark.parametrize("cut", [{}, {"tp": 2, "sp": True}, {"pp": 2}], ids=str)
def test_recompute_lowers_the_peak(model: str, cut: dict[str, Any]) -> None:
    plain, again = (memory_peak(simulated(model, micro=8, recompute=r, **cut), 0) for r in ("none", "full"))
    assert again.nbytes < plain.nbytes
    assert again.by_category["activations"] < 0.6 * plain.by_category["activations"]


@pytest.mark.parametrize("mode", ["flat", "bucketed"])
@pytest.mark.parametrize("d", [2, 3])
def test_optimizer_bytes(mode: str, d: int) -> None:
    """Adam with an fp32 master copy: 12 bytes per parameter, ZeRO-1: over dp (K = 12, Rajbhandari et al. 2020, section 3.1), padding aside."""
    for precision, each in (("bf16", 12), ("fp32", 8)):
        _, whole = lowered("gpt", dp=d, m=2, precision=precision, data={"mode": mode, "bucket": "4 KiB"})
        _, sharded = lowered("gpt", dp=d, m=2, precision=precision, data={"mode": mode, "bucket": "4 KiB"}, zero={"stage": 1})
        n = parameters(build(keys("gpt")).plan.model)
        assert held(whole.programs[0], "optimizer") == each * n
        buckets = sum(isinstance(o, Collective) and o.op == "reduce_scatter" for o in ops(sharded.programs[0]))
        padded = held(sharded.programs[0], "optimizer") * d - each * n
        assert 0 <= padded <= each * buckets * (d - 1)  # at most d - 1 elements of padding per bucket


def test_shards_are_of_whole_buckets() -> None:
    """Each flat shard holds ceil(bucket / dp) elements of the concatenation it names."""
    _, w = lowered("gpt", dp=3, m=2, zero={"stage": 1}, data={"mode": "bucketed", "bucket": "4 KiB"})
    program = w.programs[0]
    for b in program.buffers.values():
        if b.of and b.shard:
            whole = sum(prod(int(n) for n in program.buffers[o].shape) for o in b.of)
            assert b.shape == (-(-whole // 3),) and b.shard == ((0, "dp"),)


def test_uneven_layers_put_their_parameters_where_they_are() -> None:
    _, w = lowered("mlp", pp=3, pipeline={"layers": [1, 2, 3]})
    assert [held(p, "parameters") for p in w.programs] == [2 * n * 2 * HIDDEN * 64 for n in (1, 2, 3)]
    assert MODELS["mlp"]["layers"] == 6


@pytest.mark.parametrize("count", [0, 3, 10**6 + 1])
@pytest.mark.parametrize("cut", [{}, {"pp": 2}, {"dp": 4}, {"dp": 3, "pp": 2, "zero": {"stage": 1}}, {"dp": 4, "zero": {"stage": 1}}], ids=str)
@pytest.mark.parametrize("data", [{"mode": "flat"}, {"mode": "bucketed", "bucket": "1 B"}], ids=str)
def test_a_fixed_optimizer_takes_its_time_once_per_rank(count: int, cut: dict[str, Any], data: dict[str, Any]) -> None:
    """Spread over the updates, however many there are and however few parameters: 5 ms of every rank."""
    fixed = {"kind": "fixed", "layers": 4, "forward": "1 ms", "input_grad": "1 ms", "weight_grad": "1 ms", "optimizer": "5 ms", "parameters": count}
    plan = build(keys("mlp", data=data, **cut) | {"model": fixed}).plan
    for program in lower(plan).programs:
        steps = [o for o in ops(program) if isinstance(o, Compute) and o.label.phase == "S"]
        assert sum(float(k.dims[0]) for o in steps for k in o.kernels) == pytest.approx(5e-3, rel=1e-12)
