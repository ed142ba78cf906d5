"""The schedule pass: actions become calls. The only pass that knows the schedule."""

from __future__ import annotations

from ..parallel.placement import orders_of
from ..program.workload import Call
from ..schedules import Pair, singles
from .draft import Draft


def schedule(draft: Draft) -> None:
    """One call per action of this rank, in order; the backwards of overlapped pairs are noted."""
    order = orders_of(draft.layout)[draft.rank]
    draft.calls = [Call(f"{a.kind}{a.stage}", (a.microbatch,)) for a in singles(order)]
    draft.paired = {(cell.backward.stage, cell.backward.microbatch) for cell in order if isinstance(cell, Pair)}
