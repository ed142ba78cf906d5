"""Published training steps -> run files of parasim: what a row says, what is assumed where it is silent, and why a row is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from parasim.errors import Malformed, ParasimError, Unparsable

from .row_layout import layout
from .row_model import NotModelled, model
from .row_values import Quantity, quantities
from .tpu_training import is_tpu, tpu_step

__all__ = ["Case", "NotModelled", "read_rows", "source_of", "systems", "to_case"]
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Case:
    """One row as a run: `run` is the tree of a run file without its profile, `profile` its name, `measured` what is published of it in SI.

    `layout`: what, beside source and degrees, tells apart the layouts that cross-validation leaves out.
    """

    id: str
    source: str
    accelerator: str
    family: str
    stack: str
    profile: str
    measured: tuple[Quantity, ...]
    run: Mapping[str, Any]
    assumptions: tuple[str, ...]
    layout: str = ""


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a .jsonl file, each with an id. Raises `Malformed` for a missing file, `Unparsable` for an empty or broken one."""
    if not path.is_file():
        raise Malformed(f"{path}: no such file")
    lines = [(n, line) for n, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1) if line.strip()]
    if not lines:
        raise Unparsable(f"{path}: is empty")
    for number, line in lines:
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise Unparsable(f"{path}:{number}:{error.colno}: is not JSON: {error.msg}") from None
        if not isinstance(row, dict):
            raise Unparsable(f"{path}:{number}: is not an object")
        yield {"id": f"{path.stem}-{number:04}", **row}


def source_of(row: Row) -> str:
    """The id without its number."""
    return str(row["id"]).rsplit("-", 1)[0]


@cache
def systems() -> Mapping[str, Any]:
    """Accelerators, fabrics, stacks of sources and profiles of stacks, from data/systems.yaml."""
    tree: Mapping[str, Any] = yaml.safe_load(files(__package__).joinpath("data/systems.yaml").read_text())
    return tree


def to_case(row: Row) -> Case:
    """The run that `row` describes. Raises `NotModelled` with every reason at once, also where the row is no training step."""
    try:
        return _case(row)
    except ParasimError as error:
        raise NotModelled(" / ".join(str(error).splitlines())) from error
    except (TypeError, ValueError, KeyError, AttributeError, ArithmeticError) as error:
        raise NotModelled(f"cannot be read: {type(error).__name__}: {error}") from error


def _case(row: Row) -> Case:
    if is_tpu(row):
        return Case(id=str(row["id"]), source=source_of(row), **tpu_step(row))
    missing = [key for key in ("model", "cluster", "strategy", "measured") if not row.get(key)]
    if missing:
        raise NotModelled(f"lacks {', '.join(missing)}")
    notes: list[str] = []
    if not row.get("sequence"):
        row = {**row, "sequence": _sequence(row)}
        notes.append(f"sequence not published: {row['sequence']}")
    source = systems()["sources"].get(source_of(row), {})
    if "vocab" in source and not row["model"].get("vocab"):
        row = {**row, "model": {**row["model"], "vocab": source["vocab"]}}
        notes.append(f"vocabulary not published: {source['vocab']}, which its source is known for")
    row = _scheduled(row, source, notes)
    cluster = row["cluster"]
    accelerator = str(cluster.get("accelerator"))
    known = systems()["accelerators"].get(accelerator)
    if known is None:
        raise NotModelled(f"no accelerator here is {accelerator}; known: {', '.join(systems()['accelerators'])}")
    if known.get("transferred"):
        notes.append(f"no fitted numbers of {accelerator}: its datasheet, and the efficiencies of the {known['of'].upper()}, transferred")
    stack = _stack(row, known["of"])
    transformer = model(row, notes)
    run = {"name": str(row["id"]), "model": transformer, "cluster": _cluster(cluster, known, notes), "stack": stack, **layout(row, stack, transformer, notes)}
    run |= {"kernels": source["kernels"]} if "kernels" in source else {}
    measured = tuple(quantities(row, run, source.get("memory", {})))
    if not measured:
        raise NotModelled("nothing that is predicted here was measured (no step time, memory or layer time)")
    profiles = systems()["profiles"][known["of"]]
    profile = profiles.get(stack, profiles["any"])
    return Case(str(row["id"]), source_of(row), accelerator, known["of"], stack, profile, measured, run, tuple(notes))


def _sequence(row: Row) -> int:
    """Tokens of a sequence where none are published: those its source is known for, else those of GPT-2 on V100 and of GPT-3 on what came later."""
    usual = 1024 if str(row["cluster"].get("accelerator")).startswith("V100") else 2048
    return int(systems()["sources"].get(source_of(row), {}).get("sequence", usual))


def _scheduled(row: Row, source: Mapping[str, Any], notes: list[str]) -> Row:
    """`row` with the schedule that its source is known for, where there is a pipeline and neither schedule nor chunks are published."""
    strategy, ranks = row["strategy"], int(row["strategy"].get("pp") or 1)
    if "schedule" not in source or ranks == 1 or strategy.get("schedule") or strategy.get("chunks"):
        return row
    chunks = int(row["model"]["layers"]) // (ranks * int(source["chunk"]))
    notes.append(f"schedule not published: {source['schedule']} of {chunks} chunks a rank, which its source is known for")
    return {**row, "strategy": {**strategy, "schedule": source["schedule"], "chunks": chunks}}


def _stack(row: Row, family: str) -> str:
    strategy = row["strategy"]
    narrow = str(strategy.get("precision")) in ("fp8", "mxfp8", "nvfp4")
    found = systems()["sources"].get(source_of(row))
    if found is not None:
        return "nemo-fp8" if narrow and found["stack"] == "megatron-h100" else str(found["stack"])
    holds = {
        "fp8": narrow,
        "fsdp": bool(strategy.get("fsdp")) or int(strategy.get("zero") or 0) >= 2,
        "old": str(strategy.get("precision")) == "fp16",
        "a100": family == "a100",
        "any": True,
    }
    return next(str(rule["stack"]) for rule in systems()["otherwise"] if holds[rule["when"]])


def _cluster(cluster: Mapping[str, Any], known: Mapping[str, Any], notes: list[str]) -> Any:
    """The servers of the accelerator, with the network of the fabric."""
    fabric = str(cluster.get("fabric"))
    system = systems()["fabrics"].get(fabric)
    if system is None:
        notes.append(f"fabric {fabric}: not known here, the usual one of these servers")
        system = {}
    notes += [system["note"]] if "note" in system else []
    if "cluster" in system:
        return {"base": system["cluster"], "accelerator": known["name"]}
    tree: dict[str, Any] = {"base": known["servers"], "accelerator": known["name"]}
    tree |= {"scale_out": dict(system["scale_out"])} if "scale_out" in system else {}
    domain = int(cluster.get("scale_up_domain") or cluster.get("per_node") or 0)
    return tree | ({"node": {"devices": domain}} if domain else {})
