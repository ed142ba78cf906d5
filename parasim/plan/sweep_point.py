"""One point of a sweep: plain data in, a plain row out; what runs in a worker process, wherever that is."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ..config import Run, load, vary
from ..errors import Refused
from ..provenance import digest
from .goodput_ask import asked_from, goodput
from .settings import Setting
from .whatif import report_of

MEASURES = ("step", "goodput")
FLAGS = "goodput."  # settings that begin so are flags of `parasim goodput`; all others are keys of the run file
Row = dict[str, Any]


@dataclass(frozen=True)
class Point:
    """`run` (path; "": the embedded default) under `settings`, and what is measured. `inputs`: hash of what the run file and parasim are."""

    run: str
    settings: tuple[Setting, ...]
    measure: str
    inputs: str

    @property
    def key(self) -> str:
        """Hash of all that decides the row: equal for equal content, wherever the files lie."""
        return digest(json.dumps([self.inputs, self.settings, self.measure]))


@lru_cache(maxsize=4)
def _base(path: str) -> Run:
    return load(path or None)


@lru_cache(maxsize=4)
def _run(path: str, overrides: tuple[str, ...]) -> Run:
    return vary(_base(path), overrides)


def evaluate(point: Point) -> Row:
    """The row of a point: numbers in SI, and `refusal` (null, or why there are none). Raises Malformed."""
    overrides = tuple(f"{k}={v}" for k, v in point.settings if not k.startswith(FLAGS))
    try:
        run = _run(point.run, overrides)
        if point.measure == "goodput":
            found = goodput(run, asked_from((k.removeprefix(FLAGS), v) for k, v in point.settings if k.startswith(FLAGS))).to_json()
            return {k: found[k] for k in ("mtbf_s", "checkpoint_interval_s", "effective_fraction", "wall_s", "gpu_hours", "cost_usd")} | {"refusal": None}
        report = report_of(run).to_json()
    except Refused as error:
        return {"refusal": str(error)}
    names = ("step_time_s", "tokens_per_s", "mfu", "bubble_makespan", "cost_usd_per_step")
    memory = report["memory"]
    return {k: report[k] for k in names} | {"peak_bytes": memory["peak_bytes"], "fits": memory["fits"], "refusal": None}


def evaluate_all(points: Sequence[Point]) -> list[tuple[str, Row]]:
    """Key and row of every point, in order."""
    return [(p.key, evaluate(p)) for p in points]
