"""Rows of lectures that only real processes answer: small models trained over gloo, and compared with one process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np

from parasim.program.ops import Collective, Op
from parasim.program.workload import Workload

CASES = ("dp4-per-parameter", "tp2", "llama-cp4-ring")
BROKEN = "tp2 without the sums of its row-parallel layers"
COMMAND = "python -m validation numeric --case"


def without_row_sums(workload: Workload) -> Workload:
    """The sums after row-parallel layers taken over each rank alone, as if activations went on with partial sums."""

    def alone(op: Op) -> Op:
        return replace(op, group="alone") if isinstance(op, Collective) and op.op == "all_reduce" and op.label.phase == "F" else op

    programs = tuple(replace(p, bodies={name: tuple(map(alone, body)) for name, body in p.bodies.items()}) for p in workload.programs)
    return replace(workload, programs=programs, groups={**workload.groups, "alone": np.arange(workload.world)[:, None]})


@cache
def trained(case: str) -> Mapping[str, Any]:
    """A case of the numeric proofs, or BROKEN: what must not hold."""
    from .numeric import prove

    name, *broken = case.split(" ", 1)
    proof = prove(name, without_row_sums) if broken else prove(name)
    return {"largest_difference": proof.worst, "where": proof.where, "left": list(proof.left), "holds": proof.holds}


EXECUTIONS: dict[str, Callable[[], Mapping[str, Any]]] = {f"{COMMAND} {case}": partial(trained, case) for case in (*CASES, BROKEN)}
