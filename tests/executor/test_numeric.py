"""Every layout trains to the parameters of one process on the whole batch; a Program that lost a reduction does not."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from validation.numeric import CASES, CONTROLS, TOLERANCE, prove

pytestmark = pytest.mark.processes


@pytest.mark.parametrize("name", list(CASES))
def test_parameters_equal_one_process(name):
    proof = prove(name)
    assert proof.worst <= TOLERANCE, proof.where
    assert proof.left == ()


@pytest.mark.parametrize("title", list(CONTROLS))
def test_a_lost_transfer_shows_in_the_numbers(title):
    name, change = CONTROLS[title]
    assert prove(name, change).worst > 1e-3  # a step is about the learning rate, 1e-2
