"""Every layout trains to the parameters of one process on the whole batch; a Program that lost a reduction does not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytest.importorskip("torch")

from parasim.errors import Failed
from validation.numeric import CASES, CONTROLS, TOGETHER, TOLERANCE, Proof, proofs

pytestmark = pytest.mark.processes
Proven = Callable[[str], Proof]


def _worlds() -> dict[str, str]:
    """The world of processes in which each case and control runs, one after the other: as many as TOGETHER of one size."""
    sizes: dict[int, list[str]] = {}
    for title in (*CASES, *CONTROLS):
        sizes.setdefault(CASES[CONTROLS[title][0] if title in CONTROLS else title].degrees.world, []).append(title)
    return {title: f"{ranks} ranks, {i // TOGETHER}" for ranks, titles in sizes.items() for i, title in enumerate(titles)}


WORLDS = _worlds()


def _grouped(titles: object) -> list[object]:
    """The titles as parameters; one worker of pytest-xdist takes all that runs in one world."""
    return [pytest.param(title, marks=pytest.mark.xdist_group(WORLDS[title])) for title in titles]  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def proven(request: pytest.FixtureRequest) -> Proven:
    """The proof of a title; those of its world that are asked for are made with it."""
    asked = [item.callspec.params["title"] for item in request.session.items if item.module is request.module]
    found: dict[str, Proof | Failed] = {}

    def proof(title: str) -> Proof:
        if title not in found:
            together = [t for t in asked if WORLDS[t] == WORLDS[title]]
            found.update(zip(together, proofs([CONTROLS.get(t, (t, lambda workload: workload)) for t in together]), strict=True))
        one = found[title]
        if isinstance(one, Failed):
            raise one
        return one

    return proof


@pytest.mark.parametrize("title", _grouped(CASES))
def test_parameters_equal_one_process(proven: Proven, title: str) -> None:
    proof = proven(title)
    assert proof.worst <= TOLERANCE, proof.where
    assert proof.left == ()


@pytest.mark.parametrize("title", _grouped(CONTROLS))
def test_a_lost_transfer_shows_in_the_numbers(proven: Proven, title: str) -> None:
    assert proven(title).worst > 1e-3  # a step is about the learning rate, 1e-2
