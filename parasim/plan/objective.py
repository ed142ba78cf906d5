"""What search minimises, and what a layout must meet."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import Malformed
from ..parallel.layout import Layout
from ..report import Report
from ..units import parse
from ..words import known
from .batch import time_to_target
from .settings import comparison

if TYPE_CHECKING:
    from .space import Candidate

OBJECTIVES: Mapping[str, str] = {
    "step": "seconds of a step",
    "mfu": "seconds of a step per token (MFU is a constant over it)",
    "cost": "device-seconds per token",
    "memory": "peak bytes of the heaviest rank",
    "time-to-target": "seconds until a loss is reached: step (1 + critical batch / batch), McCandlish et al. 2018, arXiv 1812.06162, equation 2.11",
}
SIGNS: Mapping[str, Callable[[float, float], bool]] = {
    "<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt, "=": operator.eq,
}  # fmt: skip
DEGREES = ("tp", "pp", "dp", "cp", "ep", "microbatches", "micro", "chunks")
MEASURED: Mapping[str, Callable[[Report], float | None]] = {
    "step_time_s": lambda r: r.step_time,
    "mfu": lambda r: r.mfu,
    "peak_memory_bytes": lambda r: r.memory.peak.nbytes,
    "tokens_per_s": lambda r: r.tokens_per_s,
    "bubble_makespan": lambda r: r.bubble_makespan,
    "cost_usd_per_step": lambda r: r.cost,
}
NAMES = (*DEGREES, *MEASURED)


@dataclass(frozen=True)
class Objective:
    """`name` is one of OBJECTIVES; `critical` tokens of a batch beyond which more data per step help little, where known."""

    name: str
    critical: float | None = None

    @staticmethod
    def of(name: str, critical: float | None) -> Objective:
        """The objective called `name`. Raises Malformed."""
        known(name, OBJECTIVES, "objective")
        if name == "time-to-target" and critical is None:
            raise Malformed("--objective time-to-target needs critical_batch (tokens): in the run file, or as --critical-batch TOKENS")
        return Objective(name, critical)

    def score(self, step: float, memory: float, layout: Layout) -> float:
        """Less is better; never less for a longer step and more memory, so that a bound of both bounds it."""
        tokens = layout.batch.global_ * max(layout.batch.sequence, 1)
        if self.name == "time-to-target" and self.critical is not None:
            return time_to_target(step, tokens, self.critical, 1.0)
        if self.name == "memory":
            return memory
        if self.name == "cost":
            return step * layout.degrees.world / tokens
        if self.name == "mfu":
            return step / tokens
        return step

    def to_target(self, report: Report) -> float | None:
        """Seconds to a target per fewest step that it takes; None without a critical batch."""
        return None if self.critical is None else time_to_target(report.step_time, report.tokens, self.critical, 1.0)


@dataclass(frozen=True)
class Limits:
    """Rows (name, sign, value): of the layout (degrees) or of what comes out (the names of a report)."""

    rows: tuple[tuple[str, str, float], ...]

    @staticmethod
    def of(texts: Sequence[str]) -> Limits:
        """The constraints as written, `mfu>=0.4`, `peak_memory_bytes<=70GiB`, `tp<=8`. Raises Malformed."""
        rows = []
        for text in texts:
            name, sign, value = comparison(text, NAMES)
            rows.append((name, sign, _number(text, name, value)))
        return Limits(tuple(rows))

    @property
    def memory(self) -> float:
        """The least upper limit of memory; inf without one."""
        return min((v for n, s, v in self.rows if n == "peak_memory_bytes" and s in ("<=", "<")), default=float("inf"))

    def layout(self, candidate: Candidate, chunks: int) -> bool:
        """Does a layout, with `chunks` instead of its own, meet the rows about it?"""
        layout = candidate.layout
        own = {"microbatches": layout.batch.microbatches, "micro": layout.batch.micro, "chunks": chunks}
        return all(SIGNS[s](own[n] if n in own else getattr(layout.degrees, n), v) for n, s, v in self.rows if n in DEGREES)

    def reachable(self, step: float, flops: float, peak: float) -> bool:
        """Could a layout whose step takes at least `step` meet the rows about time? `peak` FLOP/s of all devices."""
        most = {"step_time_s": step, "mfu": flops / (step * peak) if step else float("inf")}
        return all(SIGNS[s](most[n], v) for n, s, v in self.rows if (n == "step_time_s" and s in ("<=", "<")) or (n == "mfu" and flops and s in (">=", ">")))

    def met(self, report: Report) -> bool:
        """Does a simulated layout meet the rows about what comes out? One whose number is unknown does not."""
        found = ((MEASURED[n](report), s, v) for n, s, v in self.rows if n in MEASURED)
        return all(x is not None and SIGNS[s](x, v) for x, s, v in found)


def _number(text: str, name: str, value: str) -> float:
    try:
        if name == "peak_memory_bytes" and not value.replace(".", "").isdigit():
            return parse(value, "bytes")
        if name == "step_time_s" and value[-1:].isalpha():
            return parse(value, "seconds")
        return float(value)
    except ValueError as e:
        raise Malformed(f"--constraint {text}: {value!r} is not a number") from e
