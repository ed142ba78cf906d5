"""What papers say of one layout against another, simulated: `python -m validation relative [--only PATTERN]`.

`data/relative.yaml` has the statements: both runs, what the source says in numbers, and how near counts. A statement holds where the predicted
gain or loss has that sign and size, and goes over its cases as said. Exit code 1 when one does not.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatch
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from parasim.errors import Malformed

from .cache import Answer, Cache, Task, predicted
from .predict import DATA
from .published import CACHE
from .score import STEP
from .written import write_json, write_text

STATEMENTS = DATA / "relative.yaml"
PAGE = Path(__file__).parents[1] / "docs" / "background" / "statements.md"
INTRODUCTION = """# One layout against another, as papers say

Written by `python -m validation relative --write` from `validation/data/relative.yaml`, which has the run files of both sides. A gain is tokens per second
and device of the new layout over the old, minus 1; a loss is 1 minus that ratio. What counts as right was set from how precisely the source says it.
{held} of {all} statements hold.
"""
MEASURES = {"gain": lambda old, new: new / old - 1, "loss": lambda old, new: 1 - new / old}
TRENDS = {"rises": lambda a, b: a < b, "falls": lambda a, b: a > b}
Tree = Mapping[str, Any]


@dataclass(frozen=True)
class Outcome:
    """One case: what is expected (`low` to `high`) and obtained of the measure; `refused`: why it could not be simulated."""

    statement: str
    case: str
    measure: str
    low: float
    high: float
    obtained: float | None
    refused: str | None = None

    @property
    def came(self) -> str:
        """What was obtained, in words."""
        return f"refused: {self.refused}" if self.obtained is None else f"{self.obtained:+.1%}"

    @property
    def passed(self) -> bool:
        """Whether it lies in what is expected."""
        return self.obtained is not None and self.low <= self.obtained <= self.high


def relative(
    only: Annotated[str | None, typer.Option(help="only the statements whose id this pattern names")] = None,
    json_path: Annotated[Path | None, typer.Option("--json", metavar="OUT", help="write the outcomes as JSON")] = None,
    write: Annotated[bool, typer.Option("--write", help="write the page of statements into docs/background")] = False,
    workers: Annotated[int, typer.Option(help="processes")] = min(2, os.cpu_count() or 1),
    cache: Annotated[Path, typer.Option(help="folder of what was simulated before")] = CACHE,
) -> None:
    """Hold predictions against what papers say of one layout against another."""
    chosen = [s for s in statements() if only is None or fnmatch(s["id"], only)]
    if not chosen:
        raise Malformed(f"--only {only}: no statement has such an id; there are {', '.join(s['id'] for s in statements())}")
    answers = predicted([task for s in chosen for case in s["cases"] for task in tasks_of(s, case)], Cache(cache), workers)
    found = {s["id"]: outcomes(s, answers) for s in chosen}
    for s in chosen:
        typer.echo("\n".join(_shown(s, found[s["id"]])))
    missed = [s["id"] for s in chosen if not holds(s, found[s["id"]])]
    typer.echo(f"{len(chosen) - len(missed)} of {len(chosen)} statements hold" + (f"; not {', '.join(missed)}" if missed else ""))
    if json_path is not None:
        tree = {name: [asdict(o) | {"passed": o.passed} for o in these] for name, these in found.items()}
        write_json(json_path, {"schema": "parasim.relative/1", "statements": tree})
    if write:
        write_text(PAGE, "\n".join(page(chosen, found)).rstrip() + "\n")
    raise typer.Exit(1 if missed else 0)


def statements() -> Sequence[Tree]:
    """data/relative.yaml."""
    tree: Mapping[str, Sequence[Tree]] = yaml.safe_load(STATEMENTS.read_text(encoding="utf-8"))
    return tree["statements"]


def sides(statement: Tree, case: Tree) -> tuple[Tree, Tree]:
    """The run files, old and new, of a case."""
    common = {**statement.get("base", {}), **case.get("base", {})}
    old, new = ({**common, **statement.get(side, {}), **case.get(side, {})} for side in ("old", "new"))
    return old, new


def tasks_of(statement: Tree, case: Tree) -> list[Task]:
    """What is to be predicted, old and new."""
    return [Task(json.dumps({"name": "relative", **run}, sort_keys=True), statement["profile"]) for run in sides(statement, case)]


def outcomes(statement: Tree, answers: Mapping[Task, Answer]) -> list[Outcome]:
    """The cases of a statement."""
    return [_outcome(statement, case, answers) for case in statement["cases"]]


def _outcome(statement: Tree, case: Tree, answers: Mapping[Task, Answer]) -> Outcome:
    low, high = _range(case["expected"], statement.get("within", 0.0))
    name, measure = str(case["name"]), str(statement["measure"])
    rates = []
    for run, task in zip(sides(statement, case), tasks_of(statement, case), strict=True):
        answer = answers[task]
        if "refused" in answer:
            return Outcome(statement["id"], name, measure, low, high, None, str(answer["refused"]))
        rates.append(run["batch"]["global"] * run["batch"]["sequence"] / (answer["values"][STEP] * run["devices"]))
    return Outcome(statement["id"], name, measure, low, high, float(MEASURES[measure](*rates)))


def _range(expected: Any, within: float) -> tuple[float, float]:
    if isinstance(expected, list):
        return float(expected[0]), float(expected[1])
    return expected - within, expected + within


def holds(statement: Tree, found: Sequence[Outcome]) -> bool:
    """Whether every case does, and the trend."""
    return all(o.passed for o in found) and goes(statement, found)


def goes(statement: Tree, found: Iterable[Outcome]) -> bool:
    """Whether the measure goes over the cases as is said."""
    values = [o.obtained for o in found if o.obtained is not None]
    return "trend" not in statement or all(TRENDS[statement["trend"]](a, b) for a, b in pairwise(values))


def _shown(statement: Tree, found: Sequence[Outcome]) -> Iterator[str]:
    yield f"{statement['id']}: {statement['says']}"
    yield f"    {statement['source']}"
    yield f"    allowed: {statement['why']}"
    for o in found:
        yield f"    {o.case:18} {o.measure} expected {o.low:+.1%} to {o.high:+.1%}, obtained {o.came}{'' if o.passed else '   <-- miss'}"
    if not goes(statement, found):
        yield f"    the {statement['measure']} is said to go: {statement['trend']}   <-- miss"


def page(chosen: Sequence[Tree], found: Mapping[str, Sequence[Outcome]]) -> Iterator[str]:
    """The statements and what came out as Markdown; `note` of a statement is what is known of a miss."""
    yield INTRODUCTION.format(held=sum(holds(s, found[s["id"]]) for s in chosen), all=len(chosen))
    for s in chosen:
        verdict = "holds" if holds(s, found[s["id"]]) else "does not hold"
        yield from (f"## {s['id']}: {verdict}", "", f"{s['source']}: {s['says']}.", "", f"Allowed: {s['why']}.", "")
        yield from (f"| case | {s['measure']} expected | obtained | |", "|---|---|---|---|")
        for o in found[s["id"]]:
            yield f"| {o.case} | {o.low:+.1%} to {o.high:+.1%} | {o.came} | {'' if o.passed else 'missed'} |"
        yield from (["", s["note"], ""] if "note" in s else [""])
