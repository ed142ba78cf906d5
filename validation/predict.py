"""One published row through the public API: the run file it stands for, simulated with a profile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from parasim.config import Run, build
from parasim.cost.profile import Profile
from parasim.errors import Malformed, Refused
from parasim.lowering import lower
from parasim.program.workload import Workload
from parasim.report import summarize
from parasim.sim import simulate

from .rows import Case, NotModelled

DATA = Path(__file__).parent / "data"


@dataclass(frozen=True)
class Prepared:
    """A case whose run file is loaded and lowered once; profiles only change its simulation."""

    case: Case
    run: Run
    workload: Workload

    def seconds(self, profile: Profile) -> float:
        """The predicted step time with `profile`."""
        run = replace(self.run, profile=profile)
        return float(summarize(simulate(self.workload, run.cluster, profile), run).step_time)


def prepare(case: Case) -> Prepared:
    """Load and lower `case`. Raises `NotModelled` where parasim refuses the run, with its reasons."""
    try:
        run = _load(case.run)
        return Prepared(case, run, lower(run.plan))
    except (Refused, Malformed) as error:
        raise NotModelled(" / ".join(str(error).splitlines())) from error


def _load(tree: Mapping[str, Any]) -> Run:
    cluster = tree["cluster"]
    if isinstance(cluster, str) and cluster.endswith(".yaml"):
        tree = {**tree, "cluster": str(DATA / cluster)}
    return build(tree)
