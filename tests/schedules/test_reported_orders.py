"""Orders that hung, were refused or surprised in other programs, each with the verdict that is due (tests/reported.md maps reports to tests)."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import table

from parasim import time_schedule
from parasim.api import time_study
from parasim.errors import InvalidLayout
from parasim.lowering.study import Study
from parasim.schedules import SCHEDULES, VEE, Action, ScheduleInput, orders_of, singles
from parasim.schedules.interleaved import virtual
from parasim.schedules.table import Table, parse_table
from parasim.schedules.validate import violations

MODELS = ("async", "stream", "blocking")
FIXED_ORDERS = sorted(set(SCHEDULES) - {"zb-auto", "zb-1p", "zb-2p"})  # the others are searched for


@pytest.mark.parametrize("name", sorted(SCHEDULES))
@pytest.mark.parametrize("p", [2, 3, 4, 8])
def test_as_many_microbatches_as_ranks(name: str, p: int) -> None:
    """Finishes under all models of communication, or is refused with the number that is legal."""
    chunks = SCHEDULES[name].chunks if SCHEDULES[name].fixed else 1
    for model in MODELS:
        try:
            report = time_schedule(name, p, p, chunks=chunks, comm=0.1, comm_model=model)[0]
        except InvalidLayout as e:
            assert "legal" in str(e) or "at least" in str(e)
        else:
            assert report.deadlock is None and report.makespan is not None and report.makespan >= p * 3


@settings(max_examples=10, deadline=None, derandomize=True)
@given(
    st.sampled_from(sorted(set(SCHEDULES) - {"zb-auto", "zb-1p", "zb-2p"})),
    st.sampled_from(MODELS),
    st.lists(st.floats(0.1, 2.0), min_size=4, max_size=4),
    st.integers(0, 3),
)
def test_a_rank_ten_times_slower_hangs_nobody(name: str, model: str, delays: list[float], slow: int) -> None:
    """Whatever the stages take, and with one that takes ten times as long: every order ends, and not before the slow rank's work is done."""
    row = SCHEDULES[name]
    chunks = row.chunks if row.fixed else 1
    stages = row.placement.stages(4, chunks)
    scale = [delays[s % 4] * (10.0 if s % 4 == slow else 1.0) for s in range(stages)]
    report = time_schedule(name, 4, 8, chunks=chunks, comm=0.05, comm_model=model, scale=tuple(scale))[0]
    assert report.deadlock is None and report.makespan is not None
    assert report.makespan >= 8 * 3 * delays[slow] * (10.0 if row.placement.stages(4, chunks) == 4 * chunks else 1.0) / max(1, chunks) * (1 - 1e-9)


@pytest.mark.parametrize("model", MODELS)
def test_interleaved_zero_bubble_on_eight_ranks(model: str) -> None:
    """The table that hung (8 ranks, 2 stages each, 16 microbatches), its messages placed here: m T = 16 x 3 and what filling takes, (p - 1) T_F at
    least, whatever the model."""
    report, _ = time_study(Study(table("InterleavedZeroBubble_p8_v2_m16.compute.csv").orders, 2, comm=model), 0.05)
    assert report.deadlock is None and report.makespan is not None and report.makespan > 48


def test_fused_and_split_backwards_mix_in_one_table() -> None:
    """A V schedule in which neighbouring I and W of a microbatch became B: sound, and the same text after a round trip."""
    merged = {}
    for rank, order in orders_of("zb-v", ScheduleInput(4, 8, 2)).items():
        out: list[Action] = []
        for a in singles(order):
            fuses = out and a.kind == "W" and out[-1] == Action("I", a.stage, a.microbatch)
            out[-1 if fuses else len(out) :] = [Action("B", a.stage, a.microbatch) if fuses else a]
        merged[rank] = out
    kinds = {a.kind for order in merged.values() for a in order}
    assert kinds == {"F", "I", "W", "B"}
    text = Table.of(merged).text()
    assert violations(Table.of(merged), VEE) == () and parse_table(text).text() == text


