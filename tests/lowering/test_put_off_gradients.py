"""What weight gradients that are put off keep alive: their inputs, and under recomputation these only."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from layouts import keys

from parasim.config import build
from parasim.lowering import lower
from parasim.program.workload import Program
from parasim.schedules import SCHEDULES, ScheduleInput, orders_of, singles


def alive(program: Program, part: str) -> int:
    """Most generations of `part` of the first layer of each stage that are alive at once, in the order of the program."""
    r = program.resolved
    last = np.maximum.reduceat(r.last_users, r.last_start[:-1])
    names = [r.buffers[b] for b in r.generation_buffer]
    layers = {}
    for g, name in enumerate(names):
        layer, _, rest = name.partition(".")
        if rest == part and r.birth[g] >= 0:
            layers.setdefault(layer, []).append((int(r.birth[g]), int(last[g])))
    moments: Counter[int] = Counter()
    for birth, death in (span for spans in layers.values() for span in spans):
        moments[birth] += 1
        moments[death + 1] -= 1
    return max(np.cumsum([moments[i] for i in sorted(moments)]).tolist(), default=0)


def pending(schedule: str, p: int, m: int) -> list[int]:
    """By rank: most weight gradients that are put off at once."""
    placement = SCHEDULES[schedule]
    out = []
    for order in orders_of(schedule, ScheduleInput(p, m, placement.chunks if placement.fixed else 1)).values():
        now = most = 0
        for action in singles(order):
            now += {"I": 1, "W": -1}.get(action.kind, 0)
            most = max(most, now)
        out.append(most)
    return out


@pytest.mark.parametrize("p", [4, 8])
def test_dualpipe_puts_off_as_many_as_its_last_phase_runs(p: int) -> None:
    """DualPipe's eighth phase is half_rank + 1 weight gradients in a row (deepseek-ai/DualPipe, dualpipe.py, step 8), half_rank = min(r, p - 1 - r):
    so many are put off, on the ranks in the middle half of the pipeline's depth."""
    assert pending("dualpipe", p, 2 * p) == [min(r, p - 1 - r) + 1 for r in range(p)]


def test_recomputed_inputs_live_until_their_weight_gradient() -> None:
    """Full recomputation, one layer per stage: of the gradient that the first product's weight gradient reads there are as many as weight gradients
    are put off, and not p + 1, the microbatches in flight, of which boundaries are kept only."""
    p, m = 4, 8
    run = keys("llama", pp=p, m=m, pipeline={"schedule": "dualpipe"}, recompute="full")
    run["model"] = run["model"] | {"layers": p}
    w = lower(build(run).plan)
    assert [alive(program, "fc1.out.grad") for program in w.programs] == [1, 2, 2, 1]
    assert [alive(program, "input") for program in w.programs][0] >= p  # in flight: boundaries


def test_under_1f1b_nothing_is_put_off() -> None:
    run = keys("llama", pp=4, m=8, recompute="full")
    run["model"] = run["model"] | {"layers": 4}
    assert [alive(program, "fc1.out.grad") for program in lower(build(run).plan).programs] == [1, 1, 1, 1]
