"""All-to-alls of unequal parts: the load table of the Workload decides who sends how much, copies per server how much crosses the network."""

from dataclasses import replace

import numpy as np
import pytest

from parasim.program.checks import verify
from parasim.topology.builders import IDEAL, RailFatTree, Wire, ideal, rail_fat_tree, servers
from tests.sim.hand import collective, run, workload

S, RATE = 8_000_000, 1e9
HOT = np.array([[0.25, 0.25, 0.25, 0.25], [0.7, 0.1, 0.1, 0.1], [0.4, 0.2, 0.2, 0.2], [1.0, 0.0, 0.0, 0.0]])


def exchange(table, reads=S, writes=S, copies="per_rank", n=4):
    op = replace(collective("all_to_all", "ep", "px"), reads=collective("all_to_all", "ep", "px").reads, load="l", copies=copies)
    op = replace(op, writes=collective("all_to_all", "ep", "py").writes)
    made = workload([[op]] * n, {"px": reads, "py": writes}, {"ep": [list(range(n))]})
    return replace(made, loads={"l": np.asarray(table, dtype=float)})


def test_the_hot_receiver_bounds_the_time():
    """max over ports of max(sent, received) / B: 0.7 + 0.4 + 1.0 of S enter rank 0; evenly it would be (n-1)/n S / B."""
    received = HOT.sum(axis=0) - HOT.diagonal()
    sent = HOT.sum(axis=1) - HOT.diagonal()
    bound = max(received.max(), sent.max()) * S / RATE
    assert bound == pytest.approx(2.1 * S / RATE)
    for fold in (True, False):
        timeline = run(exchange(HOT), ideal(4, 0.0, RATE), fold=fold)
        assert timeline.makespan == pytest.approx(bound, rel=1e-9)
    assert run(exchange(np.full((4, 4), 0.25)), ideal(4, 0.0, RATE)).makespan == pytest.approx(0.75 * S / RATE, rel=1e-9)
    assert run(exchange(HOT.T), ideal(4, 0.0, RATE)).makespan == pytest.approx(bound, rel=1e-9)  # the way back: rank 0 sends it all


def test_bytes_on_the_wire_are_those_of_the_table():
    """Mean over the ranks of what leaves them; every link carries its row or column of the table."""
    timeline = run(exchange(HOT), ideal(4, 0.0, RATE), fold=False)
    assert timeline.ops["bytes"].tolist() == pytest.approx([(HOT.sum() - HOT.trace()) / 4 * S] * 4)
    carried = sorted(timeline.flows["bytes"].tolist())
    due = [*(HOT.sum(axis=1) - HOT.diagonal()), *(HOT.sum(axis=0) - HOT.diagonal())]
    assert carried == pytest.approx(sorted(x * S for x in due if x))


def test_groups_with_the_same_table_fold_into_one():
    """Eight ranks as two groups on one switch: the same table, the same loads, half of the ranks stand for all."""
    op = replace(collective("all_to_all", "ep", "px"), load="l")
    made = replace(workload([[op]] * 8, {"px": S}, {"ep": [[0, 1, 2, 3], [4, 5, 6, 7]]}), loads={"l": HOT})
    made = replace(made, programs=made.programs[:1], class_of_rank=np.zeros(8, dtype=np.int64))
    times = [run(made, ideal(8, 0.0, RATE), fold=fold).makespan for fold in (True, False)]
    assert times == pytest.approx([2.1 * S / RATE] * 2, rel=1e-9)


def rails(nodes, g, inside, outside):
    draft = servers(nodes, g, IDEAL, Wire("scale_up", inside, 0.0))
    return rail_fat_tree(draft, RailFatTree(g, outside, 0.0, 0.0, 32, 1)).finish("rails")


@pytest.mark.parametrize(("reads", "writes"), [(S // 2, S), (S, S // 2)], ids=["dispatch", "combine"])
def test_one_copy_per_server_crosses_the_network(reads, writes):
    """2 servers of 4, two copies per byte sent: S (n-g)/n / 2 over each port; every receiver of another server is served inside it.

    Network-bound: (4/8) S / 2 / B. Without the copies twice that.
    """
    even = np.full((8, 8), 1 / 8)
    once = run(exchange(even, reads, writes, "per_node", 8), rails(2, 4, 100e9, RATE)).makespan
    plain = run(exchange(even, reads, writes, "per_rank", 8), rails(2, 4, 100e9, RATE)).makespan
    assert once == pytest.approx(0.5 * S / 2 / RATE, rel=1e-9)
    assert plain == pytest.approx(0.5 * S / RATE, rel=1e-9)


def test_copies_are_made_inside_the_server():
    """Bound by the ports inside: of the n-1 = 7 parts of a member, 3 go inside its own server and 3 are passed on by it: 6/8 S / B."""
    even = np.full((8, 8), 1 / 8)
    assert run(exchange(even, S // 2, S, "per_node", 8), rails(2, 4, RATE, 100e9)).makespan == pytest.approx(0.75 * S / RATE, rel=1e-9)


@pytest.mark.parametrize(("table", "rule"), [(HOT[:3], "which is 3 x 4; group ep needs 4 x 4"), (-HOT, "negative parts")], ids=["size", "sign"])
def test_a_table_that_does_not_fit_is_refused(table, rule):
    (found, *_) = verify(exchange(table))
    assert rule in found.rule


def test_a_table_that_is_missing_is_refused():
    (found, *_) = verify(replace(exchange(HOT), loads={}))
    assert "names load table l, which the Workload does not have" in found.rule
