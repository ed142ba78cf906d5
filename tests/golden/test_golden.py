"""Every pinned shape is what its file says. A deliberate change: `python -m tests.golden.refresh`, and say so."""

from __future__ import annotations

import pytest

from .shapes import GOLDEN, HERE


@pytest.mark.parametrize("name", GOLDEN)
def test_shape_is_as_written(name: str) -> None:
    assert GOLDEN[name]() + "\n" == (HERE / name).read_text(encoding="utf-8"), f"deliberate? then: python -m tests.golden.refresh, and name {name}"


def test_no_file_is_left_over() -> None:
    assert {p.name for p in HERE.iterdir() if p.suffix in (".txt", ".json")} == set(GOLDEN)
