"""How far predictions were off: errors of published step times per profile, stack and accelerator, as `python -m validation fit` found them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from .. import documents

FILE = "accuracy.yaml"


@dataclass(frozen=True)
class Accuracy:
    """|predicted / measured - 1| of `rows` published step times, cross-validated: `median` and `p90`."""

    profile: str
    stack: str
    accelerator: str
    median: float
    p90: float
    rows: int

    def to_json(self) -> dict[str, Any]:
        """With ratios named as such."""
        names = {"median": "median_abs_error", "p90": "p90_abs_error"}
        return {names.get(key, key): value for key, value in asdict(self).items()} | {"says": self.sentence()}

    def sentence(self) -> str:
        """In words."""
        where = f"stack {self.stack} on {self.accelerator} with profile {self.profile}"
        return f"{where} was off by median {self.median:.0%}, p90 {self.p90:.0%} on {self.rows} published step times (cross-validated)"


@cache
def accuracies() -> tuple[Accuracy, ...]:
    """Every entry of the file."""
    tree = documents.parse(files(__package__).joinpath(FILE).read_bytes(), FILE).mapping()
    return tuple(Accuracy(**entry) for entry in tree["entries"])


def accuracy(profile: str, stack: str | None, accelerator: str) -> Accuracy | None:
    """The entry of a profile and accelerator: that of its stack, or if no stack is named the one of most rows. None where nothing was compared."""
    found = [a for a in accuracies() if (a.profile, a.accelerator) == (profile, accelerator) and stack in (None, a.stack)]
    return max(found, key=lambda a: a.rows, default=None)
