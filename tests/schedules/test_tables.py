"""Tables in torch's form: read, checked, written back."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import BAD, COMMS, TABLES, TORCH, table

from parasim.errors import Malformed, Unparsable
from parasim.schedules import BIDIRECTIONAL, LOOP, SCHEDULES, VEE, Action, Pair, ScheduleInput
from parasim.schedules.table import StateChange, Table, Transfer, parse_table, read_table
from parasim.schedules.validate import placement_of, violations


@pytest.mark.parametrize("name", [*COMMS, *(t.get("compute_fixed", t["compute"]) for t in TABLES)])
def test_every_sound_table_passes_and_comes_back_byte_for_byte(name: str) -> None:
    assert violations(table(name)) == ()
    assert table(name).text().encode() == (TORCH / name).read_bytes()


@pytest.mark.parametrize("instance", BAD, ids=lambda t: t["compute"])
def test_known_bad_tables_are_refused(instance: dict[str, Any]) -> None:
    """The last rank's forwards are numbered 1 to m: its first backward has no forward, its last forward no microbatch."""
    (rank,), m = instance["known_bad_rows"], instance["m"]
    found = [str(v) for v in violations(table(instance["compute"]))]
    assert found[0] == f"rank {rank}={rank}F{m} (stage {rank}, microbatch {m}) is of a microbatch out of range: stages have {m} forwards; legal: 0 to {m - 1}"
    assert any(f"{rank}B0 (stage {rank}, microbatch 0) comes before {rank}F0 on stage {rank}" in text for text in found)


def test_cells() -> None:
    parsed = parse_table("0F0,1I3,,(0F3;3B1)OVERLAP_F_B\n0UNSHARD,2W5,0REDUCE_GRAD\r\n")
    assert parsed.rows == (
        (Action("F", 0, 0), Action("I", 1, 3), None, Pair(Action("F", 0, 3), Action("B", 3, 1))),
        (StateChange("UNSHARD", 0), Action("W", 2, 5), StateChange("REDUCE_GRAD", 0)),
    )
    send = Transfer("SEND", "F", 0, 2)
    assert parse_table("0SEND_F2,1RECV_F2,3SEND_B2,2RECV_B2").rows[0] == (
        send,
        *(Transfer(*x) for x in (("RECV", "F", 1, 2), ("SEND", "B", 3, 2), ("RECV", "B", 2, 2))),
    )
    assert (send.source, send.target) == (0, 1)
    assert (Transfer("RECV", "B", 2, 2).source, Transfer("RECV", "B", 2, 2).target) == (3, 2)


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("0F0,0F0junk", "1:5"),
        ("0F0;1F0", "1:1"),
        ("0F0\r\n1F0,1X0", "2:5"),
        ("0F", "1:1"),
        ("0UNSHARD3", "1:1"),
        ("-1F0", "1:1"),
        ("0f0", "1:1"),
        ("0SEND_W0", "1:1"),
        ("(0F0;0B0)", "1:1"),
        ("(0F0)OVERLAP_F_B", "1:1"),
        ("(0F0;0F1)OVERLAP_F_B", "1:1"),
        ("(0B0;0F1)OVERLAP_F_B", "1:1"),
        ("0F0,(0F1;0B0;0W0)OVERLAP_F_B", "1:5"),
        ("0F0,,0SEND_F0\n1RECV_F0", "1:5"),
    ],
)
def test_what_is_no_table_is_told_by_line_and_column(text: str, where: str) -> None:
    with pytest.raises(Unparsable, match=f"^t.csv:{where}: "):
        parse_table(text, "t.csv")


def test_files_that_are_missing_empty_or_no_text(tmp_path: Path) -> None:
    with pytest.raises(Malformed, match="cannot be read"):
        read_table(tmp_path / "none.csv")
    for content, message in ((b"", "is empty"), (b"\r\n\r\n", "is empty"), (b"\xff\xfe0F0", "is not UTF-8")):
        (tmp_path / "t.csv").write_bytes(content)
        with pytest.raises(Unparsable, match=message):
            read_table(tmp_path / "t.csv")


