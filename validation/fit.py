"""Fit the profiles that ship with parasim: `python -m validation fit`. The same rows give the same files.

What is fitted: per collective a latency and a bandwidth from one node's nccl-tests, by least squares of the relative error; then the one
matmul efficiency with which the whole steps of the fit rows have no bias (mean log ratio 0). Everything else is taken from the recipe.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
import yaml

from parasim.collectives.plan import plan, seconds
from parasim.cost.profile import Profile, datasheet, load_profile, read_profile, save_profile
from parasim.errors import Malformed
from parasim.provenance import Number
from parasim.topology.cluster import Cluster
from parasim.topology.loader import load_cluster

from .predict import DATA, Prepared, prepare
from .rows import NotModelled, read_rows, to_case

RECIPES, ROWS = DATA / "recipes", DATA / "fit"
PROFILES = Path(__file__).parent.parent / "parasim" / "cost" / "profiles"
EFFICIENCY = "compute.matmul_efficiency"
DIGITS = 4


@dataclass(frozen=True)
class Line:
    """time = latency + wire bytes / bandwidth of one collective on one node; `error` is the median |relative error| over `points`."""

    op: str
    system: str
    latency: float
    bandwidth: float
    points: int
    error: float

    @property
    def source(self) -> str:
        """Where the two numbers come from."""
        return f"nccl-tests {self.op} on {self.system}: latency and bandwidth fitted to {self.points} sizes, median error {self.error:.0%}"


def fit(
    names: Annotated[list[str] | None, typer.Argument(help="profiles to fit; omitted: all recipes")] = None,
    out: Annotated[Path, typer.Option(help="folder that the profiles are written to")] = PROFILES,
    check: Annotated[bool, typer.Option("--check", help="write nothing; exit 1 where the fit differs from the file")] = False,
) -> None:
    """Fit the profiles of the catalog on the fit rows."""
    known = sorted(path.stem for path in RECIPES.glob("*.yaml"))
    differs = False
    for name in names or known:
        if name not in known:
            raise Malformed(f"{name} has no recipe; known: {', '.join(known)}")
        fitted = fit_profile(name)
        typer.echo(f"{name}: {EFFICIENCY} {fitted.get(EFFICIENCY):.4g}; {fitted.numbers[EFFICIENCY].source}")
        if not check:
            save_profile(fitted, out / f"{name}.yaml")
        elif load_profile(out / f"{name}.yaml") != fitted:
            differs = True
            typer.echo(f"{name}: differs from {out / name}.yaml")
    if differs:
        raise typer.Exit(1)


def fit_profile(name: str) -> Profile:
    """The profile of the recipe called `name`."""
    path = RECIPES / f"{name}.yaml"
    recipe = yaml.safe_load(path.read_text(encoding="utf-8"))
    keys = ("name", "backend", "description", "numbers")
    given = read_profile({key: recipe[key] for key in keys}, str(path))
    links = fit_links(recipe["collectives"], load_cluster(recipe["cluster"], 8))
    profile = replace(given, numbers={**given.numbers, **links})
    cases = _cases(recipe["steps"])
    efficiency = fit_efficiency(cases, profile, float(recipe["start"]))
    return with_efficiency(profile, efficiency, _source(cases, profile, efficiency))


def fit_links(collectives: Mapping[str, Any], cluster: Cluster) -> dict[str, Number]:
    """Latency per collective, the bandwidth factor of the link kind (mean of the `reference` ops) and, for the other ops, their own factor."""
    lines = {op: fit_line(op, system) for op, system in collectives["ops"].items()}
    kind = collectives["link"]
    rate = min(link.bandwidth for link in cluster.links if link.kind == kind)
    reference = [lines[op] for op in collectives["reference"]]
    factor = round(sum(line.bandwidth for line in reference) / len(reference) / rate, DIGITS)
    out = {f"network.bandwidth_factor.{kind}": Number(factor, "1", "; ".join(line.source for line in reference), "fitted")}
    for op, line in lines.items():
        structural = seconds(plan(op, 1.0, cluster.devices, cluster, datasheet()), cluster, datasheet())
        latency = round(max(line.latency - structural, 0.0), 7)
        out[f"collective.{op}.latency"] = Number(latency, "s", f"{line.source}; less the links' own latency", "fitted")
        if line not in reference:
            own = round(line.bandwidth / (factor * rate), DIGITS)
            out[f"collective.{op}.bandwidth_factor"] = Number(own, "1", line.source, "fitted")
    for op, like in collectives.get("as", {}).items():
        number = out[f"collective.{like}.latency"]
        out[f"collective.{op}.latency"] = replace(number, source=f"as {like}, not measured", status="assumed")
    return out


def fit_line(op: str, system: str) -> Line:
    """Least squares of the relative error of time = latency + wire bytes / bandwidth over all sizes measured on `system`."""
    rows = [r for r in map(dict, _jsonl(ROWS / "collectives.jsonl")) if r["op"] == op and r["system"] == system]
    n = rows[0]["gpus"]
    times = np.array([r["time_us"] * 1e-6 for r in rows])
    wire = np.array([r["bytes"] * (n - 1) / n * (2 if op == "all_reduce" else 1) for r in rows])
    solution = np.linalg.lstsq(np.stack((1 / times, wire / times), axis=1), np.ones(len(rows)), rcond=None)[0]
    latency, per_byte = float(solution[0]), float(solution[1])
    error = float(np.median(np.abs((latency + wire * per_byte) / times - 1)))
    return Line(op, system, latency, 1 / per_byte, len(rows), error)


def _jsonl(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _cases(names: Sequence[str]) -> list[Prepared]:
    """The fit rows that can be simulated."""
    out = []
    for row in (row for name in names for row in read_rows(ROWS / name)):
        try:
            out.append(prepare(to_case(row)))
        except NotModelled:
            continue
    return out


def with_efficiency(profile: Profile, value: float, source: str = "search") -> Profile:
    """The profile with this matmul efficiency."""
    return replace(profile, numbers={**profile.numbers, EFFICIENCY: Number(value, "1", source, "fitted")})


def fit_efficiency(cases: Sequence[Prepared], profile: Profile, start: float) -> float:
    """The efficiency at which the mean log ratio of predicted to measured is 0, by the secant method on 1 / efficiency.

    Step times are close to linear in 1 / efficiency, so few simulations are needed. Raises `Malformed` when not even the peak is fast
    enough for the rows, or no efficiency in 0.02 to 1 fits.
    """

    def bias(inverse: float) -> float:
        tried = with_efficiency(profile, 1 / inverse)
        return sum(math.log(c.seconds(tried) / c.case.measured) for c in cases) / len(cases)

    if not cases:
        raise Malformed(f"{profile.name}: none of the fit rows can be simulated")
    a, b = 1 / start, 1.05 / start
    bias_a, bias_b = bias(a), bias(b)
    for _ in range(12):
        if abs(bias_b) < 1e-7 or bias_a == bias_b:
            break
        a, b = b, min(max(b - bias_b * (b - a) / (bias_b - bias_a), 1.0), 50.0)
        bias_a, bias_b = bias_b, bias(b)
    if abs(bias_b) > 1e-4:
        raise Malformed(f"{profile.name}: no matmul efficiency fits; at {1 / b:.3g} the rows are still off by {math.expm1(bias_b):+.1%}")
    return round(1 / b, DIGITS)


def _source(cases: Sequence[Prepared], profile: Profile, efficiency: float) -> str:
    final = with_efficiency(profile, efficiency)
    errors = [f"{c.case.id} {round(c.seconds(final) / c.case.measured - 1, 3) + 0.0:+.1%}" for c in cases]
    return f"whole steps of {len(cases)} published rows, mean log ratio 0: {', '.join(errors)}"
