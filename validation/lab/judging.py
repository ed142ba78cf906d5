"""Predicted against measured, case by case, and the gate that all of them must pass together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from parasim.timeline import Timeline

from .cases import Case, Single
from .ranks import Repetition

STEP_MEDIAN, STEP_WORST = 0.015, 0.05  # of the measured step
START_MEDIAN = 0.01  # mean error of the start of an op, of the measured step
SINGLE = ((4, 0.04), (8, 0.08))  # (ranks up to, error) of single collectives of SINGLE_BYTES or more
SINGLE_BYTES = 1e6
NOISY = 0.05  # of the judged cases may be refused as too noisy
SPREAD = 0.03  # largest - smallest repetition over the median: beyond, a case says nothing
OVERSLEPT = 5e-3  # seconds late that a sleeping thread of real-time priority was woken once: something held up the processors
STOLEN = 0.02  # of the processors' time, taken by the hypervisor


@dataclass(frozen=True)
class Verdict:
    """A case or single with its prediction and what was measured. `tries`: how often its repetitions were measured
    until they agreed, or given up; `crowded`: several flows share a pair of hosts (`crowding`)."""

    case: Case | Single
    predicted: Timeline
    repetitions: tuple[Repetition, ...]
    tries: int = 1
    crowded: bool = False

    @property
    def measured(self) -> Repetition:
        """The repetition of median length."""
        ordered = sorted(self.repetitions, key=lambda r: r.step)
        return ordered[(len(ordered) - 1) // 2]

    @property
    def seconds(self) -> tuple[float, float]:
        """Predicted and measured: the step, or the median call of a single collective."""
        if isinstance(self.case, Single):
            calls = [c for r in self.repetitions for c in self.case.costs(r.timeline)]
            return float(np.median(self.case.costs(self.predicted))), float(np.median(calls))
        return self.predicted.makespan, self.measured.step

    @property
    def error(self) -> float:
        """predicted / measured - 1."""
        predicted, measured = self.seconds
        return predicted / measured - 1

    @property
    def start(self) -> float:
        """Mean error of the start of an op over the measured step."""
        measured = self.measured.timeline
        off = [self.predicted.of(r)["start"] - measured.of(r)["start"] for r in range(len(measured.representative))]
        return float(np.mean(np.abs(np.concatenate(off)))) / measured.makespan

    @property
    def spread(self) -> float:
        """(longest - shortest) / median of the repetitions."""
        steps = [r.step for r in self.repetitions]
        return (max(steps) - min(steps)) / self.measured.step

    @property
    def disturbed(self) -> tuple[int, ...]:
        """The repetitions in which sleeping threads woke late, or processors were taken away."""
        return tuple(i for i, r in enumerate(self.repetitions) if disturbance(r))

    @property
    def quiet(self) -> bool:
        """Do the repetitions agree, and was less than half of them disturbed?"""
        return self.spread <= SPREAD and 2 * len(self.disturbed) < len(self.repetitions)

    @property
    def judged(self) -> bool:
        """Does it count at the gate?"""
        return not self.reported

    @property
    def reported(self) -> str:
        """Why it is shown and not judged; "" where it is judged."""
        return self.case.reported or ("flows on one pair" if self.crowded else "")

    def to_json(self) -> dict[str, Any]:
        """One row of the results."""
        predicted, measured = self.seconds
        return {
            "case": self.case.name,
            "network": self.case.network,
            "subject": self.case.subject,
            "reported": self.reported or None,
            "predicted_s": predicted,
            "measured_s": measured,
            "error": self.error,
            "start_error": None if isinstance(self.case, Single) else self.start,
            "steps_s": [r.step for r in self.repetitions],
            "overslept_s": [r.worst for r in self.repetitions],
            "stolen": [r.stolen for r in self.repetitions],
            "spread": self.spread,
            "disturbed": list(self.disturbed),
            "tries": self.tries,
        }


def disturbance(repetition: Repetition) -> str:
    """What disturbed a repetition, in words; "" where nothing was noticed."""
    if repetition.stolen > STOLEN:
        return f"the hypervisor took {repetition.stolen:.0%} of the processors"
    if repetition.worst > OVERSLEPT:
        return f"a sleeping thread woke {repetition.worst * 1e3:.1f} ms late"
    return ""


@dataclass(frozen=True)
class Gate:
    """What the judged cases come to, and every limit that is exceeded; the cases that could not be judged, faults where they are more than NOISY."""

    lines: tuple[str, ...]
    faults: tuple[str, ...]
    refused: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        """Within every limit."""
        return not self.faults


def gate(verdicts: Sequence[Verdict]) -> Gate:
    """Hold the limits against all verdicts; those that are only reported are left out, and those too noisy to judge, of which there may be few."""
    judged = [v for v in verdicts if v.judged]
    noisy = [f"{v.case.name}: too noisy to judge (spread {v.spread:.1%}, {len(v.disturbed)} of {len(v.repetitions)} disturbed)" for v in judged if not v.quiet]
    steps = [v for v in judged if isinstance(v.case, Case) and v.quiet]
    singles = [v for v in judged if isinstance(v.case, Single) and v.quiet]
    lines, faults = [], []
    if steps:
        errors = np.array([v.error for v in steps])
        worst = steps[int(np.argmax(np.abs(errors)))]
        checks = [
            ("step time, median |error|", float(np.median(np.abs(errors))), STEP_MEDIAN, f"of {len(steps)} cases"),
            ("step time, worst |error|", abs(worst.error), STEP_WORST, worst.case.name),
            ("start of ops, median over cases", float(np.median([v.start for v in steps])), START_MEDIAN, "of the step"),
        ]
        lines += [_line(*check) for check in checks]
        faults += [_line(*check) for check in checks if check[1] > check[2]]
    for ranks, limit in SINGLE:
        least = max((r for r, _ in SINGLE if r < ranks), default=0)
        mine = [v for v in singles if least < len(v.predicted.representative) <= ranks and v.case.nbytes >= SINGLE_BYTES]  # type: ignore[union-attr]
        if mine:
            worst = max(mine, key=lambda v: abs(v.error))
            check = (f"single collectives of {ranks} ranks, worst", abs(worst.error), limit, worst.case.name)
            lines.append(_line(*check))
            faults += [_line(*check)] if check[1] > check[2] else []
    many = len(noisy) > NOISY * len(judged)
    return Gate(tuple(lines), (*faults, *(noisy if many else ())), () if many else tuple(noisy))


def _line(what: str, value: float, limit: float, where: str) -> str:
    return f"{what} {value:.2%} (limit {limit:.1%}; {where})"
