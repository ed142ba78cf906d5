"""What each mechanism of the model is worth: `python -m validation ablation FILES... --json OUT`.

Rows are predicted again with no fitted number (all of them), and with one mechanism taken away at a time (`--sample` rows of every source, evenly
spread over it). No number is fitted again. It is a record for the page of errors: nothing in parasim is chosen by it. For files of a judge the
scoring with nothing fitted is entered in the ledger, as one of an ablation, before anything is printed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer

from .cache import Cache, predicted
from .ledger import enter, is_judge
from .published import CACHE
from .rows import read_rows, source_of
from .score import STEP, Line, cases_of, lines_of, tasks_of, tree_of
from .variants import ABLATIONS, AS_IT_IS, NOTHING_FITTED, VARIANTS
from .written import write_json

Row = Mapping[str, Any]


def ablation(
    paths: Annotated[list[Path], typer.Argument(metavar="FILES", help="rows of published training steps, one JSON object a line")],
    json_path: Annotated[Path | None, typer.Option("--json", metavar="OUT", help="write what `errors --ablation` reads")] = None,
    sample: Annotated[int, typer.Option(help="rows of every source from which a mechanism is taken away", min=1)] = 12,
    workers: Annotated[int, typer.Option(help="processes")] = min(2, os.cpu_count() or 1),
    cache: Annotated[Path, typer.Option(help="folder of what was simulated before; an ablation that was stopped goes on from it")] = CACHE,
) -> None:
    """Predict published rows with nothing fitted, and without one mechanism at a time."""
    rows = [row for path in paths for row in read_rows(path)]
    some = sampled(rows, sample)
    wanted: list[tuple[Sequence[Row], str]] = [(rows, AS_IT_IS), (rows, NOTHING_FITTED), *((some, name) for name in ABLATIONS)]
    tasks = [task for those, name in wanted for task in tasks_of(cases_of(those), variant=name) if task is not None]
    answers = predicted(tasks, Cache(cache), workers)
    bare = tree_of(lines_of(rows, lambda _: answers, variant=NOTHING_FITTED))
    if any(map(is_judge, paths)):
        enter(bare, paths, what=NOTHING_FITTED)
    there = {line.id for line in lines_of(some, lambda _: answers) if line.error is not None}
    tables = {name: _table(lines_of(some, lambda _: answers, variant=name), there) for name in (AS_IT_IS, *ABLATIONS)}
    tree = {"schema": "parasim.ablation/1", "sample": sample, NOTHING_FITTED: {k: bare[k] for k in ("score", "by_source")}, "without": tables}
    if json_path is not None:
        write_json(json_path, tree)
    typer.echo("\n".join(table(tree)))


def sampled(rows: Sequence[Row], most: int) -> list[Row]:
    """At most `most` rows of every source, evenly spread over it; always the same."""
    sources: dict[str, list[Row]] = {}
    for row in rows:
        sources.setdefault(source_of(row), []).append(row)
    return [of[i * len(of) // n] for of in sources.values() for n in (min(most, len(of)),) for i in range(n)]


def _table(lines: Sequence[Line], there: set[str]) -> dict[str, Any]:
    """Means over sources: of the median |error| of steps, of its spread about the median error, of the median |error| of memory; and by source.
    `there`: the rows that the whole model predicts; `refused`: how many of them this one does not."""
    steps: dict[str, list[float]] = {}
    memory: dict[str, list[float]] = {}
    for line in lines:
        if line.error is not None and line.quantity == STEP:
            steps.setdefault(line.source, []).append(line.error)
        elif line.error is not None and line.quantity.endswith("memory_bytes"):
            memory.setdefault(f"{line.source} {line.quantity}", []).append(line.error)
    by_source = {s: {"n": len(e), "median_abs_error": _size(e), "bias": median(e), "spread": _size([x - median(e) for x in e])} for s, e in steps.items()}
    return {
        "score": _mean([s["median_abs_error"] for s in by_source.values()]),
        "spread": _mean([s["spread"] for s in by_source.values()]),
        "memory": _mean([_size(errors) for errors in memory.values()]),
        "refused": len(there - {line.id for line in lines if line.error is not None}),
        "by_source": by_source,
    }


def _size(errors: Sequence[float]) -> float:
    return median(abs(error) for error in errors)


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def table(tree: Mapping[str, Any]) -> list[str]:
    """The ablation as a table of Markdown, what costs most first."""
    whole = tree["without"][AS_IT_IS]
    rest = sorted(((name, t) for name, t in tree["without"].items() if name != AS_IT_IS), key=lambda item: -(item[1]["score"] or 0.0))
    lines = ["| without | what is not there | score | spread | memory | hurts most |", "|---|---|---|---|---|---|"]
    for name, t in [(AS_IT_IS, whole), *rest]:
        figures = " | ".join("-" if t[key] is None else f"{t[key]:.1%}" for key in ("score", "spread", "memory"))
        lines.append(f"| {name} | {VARIANTS[name].meaning} | {figures} | {_worse(t, whole)} |")
    return lines


def _worse(t: Mapping[str, Any], whole: Mapping[str, Any]) -> str:
    """The two sources whose median |error| grows most, by half a per cent at least."""
    grown = {s: f["median_abs_error"] - whole["by_source"][s]["median_abs_error"] for s, f in t["by_source"].items() if s in whole["by_source"]}
    most = sorted((s for s, g in grown.items() if g >= 0.005), key=lambda s: -grown[s])[:2]
    words = [f"{s} {whole['by_source'][s]['median_abs_error']:.1%} to {t['by_source'][s]['median_abs_error']:.1%}" for s in most]
    return ", ".join(words + ([f"{t['refused']} rows refused"] if t["refused"] else [])) or "-"