def test_two_stages_per_rank_are_not_free_of_bubbles_at_eight_ranks() -> None:
    """ZB1P with v stages per rank leaves (p - 1) (F + I - W) / v, here 7 / 2, and a fifth of a second less work in W makes it longer: the bubble is
    what comes out, not what a name promises."""
    equal = time_schedule("zb1p-interleaved", 8, 16, chunks=2)[0]
    assert equal.makespan == pytest.approx(16 * 3 + 7 / 2) and equal.bubble_span is not None and equal.bubble_span > 0
    unequal = time_schedule("zb1p-interleaved", 8, 16, chunks=2, times=(1.0, 1.2, 0.8))[0]
    assert unequal.bubble_span is not None and unequal.bubble_span > equal.bubble_span


def warmed_up(factor: int, p: int, m: int, v: int) -> dict[int, list[Action]]:
    """Interleaved 1F1B with `factor` forwards of warm-up per rank behind this one."""
    given_, orders = ScheduleInput(p, m, v), {}
    for r in range(p):
        warm = min(m * v, factor * (p - 1 - r) + (v - 1) * p)
        forward = [Action("F", *virtual(k, r, p, given_)) for k in range(m * v)]
        backward = [Action("B", *virtual(k, r, p, given_, backward=True)) for k in range(m * v)]
        steady = [a for pair in zip(forward[warm:], backward, strict=False) for a in pair]
        orders[r] = forward[:warm] + steady + backward[m * v - warm :]
    return orders


def test_why_the_warm_up_counts_every_rank_twice() -> None:
    """With one forward per rank behind, as without interleaving, the next chunk's input comes as it is needed: nothing is lost while messages take no
    time, (m + (p - 1) / v) T = 28.5; with messages of 0.1 s twice as many leave 2 (p v - 1) of them in the way, 29.9, and one 30, 31.5."""
    assert warmed_up(2, 4, 8, 2) == orders_of("interleaved-1f1b", ScheduleInput(4, 8, 2))
    for c, expected in ((0.0, (28.5, 28.5)), (0.1, (31.5, 29.9))):
        spans = [time_study(Study(warmed_up(f, 4, 8, 2), 2), c)[0].makespan for f in (1, 2)]
        assert spans == pytest.approx(expected)
    for model in ("stream", "blocking"):  # of transfers that queue, too
        once, twice = (time_study(Study(warmed_up(f, 4, 8, 2), 2, comm=model), 0.1)[0].makespan for f in (1, 2))
        assert once is not None and twice is not None and once > twice


def test_interleaving_comes_close_to_a_v_with_many_microbatches() -> None:
    """Eight ranks, the same work, without transfers: (p - 1) T / v against (p - 1) F / 2 (test_interleaved_1f1b, test_zb_v), 5.25 and 3.5 s at v = 4:
    3.4 % of a step with 16 microbatches and 0.9 % with 64; and where messages take time, more chunks of them lose it again: nobody is best by name."""
    gaps = {}
    for m in (16, 64):
        interleaved, vee = (time_schedule(name, 8, m, chunks=v)[0].makespan for name, v in (("interleaved-1f1b", 4), ("zb-v", 2)))
        assert interleaved is not None and vee is not None
        assert interleaved == pytest.approx(3 * m + 7 * 3 / 4) and vee == pytest.approx(3 * m + 7 / 2)
        gaps[m] = (interleaved - vee) / vee
    assert gaps[64] == pytest.approx(1.75 / (3 * 64 + 3.5)) and gaps[64] < gaps[16] / 3
    slow = [time_schedule("interleaved-1f1b", 8, 16, chunks=v, comm=0.3)[0].makespan for v in (2, 4)]
    assert slow[0] is not None and slow[1] is not None and slow[0] < slow[1]
