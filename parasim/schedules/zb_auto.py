"""Zero bubble by search (Qi et al. 2023, arXiv 2401.10241, section 3): split backwards placed by the times of F, I, W and messages under a memory cap."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, product
from math import inf

from .actions import Orders, ScheduleInput, Times, peak_inflight, refused
from .one_f_one_b import one_f_one_b
from .zb_greedy import Taste, greedy
from .zb_h1 import zb_h1
from .zb_h2 import zb_h2
from .zb_timing import span_and_makespan, times_of


def zb_auto(given: ScheduleInput) -> Orders:
    """The candidate with the shortest longest rank, then the shortest makespan; within the cap, and never slower than 1F1B where that fits.

    Candidates: 1F1B, ZB-H1, ZB-H2 and eight greedy orders, until one cannot be bettered. Without a cap every microbatch may be in flight,
    without times F = I = W.
    """
    times, caps = times_of(given), _caps(given)
    bound, plain = _bound(given, times), one_f_one_b(given)
    limit = span_and_makespan(plain, times, given.comm)[1] if _fits(plain, caps) else inf
    best: tuple[tuple[float, float], Orders] | None = None
    for orders in _candidates(given, times, caps):
        timed = span_and_makespan(orders, times, given.comm)
        if timed[1] <= limit and (best is None or timed < best[0]):
            best = timed, orders
            if all(seconds <= least * (1 + 1e-12) for seconds, least in zip(timed, bound, strict=True)):
                break
    assert best is not None  # a greedy order keeps any cap
    return best[1]


def _candidates(given: ScheduleInput, times: Sequence[Times], caps: list[int]) -> Iterator[Orders]:
    """Those that keep the caps."""
    for orders in (one_f_one_b(given), zb_h1(given), zb_h2(given)):
        if _fits(orders, caps):
            yield orders
    for taste in product((False, True), repeat=3):
        yield greedy(given, times, caps, Taste(*taste))


def _bound(given: ScheduleInput, times: Sequence[Times]) -> tuple[float, float]:
    """What no order betters: the longest work of a rank, and the latest end when each rank works without a pause from its first input on."""
    work = [given.microbatches * sum(t) for t in times]
    arrival = [0.0, *accumulate(t[0] + given.comm for t in times)]
    return max(work), max(a + w for a, w in zip(arrival, work, strict=False))


def zb_1p(given: ScheduleInput) -> Orders:
    """zb-auto with the memory of 1F1B: p microbatches in flight on every rank."""
    return zb_auto(replace(given, memory_cap=given.ranks))


def zb_2p(given: ScheduleInput) -> Orders:
    """zb-auto with twice the memory of 1F1B: 2 p microbatches in flight on every rank."""
    return zb_auto(replace(given, memory_cap=2 * given.ranks))


def _caps(given: ScheduleInput) -> list[int]:
    """Whole microbatches that every rank may hold. Raises InvalidLayout for less than one."""
    cap = given.memory_cap
    if isinstance(cap, tuple) and len(cap) != given.ranks:
        raise refused("memory_cap", f"({len(cap)} numbers)", f"must be one number, or one for each of the {given.ranks} ranks")
    caps = cap if isinstance(cap, tuple) else [given.microbatches if cap is None else cap] * given.ranks
    for rank, number in enumerate(caps):
        if number < 1:
            raise refused("memory_cap", f"{number:g}", f"cannot fit one microbatch on rank {rank}", "nearest legal: 1")
    return [int(min(number, given.microbatches)) for number in caps]


def _fits(orders: Orders, caps: list[int]) -> bool:
    return all(peak_inflight(orders[rank]) <= cap for rank, cap in enumerate(caps))
