"""Every command in README, tutorial and guides is run as it stands, in the order of its page, in a folder with the files that the page shows.

What starts processes runs in tests of its own, below; `make` and `pip` are run by .ci/run.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer.main

from parasim.errors import ParasimError
from validation.__main__ import app as harness

from .test_examples import ROOT, group

GUIDES = sorted((ROOT / "docs" / "guides").glob("*.md"))
PAGES = [ROOT / "README.md", ROOT / "docs" / "tutorial.md", *GUIDES]
BLOCK = re.compile(r"(?:^<!-- file: (\S+) -->\n)?^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NAMED = re.compile(r"# (\S+\.yaml)\n")
# What installs, and what starts processes or follows from it
ELSEWHERE = re.compile(r"^(make|pip|python -m venv|\.|ruff|pytest|export)\b|^\. ")
JOBS = re.compile(r"^(torchrun|python -m validation|parasim calibrate collectives)\b|profile=\$PWD/profile.yaml|measured.npz")


@pytest.fixture(autouse=True)
def quick(request: pytest.FixtureRequest) -> None:
    """Nothing is drawn unless real processes run."""
    if not request.node.get_closest_marker("processes"):
        request.getfixturevalue("undrawn")


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
        if line.startswith("echo") or ELSEWHERE.search(line) or JOBS.search(line):
            continue
        folder.run(line)
        ran += 1
        assert folder.code == (int(refused[1]) if refused else 0), (line, getattr(folder, "said", ""))
    return ran


@pytest.mark.processes
def test_commands_of_the_tutorial_that_start_processes(tmp_path: Path) -> None:
    """In their order, in real shells: a calibration, a job, its comparison, two programs that train."""
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    (tmp_path / "validation").symlink_to(ROOT / "validation")
    text = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    lines = [line for line in re.findall(r"^\$ (.+)$", text, re.MULTILINE) if JOBS.search(line)]
    assert [line.split()[0] for line in lines] == ["parasim", "parasim", "torchrun", "parasim", "torchrun", "python"]
    for line in lines:
        shell(line, tmp_path)


def shell(line: str, where: Path) -> str:
    """Run a line as a user would; what it prints. `parasim`, `python` and `torchrun` are those of this interpreter."""
    named = {"parasim": f"{sys.executable} -m parasim", "python": sys.executable, "torchrun": f"{sys.executable} -m torch.distributed.run"}
    first, _, rest = line.partition(" ")
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(f"{named[first]} {rest}", shell=True, cwd=where, capture_output=True, text=True, timeout=300, env={**os.environ, "PYTHONPATH": path})
    assert done.returncode == 0, (line, done.stderr)
    return done.stdout


# What stands for something else in the table of commands, and what keeps a run of minutes short.
STANDS_FOR = {
    "--rank 3": "--rank 1",
    "FILE ": f"{ROOT}/tests/data/topology/tree.conf ",
    "nccl-tests LOG...": "nccl-tests all_reduce.log",
    "--cluster NAME": "--cluster h100-hgx-ib400",
    "cluster NAME": "cluster h100-hgx-ib400",
    "collectives --ranks 4": "collectives --ranks 4 --bytes 64K:1M:16",  # the tutorial runs it whole
    "--accelerator NAME --out profile.yaml": "--accelerator h100-sxm --dtype fp32 --sizes tiny --seconds 20 --out kernels.yaml",
}
SMALL = """\
model: {kind: mlp, layers: 2, hidden: 64}
cluster: loopback
devices: 2
batch: {global: 4, micro: 1}
precision: fp32
"""


def table() -> list[str]:
    """First cells of README's table of commands that are commands of parasim, optional flags left out, examples in place of names."""
    cells = re.findall(r"^\| `((?:torchrun .*-m )?parasim [^`]+)`", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    out = []
    for cell in cells:
        command = re.sub(r" \[-{1,2}[^\]]*\]", "", cell).replace("[RUN.yaml]", "RUN.yaml")
        for name, example in STANDS_FOR.items():
            command = command.replace(name, example)
        out.append(command)
    return out


def in_processes(command: str) -> bool:
    return bool(re.match(r"torchrun|parasim (calibrate (collectives|kernels)|sweep|search)", command))


@pytest.fixture
def prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    """A folder with everything that the commands of the table read."""
    monkeypatch.chdir(tmp_path)
    folder = Folder(tmp_path)
    log = re.search(r"<!-- file: all_reduce.log -->\n```text\n(.*?)^```", GUIDE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert log is not None
    (tmp_path / "RUN.yaml").write_text(SMALL, encoding="utf-8")
    (tmp_path / "all_reduce.log").write_text(log[1], encoding="utf-8")
    event = {"ph": "X", "cat": "kernel", "name": "gemm", "ts": 0, "dur": 5, "args": {"stream": 7}}
    (tmp_path / "trace.json.gz").write_bytes(gzip.compress(json.dumps({"traceEvents": [event]}).encode()))
    return folder


GUIDE = ROOT / "docs" / "guides" / "calibrate-from-a-log.md"


def test_commands_of_the_table(prepared: Folder) -> None:
    path = prepared.path
    prepared.run("parasim run RUN.yaml --out results")
    (path / "results" / "timeline.npz").rename(path / "timeline.npz")
    for name in ("predicted.npz", "measured.npz"):
        (path / name).write_bytes((path / "timeline.npz").read_bytes())
    ran = set()
    for command in table():
        if in_processes(command):
            continue
        prepared.run(command)
        assert prepared.code == 0, (command, getattr(prepared, "said", ""))
        ran.add(command.split()[1])
    there = {c.split("parasim ")[1].split()[0] for c in table() if in_processes(c)}
    assert set(group().commands) == ran | there | {"calibrate"}


@pytest.mark.processes
@pytest.mark.parametrize("command", [c for c in table() if in_processes(c)], ids=lambda c: " ".join(c.split()[:3]))
def test_commands_of_the_table_that_start_processes(prepared: Folder, command: str) -> None:
    (prepared.path / "SWEEP.yaml").write_text("run: RUN.yaml\nvary: {batch.micro: [1, 2]}\nout: rows.sqlite\n", encoding="utf-8")
    shell(command.replace("--devices 64", "--devices 2"), prepared.path)


def test_commands_of_the_harness_in_the_table_are_understood() -> None:
    """Every row of README that starts with `python -m validation`, with its optional parts: the command is there, and so are its options. What they do is
    tested where they are; some need a GPU, a cluster or root."""
    commands = typer.main.get_command(harness).commands  # type: ignore[attr-defined]
    cells = re.findall(r"^\| `python -m validation ([^`]+)`", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert len(cells) >= 8
    for cell in cells:
        name, *words = shlex.split(re.sub(r"[\[\]]", "", cell))
        commands[name].make_context(name, words)  # raises for an unknown option, a missing argument, a wrong value
