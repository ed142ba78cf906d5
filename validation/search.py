"""The best layouts that search finds against brute force: `python -m validation search [--case NAME]`.

Brute force simulates every legal layout of a case and keeps the steps in a file, one a line, so that a run that is cut short goes on where it was.
The search must have proven its first ten, and their steps must be the ten shortest.
"""

from __future__ import annotations

import json
import multiprocessing
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from parasim import __version__
from parasim.config import Run, build, vary
from parasim.errors import Malformed, Refused
from parasim.lowering import lower
from parasim.plan.search import Search
from parasim.plan.search import search as searched
from parasim.plan.settings import sweep
from parasim.plan.space import Candidate, axes, space, template
from parasim.report import summarize
from parasim.sim import simulate

from .predict import DATA

TOP = 10
NEAR = 1e-12  # of steps that are sums in the same order
ROWS = Path("parasim-out") / "validation" / "search.jsonl"


@dataclass(frozen=True)
class Case:
    """A run file as a tree, devices, and the values that are varied ("parallel.tp=1,2,4")."""

    name: str
    keys: dict[str, Any]
    devices: int
    varied: tuple[str, ...]


@dataclass(frozen=True)
class Compared:
    """What came out of a case."""

    case: Case
    found: Search
    legal: int
    steps: tuple[float, ...]

    @property
    def passed(self) -> bool:
        """Is the top proven and that of brute force?"""
        mine = [f.report.step_time for f in self.found.best[:TOP]]
        return self.found.proven and len(mine) == min(TOP, len(self.steps)) and all(abs(a - b) <= NEAR * b for a, b in zip(mine, self.steps, strict=False))

    def __str__(self) -> str:
        s = self.found
        counts = f"{s.space.enumerated} enumerated, {self.legal} legal, {len(self.steps)} fit; search simulated {len(s.found)}, bounded away {s.bounded}"
        best = f"best {s.best[0].candidate.name} {s.best[0].report.step_time:.6g} s" if s.best else "nothing found"
        return f"{'pass' if self.passed else 'MISS'}  {self.case.name}: {counts}; {best}"


def cases() -> list[Case]:
    """The cases of data/search.yaml: every model on every number of devices, with its cluster."""
    tree = yaml.safe_load((DATA / "search.yaml").read_text(encoding="utf-8"))
    return [
        Case(f"{name}-{devices}", {**tree["run"], "devices": devices, **row["run"]}, devices, tuple(f"{k}={v}" for k, v in row["vary"].items()))
        for name, row in tree["cases"].items()
        for devices in tree["devices"]
    ]


def legal(case: Case, path: Path) -> list[Candidate]:
    """All layouts of the case that the rules allow."""
    start = template(path, [])
    return space(start, case.devices, axes(start, case.devices, dict(sweep(text) for text in case.varied), {})).candidates


def simulated(job: tuple[dict[str, Any], Sequence[str]]) -> float | None:
    """The step of one layout; None where it is refused or does not fit."""
    keys, overrides = job
    try:
        run: Run = vary(build(keys), overrides)
        report = summarize(simulate(lower(run.plan, check=False), run.cluster, run.profile), run)
    except Refused:
        return None
    return report.step_time if report.memory.fits else None


def compare(case: Case, rows: Path | None = None, workers: int = 1) -> Compared:
    """Search and brute force; rows that `rows` holds are not simulated again."""
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "run.yaml"
        path.write_text(yaml.safe_dump(case.keys), encoding="utf-8")
        candidates = legal(case, path)
        found = searched(path, [], case.devices, varied=case.varied, top=TOP, runs=10**6)
    steps = sorted(s for s in brute(case, candidates, rows, workers) if s is not None)
    return Compared(case, found, len(candidates), tuple(steps))


def brute(case: Case, candidates: Sequence[Candidate], rows: Path | None, workers: int) -> Iterator[float | None]:
    """The step of every candidate, from the file or simulated now."""
    known = dict(_read(rows)) if rows else {}
    keys = {c.name: f"{__version__} {case.name} {' '.join(c.overrides)}" for c in candidates}
    yield from (known[key] for key in keys.values() if key in known)
    left = [c for c in candidates if keys[c.name] not in known]
    jobs = [(case.keys, c.overrides) for c in left]
    for candidate, step in zip(left, _mapped(jobs, workers), strict=True):
        if rows:
            with rows.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"layout": keys[candidate.name], "step_time_s": step}) + "\n")
        yield step


def _mapped(jobs: Sequence[tuple[dict[str, Any], Sequence[str]]], workers: int) -> Iterator[float | None]:
    if workers == 1 or not jobs:
        yield from map(simulated, jobs)
        return
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        yield from pool.map(simulated, jobs, chunksize=8)


def _read(path: Path) -> Iterator[tuple[str, float | None]]:
    """Whole lines; a last one that was cut short is left out."""
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            continue
        yield row["layout"], row["step_time_s"]


def search(
    case: Annotated[str, typer.Option(help="Only the cases whose name this pattern names.")] = "*",
    workers: Annotated[int, typer.Option(min=1, help="Processes of brute force.")] = 2,
    rows: Annotated[Path, typer.Option(help="Where the steps of brute force are kept.")] = ROWS,
) -> None:
    """Hold the best layouts that search finds against brute force over all legal layouts; exit code 1 when a case misses."""
    chosen = [c for c in cases() if fnmatch(c.name, case)]
    if not chosen:
        raise Malformed(f"--case {case}: no such case; known: {', '.join(c.name for c in cases())}")
    rows.parent.mkdir(parents=True, exist_ok=True)
    missed = 0
    for one in chosen:
        compared = compare(one, rows, workers)
        missed += not compared.passed
        typer.echo(str(compared))
    raise typer.Exit(1 if missed else 0)
