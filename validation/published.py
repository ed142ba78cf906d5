"""Published step times against predictions: `python -m validation published FILES...`.

Every row that today's layouts can express is simulated twice, with the profile of its accelerator and with the datasheet; the rest is
refused with the reason. Errors are signed: predicted / measured - 1. The exit code is 1 when a row misses the gate or none could be judged.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Annotated

import typer

from parasim.cost.profile import datasheet, load_profile
from parasim.errors import Malformed

from .predict import prepare
from .rows import PROFILES, Case, NotModelled, read_rows, source_of, to_case


@dataclass(frozen=True)
class Judged:
    """Seconds and signed errors of one row."""

    id: str
    source: str
    profile: str
    measured_s: float
    predicted_s: float
    error: float
    datasheet_s: float
    datasheet_error: float
    assumptions: tuple[str, ...]


@dataclass(frozen=True)
class Skipped:
    """A row that is not judged, and why."""

    id: str
    source: str
    reason: str


def published(
    paths: Annotated[list[Path], typer.Argument(metavar="FILES", help="rows of published training steps, one JSON object a line")],
    json_path: Annotated[Path | None, typer.Option("--json", metavar="OUT", help="write the table as JSON")] = None,
    max_error: Annotated[float, typer.Option(help="gate: largest |error| of a row")] = 0.25,
    profile: Annotated[str | None, typer.Option(help="profile for every row; omitted: the one of the row's accelerator")] = None,
) -> None:
    """Judge predictions against published step times."""
    judged, skipped = judge(paths, profile)
    _print(judged, skipped, max_error)
    if json_path is not None:
        _write(json_path, judged, skipped, max_error)
    if not judged or any(abs(row.error) > max_error for row in judged):
        raise typer.Exit(1)


def judge(paths: Sequence[Path], profile: str | None = None) -> tuple[list[Judged], list[Skipped]]:
    """Every row of `paths`, judged or skipped, in order."""
    judged: list[Judged] = []
    skipped: list[Skipped] = []
    for row in (row for path in paths for row in read_rows(path)):
        try:
            judged.append(_judge(to_case(row), profile))
        except NotModelled as reason:
            skipped.append(Skipped(str(row["id"]), source_of(row), str(reason)))
    return judged, skipped


def _judge(case: Case, profile: str | None) -> Judged:
    fitted = load_profile(profile or PROFILES.get(case.accelerator))
    prepared = prepare(case)
    predicted, plain = prepared.seconds(fitted), prepared.seconds(datasheet())
    measured = case.measured
    return Judged(case.id, case.source, fitted.name, measured, predicted, predicted / measured - 1, plain, plain / measured - 1, case.assumptions)


def _print(judged: Sequence[Judged], skipped: Sequence[Skipped], max_error: float) -> None:
    for row in skipped:
        typer.echo(f"refused {row.id}: {row.reason}")
    typer.echo(f"\n{'row':28} {'measured':>10} {'predicted':>10} {'error':>8} {'datasheet':>10} {'error':>8}  profile")
    for r in judged:
        flag = "  MISSED" if abs(r.error) > max_error else ""
        figures = f"{r.measured_s:9.4g}s {r.predicted_s:9.4g}s {r.error:+8.1%} {r.datasheet_s:9.4g}s {r.datasheet_error:+8.1%}"
        typer.echo(f"{r.id:28} {figures}  {r.profile}{flag}")
        for note in r.assumptions:
            typer.echo(f"{'':28} assumed: {note}")
    for source in dict.fromkeys(r.source for r in judged):
        rows = [r for r in judged if r.source == source]
        typer.echo(
            f"{source}: {len(rows)} rows, |error| median {median(abs(r.error) for r in rows):.1%}, bias {median(r.error for r in rows):+.1%}; "
            f"at the datasheet {median(abs(r.datasheet_error) for r in rows):.1%}, {median(r.datasheet_error for r in rows):+.1%}"
        )
    missed = sum(abs(r.error) > max_error for r in judged)
    typer.echo(f"{len(judged)} judged, {len(skipped)} refused, {missed} beyond the gate of {max_error:.0%}" + ("" if judged else ": nothing to judge"))


def _write(path: Path, judged: Sequence[Judged], skipped: Sequence[Skipped], max_error: float) -> None:
    tree = {
        "schema": "parasim.published/1",
        "max_error": max_error,
        "passed": bool(judged) and all(abs(r.error) <= max_error for r in judged),
        "rows": [asdict(r) for r in judged],
        "refused": [asdict(r) for r in skipped],
    }
    try:
        path.write_text(json.dumps(tree, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise Malformed(f"--json {path}: cannot be written: {error.strerror}") from None
