"""Report: the numbers of one step as a frozen value, and its JSON form `parasim.report/1`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..cost.accuracy import Accuracy
from ..memory import MemoryPeak
from .blame import Blame, Straggler
from .network import LinkUse

SCHEMA = "parasim.report/1"
BLAMED = 8  # ranks that reports name as waited for


UPPER_BOUND = "datasheet rates without overheads are an upper bound of speed"


@dataclass(frozen=True)
class StepTimes:
    """Seconds, means over all ranks: compute + sum(exposed) + idle is the step. `optimizer` is a part of compute, `overlapped` runs beside it."""

    compute: float
    optimizer: float
    idle: float
    exposed: Mapping[str, float]
    overlapped: Mapping[str, float]


@dataclass(frozen=True)
class Stage:
    """One stage as its rank with the longest compute lives it (seconds).

    `compute`, `exposed`, `idle` are of the whole rank and sum to the step; `own_compute` is of this stage alone (a rank may hold several).
    `slack` is how much later the last op of the rank's compute stream could end without moving the end of the step, all else being equal.
    """

    stage: int
    rank: int
    compute: float
    own_compute: float
    exposed: Mapping[str, float]
    idle: float
    slack: float


@dataclass(frozen=True)
class Reserved:
    """What an allocator with a cache reserves at most, bytes: `total` is the peak of the buffers, the `rounding` of sizes there, and the rest, `cached`:
    blocks that are held and too small, or in the wrong place, for what is asked for. `retries`: how often the device was full and blocks went back."""

    total: float
    rounding: float
    cached: float
    retries: int


@dataclass(frozen=True)
class MemorySummary:
    """Peak of the heaviest rank (which holds `stage`), the peak of the heaviest rank of each stage, capacity of a device (bytes).

    `known` is False for a measured timeline without memory: peak, headroom and fits are then null in JSON. `excluded` names what is not counted.
    `reserved` is what torch's allocator would hold on the heaviest rank; None where that does not run: only GPUs have it.
    `fitted_reserved` is the peak with the profile's memory.fragmentation, as published peaks have it; None where the profile has none.
    """

    peak: MemoryPeak
    per_stage: tuple[MemoryPeak, ...]
    stage: int
    capacity: float
    known: bool
    excluded: tuple[str, ...]
    categories: tuple[str, ...]
    reserved: Reserved | None = None
    fitted_reserved: float | None = None

    @property
    def headroom(self) -> float:
        """Bytes left on the heaviest rank; negative when it does not fit."""
        return self.capacity - self.peak.nbytes

    @property
    def fits(self) -> bool:
        """Whether the peak is within capacity."""
        return self.headroom >= 0


@dataclass(frozen=True)
class Engine:
    """How the timeline was made: ranks kept, fold classes, events of the engine, its wall seconds where known.

    `wall` is the engine: transfers planned, ranks folded, ops fused, replayed and recorded. `lowering`: the Workload made and verified before that.
    """

    ranks: int
    classes: int
    events: int | None
    wall: float | None
    lowering: float | None = None


@dataclass(frozen=True)
class Report:
    """One training step. Seconds, bytes, FLOPs; ratios are None where their denominator is zero or unknown.

    `peak_flops` is the dense peak of one device in `precision` (FLOP/s); `ideal` the largest compute time of a rank; `cost` USD per step;
    `accuracy` how far predictions with this profile, stack and accelerator were off.
    """

    name: str
    step_time: float
    tokens: int
    world: int
    model_flops: float | None
    hardware_flops: float | None
    peak_flops: float
    precision: str
    ideal: float
    longest_span: float
    times: StepTimes
    comm_bytes: Mapping[str, float]
    memory: MemorySummary
    stages: tuple[Stage, ...]
    links: tuple[LinkUse, ...]
    blame: tuple[Blame, ...]
    straggler: Straggler | None
    engine: Engine
    cost: float | None
    assumptions: tuple[str, ...]
    provenance: Mapping[str, Any]
    accuracy: Accuracy | None = None

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens (rows of an MLP) per second of the whole cluster."""
        return _ratio(self.tokens, self.step_time)

    @property
    def mfu(self) -> float | None:
        """Model FLOPs over what the devices could do in the step at their dense peak."""
        return self._utilisation(self.model_flops)

    @property
    def hfu(self) -> float | None:
        """The same with the FLOPs that are computed again."""
        return self._utilisation(self.hardware_flops)

    def _utilisation(self, flops: float | None) -> float | None:
        return None if flops is None else _ratio(flops, self.step_time * self.world * self.peak_flops)

    @property
    def bubble_makespan(self) -> float | None:
        """1 - ideal / step."""
        return _complement(_ratio(self.ideal, self.step_time))

    @property
    def bubble_span(self) -> float | None:
        """1 - ideal / longest span of a rank, from its first to its last op."""
        return _complement(_ratio(self.ideal, self.longest_span))

    @property
    def bubble_over_ideal(self) -> float | None:
        """step / ideal - 1, as Megatron prints it."""
        ratio = _ratio(self.step_time, self.ideal)
        return None if ratio is None else ratio - 1.0

    @property
    def binding_link(self) -> LinkUse | None:
        """The link kind whose busiest link has the highest mean utilisation."""
        return self.links[0] if self.links and self.links[0].busiest_mean > 0 else None

    def to_json(self) -> dict[str, Any]:
        """The contract `parasim.report/1`: units in the names, no NaN and no infinity."""
        out = {
            "schema": SCHEMA,
            "name": self.name,
            "step_time_s": self.step_time,
            "tokens_per_s": self.tokens_per_s,
            "tokens_per_s_per_device": None if self.tokens_per_s is None else self.tokens_per_s / self.world,
            "model_flops": self.model_flops,
            "hardware_flops": self.hardware_flops,
            "mfu": self.mfu,
            "hfu": self.hfu,
            "world_size": self.world,
            "bubble_makespan": self.bubble_makespan,
            "bubble_span": self.bubble_span,
            "bubble_over_ideal": self.bubble_over_ideal,
            "time_s": {
                "compute": self.times.compute,
                "optimizer": self.times.optimizer,
                "idle": self.times.idle,
                "exposed": dict(self.times.exposed),
                "overlapped": dict(self.times.overlapped),
            },
            "comm_bytes": dict(self.comm_bytes),
            "memory": self._memory_json(),
            "stages": [_stage_json(s) for s in self.stages],
            "links": [_link_json(u) for u in self.links],
            "blame": [{"rank": b.rank, "waiting_ranks": b.waiting, "idle_s": b.idle, "total_rank_s": b.total} for b in self.blame[:BLAMED]],
            "straggler": _straggler_json(self.straggler),
            "engine": {
                "ranks": self.engine.ranks,
                "classes": self.engine.classes,
                "events": self.engine.events,
                "wall_s": self.engine.wall,
                "lowering_s": self.engine.lowering,
            },
            "cost_usd_per_step": self.cost,
            "uncertainty": None if self.accuracy is None else self.accuracy.to_json(),
            "assumptions": list(self.assumptions),
            "provenance": dict(self.provenance),
        }
        cleaned: dict[str, Any] = _finite(out)
        return cleaned

    def _memory_json(self) -> dict[str, Any]:
        peak = self.memory.peak
        return {
            "peak_bytes": peak.nbytes if self.memory.known else None,
            **({"fitted_reserved_bytes": self.memory.fitted_reserved} if self.memory.fitted_reserved is not None else {}),
            "by_category": dict(peak.by_category),
            "per_stage_peak_bytes": [p.nbytes for p in self.memory.per_stage],
            "capacity_bytes": self.memory.capacity,
            "headroom_bytes": self.memory.headroom if self.memory.known else None,
            "fits": self.memory.fits if self.memory.known else None,
            "peak_rank": peak.rank,
            "peak_stage": self.memory.stage,
            "peak_time_s": peak.time,
            "largest": [{"buffer": name, "bytes": nbytes} for name, nbytes in peak.largest],
            "buffers_by_name": dict(peak.buffers),
            "reserved": self._reserved_json(),
            "excluded": list(self.memory.excluded),
        }

    def _reserved_json(self) -> dict[str, float] | None:
        r = self.memory.reserved
        return None if r is None else {"reserved_bytes": r.total, "rounding_bytes": r.rounding, "cached_bytes": r.cached, "retries": r.retries}

    def to_pandas(self) -> Any:
        """A pandas DataFrame with a row per stage: rank, seconds, peak bytes. Raises MissingExtra where pandas is not installed."""
        from .notebook import frame

        return frame(self)

    def _repr_html_(self) -> str:
        from .notebook import as_html

        return as_html(self)

    def __str__(self) -> str:
        from .text import as_text

        return as_text(self)


def _straggler_json(s: Straggler | None) -> dict[str, Any] | None:
    return None if s is None else {"rank": s.rank, "stage": s.stage, "compute_s": s.compute, "others_compute_s": s.others}


def _stage_json(s: Stage) -> dict[str, Any]:
    return {
        "stage": s.stage,
        "rank": s.rank,
        "compute_s": s.compute,
        "own_compute_s": s.own_compute,
        "exposed_s": dict(s.exposed),
        "idle_s": s.idle,
        "slack_s": s.slack,
    }


def _link_json(u: LinkUse) -> dict[str, Any]:
    return {
        "kind": u.kind,
        "utilisation_mean": u.mean,
        "utilisation_peak": u.peak,
        "busiest": u.busiest,
        "busiest_utilisation_mean": u.busiest_mean,
    }


def _ratio(a: float, b: float) -> float | None:
    return a / b if b else None


def _complement(x: float | None) -> float | None:
    return None if x is None else 1.0 - x


def _finite(value: Any) -> Any:
    """The same with every number that JSON cannot hold replaced by null."""
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_finite(v) for v in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value
