"""Orders of the schedules against the tables that torch prints, and what they refuse."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import CLASSES, INDEX, TABLES, table

from parasim.errors import InvalidLayout
from parasim.schedules import SCHEDULES, ScheduleInput, orders_of
from parasim.schedules.table import Table
from parasim.schedules.validate import violations


@pytest.mark.parametrize("instance", TABLES, ids=lambda t: t["compute"])
def test_orders_equal_the_tables_torch_prints(instance: dict[str, Any]) -> None:
    """Idle cells and REDUCE_GRAD are no part of an order; 1F1B with its last rank's forward numbers put right."""
    given = ScheduleInput(instance["p"], instance["m"], instance["v"])
    assert SCHEDULES[CLASSES[instance["schedule"]]](given) == table(instance.get("compute_fixed", instance["compute"])).orders


@pytest.mark.parametrize("instance", INDEX["rejected"], ids=lambda t: f"{t['schedule']}-p{t['p']}-v{t['v']}-m{t['m']}")
def test_what_torch_refuses_is_refused(instance: dict[str, Any]) -> None:
    """Except 1F1B with fewer microbatches than ranks, which every other definition of it allows."""
    name, given = CLASSES[instance["schedule"]], ScheduleInput(instance["p"], instance["m"], instance["v"])
    if name == "1f1b":
        assert violations(Table.of(SCHEDULES[name](given))) == ()
        return
    with pytest.raises(InvalidLayout, match=rf"microbatches={instance['m']} must be .*nearest legal: \d+"):
        SCHEDULES[name](given)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.sampled_from(sorted(SCHEDULES)), st.integers(1, 8), st.integers(1, 4), st.integers(1, 18), st.none() | st.integers(1, 18))
def test_every_order_is_valid_or_refused(name: str, p: int, v: int, m: int, group: int | None) -> None:
    """Each F, B or I + W once, on the rank of the placement, in an order without a circle of waits."""
    row = SCHEDULES[name]
    chunks = row.chunks if row.fixed else v
    try:
        orders = orders_of(name, ScheduleInput(p, m, chunks, group if "group" in row.knobs else None))
    except InvalidLayout as refusal:
        assert "legal" in str(refusal) and name in ("interleaved-1f1b", "zb1p-interleaved", "dualpipe", "dualpipe-v")
        return
    assert violations(Table.of(orders), row.placement) == ()


REFUSALS: list[tuple[str, ScheduleInput, str]] = [
    ("interleaved-1f1b", ScheduleInput(4, 8, 2, 3), "group=3 must be from the 4 ranks to the 8 microbatches .*nearest legal: 4"),
    ("interleaved-1f1b", ScheduleInput(4, 9, 2, 4), "group=4 .* leave none or at least 4 of them over; nearest legal: 5"),
    ("interleaved-1f1b", ScheduleInput(4, 9, 2), "microbatches=9 must be a multiple of the 2 rounds .*nearest legal: 8, 10; or a group of 5"),
    ("dualpipe", ScheduleInput(3, 8, 2), "ranks=3 must be even.*nearest legal: 2, 4"),
    ("dualpipe", ScheduleInput(4, 9, 2), "microbatches=9 must be even and at least 2 x ranks = 8; nearest legal: 8, 10"),
    ("dualpipe-v", ScheduleInput(4, 7, 2), "microbatches=7 must be at least the 8 stages; nearest legal: 8"),
    ("zb-v", ScheduleInput(4, 8, 1), "chunks=1 is not what this schedule has, 2 stages per rank; legal: 2"),
    ("1f1b", ScheduleInput(4, 8, 2), "chunks=2 .* legal: 1"),
    ("gpipe", ScheduleInput(0, 8), "ranks=0 must be at least 1"),
    ("zb-h1", ScheduleInput(4, 8, group=4), "group=4 means nothing to zb-h1; .*interleaved-1f1b, zb1p-interleaved"),
    ("1f1b", ScheduleInput(4, 8, memory_cap=4), "memory_cap=4 means nothing to 1f1b"),
]


@pytest.mark.parametrize(("name", "given", "message"), REFUSALS, ids=lambda x: str(x)[:40])
def test_refusals_name_rule_and_way_out(name: str, given: ScheduleInput, message: str) -> None:
    with pytest.raises(InvalidLayout, match=message):
        orders_of(name, given)


def test_only_schedules_of_two_halves_turn_their_backwards() -> None:
    assert [str(a) for a in orders_of("gpipe", ScheduleInput(1, 2), "decreasing")[0]] == ["0F0", "0F1", "0B1", "0B0"]
    assert [str(a) for a in orders_of("looped-bfs", ScheduleInput(1, 2), "increasing")[0]] == ["0F0", "0F1", "0B0", "0B1"]
    with pytest.raises(InvalidLayout, match=r"backward_order=decreasing cannot be had of 1f1b.*gpipe, looped-bfs"):
        orders_of("1f1b", ScheduleInput(2, 4), "decreasing")


def test_a_warm_up_longer_than_all_forwards_is_capped() -> None:
    """p = 8, v = 4, m = 2: 8 forwards per rank, but a warm-up of 2 (7 - r) + 3 x 2."""
    assert [a.kind for a in SCHEDULES["interleaved-1f1b"](ScheduleInput(8, 2, 4))[0]] == ["F"] * 8 + ["B"] * 8  # type: ignore[union-attr]
