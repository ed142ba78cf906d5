"""tests/reported.md: every fault is there once, and every test that it names exists."""

from __future__ import annotations

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
ROW = re.compile(r"^\| ([\w.-]+#\d+) \| (.+?) \| (.+?) \|$", re.MULTILINE)
# what concerns schedules, lowering, memory or layouts: none of these may go without a test
DUE = re.findall(
    r"\S+",
    """
    pytorch#178815 pytorch#165664 PiPPy#1064 ColossalAI#2156 PiPPy#1081 pytorch#127332 PiPPy#1088 Megatron-LM#5100 Megatron-LM#5240 torchtitan#1186
    pytorch#155935 pytorch#142211 torchtitan#774 zero-bubble#72 torchtitan#545 zero-bubble#73 pytorch#130752 Megatron-LM#950 pytorch#138119
    pytorch#128910 marin#6532 zero-bubble#8 DualPipe#23 PP-Schedule-Visualization#1 torchtitan#2209 Megatron-LM#169 DeepSpeed#373 Megatron-LM#827
    SimAI#90 zero-bubble#21 DualPipe#17 pytorch#172668 pytorch#188833 pytorch#152938 pytorch#160474 nnscaler#30
    DeepSpeed#4527 DeepSpeed#5305 Megatron-Bridge#5077 llm-analysis#27 torchtitan#191 SimAI#298 SimAI#208 Megatron-LM#7488 SimAI#263 SimAI#190
    """,
)


class Reported(NamedTuple):
    """A row: the report, what goes wrong, the tests."""

    report: str
    fault: str
    tests: tuple[str, ...]


def reported() -> list[Reported]:
    return [Reported(report, fault, tuple(tests.split())) for report, fault, tests in ROW.findall((ROOT / "tests" / "reported.md").read_text())]


@cache
def functions(path: str) -> frozenset[str]:
    """Test functions of a file; empty where there is no such file."""
    file = ROOT / path
    if not file.is_file():
        return frozenset()
    return frozenset(n.name for n in ast.parse(file.read_text()).body if isinstance(n, ast.FunctionDef) and n.name.startswith("test_"))


def test_every_fault_has_tests_that_exist() -> None:
    missing = [(row.report, node) for row in reported() for node in row.tests if node.partition("::")[2] not in functions(node.partition("::")[0])]
    assert missing == []


def test_no_fault_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    rows = reported()
    twice = [r for r, n in Counter(row.report for row in rows).items() if n > 1]
    assert twice == [] and sorted(set(DUE) - {row.report for row in rows}) == []
    lines = [x for x in (ROOT / "tests" / "reported.md").read_text().splitlines() if x.startswith("| ") and "#" in x]
    assert len(lines) == len(rows)  # no row that the pattern passes over
    with capsys.disabled():
        print(f"\n{len(rows)} reported faults, {len(DUE)} of schedules, lowering, memory and layouts, {len({n for r in rows for n in r.tests})} tests")
