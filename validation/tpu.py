"""Measured collectives on TPU interconnects: `python -m validation tpu FILES...`; every row is predicted from the other rows of its accelerator.

From the others come a latency per call and the fraction of the line rate (least squares of the relative error); a single other row gives the
fraction if it is above 1 MB, else the latency; none: line rates and hops. Rows over the data-centre network are printed, not gated.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from math import prod
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
import yaml

from parasim.collectives.plan import plan, seconds
from parasim.cost.profile import Profile
from parasim.provenance import Number
from parasim.topology.builders import IDEAL, Wire
from parasim.topology.cluster import Cluster
from parasim.topology.torus import torus
from parasim.units import parse

from .predict import DATA
from .rows import NotModelled, read_rows
from .written import write_json

MB = 1e6
GATE_LARGE, GATE_SMALL = 0.25, 3.0  # |error| above 1 MB; factor either way below
TPU = Profile("tpu", "tpu")


@dataclass(frozen=True)
class Case:
    """One row: the larger buffer (bytes) of `op` over `members` of `cluster`."""

    line: str
    accelerator: str
    op: str
    nbytes: float
    cluster: Cluster
    members: tuple[str, ...]
    measured: float
    between_slices: bool


@dataclass(frozen=True)
class Judged:
    """A row predicted from `others` rows of its accelerator."""

    id: str
    accelerator: str
    op: str
    bytes: float
    measured_s: float
    predicted_s: float
    error: float
    others: int
    passed: bool | None


def tpu(
    paths: Annotated[list[Path], typer.Argument(metavar="FILES", help="rows of kind micro, one JSON object a line")],
    json_path: Annotated[Path | None, typer.Option("--json", metavar="OUT", help="write the table as JSON")] = None,
) -> None:
    """Judge collectives on TPU interconnects, each from the other rows of its accelerator."""
    judged, refused = judge(paths)
    for reason in refused:
        typer.echo(f"refused {reason}")
    for row in judged:
        flag = {True: "", False: "  MISSED", None: "  (between slices: not gated)"}[row.passed]
        times = f"{row.measured_s * 1e6:10.1f}us {row.predicted_s * 1e6:10.1f}us {row.error:+8.1%}"
        typer.echo(f"{row.accelerator:18} {row.op:12} {row.bytes:14.0f} {times}  from {row.others} rows{flag}")
    missed = sum(row.passed is False for row in judged)
    typer.echo(f"{len(judged)} rows, {missed} missed (above 1 MB within {GATE_LARGE:.0%}, below within {GATE_SMALL:g} times)")
    if json_path is not None:
        tree = {"schema": "parasim.tpu/1", "passed": bool(judged) and not missed, "rows": [asdict(r) for r in judged], "refused": refused}
        write_json(json_path, tree)
    if missed or not judged:
        raise typer.Exit(1)


def judge(paths: Sequence[Path]) -> tuple[list[Judged], list[str]]:
    """Every collective of `paths`, and the reasons of refusals; rows that are no collective are passed over."""
    cases: list[Case] = []
    refused: list[str] = []
    for row in (row for path in paths for row in read_rows(path)):
        if row.get("kind") != "micro" or not re.match(r"all_(gather|reduce|to_all)|alltoall|reduce_scatter|psum", str(row.get("op"))):
            continue
        try:
            cases.append(to_case(row))
        except NotModelled as reason:
            refused.append(f"{row['id']}: {reason}")
    return [_judged(case, [o for o in cases if o is not case and _kin(o, case)]) for case in cases], refused


def _kin(a: Case, b: Case) -> bool:
    return a.accelerator == b.accelerator and a.between_slices == b.between_slices


def _judged(case: Case, others: Sequence[Case]) -> Judged:
    predicted = predict(case, fit(others))
    error = predicted / case.measured - 1
    passed = abs(error) <= GATE_LARGE if case.nbytes > MB else 1 / GATE_SMALL <= predicted / case.measured <= GATE_SMALL
    verdict = None if case.between_slices else passed
    return Judged(case.line, case.accelerator, case.op, case.nbytes, case.measured, predicted, error, len(others), verdict)


def predict(case: Case, profile: Profile) -> float:
    """Seconds of the case's plan with `profile`."""
    return seconds(plan(case.op, case.nbytes, case.members, case.cluster, profile), case.cluster, profile)


