"""Real processes: times, layouts of collectives, refusals, and how dead or late ranks end a run."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")

import jobs

from parasim.errors import Failed, InvalidProgram, Malformed, Refused
from parasim.executor import execute
from parasim.executor.launch import outcomes, spawn
from parasim.timeline import COMPUTE, P2P

pytestmark = pytest.mark.processes


def test_a_relay_is_measured_on_one_clock():
    first, second = spawn(jobs.slept, 2, jobs.relay(), timeout=30)
    assert np.array_equal(first.ops, second.ops)  # every rank returns the rows of all
    assert first.meta["source"] == "measured"
    ops = first.ops
    made = ops[(ops["rank"] == 0) & (ops["kind"] == COMPUTE)]
    used = ops[(ops["rank"] == 1) & (ops["kind"] == COMPUTE)]
    messages = ops[ops["kind"] == P2P]
    assert (made["end"] - made["start"] >= 0.03).all()  # sleep never returns early
    assert (used["end"] - used["start"] >= 0.01).all()
    assert np.unique(messages["bytes"]).tolist() == [0.0, 256 * 1024 * 4]  # received nothing, sent one buffer of fp32
    received = messages[messages["rank"] == 1]
    assert (received["ready"] <= received["start"]).all()
    assert received["ready"][0] < made["end"][0]  # posted before there was anything to receive
    assert (received["start"] >= made["end"]).all()  # first byte: when the sender came too
    assert (used["start"] >= received["end"]).all()
    assert first.makespan >= 2 * 0.03 + 0.01


def test_memory_and_edges_come_from_the_program():
    timeline = spawn(jobs.slept, 2, jobs.relay(), timeout=30)[0]
    assert float(timeline.memory["delta"].sum()) == 0.0  # everything born has died
    assert timeline.memory["delta"].max() == 256 * 1024 * 4
    rows = timeline.ops[timeline.edges["op"]], timeline.ops[timeline.edges["waits_for"]]
    assert len(timeline.edges) == 4  # per microbatch: the send waits for compute, the use waits for the receive
    assert (rows[0]["ready"] >= rows[1]["end"]).all()


def test_layouts_of_collectives():
    found = spawn(jobs.gathered_along_columns, 2, None, timeout=30)
    # rank r puts in [[0, 1], [2, 3]] + 10 r, or the flat [0, 1, 2] + 10 r
    assert found[0]["gather columns"] == [[0, 1, 10, 11], [2, 3, 12, 13]]
    assert found[0]["gather rows"] == [[0, 1], [2, 3], [10, 11], [12, 13]]
    assert [f["scatter columns"] for f in found] == [[[10], [14]], [[12], [16]]]
    assert [f["scatter flat"] for f in found] == [[10, 12], [14, 0]]  # 3 elements padded to 4
    assert found[1]["average"] == [[5, 6], [7, 8]]
    assert found[0]["largest"] == [[10, 11], [12, 13]]
    assert [f["all to all"] for f in found] == [[[0, 1], [10, 11]], [[2, 3], [12, 13]]]
    assert found[0]["broadcast"] == [[10, 11], [12, 13]]


@pytest.mark.parametrize("how", ["dies", "late"])
def test_a_dead_or_late_rank_ends_the_run_on_all(how):
    timeout = 2.0
    ended = outcomes(jobs.interrupted, 3, jobs.summed(3, 3), 2, how, timeout, timeout=30)
    for rank in (0, 1):
        _, message, kept, seconds = ended[rank].value
        assert "S1 all_reduce world [dp.reduce] of ranks [0, 1, 2]: " in message  # the op that was waited for
        if how == "dies":
            assert "rank 2 gave no sign" in message
        assert kept >= 2  # what was measured so far
        assert seconds < 0.1 + timeout + 3  # one wait, and the grace for reports
    if how == "dies":
        assert "exit code -9" in ended[2].error
    else:
        assert "rank 2: S1 all_reduce world [dp.reduce] of ranks [0, 1, 2]: waited 2 s for F1 delay [compute]; was at F0 delay" in ended[2].value[1]


def test_execute_refuses_before_anything_runs():
    broken = jobs.relay()
    without_send = broken.programs[0].bodies["body"][:1]
    broken.programs[0].bodies["body"] = without_send
    with pytest.raises(InvalidProgram, match="channel F0"):
        execute(broken)
    with pytest.raises(Refused, match="torchrun"):
        execute(jobs.relay())
    with pytest.raises(Malformed, match="backend=mpi must be one of gloo, nccl"):
        execute(jobs.relay(), backend="mpi")


def test_execute_in_a_process_group():
    timeline = spawn(jobs.through_execute, 2, jobs.relay(), timeout=30)[0]
    assert timeline.meta["compute"] == "numeric"
    with pytest.raises(Failed, match="world size=2 must equal the 3 ranks"):
        spawn(jobs.through_execute, 2, jobs.summed(3), timeout=30)


def test_compute_sleep_needs_durations():
    from functools import partial

    with pytest.raises(Failed, match="compute=sleep needs durations"):
        spawn(partial(jobs.through_execute, compute="sleep"), 2, jobs.relay(), timeout=30)


def test_matmul_compute_runs():
    from functools import partial

    timeline = spawn(partial(jobs.through_execute, compute="matmul", steps=3), 2, jobs.relay(), timeout=30)[0]
    assert len(timeline.meta["makespans_s"]) == 3
    assert timeline.meta["repetition"] in (1, 2)  # the first warms up
