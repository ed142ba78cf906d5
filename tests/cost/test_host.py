"""The host launches kernels ahead of the device: a body takes at least its launches, and short kernels hide behind long ones before them."""

from __future__ import annotations

import pytest

from parasim.cost.profile import datasheet, read_profile
from parasim.cost.timing import body_seconds
from parasim.program.ops import Collective, Compute, Kernel, Label, Op

LAUNCH = 10.0


def op(*seconds: float) -> Compute:
    kernels = tuple(Kernel("delay", (), (), (s,), "fp32") for s in seconds)
    return Compute(label=Label("F"), stream="compute", kernels=kernels)


def times(*body: Op, launch: float = LAUNCH) -> list[float]:
    return body_seconds(body, lambda kernel: float(kernel.dims[0]), datasheet(), launch)


def test_long_kernels_hide_the_launches_of_what_follows() -> None:
    assert times(op(100), op(1), op(1)) == [100, 1, 1]  # handed over at 10, 20 and 30, while the first one runs


def test_short_kernels_wait_for_their_launch() -> None:
    """Handed over at 10, 20 and 30: the device ends then, but for the long one, which starts at 20 after what came before."""
    assert times(op(1), op(1), op(1)) == [10, 10, 10]
    assert times(op(1), op(100), op(1)) == [10, 100, 1]
    assert times(op(1, 1, 1), op(100)) == [30, 100]  # one op of three kernels


def test_a_body_takes_as_long_as_its_launches_or_its_kernels() -> None:
    body = [op(3), op(40), op(2), op(2), op(2)]
    assert sum(times(*body)) == pytest.approx(max(5 * LAUNCH, 10 + 40 + 2 + 2 + 2))  # the first kernel is there after 10
    assert sum(times(*body, launch=0.0)) == 49


def test_transfers_are_launched_too_and_nothing_is_not() -> None:
    moved = Collective(label=Label("F"), stream="tp", op="all_reduce", group="tp", reads=(), writes=())
    assert times(moved, moved, op(1)) == [0, 0, 30]
    assert times(op(0), op(1)) == [0, 10]  # a kernel without time is a view


def test_the_overhead_of_an_op_is_the_devices() -> None:
    profile = read_profile({"name": "p", "numbers": {"compute.op_overhead": {"value": "2 s", "source": "test", "status": "assumed"}}}, "p")
    assert body_seconds([op(5), op(5)], lambda k: float(k.dims[0]), profile, 0.0) == [7, 7]
