"""The schedule pass: actions become calls. The only pass that knows the schedule."""

from __future__ import annotations

from ..program.workload import Call
from ..schedules import SCHEDULES, ScheduleInput, singles
from .draft import Draft


def schedule(draft: Draft) -> None:
    """One call per action of this rank, in order."""
    layout = draft.layout
    given = ScheduleInput(layout.degrees.pp, layout.batch.microbatches, layout.pipeline.chunks)
    orders = SCHEDULES[layout.pipeline.schedule](given)
    draft.calls = [Call(f"{a.kind}{a.stage}", (a.microbatch,)) for a in singles(orders[draft.rank])]
