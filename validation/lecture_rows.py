"""Which command, or which run of the executor, gives the value of a row: `data/lecture/*.yaml`, and the commands, each run once."""

from __future__ import annotations

import json
import os
import shlex
import tempfile
from collections.abc import Mapping
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from typer.testing import CliRunner

from parasim.cli import app
from parasim.errors import Malformed

from .predict import DATA

EXAMPLES = Path(__file__).parents[1] / "docs" / "examples"
FOLDER = DATA / "lecture"


@cache
def table() -> tuple[Mapping[str, Any], ...]:
    """The entries of all files, each with the run files (`runs`) of its own file. Raises Malformed for a pattern that is there twice."""
    out: list[Mapping[str, Any]] = []
    for path in sorted(FOLDER.glob("*.yaml")):
        tree = yaml.safe_load(path.read_text(encoding="utf-8"))
        out += [{**entry, "runs": tree.get("runs", {})} for entry in tree["rows"]]
    names = [entry["id"] for entry in out]
    if len(set(names)) < len(names):
        raise Malformed(f"{FOLDER}: {next(n for n in names if names.count(n) > 1)} is there twice")
    return tuple(out)


def entry_of(name: str) -> Mapping[str, Any] | None:
    """The entry of a row: the one that names it whole, else the one whose pattern it meets."""
    found = [entry for entry in table() if fnmatch(name, entry["id"])]
    return next((entry for entry in found if entry["id"] == name), found[0] if found else None)


def command_of(ask: Mapping[str, Any], inputs: Mapping[str, Any]) -> str:
    """The command with the inputs of the row in it; lists as JSON without blanks."""
    words = {name: json.dumps(v, separators=(",", ":")) if isinstance(v, list | dict) else v for name, v in inputs.items()}
    return str(ask["command"]).format(**words, examples=EXAMPLES, data=FOLDER)


def shown(command: str) -> str:
    """The command as a person may type it."""
    return f"parasim {command}".replace(str(EXAMPLES), "docs/examples").replace(str(FOLDER), "validation/data/lecture")


def answer(command: str, run: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """What `parasim COMMAND --json` prints, and its exit code and message; `run` becomes run.yaml of an empty directory."""
    return _answer(command, None if run is None else yaml.safe_dump(dict(run)).replace("$DATA", str(FOLDER)))


@cache
def _answer(command: str, run: str | None) -> Mapping[str, Any]:
    here = Path.cwd()
    with tempfile.TemporaryDirectory() as scratch:
        os.chdir(scratch)
        try:
            if run is not None:
                Path("run.yaml").write_text(run, encoding="utf-8")
            result = CliRunner().invoke(app, [*shlex.split(command), "--json"])
        finally:
            os.chdir(here)
    error = result.exception
    if error is not None and not hasattr(error, "exit_code") and not isinstance(error, SystemExit):
        raise error  # no refusal but a fault
    code = getattr(error, "exit_code", result.exit_code)  # what parasim refuses, its main turns into a message and this code
    printed = json.loads(result.stdout) if result.stdout.startswith("{") else {}
    return {**printed, "exit_code": code, "message": str(error or "")}