def fit(cases: Sequence[Case]) -> Profile:
    """Latency per call and fraction of the cables' rate, as the module says."""
    if not cases:
        return TPU
    ideal = np.array([predict(c, TPU) for c in cases])
    times = np.array([c.measured for c in cases])
    latency, slower = 0.0, 1.0
    if len({c.nbytes for c in cases}) > 1:
        latency, slower = map(float, np.linalg.lstsq(np.stack((1 / times, ideal / times), axis=1), np.ones(len(cases)), rcond=None)[0])
    if len({c.nbytes for c in cases}) == 1 or latency < 0 or slower <= 0:
        large = cases[0].nbytes > MB
        latency, slower = (0.0, float(np.median(times / ideal))) if large else (float(max(0.0, np.median(times - ideal))), 1.0)
    source = f"{len(cases)} rows of {cases[0].accelerator}"
    numbers = {f"collective.{op}.latency": Number(latency, "s", source, "fitted") for op in ("all_gather", "all_reduce", "reduce_scatter", "all_to_all")}
    return replace(TPU, numbers={**numbers, "network.bandwidth_factor.ici": Number(1 / slower, "1", source, "fitted")})


def to_case(row: Mapping[str, Any]) -> Case:
    """The row as a case. Raises `NotModelled` with the reason."""
    words = str(row["op"])
    op = "all_reduce" if "psum" in words or "all_reduce" in words else re.sub("alltoall", "all_to_all", words.split()[0])
    slices = int(row.get("num_slices", 1))
    shape = _shape(row, words, slices)
    spec = next((s for s in _specs() if re.search(s["match"], str(row.get("accelerator", "")), re.IGNORECASE)), None)
    if spec is None:
        raise NotModelled(f"accelerator {row.get('accelerator')!r} is not known")
    cluster = _cluster(spec["name"], shape, slices)
    members = _members(words, cluster, shape)
    nbytes = float(row["bytes"]) if "bytes" in row else float(row.get("bytes_transferred", 0)) * len(members) / (len(members) - 1)
    if not nbytes > 0:
        raise NotModelled("gives no bytes")
    return Case(str(row["id"]), str(row["accelerator"]), op, nbytes, cluster, members, _seconds(row), "DCN" in words)


def _shape(row: Mapping[str, Any], words: str, slices: int) -> tuple[int, ...]:
    written = re.search(r"\d+(?:x\d+)+", f"{row.get('topology', '')} {words}")
    if written:
        return tuple(map(int, written[0].split("x")))
    side = round((row.get("chips", 0) / slices) ** 0.5)
    if side > 0 and side * side * slices == row["chips"]:
        return side, side
    raise NotModelled("gives no topology, such as 16x16")


def _members(words: str, cluster: Cluster, shape: tuple[int, ...]) -> tuple[str, ...]:
    """All chips; "axis of N": the first line along the last axis of that size; "N participants": the first N chips."""
    axis, some = re.search(r"axis of (\d+)", words), re.search(r"(\d+) participants", words)
    if axis:
        n = int(axis[1])
        if n not in shape:
            raise NotModelled(f"{'x'.join(map(str, shape))} has no axis of {n}")
        place = len(shape) - 1 - shape[::-1].index(n)
        return tuple(cluster.devices[i * prod(shape[:place])] for i in range(n))
    return cluster.devices[: int(some[1])] if some else cluster.devices


def _seconds(row: Mapping[str, Any]) -> float:
    for key, unit in (("time_us", 1e-6), ("time_us_derived", 1e-6), ("time_ms", 1e-3), ("time_ms_derived", 1e-3)):
        if key in row:
            return float(row[key]) * unit
    if "gbs" not in row or "bytes" not in row:
        raise NotModelled("gives no time and no bandwidth")
    return float(row["bytes"]) / (float(row["gbs"]) * 1e9)


@cache
def _specs() -> tuple[Mapping[str, Any], ...]:
    return tuple(yaml.safe_load((DATA / "tpu.yaml").read_text(encoding="utf-8"))["tpus"])


@cache
def _cluster(name: str, shape: tuple[int, ...], slices: int) -> Cluster:
    spec = next(s for s in _specs() if s["name"] == name)
    cable = Wire("ici", parse(spec["cable"], "bandwidth"), parse(spec["hop"], "seconds"))
    port = Wire("dcn", parse(spec["dcn"], "bandwidth"), 0.0)
    chip = replace(IDEAL, name=name, kind="tpu")
    return torus(f"{name}-{'x'.join(map(str, shape))}", chip, shape, cable, spec["wrap"], slices=slices, dcn=port, chips_per_host=spec["chips_per_host"])
