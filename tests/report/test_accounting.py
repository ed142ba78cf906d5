"""Compute, exposed and idle seconds against drawings, and against a slow twin that classifies second by second."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from timeline_sketch import Sketch

from parasim.errors import Refused
from parasim.program.ops import AXES
from parasim.report.accounting import IDLE, NAMES, rank_gaps, rank_times, step_window
from parasim.timeline import COLLECTIVE, COMPUTE, P2P, Timeline

TP, DP, PP = (NAMES.index(a) for a in ("tp", "dp", "pp"))


def check_sums(timeline: Timeline) -> None:
    length = step_window(timeline).length
    for times in rank_times(timeline).values():
        assert times.total == pytest.approx(length, rel=1e-9)


def test_pipeline_with_a_visible_send(pipeline: Sketch) -> None:
    t = pipeline.timeline()
    times = rank_times(t)
    # rank 0: waits [2, 6] for the receive, which is in flight in [5, 6]; its own send is not waited for
    assert (times[0].compute, times[0].exposed[PP], times[0].idle) == (4.0, 1.0, 3.0)
    # rank 1: waits [0, 3] for the receive in flight in [2, 3]; after B the send in [5, 6], then nothing until 8
    assert (times[1].compute, times[1].exposed[PP], times[1].idle) == (2.0, 2.0, 4.0)
    assert (times[0].span, times[1].span, times[1].last) == (8.0, 2.0, 5.0)
    check_sums(t)


def test_gaps_are_cut_where_the_transfer_starts(pipeline: Sketch) -> None:
    assert rank_gaps(pipeline.timeline(), 0) == [(2.0, 5.0, IDLE), (5.0, 6.0, PP)]


def test_straggler_idles_the_others_in_front_of_the_collective(sketch: Sketch) -> None:
    # eight ranks compute 100 ms, rank 3 takes 150; a 10 ms all-reduce on the compute stream ends the step: 160 ms, 50 ms idle on seven
    for rank in range(8):
        sketch.add(rank, "F", 0.0, 0.150 if rank == 3 else 0.100)
        sketch.add(rank, "reduce", 0.150, 0.160, kind=COLLECTIVE, axis="tp", ready=0.150 if rank == 3 else 0.100)
    t = sketch.timeline()
    assert step_window(t).length == 0.160
    times = rank_times(t)
    assert [times[r].idle for r in range(8)] == pytest.approx([0.0 if r == 3 else 0.050 for r in range(8)], abs=1e-15)
    assert [times[r].exposed[TP] for r in range(8)] == pytest.approx([0.010] * 8)
    check_sums(t)


def test_overlapped_reduction_is_exposed_only_where_the_optimizer_waits(sketch: Sketch) -> None:
    # B [0, 4]; buckets [1, 3] and [3.5, 6] on dp.reduce; S [6, 7]: 2 + 0.5 s beside compute, 2 s exposed
    sketch.add(0, "B", 0, 4)
    sketch.add(0, "reduce", 1, 3, stream="dp.reduce", axis="dp")
    second = sketch.add(0, "reduce", 3.5, 6, stream="dp.reduce", axis="dp")
    sketch.add(0, "S", 6, 7, waits=(second,))
    t = sketch.timeline()
    times = rank_times(t)[0]
    assert (times.compute, times.optimizer, times.exposed[DP], times.overlapped[DP], times.idle) == (5.0, 1.0, 2.0, 2.5, 0.0)
    check_sums(t)


def test_transfers_queued_before_the_awaited_one_count(sketch: Sketch) -> None:
    # S waits for the second bucket; the first is ahead of it in the queue: [1, 2] and [2.5, 3] exposed, [2, 2.5] idle
    sketch.add(0, "B", 0, 1)
    sketch.add(0, "reduce", 1, 2, stream="dp.reduce", axis="dp")
    second = sketch.add(0, "reduce", 2.5, 3, stream="dp.reduce", axis="dp")
    sketch.add(0, "reduce", 3, 9, stream="dp.reduce", axis="dp")  # queued later: nobody waits for it until the end of the step
    sketch.add(0, "S", 3, 4, waits=(second,))
    t = sketch.timeline()
    times = rank_times(t)[0]
    assert (times.exposed[DP], times.idle) == (1.5 + 5.0, 0.5)  # 5: the tail [4, 9]
    check_sums(t)


def test_an_instant_counts_for_the_transfer_that_ends_last(sketch: Sketch) -> None:
    gather = sketch.add(0, "gather", 1, 3, stream="tp.gather", axis="tp")
    recv = sketch.add(0, "recv", 2, 4, stream="pp.recv", axis="pp")
    sketch.add(0, "F", 4, 5, waits=(gather, recv))
    t = sketch.timeline()
    times = rank_times(t)[0]
    assert (times.idle, times.exposed[TP], times.exposed[PP]) == (1.0, 1.0, 2.0)
    check_sums(t)


def test_a_wait_for_compute_on_another_stream_is_idle(sketch: Sketch) -> None:
    host = sketch.add(0, "S", 0, 2, stream="host", kind=COMPUTE)
    sketch.add(0, "F", 2, 3, waits=(host,))
    times = rank_times(sketch.timeline())[0]
    assert (times.idle, times.compute, float(times.exposed.sum())) == (2.0, 1.0, 0.0)


def test_message_on_the_compute_stream_is_exposed(sketch: Sketch) -> None:
    sketch.add(0, "F", 0, 1)
    sketch.add(0, "send", 3, 4, kind=P2P, axis="pp", ready=1.0)
    times = rank_times(sketch.timeline())[0]
    assert (times.compute, times.exposed[PP], times.idle) == (1.0, 1.0, 2.0)


def test_of_two_steps_the_last_is_reported(sketch: Sketch) -> None:
    # steps end at 10 and 16; the second step's first op runs in [8, 11], of which one second lies in the window [10, 16]
    sketch.add(0, "F", 0, 8, step=0)
    sketch.add(0, "F", 8, 11, step=1)
    sketch.add(0, "F", 12, 16, step=1)
    sketch.add(1, "F", 0, 10, step=0)
    sketch.add(1, "F", 10, 12, step=1)
    t = sketch.timeline()
    assert step_window(t) == (10.0, 16.0, 1)
    times = rank_times(t)
    assert (times[0].compute, times[0].idle, times[1].compute, times[1].idle) == (5.0, 1.0, 2.0, 4.0)
    assert times[0].span == 8.0  # from 8 to 16
    check_sums(t)


def test_a_rank_without_compute_is_idle_or_exposed(sketch: Sketch) -> None:
    sketch.add(0, "F", 0, 4)
    sketch.add(1, "recv", 1, 2, stream="pp.recv", axis="pp")
    times = rank_times(sketch.timeline())[1]
    assert (times.rank, times.compute, times.exposed[PP], times.idle) == (1, 0.0, 1.0, 3.0)


def test_no_op_is_refused(sketch: Sketch) -> None:
    with pytest.raises(Refused, match="holds no op"):
        step_window(sketch.timeline(representative=[0]))


@st.composite
def drawings(draw: st.DrawFn) -> Sketch:
    """One rank with integer times: a compute stream with gaps, two transfer streams, edges to transfers that have ended."""
    s = Sketch()
    transfers: list[tuple[float, tuple[int, int]]] = []
    for stream in ("dp.reduce", "pp.recv"):
        now = 0
        for _ in range(draw(st.integers(0, 4))):
            start = now + draw(st.integers(0, 3))
            now = start + draw(st.integers(0, 4))
            transfers.append((now, s.add(0, "x", start, now, stream=stream, axis=draw(st.sampled_from(AXES)))))
    now = 0
    for _ in range(draw(st.integers(1, 6))):
        start = now + draw(st.integers(0, 4))
        now = start + draw(st.integers(0, 4))
        ended = [op for end, op in transfers if end <= start]
        waits = tuple(draw(st.lists(st.sampled_from(ended), unique=True, max_size=2))) if ended else ()
        kind = draw(st.sampled_from([COMPUTE, COMPUTE, COLLECTIVE]))
        s.add(0, "F", start, now, kind=kind, axis="" if kind == COMPUTE else "tp", waits=waits)
    return s


def second_by_second(t: Timeline, length: int) -> np.ndarray:
    """The definition, one unit of time after the other: [seconds of each of NAMES, idle, compute]."""
    out = np.zeros(len(NAMES) + 2)
    ops = list(enumerate(t.ops))
    queue = [(i, o) for i, o in ops if t.streams[o["stream"]] == "compute"]
    for k in range(length):
        here = [o for _, o in ops if o["start"] <= k and o["end"] >= k + 1]
        running = [o for o in here if t.streams[o["stream"]] == "compute"]
        if running:
            out[-1 if running[0]["kind"] == COMPUTE else running[0]["axis"]] += 1
            continue
        # the next op of the queue: the first that ends after this second (an op of no length at k + 1 or later is waited for too)
        blocked = next(((i, o) for i, o in queue if o["start"] >= k + 1), None)
        awaited = [o for _, o in ops if o["kind"] != COMPUTE]
        if blocked is not None:
            targets = [t.ops[e["waits_for"]] for e in t.edges if e["op"] == blocked[0]]
            awaited = [o for o in awaited if any(o["stream"] == x["stream"] and o["op"] <= x["op"] for x in targets)]
        flying = [o for o in here if any(o["op"] == a["op"] for a in awaited) and t.streams[o["stream"]] != "compute"]
        if flying:
            out[max(flying, key=lambda o: o["end"])["axis"]] += 1
        else:
            out[IDLE] += 1
    return out


@settings(max_examples=200, deadline=None)
@given(drawings())
def test_equals_the_slow_twin(s: Sketch) -> None:
    t = s.timeline()
    length = int(t.makespan)
    got, want = rank_times(t)[0], second_by_second(t, length)
    tied = {o["end"] for o in t.ops if o["kind"] != COMPUTE}
    assert got.total == pytest.approx(length, rel=1e-9)
    assert got.compute == want[-1]
    assert got.idle == want[IDLE]
    assert float(got.exposed.sum()) == want[: len(NAMES)].sum()
    if len(tied) == sum(1 for o in t.ops if o["kind"] != COMPUTE):  # no two transfers end together: the axis is beyond doubt
        assert got.exposed.tolist() == want[: len(NAMES)].tolist()
