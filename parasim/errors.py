"""The exception tree: every way parasim says no, each with the exit code of its kind.

0 done, 1 the answer is no, 2 malformed input, 3 a file that cannot be parsed or lacks what it must have, 4 a missing extra, 130 interrupted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from dataclasses import field as of_class
from graphlib import CycleError, TopologicalSorter
from typing import Any, NamedTuple


@dataclass(frozen=True)
class Violation:
    """One broken rule, as data: search counts them, `check` prints them.

    `field` is the dotted path in the run file, `value` what it holds, `rule` the rule in words, `legal` the nearest legal values or the way out.
    `facts` are numbers about it for programs (`check --json`).
    """

    field: str
    value: str
    rule: str
    legal: str = ""
    facts: Mapping[str, Any] = of_class(default_factory=dict, compare=False)

    def __str__(self) -> str:
        return f"{self.field}={self.value} {self.rule}" + (f"; {self.legal}" if self.legal else "")


class ParasimError(Exception):
    """Base of everything parasim raises on purpose; the command line prints it as one message and exits with `exit_code`."""

    exit_code = 1


class Refused(ParasimError):
    """Well-formed input whose answer is no."""

    def __init__(self, violations: Iterable[Violation] | str) -> None:
        self.violations: tuple[Violation, ...] = () if isinstance(violations, str) else tuple(violations)
        super().__init__(violations if isinstance(violations, str) else "\n".join(map(str, self.violations)))


class InvalidLayout(Refused):
    """The parallel layout breaks a rule (divisibility, batch, axis)."""


class DoesNotFit(Refused):
    """Peak memory exceeds the capacity of the accelerator."""


class InvalidProgram(Refused):
    """A Workload that `verify` refuses."""


class Waiting(NamedTuple):
    """A stuck op: its rank, text and stream, and the positions in `Deadlock.waiting` of the ops it waits for (none: for something that never comes)."""

    rank: int
    text: str
    stream: str
    waits_for: tuple[int, ...] = ()


class Deadlock(Refused):
    """No event is left and some ops have not ended. `stuck` holds (rank, op text) pairs, `waiting` the same ops with what they wait for."""

    def __init__(self, message: str, stuck: tuple[tuple[int, str], ...] = (), waiting: tuple[Waiting, ...] = ()) -> None:
        super().__init__(message)
        self.stuck, self.waiting = stuck, waiting

    @property
    def circle(self) -> tuple[Waiting, ...]:
        """Stuck ops of which each waits for the next and the last for the first; empty when what is missing never comes."""
        try:
            TopologicalSorter({k: w.waits_for for k, w in enumerate(self.waiting)}).prepare()
        except CycleError as e:
            return tuple(self.waiting[k] for k in e.args[1][:0:-1])
        return ()


class Unreachable(Refused):
    """Two devices have no route between them (partitioned network)."""


class Failed(ParasimError):
    """A real run that ended early: a rank died or a wait timed out."""


class Malformed(ParasimError):
    """A value, name, field or flag that is not of the right form, a file that is missing, an output that cannot be written."""

    exit_code = 2


class Unparsable(ParasimError):
    """A file that cannot be parsed, or that lacks what it must have."""

    exit_code = 3


class MissingExtra(ParasimError):
    """An optional dependency is not installed."""

    exit_code = 4

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"{package} is not installed; run: pip install 'parasim[{extra}]'")
