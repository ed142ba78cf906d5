"""Fit the training profiles that ship with parasim: `python -m validation fit`. The same rows give the same files.

The numbers of an accelerator and of the stacks on it are fitted together, in logarithms: Gauss-Newton on soft-L1 losses of log(predicted /
measured) over step and layer times, each source weighted as at most SOURCE rows, with a prior on every number (data/training.yaml).
Cross-validated errors leave one layout (source, tp, pp) out and solve the linearised problem without it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import numpy as np
import typer
import yaml
from numpy.typing import NDArray

from parasim import documents
from parasim.cost.profile import Profile, load_profile, read_profile, save_profile
from parasim.errors import Malformed
from parasim.provenance import Number

from .cache import Cache
from .fit_memory import KEY, with_fragmentation
from .predict import DATA, Predictor, prepare
from .rows import Case, NotModelled, read_rows, to_case

ROWS = DATA / "fit"
PROFILES = Path(__file__).parent.parent / "parasim" / "cost" / "profiles"
ACCURACY = Path(__file__).parent.parent / "parasim" / "cost" / "accuracy.yaml"
CACHE = Path(".published-cache")
TIMES = ("step_time_s", "layer_forward_s", "layer_backward_s")
SIGMA, SOURCE, ROUNDS, STEP, DIGITS = 0.05, 8, 2, 0.04, 4
Array = NDArray[np.float64]
Values = Mapping[str, float]  # "profile/number" -> value


@dataclass(frozen=True)
class Point:
    """One measured time: the run that predicts it, and its number among the case's."""

    case: Case
    quantity: str
    measured: float

    @property
    def group(self) -> tuple[str, str, Any, Any]:
        """The layout that cross-validation leaves out together."""
        parallel = self.case.run["parallel"]
        return self.case.source, self.case.layout, parallel["tp"], parallel["pp"]


@dataclass(frozen=True)
class Problem:
    """What one base and the profiles over it are fitted to. `keys`: profile/number of every fitted one; `start`, `prior` in logarithms."""

    base: str
    keys: tuple[str, ...]
    start: Array
    prior: Array
    points: tuple[Point, ...]


@dataclass(frozen=True)
class Solution:
    """`theta` in logarithms, log ratios of the points and their Jacobian there."""

    theta: Array
    ratios: Array
    jacobian: Array


def fit(
    names: Annotated[list[str] | None, typer.Argument(help="bases to fit (a100, h100, tpu); omitted: all")] = None,
    out: Annotated[Path, typer.Option(help="folder that the profiles are written to")] = PROFILES,
    check: Annotated[bool, typer.Option("--check", help="write nothing; exit 1 where the fit differs from the files")] = False,
    memory: Annotated[bool, typer.Option("--memory", help="only memory.fragmentation, beside the numbers that the files have")] = False,
    workers: Annotated[int, typer.Option(help="processes")] = min(2, os.cpu_count() or 1),
) -> None:
    """Fit the training profiles of the catalog on the fit rows."""
    recipe = _recipe()
    unknown = set(names or ()) - set(recipe["bases"])
    if unknown:
        raise Malformed(f"{', '.join(sorted(unknown))} is no base; known: {', '.join(recipe['bases'])}")
    differs, cache = False, Cache(CACHE)
    if memory:
        for name in (n for n, entry in recipe["profiles"].items() if "memory" in entry and set(entry["extends"]) & set(names or recipe["bases"])):
            profile = with_fragmentation(load_profile(name), recipe, cache, workers)
            typer.echo(f"{name}: {profile.numbers[KEY].value:g}")
            differs |= _written(profile, out, check)
        _judged(differs)
        return
    with ProcessPoolExecutor(max(1, workers)) as pool:
        for base in names or list(recipe["bases"]):
            problem = problem_of(base, recipe)
            solution = solve(problem, recipe, pool)
            for profile in profiles_of(problem, solution, recipe):
                differs |= _written(with_fragmentation(profile, recipe, cache, workers), out, check)
            crossed = cross_validated(problem, solution)
            _print(problem, solution, crossed)
            if not check:
                _save_accuracy(problem, crossed)
    _judged(differs)


def _written(profile: Profile, out: Path, check: bool) -> bool:
    """Write `profile`; where this is a check write nothing, and say whether it is another than the catalog's."""
    if check:
        return load_profile(profile.name) != profile
    save_profile(profile, out / f"{profile.name}.yaml")
    return False


def _judged(differs: bool) -> None:
    if differs:
        typer.echo("the fit differs from the files")
        raise typer.Exit(1)


def _recipe() -> dict[str, Any]:
    tree, tpus = (yaml.safe_load((DATA / name).read_text(encoding="utf-8")) for name in ("training.yaml", "tpu_training.yaml"))
    return {**tree, **{block: tree[block] | tpus[block] for block in ("bases", "profiles")}}


