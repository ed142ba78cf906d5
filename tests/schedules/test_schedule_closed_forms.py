"""Makespans, bubbles and peaks against closed forms, each where it is exact. T: F + I + W of a rank's share, c: seconds per message."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from parasim import time_schedule
from parasim.report.schedules import ScheduleReport

MODEST = settings(max_examples=15, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
ranks = st.integers(2, 6)
seconds = st.integers(4, 16).map(lambda n: n / 8)
times = st.tuples(seconds, seconds, seconds)
short = st.integers(0, 4).map(lambda n: n / 80)  # at most a tenth of the shortest time


def timed(name: str, p: int, m: int, t: tuple[float, float, float], c: float = 0.0, v: int | None = None) -> ScheduleReport:
    report, timeline = time_schedule(name, p, m, times=t, comm=c, chunks=v)
    assert timeline is not None
    return report


def span(report: ScheduleReport) -> float:
    return max(e - s for s, e in zip(report.rank_start, report.rank_end, strict=True))


@MODEST
@given(ranks, st.integers(1, 12), times, short)
def test_naive_and_gpipe(p: int, m: int, t: tuple[float, float, float], c: float) -> None:
    """m (p T + 2 (p-1) c), one in flight; (m + p - 1) T + 2 (p-1) c, all m in flight: any m."""
    naive, gpipe = timed("naive", p, m, t, c), timed("gpipe", p, m, t, c)
    assert naive.makespan == pytest.approx(m * (p * sum(t) + 2 * (p - 1) * c)) and naive.peak_inflight == [1] * p
    assert gpipe.makespan == pytest.approx((m + p - 1) * sum(t) + 2 * (p - 1) * c) and gpipe.peak_inflight == [m] * p


@MODEST
@given(ranks, st.integers(1, 3), st.integers(1, 12), times, short)
def test_1f1b(p: int, turns: int, any_m: int, t: tuple[float, float, float], c: float) -> None:
    """(m + p - 1) T + c (2 (p-1) m / p + 2 (p-2)) for p | m; without c any m. In flight min(m, p - r). Latency has no slack: its cost grows with m."""
    m = p * turns
    assert timed("1f1b", p, m, t, c).makespan == pytest.approx((m + p - 1) * sum(t) + c * (2 * (p - 1) * m / p + 2 * (p - 2)))
    report = timed("1f1b", p, any_m, t)
    assert report.makespan == pytest.approx((any_m + p - 1) * sum(t))
    assert report.peak_inflight == [min(any_m, p - r) for r in range(p)]


@MODEST
@given(ranks, st.integers(1, 3), st.integers(1, 4), times, st.integers(0, 4).map(lambda n: n / 160))
def test_interleaved_1f1b(p: int, turns: int, v: int, t: tuple[float, float, float], c: float) -> None:
    """m T + (p-1) T / v + 2 (p v - 1) c for p | m; in flight min(m v, 2 (p-1-r) + (v-1) p + 1) chunks."""
    m = p * turns
    report = timed("interleaved-1f1b", p, m, t, c, v) if v > 1 else timed("interleaved-1f1b", p, m, t, 0.0, v)
    assert report.makespan == pytest.approx(m * sum(t) + (p - 1) * sum(t) / v + (2 * (p * v - 1) * c if v > 1 else 0))
    assert report.peak_inflight == [min(m * v, 2 * (p - 1 - r) + (v - 1) * p + 1) for r in range(p)]


@MODEST
@given(ranks, st.integers(1, 3), st.integers(1, 3), times, st.integers(0, 4).map(lambda n: n / 160))
def test_looped_bfs(p: int, turns: int, v: int, t: tuple[float, float, float], c: float) -> None:
    """m T + (p-1) T / v + 2 (p-1) c for p | m, and 2 (v-1) p c more where m = p; in flight m v chunks."""
    m = p * turns
    report = timed("looped-bfs", p, m, t, c, v)
    assert report.makespan == pytest.approx(m * sum(t) + (p - 1) * sum(t) / v + 2 * (p - 1) * c + (2 * (v - 1) * p * c if m == p else 0))
    assert report.peak_inflight == [m * v] * p


@MODEST
@given(ranks, st.integers(0, 12), times, short)
def test_zb_h1(p: int, more: int, t: tuple[float, float, float], c: float) -> None:
    """m T + (p-1) max(F, F + I - W) for W <= F, m >= p; + 4 (p-1) c for m >= 2p and W <= I too. In flight p everywhere, p - r up to I.

    The paper's (p-1) (F + I - W) holds for W <= I; no rank can start its m T of work before (p-1) F.
    """
    f, i, w = t
    assume(w <= f)
    m = p + more
    report = timed("zb-h1", p, m, t)
    assert report.makespan == pytest.approx(m * sum(t) + (p - 1) * max(f, f + i - w))
    assert report.peak_inflight == [p] * p and report.peak_inflight_to_input_grad == [p - r for r in range(p)]
    if m >= 2 * p and w <= i:
        assert timed("zb-h1", p, m, t, c).makespan == pytest.approx(m * sum(t) + (p - 1) * (f + i - w) + 4 * (p - 1) * c)


@MODEST
@given(ranks, st.integers(0, 8), times, short)
def test_zb_h2(p: int, more: int, t: tuple[float, float, float], c: float) -> None:
    """m T + (p-1) max(F, F + I - 2W), span m T + max(0, (p-1) (F + I - 2W)), for W <= F, m >= 2p-1; + (p-1) c where I < 2W, m >= 2p."""
    f, i, w = t
    assume(w <= f)
    m = 2 * p - 1 + more
    report = timed("zb-h2", p, m, t)
    assert report.makespan == pytest.approx(m * sum(t) + (p - 1) * max(f, f + i - 2 * w))
    assert span(report) == pytest.approx(m * sum(t) + max(0.0, (p - 1) * (f + i - 2 * w)))
    assert report.peak_inflight == [2 * p - 1] * p and report.peak_inflight_to_input_grad == [2 * (p - r) - 1 for r in range(p)]
    if m >= 2 * p and i < 2 * w:
        assert timed("zb-h2", p, m, t, c).makespan == pytest.approx(m * sum(t) + (p - 1) * f + (p - 1) * c)


@MODEST
@given(ranks, st.integers(2, 4), st.integers(1, 3), times)
def test_zb1p_interleaved(p: int, turns: int, v: int, t: tuple[float, float, float]) -> None:
    """m T + (p-1) (F + I - W) / v for p | m, m >= 2p, W <= min(F, I); in flight p v chunks on every rank."""
    f, i, w = t
    assume(w <= min(f, i))
    m = p * turns
    report = timed("zb1p-interleaved", p, m, t, v=v)
    assert report.makespan == pytest.approx(m * sum(t) + (p - 1) * (f + i - w) / v)
    assert report.peak_inflight == [p * v] * p


@MODEST
@given(ranks, st.integers(0, 8), seconds, short)
def test_zb_v(p: int, more: int, f: float, c: float) -> None:
    """At equal times: m T + (p-1) F / 2 for m >= 2p-1, no bubble between first and last op; + (5p - 7) c for m >= 2p. In flight 2p chunks."""
    m = 2 * p - 1 + more
    report = timed("zb-v", p, m, (f, f, f))
    assert report.makespan == pytest.approx(3 * m * f + (p - 1) * f / 2)
    assert span(report) == pytest.approx(3 * m * f) and report.peak_inflight == [2 * p] * p
    if m >= 2 * p:
        assert timed("zb-v", p, m, (f, f, f), c * f / 2).makespan == pytest.approx(3 * m * f + (p - 1) * f / 2 + (5 * p - 7) * c * f / 2)


@pytest.mark.parametrize(("m", "bubble"), [(4, 3), (5, 2), (6, 1), (7, 0)])
def test_zb_h2_below_its_threshold(m: int, bubble: float) -> None:
    """p = 4, times of 1: the span exceeds m T by what the missing microbatches would have filled."""
    assert span(timed("zb-h2", 4, m, (1, 1, 1))) == pytest.approx(3 * m + bubble)


@pytest.mark.parametrize(("m", "bubble"), [(3, 4), (4, 3), (5, 2), (6, 1), (7, 0)])
def test_zb_v_below_its_threshold(m: int, bubble: float) -> None:
    assert span(timed("zb-v", 4, m, (1, 1, 1))) == pytest.approx(3 * m + bubble)


@MODEST
@given(st.integers(1, 3).map(lambda k: 2 * k), st.integers(0, 5), seconds)
def test_dualpipe(p: int, more: int, f: float) -> None:
    """At equal times, m >= 2p: m T + (p/2 - 1) (FB + B - 3W) with FB = F + B, B = 2F; in flight p + 1 of a rank's two stages."""
    m = 2 * p + 2 * more
    report = timed("dualpipe", p, m, (f, f, f))
    assert report.makespan == pytest.approx(3 * m * f + (p / 2 - 1) * (3 * f + 2 * f - 3 * f)) and report.peak_inflight == [p + 1] * p


