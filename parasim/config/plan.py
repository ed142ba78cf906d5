"""Plan: a resolved run without cluster or profile; what lowering reads."""

from __future__ import annotations

from dataclasses import dataclass

from ..model.spec import Model
from ..parallel.layout import Layout


@dataclass(frozen=True)
class Plan:
    """A model and how it is cut, with the assumptions that resolution made (printed in every report)."""

    model: Model
    layout: Layout
    assumptions: tuple[str, ...] = ()
