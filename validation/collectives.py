"""Measured collectives against predictions: `python -m validation collectives FILES...`.

Every row is predicted by the plan of its op on its cluster with the network numbers of a profile (validation/data/network_systems.yaml).
Errors are signed: predicted / measured - 1. The exit code is 1 where a size class misses its tolerance, or nothing could be judged.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from statistics import median
from typing import Annotated

import typer

from parasim.collectives.table import busbw_factor
from parasim.cost.profile import load_profile
from parasim.errors import Refused
from parasim.topology.cluster import Cluster
from parasim.topology.loader import load_cluster

from .collective_rows import CLASSES, Case, read_measured, size_class, to_case
from .network_fit import Point, predict
from .rows import NotModelled
from .written import write_json

# Largest median |error| per size class, and the largest bias of any.
TOLERANCE = dict(zip(CLASSES, (0.30, 0.35, 0.25, 0.12, 0.07), strict=True))
BIAS = 0.10
LARGE_GROUP = 20  # rows from which an op on a system is judged by itself, against twice the tolerance of its sizes


@dataclass(frozen=True)
class Judged:
    """One row; `op` as written there, `collective` as parasim names it. Without a measured time only the ratios of bandwidths are compared."""

    file: str
    line: int
    system: str
    op: str
    collective: str
    bytes: int
    gpus: int
    measured_s: float | None
    predicted_s: float
    error: float | None
    profile: str
    assumptions: tuple[str, ...]
    measured_ratio: float | None = None
    predicted_ratio: float | None = None


@dataclass(frozen=True)
class Skipped:
    """A row that is not predicted, and why."""

    file: str
    line: int
    system: str
    reason: str


@dataclass(frozen=True)
class Summary:
    """Rows of one class: number, median |error|, bias (median of the signed errors), and what the class may reach."""

    n: int
    median_error: float
    bias: float
    tolerance: float | None = None
    passed: bool = True


def collectives(
    paths: Annotated[list[Path], typer.Argument(metavar="FILES", help="measured collectives, one JSON object a line")],
    json_path: Annotated[Path | None, typer.Option("--json", metavar="OUT", help="write the table as JSON")] = None,
    profile: Annotated[str | None, typer.Option(help="profile for every row; omitted: the one of the row's system")] = None,
) -> None:
    """Judge predicted times of collectives against measured ones."""
    judged, skipped = judge(paths, profile)
    tables = summaries(judged)
    _print(judged, skipped, tables)
    passed = bool(tables["by_size"]) and all(s.passed for table in tables.values() for s in table.values())
    if json_path is not None:
        _write(json_path, judged, skipped, tables, passed)
    if not passed:
        raise typer.Exit(1)


def judge(paths: Sequence[Path], profile: str | None = None) -> tuple[list[Judged], list[Skipped]]:
    """Every row of `paths`, predicted or skipped with the reason, in order."""
    cases: list[tuple[Path, Case]] = []
    skipped: list[Skipped] = []
    for path, row in ((source, row) for source in paths for row in read_measured(source)):
        try:
            case = to_case(row)
            if row.seconds is None and row.ratio is None:
                raise NotModelled("gives no time, no bandwidth and no ratio of bandwidths")
            cases.append((path, case))
        except NotModelled as reason:
            skipped.append(Skipped(str(path), row.line, str(row.data.get("system", "")), str(reason)))
    judged: list[Judged] = []
    seconds = _predicted([case for _, case in cases], profile)
    for (path, case), predicted in zip(cases, seconds, strict=True):
        if isinstance(predicted, str):
            skipped.append(Skipped(str(path), case.row.line, str(case.row.data.get("system", "")), predicted))
        else:
            judged.append(_judged(path, case, predicted, profile))
    return _with_ratios(judged), skipped


def _predicted(cases: Sequence[Case], profile: str | None) -> list[float | str]:
    """Seconds, or the reason of a refusal; rows of one cluster and profile are predicted together."""
    out: list[float | str] = [""] * len(cases)
    groups: dict[str, list[int]] = {}
    for i, case in enumerate(cases):
        groups.setdefault(json.dumps([case.cluster, case.ranks, case.op, profile or case.profile], sort_keys=True), []).append(i)
    for members in groups.values():
        first = cases[members[0]]
        try:
            cluster = _cluster(json.dumps(first.cluster), first.ranks)
            points = [Point(cases[i].op, cases[i].nbytes, cases[i].ranks, cluster, 0.0) for i in members]
            found: list[float | str] = [float(t) for t in predict(points, load_profile(profile or first.profile))]
        except Refused as error:
            found = [" / ".join(str(error).splitlines())] * len(members)
        for i, value in zip(members, found, strict=True):
            out[i] = value
    return out


@cache
def _cluster(spec: str, ranks: int) -> Cluster:
    return load_cluster(json.loads(spec), ranks)


def _judged(path: Path, case: Case, predicted: float, profile: str | None) -> Judged:
    row, data = case.row, case.row.data
    error = None if row.seconds is None else predicted / row.seconds - 1
    return Judged(
        file=str(path),
        line=row.line,
        system=str(data.get("system", "")),
        op=str(data.get("op")),
        collective=case.op,
        bytes=case.nbytes,
        gpus=case.ranks,
        measured_s=row.seconds,
        predicted_s=predicted,
        error=error,
        profile=profile or case.profile,
        assumptions=case.assumptions,
        measured_ratio=row.ratio if row.seconds is None else None,
    )


def _with_ratios(judged: Sequence[Judged]) -> list[Judged]:
    """Rows that only give a ratio: predicted busbw over that of the fewest ranks of the same file, system, op and size."""
    out = []
    for row in judged:
        if row.measured_ratio is None:
            out.append(row)
            continue
        alike = [r for r in judged if (r.file, r.system, r.op, r.bytes) == (row.file, row.system, row.op, row.bytes)]
        ratio = _busbw(row) / _busbw(min(alike, key=lambda r: r.gpus))
        out.append(Judged(**{**asdict(row), "assumptions": row.assumptions, "predicted_ratio": ratio}))
    return out


def _busbw(row: Judged) -> float:
    return row.bytes * busbw_factor(row.collective, row.gpus) / row.predicted_s


def summaries(judged: Sequence[Judged]) -> dict[str, dict[str, Summary]]:
    """by_size (gated), by_op, by_system, and by_op_and_system (gated from LARGE_GROUP rows on)."""
    scored = [row for row in judged if row.error is not None]
    out: dict[str, dict[str, Summary]] = {}
    out["by_size"] = dict(sorted(_grouped(scored, lambda r: size_class(r.bytes)), key=lambda pair: list(CLASSES).index(pair[0])))
    out["by_size"] = {name: _gated(s, TOLERANCE[name], BIAS) for name, s in out["by_size"].items()}
    out["by_op"] = dict(_grouped(scored, lambda r: r.op))
    out["by_system"] = dict(_grouped(scored, lambda r: r.system))
    out["by_op_and_system"] = {
        f"{name}, {size}": _gated(s, 2 * TOLERANCE[size], float("inf"))
        for size in CLASSES
        for name, s in _grouped([r for r in scored if size_class(r.bytes) == size], lambda r: f"{r.op} on {r.system}")
        if s.n >= LARGE_GROUP
    }
    return out


def _grouped(rows: Sequence[Judged], key: Callable[[Judged], str]) -> Iterator[tuple[str, Summary]]:
    for name in sorted({key(row) for row in rows}):
        errors = [row.error for row in rows if key(row) == name and row.error is not None]
        yield name, Summary(len(errors), median(map(abs, errors)), median(errors))


def _gated(s: Summary, tolerance: float, bias: float) -> Summary:
    return Summary(s.n, s.median_error, s.bias, tolerance, s.median_error <= tolerance and abs(s.bias) <= bias)


def _print(judged: Sequence[Judged], skipped: Sequence[Skipped], tables: Mapping[str, Mapping[str, Summary]]) -> None:
    for skip in skipped:
        typer.echo(f"refused {skip.file}:{skip.line}: {skip.system}: {skip.reason}")
    for note in sorted({f"{row.system}: {text}" for row in judged for text in row.assumptions}):
        typer.echo(f"assumed {note}")
    for row in judged:
        if row.measured_ratio is not None and row.predicted_ratio is not None:
            typer.echo(f"ratio {row.file}:{row.line}: {row.op}, {row.gpus} GPUs: measured {row.measured_ratio:.3g}, predicted {row.predicted_ratio:.3g}")
    for title, table in tables.items():
        typer.echo(f"\n{title}")
        for name, s in table.items():
            gate = "" if s.tolerance is None else f"  at most {s.tolerance:.0%}{'' if s.passed else '  MISSED'}"
            typer.echo(f"  {name:64} {s.n:5} rows  |error| median {s.median_error:7.1%}  bias {s.bias:+7.1%}{gate}")
    scored = sum(row.error is not None for row in judged)
    typer.echo(f"\n{scored} rows judged, {len(judged) - scored} compared as ratios, {len(skipped)} refused" + ("" if scored else ": nothing to judge"))


def _write(path: Path, judged: Sequence[Judged], skipped: Sequence[Skipped], tables: Mapping[str, Mapping[str, Summary]], passed: bool) -> None:
    summary = {title: {name: asdict(s) for name, s in table.items()} for title, table in tables.items()}
    tree = {"schema": "parasim.collectives/1", "passed": passed, "rows": [asdict(r) for r in judged], **summary, "refused": [asdict(r) for r in skipped]}
    write_json(path, tree)
