"""Published training steps against predictions: `python -m validation published FILES...`.

Every row that parasim can express is simulated with the profile of its stack and accelerator; the rest is refused with the reason. Errors are
signed: predicted / measured - 1. The score is the mean over sources of the median |error| of step times. A scoring of rows in a folder called
`validation` (or with --judge) is entered in the ledger before anything is printed. The exit code is 1 when a step time misses the gate, or
none could be judged.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from parasim.errors import Malformed

from .cache import Cache, predicted
from .ledger import enter, is_judge
from .rows import read_rows
from .score import STEP, lines_of, tree_of
from .written import write_json

CACHE = Path(".published-cache")


def published(
    paths: Annotated[list[Path], typer.Argument(metavar="FILES", help="rows of published training steps, one JSON object a line")],
    json_path: Annotated[Path | None, typer.Option("--json", metavar="OUT", help="write the table as JSON; - prints it")] = None,
    max_error: Annotated[float | None, typer.Option(help="gate: largest |error| of a step time")] = None,
    profile: Annotated[str | None, typer.Option(help="profile for every row; omitted: that of the row's stack and accelerator")] = None,
    plot: Annotated[Path | None, typer.Option(metavar="OUT.png", help="draw predicted over measured step times")] = None,
    judge: Annotated[bool, typer.Option("--judge", help="enter the score in the ledger, as for files in a folder called validation")] = False,
    workers: Annotated[int, typer.Option(help="processes")] = min(2, os.cpu_count() or 1),
    cache: Annotated[Path, typer.Option(help="folder of what was simulated before; runs that are equal are simulated once")] = CACHE,
    quiet: Annotated[bool, typer.Option("--quiet", help="print no rows, only sources")] = False,
) -> None:
    """Judge predictions against published step times, memory and layer times."""
    rows = [row for path in paths for row in read_rows(path)]
    lines = lines_of(rows, lambda cases: predicted(cases, Cache(cache), workers), profile)
    tree = tree_of(lines, max_error)
    if judge or any(map(is_judge, paths)):
        enter(tree, paths)
    if json_path is not None and str(json_path) == "-":
        typer.echo(json.dumps(tree, indent=1))
    else:
        _print(tree, max_error, quiet)
        if json_path is not None:
            write_json(json_path, tree)
    if plot is not None:
        draw(plot, tree["rows"])
    if not tree["passed"]:
        raise typer.Exit(1)


def _print(tree: dict[str, Any], max_error: float | None, quiet: bool) -> None:
    for row in () if quiet else tree["rows"]:
        if row["refused"]:
            typer.echo(f"refused {row['id']}: {row['refused']}")
            continue
        missed = "  MISSED" if max_error is not None and row["quantity"] == STEP and abs(row["error"]) > max_error else ""
        typer.echo(f"{row['id']:28} {row['quantity']:17} {row['measured']:11.5g} {row['predicted']:11.5g} {row['error']:+8.1%}  {row['profile']}{missed}")
        for note in row["assumptions"]:
            typer.echo(f"{'':28} assumed: {note}")
    typer.echo(f"\n{'source':24} {'n':>5} {'refused':>8} {'median |error|':>15} {'bias':>8} {'p90':>8} {'one MFU':>8}")
    for name, s in tree["by_source"].items():
        figures = [f"{s[key]:{form}}" if s[key] is not None else "-" for key, form in zip(FIGURES, FORMS, strict=True)]
        typer.echo(f"{name:24} {s['n']:5} {s['refused']:8} {figures[0]:>15} {figures[1]:>8} {figures[2]:>8} {figures[3]:>8}")
        for quantity, o in s["others"].items():
            typer.echo(f"  {quantity:22} {o['n']:5} {'':8} {o['median_abs_error']:15.1%} {o['bias']:+8.1%} {o['p90_abs_error']:8.1%}")
    for reason, count in tree["refusals"].items():
        typer.echo(f"refused {count}: {reason}")
    judged = sum(s["n"] for s in tree["by_source"].values())
    typer.echo(f"score {tree['score']:.4f} over {judged} step times" if tree["score"] is not None else "nothing to judge")


FIGURES, FORMS = ("median_abs_error", "bias", "p90_abs_error", "flat_mfu_median"), (".1%", "+.1%", ".1%", ".1%")


def draw(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Predicted over measured step times as a picture. Raises Malformed where it cannot be written."""
    from parasim.plots import parity

    shown = [row for row in rows if row["quantity"] == STEP and not row["refused"]]
    try:
        parity([(row["source"], row["measured"], row["predicted"]) for row in shown], "s").savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise Malformed(f"{path}: cannot be written: {error}") from None
