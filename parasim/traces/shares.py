"""Seconds of the kernels of a finished timeline: an op's seconds shared out as its kernels are priced."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from ..config import Run
from ..cost.device import Device
from ..cost.pricing import PRICES
from ..cost.profile import Profile
from ..cost.timing import seconds
from ..program.ops import Compute, Kernel
from ..program.workload import Workload
from ..timeline import Part, Timeline


@dataclass(frozen=True)
class Simulated:
    """A run with its Workload (bound) and Timeline."""

    run: Run
    workload: Workload
    timeline: Timeline

    def part(self, rank: int) -> Part:
        """The kept rank whose times are those of `rank`."""
        part = self.timeline.part(rank)
        assert part is not None, "every rank of a simulated run has a representative"
        return part

    def kernels(self, op: Compute) -> list[tuple[Kernel, float]]:
        """The kernels of an op that take time (all, where none does), each with its share of the op's seconds; shares sum to 1."""
        priced = [(k, _seconds(k, self.run.cluster.accelerator, self.run.profile)) for k in op.kernels]
        total = sum(s for _, s in priced)
        if not total:
            return [(k, 1.0 / len(priced)) for k, _ in priced]
        return [(k, s / total) for k, s in priced if s]


@cache
def _kind(name: str) -> str:
    return PRICES[name].kind


def _seconds(kernel: Kernel, accelerator: Device, profile: Profile) -> float:
    return 0.0 if _kind(kernel.name) == "view" else seconds(kernel, accelerator, profile)
