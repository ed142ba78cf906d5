"""A Workload is verified in a copy of the process while something else is done; what it objects to is raised all the same."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from typing import Any

import pytest

from parasim.config import build
from parasim.errors import InvalidProgram, Malformed
from parasim.lowering import lower
from parasim.program import beside
from parasim.program.beside import verified
from parasim.program.workload import Workload


@pytest.fixture(scope="module")
def sound() -> Workload:
    model = {"kind": "transformer", "layers": 4, "hidden": 16, "heads": 4, "ffn": 32, "vocab": 64}
    keys: dict[str, Any] = {"model": model, "cluster": "h100-hgx-ib400", "devices": 4, "batch": {"global": 4, "micro": 1, "sequence": 8}}
    return lower(build(keys | {"parallel": {"tp": 2, "pp": 2, "dp": 1}}).plan)


@pytest.fixture
def unsound(sound: Workload) -> Workload:
    """The first stage never sends what it made of one microbatch."""
    first = sound.programs[0]
    dropped = next(call for call in first.calls if call.body == "send.F0")
    calls = tuple(call for call in first.calls if call is not dropped)
    return replace(sound, programs=(replace(first, calls=calls), *sound.programs[1:]))


@pytest.fixture(params=["a copy", "no copy"])
def either(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(os, "cpu_count", lambda: 2 if request.param == "a copy" else 1)
    return str(request.param)


def test_a_sound_workload_passes(sound: Workload, either: str) -> None:
    with verified(sound):
        done = either
    assert done == either


def test_what_is_wrong_is_raised_at_the_end(unsound: Workload, either: str) -> None:
    reached = []
    with pytest.raises(InvalidProgram, match="channel F0=class 0 sends 3 messages to class 1, which receives 4"), verified(unsound):
        reached.append(either)
    assert reached == (["a copy"] if either == "a copy" else [])


def test_an_error_from_inside_stands_where_the_workload_is_sound(sound: Workload, unsound: Workload, either: str) -> None:
    with pytest.raises(Malformed), verified(sound):
        raise Malformed("mine")
    with pytest.raises(InvalidProgram), verified(unsound):
        raise Malformed("of the deadlock that follows")
    with pytest.raises(KeyboardInterrupt), verified(sound):
        raise KeyboardInterrupt


@pytest.mark.parametrize("patience", [60.0, 0.0])
def test_a_copy_that_is_killed_or_late_is_done_without(unsound: Workload, monkeypatch: pytest.MonkeyPatch, patience: float) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(beside, "PATIENCE", patience)
    copies: list[int] = []
    fork = os.fork
    monkeypatch.setattr(os, "fork", lambda: copies.append(number := fork()) or number)
    with pytest.raises(InvalidProgram), verified(unsound):
        if patience:
            os.kill(copies[0], signal.SIGKILL)
    with pytest.raises(ChildProcessError):
        os.waitpid(copies[0], os.WNOHANG)  # it has been waited for
