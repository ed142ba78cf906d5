"""The page of errors: `python -m validation errors TABLE.json --write`, from the table that `published --json` wrote.

Per source the first scoring of the ledger, which was blind, beside the table's; a picture; the worst rows with what was assumed of them; and every
row, signed, as CSV.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from parasim.errors import Malformed, Unparsable

from .ledger import LEDGER
from .published import draw
from .score import STEP

FOLDER = Path(__file__).parents[1] / "docs" / "background"
PAGE, PICTURE, ROWS = "errors.md", "errors.png", "errors.csv"
WORST, EACH = 20, 3  # rows shown, and of one source at most
NEAR = 0.2  # an error up to here counts as near
COLUMNS = ("id", "source", "quantity", "measured", "predicted", "error", "profile")
ENTRY = re.compile(r"(\w+) ([\d.]+)%, ([+-][\d.]+)%, (\d+) \(\d+\)")
Row = Mapping[str, Any]
INTRODUCTION = """# Published steps, predicted

Written by `python -m validation errors TABLE.json --write`. Every step, peak and layer time of the published rows that no number was fitted to,
predicted by parasim with the profiles as they are: {judged:,} step times, the mean over sources of the median |error| is **{score:.1%}**.
Errors are predicted / measured - 1: plus is too slow. *First* is the first scoring of the ledger, made before anybody had looked at a measured
value of these rows; the structure of the model was revised after it, no number was fitted to them. *One MFU* is what one model FLOP utilisation
for all steps of an accelerator family gives, the guess of a spreadsheet. [All rows](errors.csv) are beside this page.
"""


def errors(
    table: Annotated[Path, typer.Argument(metavar="TABLE.json", help="what `published --json` wrote")],
    write: Annotated[bool, typer.Option("--write", help="write the page, its picture and its rows into docs/background")] = False,
    out: Annotated[Path, typer.Option(help="the folder to write to")] = FOLDER,
) -> None:
    """Show the errors of a table of published rows by source, and the worst of them."""
    tree = _read(table)
    page = "\n".join(_page(tree, first(LEDGER.read_text(encoding="utf-8"))))
    if not write:
        typer.echo(page)
        return
    try:
        (out / PAGE).write_text(page, encoding="utf-8")
        (out / ROWS).write_text(_rows(tree["rows"]), encoding="utf-8")
    except OSError as error:
        raise Malformed(f"--out {out}: cannot be written: {error.strerror}") from None
    draw(out / PICTURE, tree["rows"])
    typer.echo(f"wrote {out / PAGE}, {PICTURE} and {ROWS}")


def _read(path: Path) -> Mapping[str, Any]:
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
        if tree["score"] is not None and tree["rows"] and tree["by_source"]:
            return dict(tree)
    except OSError as error:
        raise Malformed(f"{path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        raise Unparsable(f"{path}: is no table of `published --json`") from None
    raise Malformed(f"{path}: holds no step time that was judged")


def first(ledger: str) -> dict[str, tuple[float, float]]:
    """Median |error| and bias of every source where the ledger first has it, as fractions."""
    found: dict[str, tuple[float, float]] = {}
    for source, median, bias, _ in ENTRY.findall(ledger):
        found.setdefault(source, (float(median) / 100, float(bias) / 100))
    return found


def _page(tree: Mapping[str, Any], blind: Mapping[str, tuple[float, float]]) -> Iterator[str]:
    steps = [row for row in tree["rows"] if row["quantity"] == STEP and not row["refused"]]
    yield INTRODUCTION.format(judged=len(steps), score=tree["score"])
    yield "| source | steps | refused | first: median / bias | now: median / bias | 90 % are within | within 20 % | one MFU |"
    yield "|---|---|---|---|---|---|---|---|"
    for name, s in tree["by_source"].items():
        mine = [abs(row["error"]) for row in steps if row["source"] == name]
        if mine:
            was = "refused" if name not in blind else f"{blind[name][0]:.1%} / {blind[name][1]:+.1%}"
            near = sum(e <= NEAR for e in mine) / len(mine)
            now = f"{s['median_abs_error']:.1%} / {s['bias']:+.1%}"
            yield f"| {name} | {s['n']} | {s['refused']} | {was} | {now} | {s['p90_abs_error']:.1%} | {near:.0%} | {s['flat_mfu_median']:.1%} |"
    yield from ("", f"![predicted over measured step times]({PICTURE})", "", "## Memory and layers", "")
    yield from ("| source | quantity | rows | median | bias | 90 % are within |", "|---|---|---|---|---|---|")
    for name, s in tree["by_source"].items():
        for quantity, o in s["others"].items():
            yield f"| {name} | {quantity} | {o['n']} | {o['median_abs_error']:.1%} | {o['bias']:+.1%} | {o['p90_abs_error']:.1%} |"
    yield from (
        "",
        "## The worst steps",
        "",
        f"At most {EACH} of a source.",
        "",
        "| row | measured | predicted | error | assumed of it |",
        "|---|---|---|---|---|",
    )
    for row in _worst(steps):
        assumed = "; ".join(row["assumptions"]) or "-"
        yield f"| {row['id']} | {row['measured']:.4g} s | {row['predicted']:.4g} s | {row['error']:+.0%} | {assumed} |"
    yield from ("", "## Why rows are refused", "", *(f"- {count}: {reason}" for reason, count in tree["refusals"].items()), "")


def _worst(steps: Sequence[Row]) -> list[Row]:
    out: list[Row] = []
    for row in sorted(steps, key=lambda r: -abs(r["error"])):
        if sum(r["source"] == row["source"] for r in out) < EACH:
            out.append(row)
    return out[:WORST]


def _rows(rows: Sequence[Row]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in rows:
        if not row["refused"]:
            numbers = [f"{row[key]:.6g}" for key in ("measured", "predicted")]
            writer.writerow((row["id"], row["source"], row["quantity"], *numbers, f"{row['error']:+.4f}", row["profile"]))
    return text.getvalue()
