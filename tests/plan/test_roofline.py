"""Closed forms of the scaling book's training chapter."""

from __future__ import annotations

import pytest

from parasim.errors import Malformed
from parasim.plan.roofline import roofline


def test_two_transfers_in_turn_and_at_once() -> None:
    """alpha = 460e12 / 180e9; F/(Y Mx) + B/(X My) < B F/(N alpha) with X 16 on two axes, Y 4 on one, F 53248: B/N = 395.34; at once alpha/(Mx Y)."""
    found = roofline("460TFLOP/s", "180GB/s", 53248, "16x2", "4x1").to_json()
    alpha = 460e12 / 180e9
    tokens = 53248 / 8 / (53248 / (64 * alpha) - 1 / 16) / 64
    assert found["one_after_the_other"]["per_device"] == pytest.approx(tokens) == pytest.approx(395.339228)
    assert found["one_after_the_other"]["whole_in_all"] == 396 * 64 and found["at_once"]["per_device"] == pytest.approx(alpha / 8)


def test_the_best_split_needs_least() -> None:
    best = roofline("460TFLOP/s", "180GB/s", 53248, "16x2", "4x1").best()
    x = best["fsdp_ways"]
    assert best["fsdp_ways"] * best["tensor_ways"] == pytest.approx(64)

    def needed(ways: float) -> float:  # the inequality of the first test at X = ways
        alpha = 460e12 / 180e9
        return 53248 / (64 / ways * 2) / (53248 / (64 * alpha) - 1 / ways) / 64

    assert needed(x) == pytest.approx(best["tokens_per_device"]) and min(needed(x * 0.9), needed(x * 1.1)) > needed(x)


def test_tensor_parallelism_that_never_hides() -> None:
    found = roofline("459TFLOP/s", "180GB/s", 4096, "16x1", "4x1")
    assert found.one_after_the_other is None and found.at_once is None and "no number of" in str(found)


@pytest.mark.parametrize(("peak", "fsdp"), [("1TFLOP/s", "16"), ("0TFLOP/s", "16x1"), ("1TFLOP/s", "0x1")])
def test_what_is_refused(peak: str, fsdp: str) -> None:
    with pytest.raises(Malformed):
        roofline(peak, "180GB/s", 1024, fsdp, "1x1")
