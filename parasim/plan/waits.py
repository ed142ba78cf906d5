"""Who waits how long at a collective that its ranks reach at different times: simulated, rank by rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..cost.profile import Profile
from ..errors import Malformed
from ..lowering.meeting import lower_meeting
from ..sim import simulate
from ..timeline import COMPUTE
from ..topology.cluster import Cluster
from ..units import format_seconds
from ..words import known

OPS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")


@dataclass(frozen=True)
class Waits:
    """Per rank, in seconds: when it comes, when it leaves, what a clock started on arrival shows, and what of that is waiting for others."""

    op: str
    arrivals: tuple[float, ...]
    leaves: tuple[float, ...]
    waiting: tuple[float, ...]

    def to_json(self) -> dict[str, Any]:
        """The contract `parasim.waits/1`."""
        return {
            "schema": "parasim.waits/1",
            "op": self.op,
            "arrives_s": list(self.arrivals),
            "leaves_s": list(self.leaves),
            "all_left_s": max(self.leaves),
            "elapsed_s": [b - a for a, b in zip(self.arrivals, self.leaves, strict=True)],
            "waits_s": list(self.waiting),
        }

    def __str__(self) -> str:
        rows = zip(self.arrivals, self.leaves, self.waiting, strict=True)
        text = [f"rank {r}: comes {format_seconds(a)}, leaves {format_seconds(b)}, waits {format_seconds(w)}" for r, (a, b, w) in enumerate(rows)]
        return "\n".join([self.op, *text])


def waits(cluster: Cluster, profile: Profile, op: str, nbytes: int, arrivals: Sequence[float]) -> Waits:
    """`op` of `nbytes` over the first len(arrivals) devices; rank r comes at arrivals[r] seconds. Raises Malformed, and what `simulate` raises."""
    known(op, OPS, "op")
    if len(arrivals) < 2:
        raise Malformed("--arrivals needs a time for each of 2 ranks or more, such as 0s,1s,3s")
    timeline = simulate(lower_meeting(op, nbytes, arrivals), cluster, profile, fold=False)  # type: ignore[arg-type]
    met = timeline.ops[timeline.ops["kind"] != COMPUTE]
    met = met[met["rank"].argsort(kind="stable")]
    return Waits(op, tuple(arrivals), tuple(met["end"].tolist()), tuple((met["start"] - met["ready"]).tolist()))
