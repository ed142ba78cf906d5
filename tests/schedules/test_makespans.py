"""Times of schedules: rows of two independent evaluators, three communication models, deadlocks."""

from __future__ import annotations

from typing import Any

import pytest
from oracles import label, named, rows, table, torch_table

from parasim import time_schedule
from parasim.api import time_study
from parasim.lowering.study import Study
from parasim.report.schedules import ScheduleReport
from parasim.schedules import SCHEDULES, ScheduleInput

MODELS = {"async": "makespan_async_unlimited", "stream": "makespan_one_inorder_comm_stream", "blocking": "makespan_fully_blocking"}


def timed(row: dict[str, Any]) -> ScheduleReport:
    times, comm = (row["TF"], row["TB"], row["TW"]), row["Tcomm"]
    name = torch_table(row)
    if name is not None:
        return time_study(Study(table(name).orders, row["v"], times), comm)[0]
    schedule, knobs = named(row)
    return time_schedule(schedule, row["p"], row["m"], chunks=row["v"], times=times, comm=comm, **knobs)[0]


@pytest.mark.parametrize("row", rows("pp_makespan.jsonl"), ids=label)
def test_makespans_starts_ends_and_peaks(row: dict[str, Any]) -> None:
    """Makespan, rank starts and ends to 1e-9, bubbles to 1e-8 (rounded to 9 decimals there)."""
    report = timed(row)
    assert report.makespan == pytest.approx(row["makespan"], rel=1e-9)
    assert report.rank_start == pytest.approx(row["rank_start"], rel=1e-9, abs=1e-12)
    assert report.rank_end == pytest.approx(row["rank_end"], rel=1e-9)
    assert report.bubble_makespan == pytest.approx(row["bubble_ratio"], abs=1e-8)
    assert report.bubble_span == pytest.approx(row["bubble_ratio_span"], abs=1e-8)
    assert report.bubble_over_ideal == pytest.approx(row["bubble_over_ideal"], abs=1e-8)
    assert report.peak_inflight == row["peak_inflight_per_rank"]
    assert report.peak_inflight_to_input_grad == row["peak_inflight_to_inputgrad_per_rank"]


@pytest.mark.parametrize("row", rows("pp_commstream.jsonl"), ids=label)
def test_three_communication_models(row: dict[str, Any]) -> None:
    """The transfers of a table as they stand there; null is a deadlock, which names who waits where for whom."""
    given = table(row["table"])
    for model, key in MODELS.items():
        report, timeline = time_study(Study(given.orders, row["v"], (row["TF"], row["TB"], row["TW"]), (), model, given.steps), row["Tcomm"])
        if row[key] is None:
            assert timeline is None and report.deadlock is not None and report.makespan is None
            assert len(report.deadlock["ops"]) == len(report.deadlock["ranks"]) >= 2 and "SEND" in report.deadlock["cycle"]
        else:
            assert report.makespan == pytest.approx(row[key], rel=1e-9)


def test_a_deadlock_names_the_circle_of_waits() -> None:
    """Crossing sends on one stream: rank 0 sends F1 before it receives B0, rank 1 sends B0 before it receives F1."""
    given = table("Interleaved1F1B_p2_v1_m2.comms_defer.csv")
    report, _ = time_study(Study(given.orders, comm="stream", table=given.steps), 0.1)
    assert report.deadlock == {
        "ranks": [0, 0, 1, 1],
        "ops": ["0B0", "0SEND_F1", "1SEND_B0", "1F1"],
        "cycle": "rank 0 at 0SEND_F1 waits for rank 1 at 1SEND_B0, rank 1 at 1SEND_B0 waits for rank 0 at 0SEND_F1",
    }
    assert time_study(Study(given.orders, comm="async", table=given.steps), 0.1)[0].makespan == pytest.approx(9.2)


def test_head_of_line_blocking() -> None:
    """Receives on the stream of the sends hold them up: 62.7 instead of 53.9 s (pytorch pull request 165664)."""
    given = table("Interleaved1F1B_p4_v2_m16.comms.csv")
    spans = [time_study(Study(given.orders, 2, comm=model, table=given.steps), 0.1)[0].makespan for model in ("async", "stream")]
    assert spans == pytest.approx([53.9, 62.7])


@pytest.mark.parametrize("name", sorted(SCHEDULES))
def test_no_schedule_deadlocks_by_itself(name: str) -> None:
    """Messages that the study places can be run even as blocking rendezvous, and are never faster than without queues."""
    row = SCHEDULES[name]
    for p, m, chunks in ((2, 4, 1), (4, 8, 2), (6, 12, 3)):
        chunks = row.chunks if row.fixed else chunks
        free, *queued = (time_schedule(name, p, m, chunks=chunks, comm=0.1, comm_model=model)[0].makespan for model in MODELS)
        assert free is not None and all(q is not None and q >= free * (1 - 1e-12) for q in queued)


@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
def test_the_bubble_of_four_ranks(name: str) -> None:
    """(m + p - 1) (F + I + W) = (8 + 3) 3 = 33."""
    assert time_schedule(name, 4, 8)[0].makespan == pytest.approx(33, rel=1e-12)


def test_a_slow_last_stage_sets_the_pace() -> None:
    """Sum of the stages + (m - 1) x the slowest: (1 + 1 + 1 + 2) 3 + 7 x 6 = 57; m times the mean would say 48."""
    assert time_schedule("1f1b", 4, 8, scale=(1, 1, 1, 2))[0].makespan == pytest.approx(57, rel=1e-12)


@pytest.mark.parametrize("name", ["naive", "gpipe"])
def test_one_microbatch(name: str) -> None:
    """4 (F + I + W) + 2 x 3 c (PiPPy issue 1064)."""
    assert time_schedule(name, 4, 1, comm=0.1)[0].makespan == pytest.approx(4 * 3 + 6 * 0.1)


def test_warm_up_starts_as_early_as_data_allow() -> None:
    """Rank 1 of 1F1B starts at F + c, not one forward later (zero-bubble issue 73)."""
    assert time_schedule("1f1b", 4, 8, comm=0.25)[0].rank_start == pytest.approx([0, 1.25, 2.5, 3.75])


def test_a_schedule_input_is_all_a_schedule_sees() -> None:
    assert SCHEDULES["1f1b"](ScheduleInput(1, 1)) == {0: [("F", 0, 0), ("B", 0, 0)]}
