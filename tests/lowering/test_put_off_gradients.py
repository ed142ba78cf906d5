"""What weight gradients that are put off keep alive: their inputs, and under recomputation these only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from layouts import held, keys

from parasim.config import build
from parasim.lowering import lower
from parasim.program.checks import verify
from parasim.program.ops import Ref
from parasim.program.workload import Program
from parasim.schedules import SCHEDULES, ScheduleInput, orders_of, singles


def most(program: Program, wanted: Callable[[str], bool]) -> int:
    """Most generations of the buffers that are `wanted` which are alive at once, in the order of the program."""
    r = program.resolved
    last = np.maximum.reduceat(r.last_users, r.last_start[:-1])
    moments: Counter[int] = Counter()
    for g in [g for g, b in enumerate(r.generation_buffer) if wanted(r.buffers[b]) and r.birth[g] >= 0]:
        moments[int(r.birth[g])] += 1
        moments[int(last[g]) + 1] -= 1
    return max(np.cumsum([moments[i] for i in sorted(moments)]).tolist(), default=0)


def alive(program: Program, part: str) -> int:
    """`most` of a part of any layer."""
    return most(program, lambda name: name.partition(".")[2] == part)


def alive_of(program: Program, name: str) -> int:
    """`most` of one buffer."""
    return most(program, lambda other: other == name)


def pending(schedule: str, p: int, m: int) -> list[int]:
    """By rank: most weight gradients that are put off at once."""
    placement = SCHEDULES[schedule]
    out = []
    for order in orders_of(schedule, ScheduleInput(p, m, placement.chunks if placement.fixed else 1)).values():
        now = largest = 0
        for action in singles(order):
            now += {"I": 1, "W": -1}.get(action.kind, 0)
            largest = max(largest, now)
        out.append(largest)
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
    assert alive(w.programs[0], "input") >= p  # in flight: boundaries


@pytest.mark.parametrize("m", [4, 12])
def test_what_was_sent_does_not_stay_until_the_step_ends(m: int) -> None:
    """The output of a stage is there until it is sent (two may be on their way, one being made), however many microbatches there are; what a rank
    keeps for its backwards is the input, p - r of them."""
    run = keys("llama", pp=4, m=m, recompute="full")
    run["model"] = run["model"] | {"layers": 4}
    programs = lower(build(run).plan).programs
    for r, program in enumerate(programs[:-1]):
        inputs, outputs = (alive_of(program, f"L{n}.input") for n in (r, r + 1))
        assert inputs == 4 - r
        assert outputs <= 2


@pytest.mark.parametrize("m", [4, 12])
def test_weight_gradients_add_up_in_place(m: int) -> None:
    """One gradient per parameter whatever the number of microbatches: 2 bytes each in bf16, kept all step."""
    program = lower(build(keys("llama", pp=2, m=m, pipeline={"schedule": "zb-h1"})).plan).programs[0]
    gradients = [b for b in program.buffers.values() if b.category == "gradients"]
    assert all(b.persistent for b in gradients) and held(program, "gradients") == held(program, "parameters")


def test_a_weight_gradient_without_what_its_input_gradient_left_is_refused() -> None:
    """Where I drops what W needs (here: writes it under another name), W reads before anything was written, and that is said with op and buffer."""
    w = lower(build(keys("llama", pp=2, pipeline={"schedule": "zb-h1"})).plan)
    program = w.programs[0]
    lost = tuple(replace(op, kernels=tuple(replace(k, writes=tuple(_away(r) for r in k.writes)) for k in op.kernels)) for op in program.bodies["I0"])
    buffers = {**program.buffers, "elsewhere": program.buffers["L0.fc1.out.grad"]}
    broken = replace(w, programs=(replace(program, bodies={**program.bodies, "I0": lost}, buffers=buffers), *w.programs[1:]))
    assert any("L0.fc1.out.grad" in str(v) and "before" in str(v) for v in verify(broken))


def _away(ref: Ref) -> Ref:
    return Ref("elsewhere", ref.slot) if ref.name == "L0.fc1.out.grad" else ref


def test_under_1f1b_nothing_is_put_off() -> None:
    run = keys("llama", pp=4, m=8, recompute="full")
    run["model"] = run["model"] | {"layers": 4}
    assert [alive(program, "fc1.out.grad") for program in lower(build(run).plan).programs] == [1, 1, 1, 1]