def problem_of(base: str, recipe: Mapping[str, Any]) -> Problem:
    """The fitted numbers of `base` and of the profiles that extend it, and the sampled rows of their sources."""
    over = {name: entry for name, entry in recipe["profiles"].items() if base in chain(name, recipe)}
    entries = {base: recipe["bases"][base], **over}
    keys = [(name, key, spec) for name, entry in entries.items() for key, spec in entry["fitted"].items()]
    sources = dict.fromkeys(source for entry in over.values() for source in entry["rows"])
    points = [p for s in sources for p in points_of(s, recipe["sample"].get(s)) if p.case.profile in over]
    start = [np.log(_number(key, spec["start"])) for _, key, spec in keys]
    return Problem(base, tuple(f"{name}/{key}" for name, key, _ in keys), np.array(start), np.array([np.log(s["prior"]) for *_, s in keys]), tuple(points))


def chain(name: str, recipe: Mapping[str, Any]) -> list[str]:
    """The fitted entries that the profile called `name` stands on, lowest first, itself last."""
    entries = recipe["bases"] | recipe["profiles"]
    return [*(below for n in entries[name].get("extends", ()) if n in entries for below in chain(n, recipe)), name]


def _number(key: str, start: object) -> float:
    entry = {"value": start, "source": "start", "status": "assumed"} | ({} if isinstance(start, str) else {"unit": "1"})
    return read_profile({"name": "start", "numbers": {key: entry}}, "training.yaml").get(key)


