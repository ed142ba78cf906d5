"""Every layout trains to the parameters of one process on the whole batch; a Program that lost a reduction does not."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

pytest.importorskip("torch")

from parasim.errors import Failed
from validation.numeric import CASES, CONTROLS, TOLERANCE, Proof, proofs

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def proven(request: pytest.FixtureRequest) -> Mapping[str, Proof | Failed]:
    """The cases and controls that are asked for, many of them one after the other in one world of processes."""
    titles = [item.callspec.params["title"] for item in request.session.items if item.module is request.module]
    asked = [CONTROLS.get(title, (title, lambda workload: workload)) for title in titles]
    return dict(zip(titles, proofs(asked), strict=True))


def _of(proven: Mapping[str, Proof | Failed], title: str) -> Proof:
    proof = proven[title]
    if isinstance(proof, Failed):
        raise proof
    return proof


@pytest.mark.parametrize("title", list(CASES))
def test_parameters_equal_one_process(proven, title):
    proof = _of(proven, title)
    assert proof.worst <= TOLERANCE, proof.where
    assert proof.left == ()


@pytest.mark.parametrize("title", list(CONTROLS))
def test_a_lost_transfer_shows_in_the_numbers(proven, title):
    assert _of(proven, title).worst > 1e-3  # a step is about the learning rate, 1e-2
