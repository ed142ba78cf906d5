"""Orders, makespans, spans and peaks of the schedules against tables of other programs and closed forms."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from parasim import time_schedule
from parasim.schedules import SCHEDULES, ScheduleInput

DATA = Path(__file__).parent.parent / "data" / "schedules"
ROWS = [json.loads(line) for line in (DATA / "makespan.jsonl").read_text().splitlines()]
NAMES = {"GPipe": "gpipe", "1F1B": "1f1b"}
# Idle cells and REDUCE_GRAD are no actions of a schedule.
ACTION = re.compile(r"\d+[FBIW]\d+")


@pytest.mark.parametrize("row", ROWS, ids=lambda r: f"{r['schedule']}-p{r['p']}-m{r['m']}-{r['TF']},{r['TB']},{r['TW']}-c{r['Tcomm']}")
def test_makespans_starts_ends_and_peaks(row: dict) -> None:
    """Rows computed by two independent evaluators: makespan, rank starts and ends to 1e-9, bubbles to 1e-8 (rounded to 9 decimals there)."""
    report, _ = time_schedule(row["schedule"], row["p"], row["m"], times=(row["TF"], row["TB"], row["TW"]), comm=row["Tcomm"])
    assert report.makespan == pytest.approx(row["makespan"], rel=1e-9)
    assert report.rank_start == pytest.approx(row["rank_start"], rel=1e-9, abs=1e-12)
    assert report.rank_end == pytest.approx(row["rank_end"], rel=1e-9)
    assert report.bubble_makespan == pytest.approx(row["bubble_ratio"], abs=1e-8)
    assert report.bubble_span == pytest.approx(row["bubble_ratio_span"], abs=1e-8)
    assert report.bubble_over_ideal == pytest.approx(row["bubble_over_ideal"], abs=1e-8)
    assert report.peak_inflight == row["peak_inflight_per_rank"]
    assert report.peak_inflight_to_input_grad == row["peak_inflight_to_inputgrad_per_rank"]


@pytest.mark.parametrize("table", sorted(DATA.glob("*.csv")), ids=lambda p: p.name)
def test_orders_equal_the_tables_torch_prints(table: Path) -> None:
    """torch.distributed.pipelining 2.13 (1F1B with its last rank's forward numbers put right)."""
    schedule, p, m = re.match(r"(\w+?)_p(\d+)_v1_m(\d+)", table.name).groups()  # type: ignore[union-attr]
    orders = SCHEDULES[NAMES[schedule]](ScheduleInput(int(p), int(m)))
    expected = [[c for c in line.strip().split(",") if ACTION.fullmatch(c)] for line in table.read_text().splitlines()]
    assert [[str(a) for a in orders[r]] for r in range(int(p))] == expected


@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
def test_the_bubble_of_four_ranks(name: str) -> None:
    """(m + p - 1) (F + I + W) = (8 + 3) 3 = 33."""
    assert time_schedule(name, 4, 8)[0].makespan == pytest.approx(33, rel=1e-12)


def test_a_slow_last_stage_sets_the_pace() -> None:
    """Sum of the stages + (m - 1) x the slowest: (1 + 1 + 1 + 2) 3 + 7 x 6 = 57; m times the mean would say 48."""
    assert time_schedule("1f1b", 4, 8, scale=(1, 1, 1, 2))[0].makespan == pytest.approx(57, rel=1e-12)