def points_of(source: str, sample: int | None = None) -> Iterator[Point]:
    """The measured times of the rows of `source` that can be simulated; `sample` of the rows, evenly spread."""
    rows = list(read_rows(ROWS / f"{source}.jsonl"))
    kept = rows if sample is None else [rows[i * len(rows) // sample] for i in range(min(sample, len(rows)))]
    for row in kept:
        try:
            case = to_case(row)
            _prepared(json.dumps(case.run))
        except NotModelled:
            continue
        yield from (Point(case, q.name, q.value) for q in case.measured if q.name in TIMES)


@lru_cache(maxsize=256)
def _prepared(run: str) -> Predictor:
    return prepare(json.loads(run))


def with_values(name: str, values: Values, recipe: Mapping[str, Any], sources: Mapping[str, str] | None = None) -> Profile:
    """The profile called `name` with the fitted numbers `values`, its own over those of its base."""
    entries = recipe["bases"] | recipe["profiles"]
    entry = entries[name]
    below = [with_values(n, values, recipe, sources) if n in entries else load_profile(n) for n in entry.get("extends", ())]
    numbers = {key: number for profile in below for key, number in profile.numbers.items()}
    numbers |= read_profile({"name": name, "numbers": entry.get("numbers", {})}, "training.yaml").numbers
    for key in entry["fitted"]:
        unit = "s" if key.startswith(("compute.host_launch", "p2p.latency")) else "1"
        numbers[key] = Number(float(f"{values[f'{name}/{key}']:.{DIGITS}g}"), unit, (sources or {}).get(name, "search"), "fitted")
    algorithms = {key: word for profile in below for key, word in profile.algorithms.items()}
    return Profile(name, entry.get("backend", "nccl"), numbers, entry["description"], algorithms, tuple(entry.get("extends", ())))


def _evaluate(task: tuple[str, str, tuple[str, ...], tuple[Values, ...]]) -> list[list[float]]:
    """Predicted seconds of one run, per set of values and quantity."""
    run, profile, quantities, sets = task
    prepared, recipe = _prepared(run), _recipe()
    found = [prepared.values(with_values(profile, values, recipe)) for values in sets]
    return [[values[q] for q in quantities] for values in found]


def solve(problem: Problem, recipe: Mapping[str, Any], pool: ProcessPoolExecutor) -> Solution:
    """Gauss-Newton from the starting values, ROUNDS steps."""
    theta = problem.start
    for _ in range(ROUNDS):
        ratios, jacobian = linearised(problem, theta, pool)
        theta = theta + _move(problem, theta, ratios, jacobian, np.ones(len(ratios), dtype=bool))
    return Solution(theta, *linearised(problem, theta, pool))


def linearised(problem: Problem, theta: Array, pool: ProcessPoolExecutor) -> tuple[Array, Array]:
    """Log ratios of every point at `theta`, and their derivatives by forward differences; equal runs are simulated once."""
    runs: dict[tuple[str, str], list[int]] = {}
    for i, point in enumerate(problem.points):
        runs.setdefault((json.dumps({**point.case.run, "name": "fit"}), point.case.profile), []).append(i)
    tasks, columns, recipe = [], [], _recipe()
    for (run, profile), at in runs.items():
        below = chain(profile, recipe)
        mine = [k for k, key in enumerate(problem.keys) if key.partition("/")[0] in below]
        sets = tuple(_values(problem, theta + STEP * (np.arange(len(theta)) == k)) for k in (-1, *mine))
        tasks.append((run, profile, tuple(problem.points[i].quantity for i in at), sets))
        columns.append((at, mine))
    ratios, jacobian = np.zeros(len(problem.points)), np.zeros((len(problem.points), len(theta)))
    for (at, mine), found in zip(columns, pool.map(_evaluate, tasks, chunksize=4), strict=True):
        logs = np.log(np.array(found))
        ratios[at] = logs[0] - np.log([problem.points[i].measured for i in at])
        jacobian[np.ix_(at, mine)] = ((logs[1:] - logs[0]) / STEP).T
    return ratios, jacobian


def _values(problem: Problem, theta: Array) -> dict[str, float]:
    return dict(zip(problem.keys, np.exp(theta).tolist(), strict=True))


def _move(problem: Problem, theta: Array, ratios: Array, jacobian: Array, kept: NDArray[np.bool_]) -> Array:
    """The step of the linearised soft-L1 problem over the points `kept`: weighted least squares, reweighted until it stands."""
    sources = [p.case.source for p in problem.points]
    per_source = {s: sum(k for k, name in zip(kept, sources, strict=True) if name == s) for s in set(sources)}
    share = np.array([min(1.0, SOURCE / max(per_source[s], 1)) for s in sources]) * kept
    move: Array = np.zeros(len(theta))
    for _ in range(30):
        residual = (ratios + jacobian @ move) / SIGMA
        weight = share / np.sqrt(1 + residual**2) / SIGMA**2
        left = jacobian.T @ (weight[:, None] * jacobian) + np.diag(problem.prior**-2)
        right = -jacobian.T @ (weight * ratios) + (problem.start - theta) / problem.prior**2
        move = np.asarray(np.linalg.solve(left, right), dtype=np.float64)
    return np.asarray(np.clip(move, -0.5, 0.5))


def cross_validated(problem: Problem, solution: Solution, by_source: bool = False) -> Array:
    """Log ratios of every point from the linearised fit without its layout, or without its source."""
    out = np.zeros(len(problem.points))
    groups = [p.case.source if by_source else p.group for p in problem.points]
    for group in dict.fromkeys(groups):
        kept = np.array([g != group for g in groups])
        move = _move(problem, solution.theta, solution.ratios, solution.jacobian, kept)
        out[~kept] = (solution.ratios + solution.jacobian @ move)[~kept]
    return out


def profiles_of(problem: Problem, solution: Solution, recipe: Mapping[str, Any]) -> list[Profile]:
    """The base and the profiles over it, with where their numbers are from."""
    names = dict.fromkeys((problem.base, *(key.partition("/")[0] for key in problem.keys)))
    sources = {name: _source(problem, name, recipe) for name in names}
    return [with_values(name, _values(problem, solution.theta), recipe, sources) for name in names]


def _source(problem: Problem, name: str, recipe: Mapping[str, Any]) -> str:
    points = [p for p in problem.points if name in chain(p.case.profile, recipe)]
    sources = dict.fromkeys(p.case.source for p in points)
    return f"least squares of soft log ratios over {len(points)} published times ({', '.join(sources)}), with priors: python -m validation fit {problem.base}"


def _print(problem: Problem, solution: Solution, crossed: Array) -> None:
    for key, value in _values(problem, solution.theta).items():
        typer.echo(f"{key} = {value:.4g}")
    apart = cross_validated(problem, solution, by_source=True)
    typer.echo(f"{'source':24} {'quantity':17} {'n':>4} {'median':>8} {'bias':>8} {'layout left out':>16} {'source left out':>16}")
    for source, quantity in dict.fromkeys((p.case.source, p.quantity) for p in problem.points):
        at = [i for i, p in enumerate(problem.points) if (p.case.source, p.quantity) == (source, quantity)]
        own, left, far = (np.expm1(x[at]) for x in (solution.ratios, crossed, apart))
        figures = f"{np.median(abs(own)):8.1%} {np.median(own):+8.1%} {np.median(abs(left)):16.1%} {np.median(abs(far)):16.1%}"
        typer.echo(f"{source:24} {quantity:17} {len(at):4} {figures}")


def _save_accuracy(problem: Problem, crossed: Array) -> None:
    """Cross-validated |errors| of step times per profile, stack and accelerator: what `parasim run` says of its uncertainty."""
    entries = list(documents.read(ACCURACY).mapping()["entries"]) if ACCURACY.exists() else []
    names = {key.partition("/")[0] for key in problem.keys}
    entries = [e for e in entries if e["profile"] not in names]
    found: dict[tuple[str, str, str], list[float]] = {}
    for point, ratio in zip(problem.points, crossed, strict=True):
        if point.quantity == "step_time_s":
            where = point.case.profile, point.case.stack, str(point.case.run["cluster"]["accelerator"])
            found.setdefault(where, []).append(float(abs(np.expm1(ratio))))
    for (profile, stack, accelerator), errors in found.items():
        figures = {"median": round(median(errors), 3), "p90": round(float(np.quantile(errors, 0.9)), 3), "rows": len(errors)}
        entries.append({"profile": profile, "stack": stack, "accelerator": accelerator, **figures})
    entries.sort(key=lambda e: (e["profile"], e["stack"], e["accelerator"]))
    about = "|predicted / measured - 1| of published step times, cross-validated by layout; written by python -m validation fit"
    documents.write({"about": about, "entries": entries}, ACCURACY)
