"""Rows of lectures through the real commands."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from validation.__main__ import app
from validation.lecture import judge, near, pick, table
from validation.predict import DATA
from validation.rows import read_rows

ROWS = {str(row["id"]): row for row in read_rows(DATA / "lecture.jsonl")}


@pytest.mark.parametrize("name", ["pp-peak-inflight", "zero-7.5b-64-stage2", "fsdp-exposed-example", "dp-limit"])
def test_rows_pass(name: str) -> None:
    judged = judge(ROWS[name])
    assert judged.verdict == "pass" and judged.values, judged


def test_a_wrong_row_misses_with_exit_code_1(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text((DATA / "lecture.jsonl").read_text().replace('"over_ideal": 0.375', '"over_ideal": 0.376'), encoding="utf-8")
    result = CliRunner().invoke(app, ["lecture", "--only", "pp-bubble-4-8", str(file)])
    assert result.exit_code == 1 and "1 miss" in result.stdout and "expected 0.376, obtained 0.375" in result.stdout


def test_every_entry_of_the_table_names_a_row_and_a_place_of_it() -> None:
    for entry in table()["rows"]:
        rows = [row for name, row in ROWS.items() if Path(name).match(entry["id"])]
        assert rows, entry["id"]
        places = [place for ask in entry["asks"] for place in ask["paths"]]
        assert all(pick(row["expected"], place) is not None for row in rows for place in places), entry["id"]
    assert all(any(Path(name).match(pattern) for name in ROWS) for pattern in table()["not_yet"])


def test_what_is_missing_is_not_near() -> None:
    assert not near(None, 1.0, {"rel": 0.1}) and not near([1], [1, 2], {"exact": True}) and near(1.05, 1.0, {"rel": 0.1})
