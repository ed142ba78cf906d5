"""The page of errors: `python -m validation errors TABLE.json --write`, from the table that `published --json` wrote.

Per source the first scoring of the ledger, which was blind, beside the table's; a picture; the order of layouts, memory, the worst rows with what is
suspected behind them, every row, signed, as CSV; and, with what `ablation --json` wrote, the model with nothing fitted and without one mechanism.
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

from . import error_tables as tables
from .ablation import table as ablated
from .ledger import LEDGER
from .published import draw
from .variants import AS_IT_IS, NOTHING_FITTED

FOLDER = Path(__file__).parents[1] / "docs" / "background"
PAGE, PICTURE, ROWS = "errors.md", "errors.png", "errors.csv"
COLUMNS = ("id", "source", "quantity", "measured", "predicted", "error", "profile")
ENTRY = re.compile(r"(\w+) ([\d.]+)%, ([+-][\d.]+)%, (\d+) \(\d+\)")
Row = Mapping[str, Any]
INTRODUCTION = """# Published steps, predicted

Written by `python -m validation errors TABLE.json --ablation ABLATION.json --write`. Every step, peak and layer time of the published rows that no
number was fitted to, predicted by parasim with the profiles as they are: {judged:,} step times, the mean over sources of the median |error| is **{score:.1%}**.
Errors are predicted / measured - 1: plus is too slow. *Blind* is the first scoring of the ledger, made before anybody had looked at a measured
value of these rows; the structure of the model was revised after it, no number was fitted to them. *One MFU* is what one model FLOP utilisation
for all steps of an accelerator family gives, the guess of a spreadsheet. {bare}[All rows](errors.csv) are beside this page.
"""
BARE = """*Nothing fitted* is the same model with the numbers of datasheets alone: every
efficiency and factor of a rate at 1 (but what memory reaches by the vendor's guide), a product at full rate whatever its shape, kernels bound by
memory moving their bytes once, latencies other than those of the cluster file, overheads and slow-downs at 0; which algorithms run and what is
overlapped stays.
"""
RANKS = """Rows of one source, model, accelerator and number of devices, where there are at least {least}. Spearman's correlation of predicted
and measured times: of whole steps, and per token, where layouts with a larger batch are not slower for it. Median per token: {middle}.
"""
ABLATION = """Each line is the model without one mechanism, on at most {sample} rows of every source, evenly spread; nothing is fitted again to make up
for it. *Score* is the mean over sources of the median |error|, *spread* that of the median distance from the source's median error, which a constant
factor would not hide; *memory* the mean of the medians of memory rows. Mechanisms that matter little on these rows stay because they are physical;
nothing was chosen by this table.
"""


def errors(
    table: Annotated[Path, typer.Argument(metavar="TABLE.json", help="what `published --json` wrote")],
    ablation: Annotated[Path | None, typer.Option(metavar="ABLATION.json", help="what `ablation --json` wrote")] = None,
    write: Annotated[bool, typer.Option("--write", help="write the page, its picture and its rows into docs/background")] = False,
    out: Annotated[Path, typer.Option(help="the folder to write to")] = FOLDER,
) -> None:
    """Show the errors of a table of published rows by source, and the worst of them."""
    tree = _read(table)
    taken = None if ablation is None else _taken(ablation)
    page = "\n".join(_page(tree, first(LEDGER.read_text(encoding="utf-8")), taken))
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


def _taken(path: Path) -> Mapping[str, Any]:
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
        if tree["without"][AS_IT_IS] and tree[NOTHING_FITTED]["by_source"]:
            return dict(tree)
    except OSError as error:
        raise Malformed(f"--ablation {path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        pass
    raise Unparsable(f"--ablation {path}: is no table of `ablation --json`")


def first(ledger: str) -> dict[str, tuple[float, float]]:
    """Median |error| and bias of every source where the ledger first has it, as fractions."""
    found: dict[str, tuple[float, float]] = {}
    for source, median, bias, _ in ENTRY.findall(ledger):
        found.setdefault(source, (float(median) / 100, float(bias) / 100))
    return found


def _page(tree: Mapping[str, Any], blind: Mapping[str, tuple[float, float]], taken: Mapping[str, Any] | None) -> Iterator[str]:
    rows, middle = tree["rows"], tables.middle(tables.orders(tree["rows"]))
    yield INTRODUCTION.format(judged=len(tables.steps(rows)), score=tree["score"], bare=BARE if taken else "")
    yield from tables.sources(tree, blind, taken[NOTHING_FITTED]["by_source"] if taken else None)
    yield from ("", f"![predicted over measured step times]({PICTURE})", "", "## What is asked of them", "", *tables.asked(tree))
    if middle is not None:
        yield from ("", "## The order of layouts", "", RANKS.format(least=tables.LEAST, middle=f"{middle:.2f}"), *tables.ranking(rows))
    yield from ("", "## Memory and layers", "", *tables.memory(tree))
    if taken:
        yield from ("", "## Without one mechanism", "", ABLATION.format(sample=taken["sample"]), *ablated(taken))
    yield from ("", "## The worst steps", "", f"At most {tables.EACH} of a source. What is suspected is said by `validation/data/causes.yaml`.", "")
    yield from tables.worst(rows)
    yield from ("", "## Why rows are refused", "", *(f"- {count}: {reason}" for reason, count in tree["refusals"].items()), "")


def _rows(rows: Sequence[Row]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in rows:
        if not row["refused"]:
            numbers = [f"{row[key]:.6g}" for key in ("measured", "predicted")]
            writer.writerow((row["id"], row["source"], row["quantity"], *numbers, f"{row['error']:+.4f}", row["profile"]))
    return text.getvalue()
