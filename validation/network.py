"""Fit the network numbers of the profiles that ship with parasim: `python -m validation network`. The same rows give the same files."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
import yaml

from parasim.cost.profile import LEGAL, Profile, load_profile, read_profile, save_profile
from parasim.errors import Malformed
from parasim.provenance import Number
from parasim.topology.loader import load_cluster

from .collective_rows import CLASSES, op_of, read_measured, size_class
from .network_fit import Array, Fit, Point, predict
from .predict import DATA

PROFILES = Path(__file__).parent.parent / "parasim" / "cost" / "profiles"
RECIPES, ROWS = DATA / "network.yaml", DATA / "fit" / "collectives.jsonl"
FOLDS = 4
LEAF, TREE = "network.latency.leaf", "algorithm.tree."
HOP = f"{TREE}hop_bandwidth"
SMALLEST, CROSSING = 1024, 9e-6  # bytes; s that a hop by Simple takes beyond one by LL: 14 + 3 x 1 - 5 - 3 us of NCCL's planner


def network(
    names: Annotated[list[str] | None, typer.Argument(help="profiles to fit; omitted: all recipes")] = None,
    out: Annotated[Path, typer.Option(help="folder that the profiles are written to")] = PROFILES,
    check: Annotated[bool, typer.Option("--check", help="write nothing; exit 1 where the fit differs from the file")] = False,
    cross: Annotated[
        bool,
        typer.Option(
            "--cross", help="also fit without every fourth size, one op, one number of ranks, one system, the most ranks of each op, and predict those"
        ),
    ] = False,
) -> None:
    """Fit the network numbers of the profiles of the catalog."""
    recipes = yaml.safe_load(RECIPES.read_text(encoding="utf-8"))["profiles"]
    unknown = [name for name in names or () if name not in recipes]
    if unknown:
        raise Malformed(f"{unknown[0]} has no recipe; known: {', '.join(recipes)}")
    made: dict[str, Profile] = {}
    tables: list[Errors] = []
    differs = False
    for name, recipe in recipes.items():
        fit = fit_of(name, recipe, made)
        made[name] = fit.fitted() if fit.points else fit.profile
        if names and name not in names:
            continue
        tables += errors_of(fit, made[name], cross)
        typer.echo(f"{name}: {len(fit.points)} rows, {len(fit.free)} numbers fitted")
        if not check:
            save_profile(made[name], out / f"{name}.yaml")
        elif not (out / f"{name}.yaml").is_file() or load_profile(out / f"{name}.yaml") != made[name]:
            differs = True
            typer.echo(f"{name}: differs from {out / name}.yaml")
    print_errors(tables)
    if differs:
        raise typer.Exit(1)


@dataclass(frozen=True)
class Errors:
    """Signed errors of predicted seconds at points, under a title ("fit", "left out")."""

    title: str
    points: Sequence[Point]
    errors: Array


def fit_of(name: str, recipe: Mapping[str, Any], made: Mapping[str, Profile]) -> Fit:
    """The fit that a recipe describes, after the profiles it copies from."""
    given: dict[str, Number] = {}
    for other, patterns in recipe.get("like", {}).items():
        taken = [key for key in made[other].numbers if any(fnmatch.fnmatch(key, p) for p in patterns)]
        given |= {key: replace(made[other].numbers[key], source=f"as {other}, not measured here", status="assumed", interval=None) for key in taken}
    tree = {
        "name": name,
        "backend": "nccl",
        "description": recipe["description"],
        "algorithms": recipe.get("algorithms", {}),
        "numbers": recipe.get("numbers", {}),
    }
    profile = read_profile(tree, str(RECIPES))
    profile = replace(profile, numbers={**given, **profile.numbers})
    points = tuple(points_of(recipe)) if "rows" in recipe else ()
    free = {key: (float(a), float(b), float(c)) for key, (a, b, c) in recipe.get("free", {}).items()}
    systems = f"{len(points)} rows of nccl-tests where {', '.join(f'{k} is {v}' for k, v in recipe.get('rows', {}).items())}"
    return Fit(profile, free, points, {key: LEGAL[key].unit for key in free}, f"least squares of soft log ratios over {systems}")


def points_of(recipe: Mapping[str, Any]) -> Iterator[Point]:
    """The measured rows that all patterns of the recipe match, on its cluster."""
    clusters: dict[int, Any] = {}
    for row in read_measured(ROWS):
        if all(re.search(pattern, " ".join(str(row.data.get(c, "")) for c in columns.split("+"))) for columns, pattern in recipe["rows"].items()):
            ranks = int(row.data["gpus"])
            if ranks not in clusters:
                clusters[ranks] = load_cluster(recipe["cluster"], ranks)
            if row.seconds is not None:
                yield Point(op_of(row.data["op"]) or "", int(row.data["bytes"]), ranks, clusters[ranks], row.seconds, str(row.data["system"]))


def errors_of(fit: Fit, fitted: Profile, cross: bool) -> list[Errors]:
    """Errors of the fit at its own points and, with `cross`, at those that a fit did not see: a quarter of the sizes, an op, ranks, a system, and
    upwards only: the most ranks of each op, and twice the crossings."""
    if not fit.points:
        return []
    out = [Errors("fit", fit.points, _errors(fit.points, fitted))]
    for title, hidden in _folds(fit.points) if cross else ():
        seen = replace(fit, points=[p for p in fit.points if not hidden(p)])
        unseen = [p for p in fit.points if hidden(p)]
        out.append(Errors(f"left out: {title}", unseen, _errors(unseen, seen.fitted())))
    return out + ([*upwards(fit), *_unknown_network(fit, fitted)] if cross else [])


def upwards(fit: Fit) -> Iterator[Errors]:
    """Predictions of more from less, by op: of the most servers and ranks of every op from fewer; and of all-reduces between servers, which cross
    twice as often as all-gathers, from these."""
    groups = {op: {_places(p) for p in fit.points if p.op == op} for op in sorted({p.op for p in fit.points})}
    largest = {op: max(sizes) for op, sizes in groups.items() if len(sizes) > 1}
    twice = {"all_reduce": max(groups.get("all_reduce", {(1, 0)}))}
    crossing = "all_gather" in groups and not largest and twice["all_reduce"][0] > 1
    for title, hidden in (("most ranks", largest), ("crossings", twice if crossing else {})):
        seen = [p for p in fit.points if _places(p) != hidden.get(p.op)]
        fitted = replace(fit, points=seen).fitted() if hidden else fit.profile
        for op, places in hidden.items():
            unseen = [p for p in fit.points if (p.op, _places(p)) == (op, places)]
            yield Errors(f"{title}: {op}", unseen, _errors(unseen, fitted))


def _places(point: Point) -> tuple[int, int]:
    """Servers and ranks."""
    return len({point.cluster.node_of[d] for d in point.cluster.devices[: point.ranks]}), point.ranks


def _unknown_network(fit: Fit, fitted: Profile) -> list[Errors]:
    """All-reduces between servers as on a network that nobody fitted trees on: its rate, the latency of its smallest messages, and NCCL's own figures.

    Then with a hop of LL as profiles of the other kind of software have it (sockets or not).
    """
    points = [p for p in fit.points if p.op == "all_reduce" and _places(p)[0] > 1]
    smallest, rest = [p for p in points if p.nbytes <= SMALLEST], [p for p in points if p.nbytes > SMALLEST]
    if LEAF not in fit.free or not smallest:
        return []
    numbers = {key: number for key, number in fitted.numbers.items() if not key.startswith(TREE) or key.endswith(("tree.latency", "step_latency"))}
    numbers[f"{TREE}large_message_latency"] = Number(CROSSING, "s", "NCCL's planner", "assumed")
    others = [load_profile(path) for path in PROFILES.glob("nccl-slingshot-*.yaml") if ("tcp" in path.stem) != ("tcp" in fit.profile.name)]
    hop = Number(float(np.median([other.get(HOP) for other in others])), "B/s", "other software", "assumed")
    given = {"left out: network": numbers} | ({"with LL's hop": numbers | {HOP: hop}} if HOP in fit.free else {})
    bare = {title: Fit(replace(fitted, numbers=known), {LEAF: fit.free[LEAF]}, smallest, fit.units, fit.source) for title, known in given.items()}
    return [Errors(title, rest, _errors(rest, one.fitted())) for title, one in bare.items()]


def _folds(points: Sequence[Point]) -> Iterator[tuple[str, Callable[[Point], bool]]]:
    """What is hidden in turn. An op whose numbers no other op has (all_to_all, sendrecv) always stays."""
    sizes = sorted({p.nbytes for p in points})
    for fold in range(FOLDS if len(sizes) > FOLDS else 0):
        yield "size", partial(_is, "nbytes", frozenset(sizes[fold::FOLDS]))
    for title in ("op", "ranks", "system"):
        values = sorted({getattr(p, title) for p in points} - {"all_to_all", "sendrecv"})
        for value in values if len(values) > 1 else ():
            yield title, partial(_is, title, frozenset([value]))


def _is(column: str, values: frozenset[object], point: Point) -> bool:
    return getattr(point, column) in values


def _errors(points: Sequence[Point], profile: Profile) -> Array:
    return np.asarray(predict(points, profile) / [p.measured for p in points] - 1)


def print_errors(tables: Sequence[Errors]) -> None:
    """Median |error| and bias per size class, in the sample and left out."""
    for title in dict.fromkeys(t.title for t in tables):
        rows = [(p, e) for t in tables if t.title == title for p, e in zip(t.points, t.errors, strict=True)]
        for name in CLASSES:
            errors = [e for p, e in rows if size_class(p.nbytes) == name]
            if errors:
                typer.echo(f"{title:26} {name:16} {len(errors):4} rows, |error| median {np.median(np.abs(errors)):6.1%}, bias {np.median(errors):+6.1%}")
