"""`parasim schedule` as a user types it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from oracles import TORCH

Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture
def schedule(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """schedule(...) runs `parasim schedule ...` in an empty directory."""
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: cli("schedule", *arguments)


def test_a_table_is_timed_and_written_back(schedule: Cli, tmp_path: Path) -> None:
    """Row `torch:ZBVZeroBubble` p 4, m 10 of the evaluators: 30 + F / 2 x 3 = 31.5."""
    given = TORCH / "ZBVZeroBubble_p4_v2_m10.comms.csv"
    code, out, _ = schedule("--csv", str(given), "--write-csv", "new/back.csv", "--json")
    answer = json.loads(out)
    assert code == 0 and answer["makespan"] == 31.5 and answer["deadlock"] is None and answer["orders"][3][:2] == ["3F0", "4F0"]
    assert (tmp_path / "new" / "back.csv").read_bytes() == given.read_bytes()


def test_a_schedule_is_written_as_a_table(schedule: Cli, tmp_path: Path) -> None:
    assert schedule("--name", "1f1b", "--ranks", "2", "--microbatches", "2", "--write-csv", str(tmp_path / "t.csv"))[0] == 0
    assert (tmp_path / "t.csv").read_bytes() == b"0F0,0F1,0B0,0B1\r\n1F0,1B0,1F1,1B1\r\n"


def test_a_deadlock_is_an_answer(schedule: Cli) -> None:
    given = TORCH / "Interleaved1F1B_p2_v1_m2.comms_defer.csv"
    code, out, err = schedule("--csv", str(given), "--comm", "0.1", "--comm-model", "blocking", "--json")
    answer = json.loads(out)
    assert code == 1 and answer["makespan"] is None and "0SEND_F1" in err
    assert answer["deadlock"]["ranks"] == [0, 1] and answer["deadlock"]["ops"] == ["0SEND_F1", "1SEND_B0"]


def test_a_circular_table_is_a_deadlock_too(schedule: Cli, tmp_path: Path) -> None:
    """Two microbatches in opposite orders: torch's validator lets it pass."""
    (tmp_path / "t.csv").write_text("0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n")
    code, out, _ = schedule("--csv", "t.csv", "--json")
    deadlock = json.loads(out)["deadlock"]
    assert code == 1 and {"0B0", "1F1"} <= set(deadlock["ops"]) and "rank 0 at 0B0 waits for" in deadlock["cycle"]


def test_knobs(schedule: Cli) -> None:
    """Rows looped_bfs, gpipe_rev, dualpipe_v_seq and torch:Interleaved1F1B (m 7) of the evaluators, all with times of 1."""
    for arguments, makespan in (
        (("--name", "dualpipe-v", "--ranks", "4", "--microbatches", "8", "--pairs", "sequential"), 25.5),
        (("--name", "dualpipe-v", "--ranks", "4", "--microbatches", "8"), 27.0),
        (("--name", "gpipe", "--ranks", "4", "--microbatches", "8", "--backward-order", "decreasing"), 33.0),
        (("--name", "looped-bfs", "--ranks", "4", "--chunks", "2", "--microbatches", "8", "--backward-order", "increasing"), 28.5),
        (("--name", "interleaved-1f1b", "--ranks", "4", "--chunks", "2", "--microbatches", "7", "--group", "7"), 25.5),
    ):
        code, out, _ = schedule(*arguments, "--json")
        assert (code, json.loads(out)["makespan"]) == (0, makespan), arguments


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--csv", "bad.csv"), 1, "rank 0=0B0 (stage 0, microbatch 0) comes before 0F0"),
        (("--csv", "junk.csv"), 3, "junk.csv:1:5: '0B0x' is no action"),
        (("--csv", "empty.csv"), 3, "is empty"),
        (("--csv", "none.csv"), 2, "cannot be read"),
        (("--csv", "bad.csv", "--name", "1f1b", "--group", "2"), 2, "--csv does not go with --name, --group"),
        (("--ranks", "4", "--microbatches", "8"), 2, "give either --name, --ranks and --microbatches, or --csv"),
        (("--name", "zb-h3", "--ranks", "4", "--microbatches", "8"), 2, "zb-h1"),
        (("--name", "dualpipe", "--ranks", "4", "--microbatches", "8", "--pairs", "both"), 2, "pairs 'both' is unknown"),
        (("--name", "dualpipe", "--ranks", "3", "--microbatches", "8"), 1, "ranks=3 must be even"),
        (("--name", "1f1b", "--ranks", "4", "--microbatches", "8", "--backward-order", "up"), 2, "backward order 'up' is unknown"),
        (("--name", "1f1b", "--ranks", "4", "--microbatches", "8", "--comm-model", "x"), 2, "communication model 'x' is unknown"),
        (("--name", "1f1b", "--ranks", "2", "--microbatches", "2", "--write-csv", "junk.csv/t.csv"), 2, "cannot"),
        (("--name", "interleaved-1f1b", "--ranks", "2", "--microbatches", "2", "--chunks", "2", "--stage-scale", "1,2"), 2, "must be 4 numbers"),
    ],
)
def test_refusals(schedule: Cli, arguments: tuple[str, ...], code: int, message: str, tmp_path: Path) -> None:
    for name, text in (("bad.csv", "0B0,0F0\n"), ("junk.csv", "0F0,0B0x\n"), ("empty.csv", "")):
        (tmp_path / name).write_text(text)
    got, _, err = schedule(*arguments)
    assert got == code and message in err
