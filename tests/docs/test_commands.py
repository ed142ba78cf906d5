"""Every command in README and guides is run as it stands, in the order of its page, in a folder with the files that the page shows.

The commands of the tutorial are parsed, and the cheap ones run, by test_examples.py.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from pathlib import Path

import pytest

from parasim.errors import ParasimError

from .test_examples import ROOT, arguments, group

GUIDES = sorted((ROOT / "docs" / "guides").glob("*.md"))
PAGES = [ROOT / "README.md", *GUIDES]
BLOCK = re.compile(r"(?:^<!-- file: (\S+) -->\n)?^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NAMED = re.compile(r"# (\S+\.yaml)\n")
# What starts processes, or installs: real jobs and calibrations are run by the tests of the executor, `make` and `pip` by .ci/run.
ELSEWHERE = re.compile(r"^(make|pip|python -m venv|\.|ruff|pytest|torchrun|export|parasim calibrate collectives)\b|^\. ")


@pytest.fixture(autouse=True)
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pictures of a run are drawn in tests/plots; here their files are enough."""
    monkeypatch.setattr("parasim.plots.artist.subprocess.Popen", _no_process)
    monkeypatch.setattr("parasim.plots.artist.draw", lambda timeline, pictures, dpi: [p.path.write_bytes(b"") for p in pictures])


def _no_process(*_: object, **__: object) -> None:
    raise OSError


class Folder:
    """Where the commands of a page run; what a refused command exits with is kept for `echo $?`."""

    def __init__(self, path: Path) -> None:
        self.path, self.code = path, 0
        (path / "docs").symlink_to(ROOT / "docs")

    def run(self, command: str) -> None:
        """One line behind a prompt. Asserts that it does what the page says: exit code 0, unless `echo $?` comes next."""
        command, _, into = command.partition(" > ")
        words = shlex.split(command.replace("$PWD/", ""))
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
            try:
                group().main(words[1:], standalone_mode=False)
                self.code = 0
            except ParasimError as error:
                self.code, self.said = error.exit_code, str(error)
        if into:
            (self.path / into.strip()).write_text(out.getvalue(), encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_commands_of_a_page(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder, ran = Folder(tmp_path), 0
    for file, language, text in BLOCK.findall(page.read_text(encoding="utf-8")):
        shown = NAMED.match(text)
        if file or shown or language == "yaml":
            (tmp_path / (file or (shown[1] if shown else "run.yaml"))).write_text(text, encoding="utf-8")
        if file and language == "python":
            with contextlib.redirect_stdout(io.StringIO()):
                exec(compile(text, f"{page.name}: {file}", "exec"), {})
        if language == "console":
            ran += _console(folder, text)
    assert ran or page.stem in ("index",)


def _console(folder: Folder, text: str) -> int:
    """Run the lines behind prompts of one block; how many."""
    lines = [line.removeprefix("$ ") for line in text.splitlines() if line.startswith("$ ")]
    refused = re.search(r"^\$ echo \$\?\n(\d+)$", text, re.MULTILINE)
    ran = 0
    for line in lines:
        if line.startswith("echo") or ELSEWHERE.search(line):
            continue
        folder.run(line)
        ran += 1
        assert folder.code == (int(refused[1]) if refused else 0), (line, getattr(folder, "said", ""))
    return ran


# The rows of the table of commands that can be run with what follows; the others are run in the tests named.
TABLE_ELSEWHERE = {
    "search": "tests/plan/test_search.py",
    "values": "tests/plan/test_values.py",
    "sweep": "tests/plan/test_sweep.py",
    "calibrate": "tests/executor/test_calibrate.py and test_calibrate_device.py, tests/cost",
    "import": "tests/topology/test_importers.py",
    "export": "tests/plots/test_memory_snapshot.py",
    "execute": "tests/executor",
}


def table() -> list[str]:
    """First cells of README's table of commands, optional parts left out."""
    cells = re.findall(r"^\| `(parasim [^`]+)`", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    return [re.sub(r" \[[^\]]*\]", "", cell) for cell in cells]


def test_commands_of_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = Folder(tmp_path)
    five = re.search(r"^```yaml\n(.*?)^```", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert five is not None
    (tmp_path / "RUN.yaml").write_text(five[1], encoding="utf-8")
    folder.run("parasim run RUN.yaml --out results")
    (tmp_path / "results" / "timeline.npz").rename(tmp_path / "timeline.npz")
    for name in ("predicted.npz", "measured.npz"):
        (tmp_path / name).write_bytes((tmp_path / "timeline.npz").read_bytes())
    ran = []
    for command in table():
        if command.split()[1] in TABLE_ELSEWHERE:
            continue
        words = arguments(command)
        assert words, command
        folder.run(command)
        assert folder.code == 0, (command, getattr(folder, "said", ""))
        ran.append(words[0])
    assert set(group().commands) - set(ran) - set(TABLE_ELSEWHERE) <= {"report"}
