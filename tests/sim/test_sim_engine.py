"""Rendezvous, slow-downs, refusals and deadlocks of the engine, by hand; users' questions whose answers are known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hand import collective, network, profile, recv, run, send, times, work, workload

from parasim.collectives.plan import plan, seconds
from parasim.cost.profile import datasheet
from parasim.errors import Deadlock, Refused, Unreachable
from parasim.program.ops import P2P, Compute, Kernel, Label, Msg, Op, Ref
from parasim.program.workload import Call, Program
from parasim.topology.builders import IDEAL, ideal
from parasim.topology.changes import remove
from parasim.topology.loader import load_cluster


def star(n: int, bandwidth: float = 10.0) -> Any:
    return network(n, [(f"d{i}", "s", bandwidth) for i in range(n)], switches=("s",))


@pytest.mark.parametrize("fold", [True, False])
def test_a_collective_starts_when_its_last_member_arrives(fold: bool) -> None:
    """Members arrive at 1, 3 and 2 s; a ring all-reduce of 30 B over 10 B/s takes 2 (n-1)/n x 30 / 10 = 4 s."""
    bodies: list[list[Op]] = [[work(s), collective("all_reduce", "g", "p")] for s in (1.0, 3.0, 2.0)]
    t = run(workload(bodies, {"p": 30}, {"g": [[0, 1, 2]]}), star(3), fold=fold)
    assert [times(t, r, 1) for r in range(3)] == [(1.0, 3.0, 7.0), (3.0, 3.0, 7.0), (2.0, 3.0, 7.0)]


def test_a_message_starts_when_both_ends_are_there() -> None:
    t = run(workload([[work(1.0, "x"), send("x", "to1")], [work(4.0), recv("x", "to0", stream="compute")]], {"x": 20}), star(2))
    assert times(t, 0, 1) == (1.0, 4.0, 6.0) and times(t, 1, 1) == (4.0, 4.0, 6.0)


def test_subset_in_an_extra_collective() -> None:
    """Ranks 4 to 7 first reduce among themselves; ranks 0 to 3 wait for them before the common all-gather (astra-sim issue 339)."""
    first, everyone = collective("all_reduce", "second", "p.a"), collective("all_gather", "all", "p.b")
    bodies: list[list[Op]] = [[everyone] if r < 4 else [first, everyone] for r in range(8)]
    t = run(workload(bodies, {"p.a": 1024, "p.b": 8}, {"all": [list(range(8))], "second": [[4, 5, 6, 7]]}), star(8, 1024.0))
    extra = 2 * 3 / 4  # 2 (n-1)/n x 1024 B / 1024 B/s
    assert times(t, 0, 0)[:2] == (0.0, extra) and times(t, 4, 1)[:2] == (extra, extra)


def test_a_straggler_holds_everyone_up() -> None:
    """Eight ranks compute 100 ms, rank 3 150 ms, the all-reduce takes 10 ms: 160 ms (astra-sim issue 292)."""
    bodies: list[list[Op]] = [[work(0.15 if r == 3 else 0.1), collective("all_reduce", "g", "p")] for r in range(8)]
    t = run(workload(bodies, {"p": 80}, {"g": [list(range(8))]}), star(8, 2 * 7 / 8 * 80 / 0.01))
    assert t.makespan == pytest.approx(0.16)
    waited = [times(t, r, 1)[1] - times(t, r, 1)[0] for r in range(8)]
    assert waited == pytest.approx([0.05, 0.05, 0.05, 0.0, 0.05, 0.05, 0.05, 0.05])


def test_a_world_all_reduce_grows_as_its_bus_factor() -> None:
    """2 (n-1)/n: 1.9375 for 32 ranks, 1.96875 for 64 (SimAI issue 208); a group inside the world does not grow."""
    t = {}
    for n in (32, 64):
        body: list[Op] = [collective("all_reduce", "world", "p"), collective("all_reduce", "tp", "p")]
        w = workload([body] * n, {"p": 1000}, {"world": [list(range(n))], "tp": np.arange(n).reshape(-1, 8)})
        t[n] = run(w, ideal(n, 0.0, 1000.0))
    assert times(t[32], 0, 0)[2] == pytest.approx(1.9375) and times(t[64], 0, 0)[2] == pytest.approx(1.96875)
    spans = [times(x, 0, 1)[2] - times(x, 0, 1)[1] for x in t.values()]
    assert spans == pytest.approx([2 * 7 / 8] * 2)


@pytest.mark.parametrize("fold", [True, False])
def test_groups_of_unequal_nodes(fold: bool) -> None:
    """4 + 6 devices, a fast switch each, one uplink of 10 B/s between: an all-reduce over all ten is bound by the uplink (astra-sim issue 371)."""
    nodes = [(f"d{i}", "a" if i < 4 else "b", 1000.0) for i in range(10)]
    cluster = network(10, [*nodes, ("a", "b", 10.0)], switches=("a", "b"))
    t = run(workload([[collective("all_reduce", "g", "p")]] * 10, {"p": 100}, {"g": [list(range(10))]}), cluster, fold=fold)
    assert t.makespan >= 100 / 10  # at least the buffer crosses the uplink in each direction
    assert t.makespan == pytest.approx(seconds(plan("all_reduce", 100, cluster.devices, cluster, datasheet()), cluster, datasheet()))


def test_compute_is_slower_beside_a_message() -> None:
    """10 s of compute; a message of 4 s from t = 2 slows it 1.5 times: 2 s + 4 s/1.5, and 5 1/3 s are left at 6 s: 11 1/3."""
    bodies: list[list[Op]] = [[work(2.0, "x", stream="copy"), send("x", "to1"), work(10.0)], [recv("x", "to0")]]
    t = run(workload(bodies, {"x": 40}), star(2), profile(overlap__slowdown__p2p=0.5))
    assert times(t, 0, 1)[1:] == (2.0, 6.0)
    assert times(t, 0, 2)[2] == pytest.approx(6 + 10 - 2 - 4 / 1.5)


def test_slow_downs_of_two_kinds_add_up() -> None:
    """A collective [0, 4) slows by 1, a message [2, 6) by 0.5: rates 1/2, 1/2.5, 1/1.5, then 1. Each has its own link."""
    links = [("d0", "d1", 10.0), ("d0", "d2", 10.0)]
    bodies: list[list[Op]] = [
        [collective("all_reduce", "g", "p", stream="dp.reduce"), work(0.0, "x", stream="copy"), send("x", "to2"), work(10.0)],
        [collective("all_reduce", "g", "p", stream="dp.reduce")],
        [work(2.0), recv("x", "to0", stream="compute")],
    ]
    t = run(workload(bodies, {"x": 40, "p": 40}, {"g": [[0, 1]]}), network(3, links), profile(overlap__slowdown__p2p=0.5, overlap__slowdown__collective=1.0))
    assert (times(t, 0, 0)[1:], times(t, 0, 2)[1:]) == ((0.0, 4.0), (2.0, 6.0))
    done = 2 / 2 + 2 / 2.5 + 2 / 1.5
    assert times(t, 0, 3)[2] == pytest.approx(6 + 10 - done)


def test_a_collective_on_the_compute_stream_slows_nothing() -> None:
    bodies: list[list[Op]] = [[collective("all_reduce", "g", "p"), work(3.0)]] * 2
    t = run(workload(bodies, {"p": 10}, {"g": [[0, 1]]}), star(2), profile(overlap__slowdown__collective=1.0))
    assert times(t, 0, 1) == (1.0, 1.0, 4.0)


@pytest.mark.parametrize("fold", [True, False])
def test_crossed_blocking_sends_name_ranks_and_ops(fold: bool) -> None:
    bodies: list[list[Op]] = [[work(1.0, f"x{r}"), send(f"x{r}", f"to{1 - r}", "compute"), recv(f"x{1 - r}", f"to{1 - r}", "compute")] for r in (0, 1)]
    with pytest.raises(Deadlock) as caught:
        run(workload(bodies, {"x0": 4, "x1": 4}), star(2), fold=fold)
    assert str(caught.value) == ("deadlock: rank 0 is stuck at 0send send x0 to to1 on x0 [compute]; rank 1 is stuck at 0send send x1 to to0 on x1 [compute]")
    assert [rank for rank, _ in caught.value.stuck] == [0, 1]


def test_a_dangling_send_is_a_deadlock() -> None:
    with pytest.raises(Deadlock, match="rank 0 is stuck at 0send send x to to1 on x"):
        run(workload([[work(1.0, "x"), send("x", "to1")], [work(1.0)]], {"x": 4}), star(2))


def test_a_collective_that_one_member_never_reaches() -> None:
    bodies: list[list[Op]] = [[work(1.0), collective("all_reduce", "g", "p")], [work(1.0)]]
    with pytest.raises(Deadlock, match=r"rank 0 is stuck at S all_reduce g \[compute\]"):
        run(workload(bodies, {"p": 4}, {"g": [[0, 1]]}), star(2))


def test_what_waits_behind_a_stuck_stream_is_named_too() -> None:
    bodies: list[list[Op]] = [[recv("x", "to1"), work(1.0, reads=("x",))], [work(1.0)]]
    with pytest.raises(Deadlock) as caught:
        run(workload(bodies, {"x": 4}), star(2))
    assert sorted(text for _, text in caught.value.stuck) == ["0F delay [compute]", "0recv recv x from to1 on x [pp.recv]"]


def test_more_ranks_than_devices() -> None:
    with pytest.raises(Refused, match="devices=3 exceeds the 2 devices of cluster hand"):
        run(workload([[work(1.0)]] * 3, {}), star(2))


def test_a_partitioned_network_names_both_ends() -> None:
    cluster = network(4, [("d0", "a", 10.0), ("d1", "a", 10.0), ("d2", "b", 10.0), ("d3", "b", 10.0)], switches=("a", "b"))
    with pytest.raises(Unreachable, match=r"no route from d0 to d2"):
        run(workload([[work(0.0, "x"), send("x", "to2")], [], [recv("x", "to0")], []], {"x": 4}), cluster)
    with pytest.raises(Unreachable, match=r"d[01] to d[23]"):
        run(workload([[collective("all_reduce", "g", "p")]] * 4, {"p": 4}, {"g": [[0, 1, 2, 3]]}), cluster)
    inside = run(workload([[collective("all_reduce", "g", "p")]] * 4, {"p": 4}, {"g": [[0, 1], [2, 3]]}), cluster)
    assert inside.makespan == pytest.approx(0.4)  # groups inside the parts still run: 2 x 1/2 x 4 B / 10 B/s


def test_a_dead_server_partitions_what_needs_it() -> None:
    cluster = remove(load_cluster("h100-hgx-ib400", 16), "node1")
    w = workload([[collective("all_reduce", "g", "p")]] * 16, {"p": 4}, {"g": [list(range(16))]})
    with pytest.raises(Unreachable, match=r"node0\.gpu\d.*node1\.gpu\d|node1\.gpu\d.*node0\.gpu\d"):
        run(w, cluster)


def test_a_rank_without_ops_is_idle() -> None:
    t = run(workload([[work(2.0)], []], {}), star(2))
    assert t.makespan == 2.0 and len(t.of(1)) == 0
    assert IDEAL.memory.value == float("inf")


def test_nothing_at_all() -> None:
    assert run(workload([[], []], {}), star(2)).makespan == 0.0


def test_messages_of_a_channel_match_by_microbatch() -> None:
    """Microbatch 1 is sent at 1 s, 0 at 5 s, each on its own stream; the receives stand in the other order."""
    first, second = Ref("x", 0), Ref("x", 1)

    def make(ref: Ref, seconds: float) -> Op:
        return Compute(label=Label("F"), stream=f"c{ref.slot}", kernels=(Kernel("delay", (), (ref,), (seconds,), "uint8"),))

    def message(ref: Ref, way: str) -> Op:
        m = (Msg(ref, "other", "up"),)
        return P2P(label=Label(way), stream=f"{way}{ref.slot}", sends=m if way == "send" else (), recvs=() if way == "send" else m)

    bodies = [[make(first, 5.0), make(second, 1.0), message(first, "send"), message(second, "send")], [message(second, "recv"), message(first, "recv")]]
    w = workload([[], []], {"x": 10}, peers={"other": [1, 0]})
    w = replace(w, programs=tuple(Program(w.programs[0].buffers, {"main": tuple(b)}, (Call("main", (0, 1)),)) for b in bodies))
    t = run(w, star(2))
    assert times(t, 1, 0) == (0.0, 1.0, 2.0) and times(t, 1, 1) == (0.0, 5.0, 6.0)
