"""Offload to the host: what stays on the device, what is copied, and how long that takes."""

from __future__ import annotations

from typing import Any

import pytest
from layouts import held, keys, lowered, ops

from parasim.config import build
from parasim.errors import InvalidLayout, Refused
from parasim.lowering import lower
from parasim.memory import memory_peak
from parasim.program.ops import Compute
from parasim.program.workload import Program
from parasim.sim import simulate

OPTIMIZER, BOTH = {"optimizer": True}, {"optimizer": True, "parameters": True}
LINK, HOST_MEMORY = 64e9, 76.8e9  # h100-sxm: PCIe 5.0 x16 per direction, an eighth of 16 channels DDR5-4800


def simulated(**layout: Any) -> Any:
    run = build(keys("gpt", **layout))
    return simulate(lower(run.plan), run.cluster, run.profile)


def copied(program: Program, name: str) -> int:
    """Bytes that kernels called `name` write in a step."""
    return sum(program.nbytes(k.writes) for o in ops(program) if isinstance(o, Compute) for k in o.kernels if k.name == name)


@pytest.mark.parametrize("layout", [{}, {"tp": 2, "sp": True}, {"dp": 2, "zero": {"stage": 1}}, {"pp": 2, "dp": 2}], ids=str)
def test_optimizer_state_leaves_the_device(layout: dict[str, Any]) -> None:
    plain, away = (lowered("gpt", offload=o, **layout)[1].programs[0] for o in ({}, OPTIMIZER))
    assert held(away, "optimizer") == 0
    assert held(away, "host") == held(plain, "optimizer") > 0
    before, after = (memory_peak(simulated(offload=o, **layout), 0).by_category for o in ({}, OPTIMIZER))
    assert (before["optimizer"], after["optimizer"]) == (held(plain, "optimizer"), 0.0)
    assert after["parameters"] == before["parameters"]


@pytest.mark.parametrize(("zero", "share"), [(0, 1), (1, 2)])
def test_bytes_over_the_link(zero: int, share: int) -> None:
    """Gradients to the host and parameters back, once a step: all of them, or this rank's shard (padded by less than a rank's element per bucket)."""
    _, w = lowered("gpt", dp=2, zero={"stage": zero}, offload=OPTIMIZER, optimizer={"gradient_dtype": "fp32"})
    program = w.programs[0]
    assert copied(program, "copy_to_host") == pytest.approx(held(program, "gradients") / share, abs=64)
    assert copied(program, "copy_from_host") == pytest.approx(held(program, "parameters") / share, abs=64)


def test_times_of_copies_and_of_the_step_on_the_host() -> None:
    t = simulated(offload=OPTIMIZER, m=1)
    _, w = lowered("gpt", offload=OPTIMIZER, m=1)
    program = w.programs[0]
    spent = {s: sum((o["end"] - o["start"]) for o in t.ops if t.streams[o["stream"]] == s) for s in t.streams}
    assert spent["copy.out"] == pytest.approx(held(program, "gradients") / LINK)
    assert spent["copy.in"] == pytest.approx(held(program, "parameters") / LINK)
    elements = held(program, "parameters") // 2
    assert spent["host"] == pytest.approx(30 * elements / HOST_MEMORY)  # 7 x 4 bytes of state and gradient in fp32 arithmetic, 2 of the rounded copy


def test_parameters_are_fetched_twice_per_microbatch_and_two_layers_are_there_at_most() -> None:
    m = 3
    t = simulated(offload=BOTH, m=m)
    _, w = lowered("gpt", offload=BOTH, m=m)
    program = w.programs[0]
    assert held(program, "parameters") == 0
    names = [n for n, b in program.buffers.items() if n.endswith(".fetched")]
    fetched = sum(program.sizes[n] for n in names)
    # forward all; backward all but biases and tables that no gradient needs
    assert m * fetched < copied(program, "copy_from_host") < 2 * m * fetched
    one = sum(program.sizes[n] for n in names if n.startswith("L2."))
    rows = t.memory[[t.buffers[b].endswith(".fetched") and t.buffers[b].startswith("L") for b in t.memory["buffer"]]]
    rows = rows[rows["time"].argsort(kind="stable")]
    level, most = 0.0, 0.0
    for row in sorted(rows, key=lambda r: (r["time"], r["delta"] > 0)):
        level += row["delta"]
        most = max(most, level)
    assert most <= 2 * one
    assert memory_peak(t, 0).by_category["parameters"] == 0


@pytest.mark.parametrize(
    ("layout", "text"),
    [
        ({"offload": {"parameters": True}}, "offload.parameters=true needs the optimizer's state on the host too"),
        ({"offload": BOTH, "dp": 2, "zero": {"stage": 1}}, "offload.parameters=true is modelled for parameters that are whole on every replica"),
    ],
)
def test_refused_layouts(layout: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidLayout) as error:
        build(keys("gpt", **layout))
    assert text in str(error.value)


def test_an_accelerator_without_a_host_refuses() -> None:
    run = build(keys("gpt", offload=OPTIMIZER) | {"cluster": "tpu-v5p"})
    with pytest.raises(Refused, match="needs host_link and host_memory_bandwidth"):
        simulate(lower(run.plan), run.cluster, run.profile)


@pytest.mark.processes
@pytest.mark.parametrize("offload", [OPTIMIZER, BOTH], ids=["optimizer", "parameters"])
def test_bf16_training_is_the_same_to_the_bit(offload: dict[str, bool]) -> None:
    """With an fp32 master copy on the host, the same kernels run on the same numbers."""
    pytest.importorskip("torch")
    from parasim.executor.launch import spawn

    small = {"m": 2, "optimizer": {"gradient_dtype": "fp32"}}
    plain, away = (lowered("gpt", offload=o, **small)[1] for o in ({}, offload))
    a, b = (spawn(trained_parameters, 1, w, 2, timeout=60)[0] for w in (plain, away))
    assert a.keys() <= b.keys() and all((a[n] == b[n]).all() for n in a)


def trained_parameters(workload: Any, steps: int) -> dict[str, Any]:
    """bf16 parameters as fp32 arrays."""
    from parasim.executor.execution import Execution

    execution = Execution(workload)
    execution.train(steps)
    return {n: t.float().numpy() for n, t in execution.tensors.items() if n.endswith((".weight", ".bias"))}
