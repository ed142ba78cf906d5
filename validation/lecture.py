"""What lectures on parallel training say, through the real commands: `python -m validation lecture [--only ID] [FILE]`.

`data/lecture.yaml` says which command and which place of its JSON give the value of a row; nothing is computed here beyond units and the sum
of parts of a report.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from typer.testing import CliRunner

from parasim.cli import app
from parasim.errors import Malformed

from .predict import DATA
from .rows import read_rows

EXAMPLES = Path(__file__).parents[1] / "docs" / "examples"


@dataclass(frozen=True)
class Value:
    """One value of a row: place in `expected`, what the row says, what `command` gave at `path`, and whether it is near enough."""

    place: str
    expected: Any
    obtained: Any
    source: str
    passed: bool


@dataclass(frozen=True)
class Judged:
    """A row: `verdict` is pass, miss, not yet, prose or unmapped; `note` is the reason where no value was asked for, or what is left out."""

    id: str
    verdict: str
    note: str
    values: tuple[Value, ...] = ()


def judge(row: Mapping[str, Any]) -> Judged:
    """Run the commands of a row and hold what they print against it."""
    name, tree = str(row["id"]), table()
    if row["tolerance"].get("prose"):
        return Judged(name, "prose", "says how, not how much")
    found = next((entry for entry in tree["rows"] if fnmatch(name, entry["id"])), None)
    if found is None:
        need = next((command for pattern, command in tree["not_yet"].items() if fnmatch(name, pattern)), None)
        return Judged(name, "not yet", f"needs {need}") if need else Judged(name, "unmapped", "no command prints this value, or none is named for it")
    values = tuple(value for ask in found["asks"] for value in answers(ask, row))
    note = f"not asked: {found['unmapped']}" if "unmapped" in found else ""
    return Judged(name, "pass" if all(v.passed for v in values) else "miss", note, values)


@cache
def table() -> Mapping[str, Any]:
    """The mapping from rows to commands."""
    tree: Mapping[str, Any] = yaml.safe_load((DATA / "lecture.yaml").read_text(encoding="utf-8"))
    return tree


def answers(ask: Mapping[str, Any], row: Mapping[str, Any]) -> list[Value]:
    """The values that one command gives for a row."""
    command = ask["command"].format(**row["inputs"], examples=EXAMPLES)
    printed = answer(command, table()["runs"].get(ask.get("run")))
    out = []
    for place, path in ask["paths"].items():
        wanted, got = pick(row["expected"], place), obtained(printed, path, float(ask.get("scale", 1)))
        tolerance = {"rel": ask["rel"]} if "rel" in ask else row["tolerance"]
        out.append(Value(place, wanted, got, f"parasim {command.replace(str(EXAMPLES), 'docs/examples')}: {path}", near(got, wanted, tolerance)))
    return out


def answer(command: str, run: Mapping[str, Any] | None) -> dict[str, Any]:
    """What `parasim COMMAND --json` prints, and its exit code; `run` becomes run.yaml of an empty directory."""
    here = Path.cwd()
    with tempfile.TemporaryDirectory() as scratch:
        os.chdir(scratch)
        try:
            if run is not None:
                Path("run.yaml").write_text(yaml.safe_dump(dict(run)), encoding="utf-8")
            result = CliRunner().invoke(app, [*command.split(), "--json"])
        finally:
            os.chdir(here)
    code = getattr(result.exception, "exit_code", result.exit_code)  # what parasim refuses, its main turns into a message and this code
    return {**(json.loads(result.stdout) if result.stdout.startswith("{") else {}), "exit_code": code}


def pick(tree: Any, path: str) -> Any:
    """The entry of nested lists and objects at `a.0.b`; None where there is none."""
    for part in path.split(".") if path else ():
        if isinstance(tree, list):
            tree = tree[int(part)] if part.isdigit() and int(part) < len(tree) else None
        else:
            tree = tree.get(part) if isinstance(tree, Mapping) else None
    return tree


def obtained(printed: Mapping[str, Any], path: str, scale: float) -> Any:
    """The entry at `path`, several added up, in the unit of the row."""
    parts = [pick(printed, part) for part in path.split("+")]
    if len(parts) == 1 and scale == 1:
        return parts[0]
    return None if None in parts else sum(parts) * scale


def near(got: Any, wanted: Any, tolerance: Mapping[str, Any]) -> bool:
    """Whether `got` is what the row says, within its tolerance."""
    if isinstance(wanted, list):
        return isinstance(got, list) and len(got) == len(wanted) and all(near(g, w, tolerance) for g, w in zip(got, wanted, strict=True))
    if not isinstance(wanted, int | float) or not isinstance(got, int | float) or tolerance.get("exact"):
        return bool(got == wanted)
    return bool(abs(got - wanted) <= tolerance.get("abs", 0) + tolerance.get("rel", 0) * abs(wanted))


def lecture(
    file: Annotated[Path, typer.Argument(help="Rows as .jsonl.")] = DATA / "lecture.jsonl",
    only: Annotated[str | None, typer.Option(help="Only the rows whose id this pattern names.")] = None,
) -> None:
    """Hold what the commands print against the numbers of lectures on parallel training; exit code 1 when a row misses."""
    judged = [judge(row) for row in read_rows(file) if only is None or fnmatch(str(row["id"]), only)]
    if not judged:
        raise Malformed(f"--only {only}: no row of {file} has such an id")
    for row in judged:
        typer.echo(f"{row.verdict:<9}{row.id}{'  ' + row.note if row.note else ''}")
        for value in row.values:
            typer.echo(f"           {value.place or 'value'}: expected {value.expected}, obtained {value.obtained}   {value.source}")
    counts = Counter(row.verdict for row in judged)
    typer.echo(", ".join(f"{counts[verdict]} {verdict}" for verdict in ("pass", "miss", "not yet", "prose", "unmapped")))
    raise typer.Exit(1 if counts["miss"] else 0)
