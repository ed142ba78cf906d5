"""V-Half and zb-auto: their memory, their validity, what they are never worse than."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from parasim import time_schedule
from parasim.errors import InvalidLayout
from parasim.schedules import SCHEDULES, VEE, ScheduleInput, orders_of, peak_inflight
from parasim.schedules.table import Table
from parasim.schedules.validate import violations
from parasim.schedules.zb_timing import span_and_makespan

MODEST = settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
seconds = st.integers(1, 16).map(lambda n: n / 8)
times = st.tuples(seconds, seconds, seconds)


@pytest.mark.parametrize("p", range(1, 17))
def test_v_half_holds_half(p: int) -> None:
    """(p + 2) div 2 microbatches in flight, two chunks each (Qi et al. 2024); fewer only while there are fewer microbatches."""
    for m in (1, 2, p, 2 * p, 4 * p):
        orders = SCHEDULES["v-half"](ScheduleInput(p, m, 2))
        assert violations(Table.of(orders), VEE) == ()
        peaks = [peak_inflight(orders[r]) for r in orders]
        assert max(peaks) <= 2 * ((p + 2) // 2)
    assert max(peaks) == 2 * ((p + 2) // 2)


@pytest.mark.parametrize("p", [2, 4, 8])
def test_v_half_idles_less_than_1f1b(p: int) -> None:
    """At equal times, in the steady state every slot is full: the bubble does not grow with the microbatches, and is below (p - 1) T."""
    bubbles = [time_schedule("v-half", p, m)[0].makespan - 3 * m for m in (4 * p, 6 * p)]  # type: ignore[operator]
    assert bubbles[0] == pytest.approx(bubbles[1]) and bubbles[0] < 0.6 * 3 * (p - 1)


@MODEST
@given(st.integers(1, 6), st.integers(1, 14), times, st.sampled_from((0.0, 0.1, 0.5)), st.data())
def test_zb_auto_keeps_the_cap_of_every_rank(p: int, m: int, t: tuple[float, float, float], c: float, data: st.DataObject) -> None:
    cap = tuple(data.draw(st.lists(st.integers(1, 2 * p), min_size=p, max_size=p)))
    orders = orders_of("zb-auto", ScheduleInput(p, m, times=t, memory_cap=cap, comm=c))
    assert violations(Table.of(orders)) == ()
    assert all(peak_inflight(orders[r]) <= cap[r] for r in range(p))


@MODEST
@given(st.integers(1, 6), st.integers(1, 14), times, st.sampled_from((0.0, 0.1)))
def test_zb_1p_and_zb_2p_are_never_slower_than_1f1b(p: int, m: int, t: tuple[float, float, float], c: float) -> None:
    plain = time_schedule("1f1b", p, m, times=t, comm=c)[0].makespan
    for name, cap in (("zb-1p", p), ("zb-2p", 2 * p)):
        report = time_schedule(name, p, m, times=t, comm=c)[0]
        assert report.makespan is not None and plain is not None and report.makespan <= plain * (1 + 1e-12)
        assert max(report.peak_inflight) <= cap


@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 8), (4, 12), (8, 16)])
def test_equal_times_give_the_hand_made_schedules(p: int, m: int) -> None:
    """zb-1p: (p - 1) F of bubble like ZB-H1; zb-2p: none from first to last op, like ZB-H2."""
    one, two = time_schedule("zb-1p", p, m)[0], time_schedule("zb-2p", p, m)[0]
    assert one.makespan == pytest.approx(3 * m + p - 1)
    assert two.bubble_span == pytest.approx(0, abs=1e-12)


@MODEST
@given(st.sampled_from(("1f1b", "zb-h1", "zb-h2", "zb-auto")), st.integers(1, 5), st.integers(1, 9), times, st.sampled_from((0.0, 0.25)))
def test_the_choice_is_made_by_the_times_of_the_simulator(name: str, p: int, m: int, t: tuple[float, float, float], c: float) -> None:
    """The small evaluator of zb-auto and the engine agree on span and makespan."""
    report = time_schedule(name, p, m, times=t, comm=c)[0]
    span, makespan = span_and_makespan(report.orders, (t,) * p, c)
    assert makespan == pytest.approx(report.makespan)
    assert span == pytest.approx(max(e - s for s, e in zip(report.rank_start, report.rank_end, strict=True)))


def test_more_memory_is_never_slower() -> None:
    """The longest rank, p = 4, m = 12: caps from 4 up (each cap's candidates fit the next one too where they are hand-made)."""
    spans = [time_schedule("zb-auto", 4, 12, times=(1, 1.2, 0.8), memory_cap=cap)[0].bubble_span for cap in (4, 8, 12)]
    assert spans == sorted(spans, reverse=True) and spans[-1] == pytest.approx(0, abs=1e-9)


def test_a_cap_below_one_microbatch_is_refused() -> None:
    with pytest.raises(InvalidLayout, match=r"memory_cap=0.5 cannot fit one microbatch on rank 0; nearest legal: 1"):
        time_schedule("zb-auto", 4, 8, memory_cap=0.5)
    with pytest.raises(InvalidLayout, match=r"cannot fit one microbatch on rank 3"):
        time_schedule("zb-auto", 4, 8, memory_cap=(4, 4, 4, 0))
    with pytest.raises(InvalidLayout, match=r"one for each of the 4 ranks"):
        time_schedule("zb-auto", 4, 8, memory_cap=(4, 4))
    with pytest.raises(InvalidLayout, match=r"memory_cap=4.0 means nothing to zb-1p; .*schedules that have it: zb-auto"):
        time_schedule("zb-1p", 4, 8, memory_cap=4.0)
