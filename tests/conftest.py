"""What all tests share: the command line in-process."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import NamedTuple

import pytest

from parasim.collecting import rarely

rarely()  # the syntax trees that tests of the architecture keep would be looked at again and again


class Answer(NamedTuple):
    """Exit code, standard output, standard error."""

    code: int
    out: str
    err: str


Cli = Callable[..., Answer]


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """cli("run", "--json") runs `parasim run --json` in this process; a traceback would fail the test."""

    def call(*arguments: str) -> Answer:
        from parasim.cli import main

        monkeypatch.setattr(sys, "argv", ["parasim", *map(str, arguments)])
        capsys.readouterr()
        try:
            main()
            code = 0
        except SystemExit as e:
            code = int(e.code or 0)
        out, err = capsys.readouterr()
        return Answer(code, out, err)

    return call


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pictures of a run are drawn in tests/plots and where a test is of them; elsewhere their files are enough."""
    monkeypatch.setattr("parasim.plots.artist.subprocess.Popen", _no_process)
    monkeypatch.setattr("parasim.plots.artist.draw", lambda timeline, pictures, dpi: [p.path.write_bytes(b"") for p in pictures])


def _no_process(*_: object, **__: object) -> None:
    raise OSError
