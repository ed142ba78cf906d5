"""Rows of lectures through the real commands."""

from __future__ import annotations

from fnmatch import fnmatch
from pathlib import Path

import pytest
from typer.testing import CliRunner

from validation.__main__ import app
from validation.lecture import covered, holds, judge, leaves, near, pick
from validation.lecture_rows import table
from validation.predict import DATA
from validation.rows import read_rows

ROWS = {str(row["id"]): row for row in read_rows(DATA / "lecture.jsonl")}


@pytest.mark.parametrize("name", ["pp-peak-inflight", "zero-7.5b-64-stage2", "fsdp-exposed-example", "dp-limit", "megatron-8x8"])
def test_rows_pass(name: str) -> None:
    judged = judge(ROWS[name])
    assert judged.verdict == "pass" and judged.values, judged


def test_a_wrong_row_misses_with_exit_code_1(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text((DATA / "lecture.jsonl").read_text().replace('"over_ideal": 0.375', '"over_ideal": 0.376'), encoding="utf-8")
    result = CliRunner().invoke(app, ["lecture", "--only", "pp-bubble-4-8", str(file)])
    assert result.exit_code == 1 and "1 miss" in result.stdout and "expected 0.376, obtained 0.375" in result.stdout


def test_every_entry_names_a_row_and_places_of_it() -> None:
    for entry in table():
        rows = [row for name, row in ROWS.items() if fnmatch(name, entry["id"])]
        assert rows, entry["id"]
        places = [place for ask in entry.get("asks", ()) for place in ask["paths"]]
        assert all(pick(row["expected"], place) is not None for row in rows for place in places), entry["id"]


def test_what_is_missing_is_not_near() -> None:
    assert not near(None, 1.0, {"rel": 0.1}) and not near([1], [1, 2], {"exact": True}) and near(1.05, 1.0, {"rel": 0.1})


def test_relations_that_rows_state_in_words() -> None:
    ask = {"holds": "ordered part"}
    assert holds(["gpu", "nic", "switch", "nic", "gpu"], ["gpu", "switch", "gpu"], ask, {}) and not holds(["gpu", "switch"], ["switch", "gpu"], ask, {})
    assert holds(["gpu", "nic"], ["cpu"], {"holds": "absent"}, {}) and not holds(["gpu", "cpu"], ["cpu"], {"holds": "absent"}, {})
    assert holds(0.4, [0.3, 0.6], {"holds": "between"}, {}) and not holds(None, [0.3, 0.6], {"holds": "between"}, {})
    assert holds(0.2, 0.25, {"holds": "at most"}, {}) and not holds(0.2, 0.25, {"holds": "at least"}, {})
    assert near(0.05, 0.1, {"max": 0.1}) and not near(4.9, 5.0, {"min": 5.0})


def test_a_value_that_nobody_asks_for_is_seen() -> None:
    places = leaves({"a": {"b": 1, "c": [2, 3]}, "d": 4})
    assert places == ["a/b", "a/c", "d"] and [covered(p, ["a/b", "d"]) for p in places] == [True, False, True] and covered("a/b", [""])