WRONG: list[tuple[str, str]] = [
    ("0F0,0F0,0B0", r"stage 0, microbatch 0 has 2 forwards|microbatch"),
    ("0F0,0F1,0B0,0I1,0W1,0B1", r"stage 0, microbatch 1 has 1 B, 1 I and 1 W; due: one 0B1, or one 0I1 and one 0W1"),
    ("0F0,0I0", r"stage 0, microbatch 0 has 0 B, 1 I and 0 W"),
    ("0F0,0I0,0W0,0W0", r"has 0 B, 1 I and 2 W"),
    ("0F0,0W0,0I0", r"rank 0=0W0 \(stage 0, microbatch 0\) comes before 0I0"),
    ("0B0,0F0", r"rank 0=0B0 .* comes before 0F0"),
    ("0F0,0B0,0B5", r"rank 0=0B5 \(stage 0, microbatch 5\) is of a microbatch out of range.*legal: 0 to 0"),
    ("0F0,0B0,2F0,2B0", r"stage 1=no action is missing, but there is a stage 2"),
    ("0F0,0B0\n1F0,1B0\n", ""),
    ("0F0,0B0\n\n1F0,1B0", r"rank 1=an empty row has no computation"),
    ("0F0,0B0,2F0,2B0\n1F0,1B0", r"stages=3 must be a multiple of the 2 ranks"),
    ("1F0,1B0\n0F0,0B0", r"rank 0=1F0 .*is on the wrong rank: stage 1 of placement loop is on rank 1"),
    ("0F0,0B0,3F0\n1F0,1B0,2F0,2B0,3B0", r"rank 1=3B0 \(stage 3, microbatch 0\) is on the wrong rank: stage 3 of placement V is on rank 0"),
    ("0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0", r"rank 1=1SEND_B0 .*is missing: its partner is 0RECV_B0"),
    ("0F0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0", r"rank 0=0SEND_F0 .*is missing: its partner is 1RECV_F0"),
    ("0SEND_F0,0F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0", r"rank 0=0SEND_F0 .*comes before 0F0, which makes it"),
    ("0F0,0SEND_F0,0B0,0RECV_B0\n1RECV_F0,1F0,1B0,1SEND_B0", r"rank 0=0RECV_B0 .*comes after 0B0, which needs it"),
    ("0F0,0SEND_F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0", r"rank 0=0SEND_F0 .*is there twice"),
    ("0F0,0SEND_F0,0RECV_B0,0B0,0SEND_B0\n1RECV_F0,1F0,1B0,1SEND_B0", r"rank 0=0SEND_B0 .*is no message between neighbouring stages"),
    ("0F0,0B0,0F1,0B1\n1F1,1F0,1B1,1B0", r"cycle=rank \d at .* wait for each other in a circle"),
]


@pytest.mark.parametrize(("text", "message"), WRONG)
def test_tables_that_torch_lets_pass(text: str, message: str) -> None:
    """Rank, stage and microbatch are named."""
    found = [str(v) for v in violations(parse_table(text))]
    assert any(re.search(message, f) for f in found) if message else found == []


def test_an_order_for_a_v_is_refused_in_a_loop() -> None:
    orders = SCHEDULES["zb-v"](ScheduleInput(4, 8, 2))
    assert violations(Table.of(orders), VEE) == ()
    found = violations(Table.of(orders), LOOP)
    assert str(found[0]).startswith("rank 0=7F0 (stage 7, microbatch 0) is on the wrong rank: stage 7 of placement loop is on rank 3")


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.sampled_from(sorted(SCHEDULES)), st.integers(1, 3).map(lambda k: 2 * k), st.integers(2, 3))
def test_every_schedule_comes_back_from_its_table(name: str, p: int, turns: int) -> None:
    row = SCHEDULES[name]
    orders = row(ScheduleInput(p, p * turns, row.chunks))
    back = parse_table(Table.of(orders).text())
    assert back.orders == orders
    assert placement_of(back.orders) == row.placement or p == 1


def test_the_two_directions_of_dualpipe_are_told_apart() -> None:
    assert placement_of(SCHEDULES["dualpipe"](ScheduleInput(4, 8, 2))) == BIDIRECTIONAL


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.sampled_from(COMMS[:40]), st.data())
def test_a_damaged_table_is_refused(name: str, data: st.DataObject) -> None:
    """Drop, double or renumber any computation or transfer: never accepted."""
    rows = [list(row) for row in table(name).rows]
    rank = data.draw(st.integers(0, len(rows) - 1))
    able = [at for at, c in enumerate(rows[rank]) if isinstance(c, Action | Transfer)]
    at = data.draw(st.sampled_from(able))
    cell = rows[rank][at]
    assert isinstance(cell, Action | Transfer)
    damage = data.draw(st.sampled_from(("drop", "double", "renumber", "restage")))
    other = {"drop": [], "double": [cell, cell], "renumber": [cell._replace(microbatch=99)], "restage": [cell._replace(stage=cell.stage + 1)]}[damage]
    rows[rank][at : at + 1] = other
    assert violations(Table(tuple(map(tuple, rows)))) != ()


def test_a_send_before_what_it_sends_is_no_valid_order() -> None:
    """Swapping any two neighbours keeps the table valid or is refused: what is valid can be resolved and timed."""
    given = table("ZBVZeroBubble_p2_v2_m4.comms.csv")
    refused = 0
    for rank, row in enumerate(given.rows):
        for at, (a, b) in enumerate(pairwise(row)):
            swapped = [*row[:at], b, a, *row[at + 2 :]]
            refused += bool(violations(Table(tuple(tuple(swapped) if r == rank else x for r, x in enumerate(given.rows)))))
    assert 0 < refused < sum(map(len, given.rows))
