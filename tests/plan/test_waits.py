"""Ranks that come to a collective at different times."""

from __future__ import annotations

import pytest

from parasim.cost.profile import datasheet
from parasim.errors import Malformed
from parasim.plan.waits import waits
from parasim.topology.builders import ideal


def test_everyone_leaves_when_the_last_one_has_come_and_bytes_have_moved() -> None:
    """300 MB over 4 ranks at 450 GB/s: 2 x 3/4 x 300e6 / 450e9 = 1 ms after the last one, who comes at 3 ms."""
    found = waits(ideal(4, 0.0, 450e9), datasheet(), "all_reduce", 300_000_000, (0.0, 1e-3, 2e-3, 3e-3))
    assert found.leaves == pytest.approx([4e-3] * 4)
    assert found.waiting == pytest.approx([3e-3, 2e-3, 1e-3, 0.0])
    assert found.to_json()["elapsed_s"] == pytest.approx([4e-3, 3e-3, 2e-3, 1e-3])
    assert "rank 3: comes 3 ms, leaves 4 ms" in str(found)


def test_a_barrier_moves_nothing() -> None:
    found = waits(ideal(3, 1e-6), datasheet(), "barrier", 0, (0.0, 2.0, 1.0))
    assert found.leaves == pytest.approx([2.0] * 3, abs=1e-4) and found.waiting == pytest.approx([2.0, 0.0, 1.0])


@pytest.mark.parametrize(("op", "nbytes"), [("all_gather", 400_000_000), ("reduce_scatter", 400_000_000), ("all_to_all", 400_000_000)])
def test_bytes_are_those_of_the_larger_buffer(op: str, nbytes: int) -> None:
    """(n-1)/n of the larger buffer: 3/4 x 400e6 / 300e9 = 1 ms."""
    assert waits(ideal(4, 0.0, 300e9), datasheet(), op, nbytes, (0.0,) * 4).leaves == pytest.approx([1e-3] * 4)


def test_one_rank_does_not_wait() -> None:
    with pytest.raises(Malformed, match="2 ranks"):
        waits(ideal(2, 0.0), datasheet(), "barrier", 0, (0.0,))
