"""What verify accepts runs to its end; what it calls a deadlock is one in the simulation. Programs are lowered, then damaged at random."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_sim_folding import layouts, plan_of

from parasim.cost.profile import datasheet
from parasim.errors import Deadlock
from parasim.lowering import lower
from parasim.program.checks import verify
from parasim.program.workload import Workload
from parasim.sim import simulate
from parasim.topology.builders import ideal


def damaged(w: Workload, data: st.DataObject) -> Workload:
    """One or two calls of one class dropped, doubled or swapped with a neighbour."""
    c = data.draw(st.integers(0, len(w.programs) - 1))
    calls = list(w.programs[c].calls)
    for _ in range(data.draw(st.integers(1, 2))):
        i = data.draw(st.integers(0, len(calls) - 2))
        match data.draw(st.sampled_from(("drop", "double", "swap"))):
            case "drop":
                del calls[i]
            case "double":
                calls.insert(i, calls[i])
            case _:
                calls[i : i + 2] = calls[i + 1], calls[i]
    return replace(w, programs=tuple(replace(p, calls=tuple(calls)) if n == c else p for n, p in enumerate(w.programs)))


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(layouts((2, 4, 8)), st.data())
def test_accepted_programs_end_and_deadlocks_are_foreseen(layout: dict[str, Any], data: st.DataObject) -> None:
    w = damaged(lower(plan_of(layout)), data)
    violations = verify(w)
    if any("before anything wrote it" in v.rule or "before anything wrote it" in str(v) for v in violations):
        return  # cannot be resolved, so neither back end can start it
    try:
        simulate(w, ideal(w.world, 1e-6), datasheet(), fold=data.draw(st.booleans()))
    except Deadlock:
        assert any("deadlock" in v.rule for v in violations)
    else:
        assert not any("deadlock" in v.rule for v in violations)