@MODEST
@given(ranks, st.integers(0, 5), seconds)
def test_dualpipe_v(p: int, more: int, f: float) -> None:
    """At equal times, m >= 2p: m T + (p - 1) (FB + B - 3W) with chunk times, F/2 each; in flight 2p + 1 chunks."""
    m = 2 * p + more
    report = timed("dualpipe-v", p, m, (f, f, f))
    assert report.makespan == pytest.approx(3 * m * f + (p - 1) * 2 * f / 2) and report.peak_inflight == [2 * p + 1] * p


@MODEST
@given(st.sampled_from(("1f1b", "zb-h1", "zb-h2", "zb-v", "interleaved-1f1b", "looped-bfs")), ranks, st.integers(1, 3), times, short)
def test_no_schedule_beats_its_bounds(name: str, p: int, turns: int, t: tuple[float, float, float], c: float) -> None:
    """The work of a rank after the first forward can reach it; and more time for anything never makes a fixed order faster."""
    m = p * turns
    report = timed(name, p, m, t, c)
    assert report.makespan is not None and report.bubble_span is not None and report.bubble_makespan is not None
    assert report.makespan >= m * sum(t) * (1 - 1e-12) and -1e-12 <= report.bubble_span <= report.bubble_makespan + 1e-12
    slower = (t[0], t[1] + 0.125, t[2])
    for later in (timed(name, p, m, slower, c), timed(name, p, m, t, c + 0.01)):
        assert later.makespan is not None and later.makespan >= report.makespan * (1 - 1e-12)
