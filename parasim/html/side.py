"""What a page is about: a timeline, and whatever else is known of its run."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..config import Run
from ..program.workload import Workload
from ..report import Window, step_window
from ..report.values import SCHEMA as REPORT
from ..timeline import COMPUTE, Timeline

MOST_OPS = 800_000  # in one page; ranks beyond that are left out, and the page says so


@dataclass(frozen=True)
class Side:
    """One timeline of a page. `report` is in the form `parasim.report/1`; without `run` and `workload` kernels and the layout are not shown.

    `kinds` are seconds of a rank by kind of kernel, where two sides are of no common program: a prediction and a trace.
    """

    name: str
    timeline: Timeline
    report: Mapping[str, Any] | None = None
    run: Run | None = None
    workload: Workload | None = None
    kinds: Mapping[str, float] | None = None

    @cached_property
    def window(self) -> Window:
        """The step that the report is about. Raises Refused for a timeline without ops."""
        return step_window(self.timeline)

    @cached_property
    def source(self) -> str:
        """`simulated` or `measured`."""
        return str(self.timeline.meta.get("source", "simulated"))

    @cached_property
    def stages(self) -> dict[int, list[int]]:
        """The stages of each kept rank."""
        ops = self.timeline.ops[(self.timeline.ops["kind"] == COMPUTE) & (self.timeline.ops["stage"] >= 0)]
        pairs = np.unique(np.stack((ops["rank"], ops["stage"]), axis=1), axis=0)
        out: dict[int, list[int]] = {rank: [] for rank in self.timeline.ranks}
        for rank, stage in pairs.tolist():
            out[rank].append(stage)
        return out

    @cached_property
    def shown(self) -> list[int]:
        """Kept ranks whose ops are in the page, in order of depth: one per stage first, then as many of the rest as MOST_OPS allows."""
        ranks, counts = np.unique(self.timeline.ops["rank"], return_counts=True)
        size = dict(zip(ranks.tolist(), counts.tolist(), strict=True))
        deep = sorted(size, key=lambda r: (self.stages[r][:1], r))
        first: dict[int, int] = {}
        for rank in deep:
            first.setdefault((self.stages[rank] or [-1])[0], rank)
        chosen: set[int] = set()
        total = 0
        for rank in dict.fromkeys([*first.values(), *deep]):
            total += size[rank]
            if total <= MOST_OPS or not chosen:
                chosen.add(rank)
        return [r for r in deep if r in chosen]

    @cached_property
    def rows(self) -> NDArray[np.int64]:
        """Row numbers of the ops of `shown`."""
        return np.flatnonzero(np.isin(self.timeline.ops["rank"], self.shown))


def side_of(path: Path) -> Side:
    """A saved timeline, with the report.json beside it where that is of the same step. Raises Malformed, Unparsable."""
    timeline = Timeline.load(path)
    alone = Side(path.stem if path.stem != "timeline" else path.resolve().parent.name, timeline)
    report = _report_beside(path)
    same = report is not None and report.get("world_size") == len(timeline.representative) and _close(report.get("step_time_s"), alone.window.length)
    return Side(str(report["name"]), timeline, report) if same and report is not None else alone


def _report_beside(path: Path) -> dict[str, Any] | None:
    """What `parasim run` wrote into the same folder."""
    try:
        report = json.loads(path.with_name("report.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return report if isinstance(report, dict) and report.get("schema") == REPORT and isinstance(report.get("name"), str) else None


def _close(a: object, b: float) -> bool:
    return isinstance(a, float) and math.isclose(a, b, rel_tol=1e-9)
