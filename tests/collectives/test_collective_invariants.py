"""What holds for every algorithm on any of many networks: values, bytes, bounds; and what holds for flat rings and direct exchanges."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from one_collective import run

from parasim.collectives import reference
from parasim.collectives.catalog import ALGORITHMS, MESSAGES
from parasim.collectives.messages import play
from parasim.collectives.plan import capacity, group_of, plan, seconds
from parasim.collectives.table import busbw_factor
from parasim.cost.profile import datasheet
from parasim.errors import Refused
from parasim.topology.builders import IDEAL, RailFatTree, Wire, ethernet, ideal, rail_fat_tree, servers
from parasim.topology.torus import torus

FLAT = datasheet()
NAMES = [(op, name) for op, known in ALGORITHMS.items() for name in known]
REDUCING = ("nvls", "nvls-ring", "nvls-tree", "nvls-sharp", "sharp")  # a switch that adds up receives less than it would pass on


@st.composite
def clusters(draw):
    """A switch, servers under rails or Ethernet, or a torus: 2 to 24 devices, arbitrary speeds and latencies."""
    speed, other = draw(st.floats(1e9, 1e12)), draw(st.floats(1e8, 1e11))
    latency = draw(st.sampled_from([0.0, 1e-6, 3e-5]))
    kind = draw(st.sampled_from(["switch", "rails", "ethernet", "torus"]))
    if kind == "switch":
        return ideal(draw(st.integers(2, 17)), latency, speed)
    if kind == "torus":
        shape = draw(st.sampled_from([(4,), (5,), (3, 3), (4, 2), (2, 3, 3)]))
        return torus("t", IDEAL, shape, Wire("ici", speed, latency), draw(st.sampled_from(["all", "none"])))
    nodes, per_node = draw(st.integers(2, 5)), draw(st.integers(1, 4))
    draft = servers(nodes, per_node, IDEAL, Wire("scale_up", speed, latency))
    if kind == "ethernet":
        return ethernet(draft, Wire("nic", other, latency)).finish("ethernet")
    pod, over = draw(st.integers(1, nodes)), draw(st.sampled_from([1, 2]))
    return rail_fat_tree(draft, RailFatTree(per_node, other, latency, 0.0, pod, over)).finish("rails")


def planned(op, name, nbytes, cluster, members=None):
    """The plan, or None where the algorithm refuses these members."""
    try:
        return plan(op, nbytes, members or cluster.devices, cluster, FLAT, name)
    except Refused:
        return None


@settings(max_examples=40, deadline=None, derandomize=True)
@given(cluster=clusters(), shuffle=st.randoms(use_true_random=False), root=st.integers(0, 100))
def test_values_are_right_whatever_the_order_of_the_members(cluster, shuffle, root):
    members = list(cluster.devices)
    shuffle.shuffle(members)
    n, root = len(members), root % len(members)
    made = group_of(members, cluster, FLAT, root)
    for op in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"):
        for name, messages in MESSAGES[op].items():
            if planned(op, name, 1e6, cluster, members) is None:
                continue
            schedule = messages(made)
            keys = len(schedule.sizes) if op in ("all_reduce", "reduce_scatter") else len(schedule.sizes) // n
            inputs = [np.arange(keys) * 7.0 + 1000.0 * i for i in range(n)]
            due = reference.all_reduce(inputs) if name == "ring-all-reduce" else getattr(reference, op)(inputs)
            got = play("all_reduce" if name == "ring-all-reduce" else op, schedule, inputs)
            assert [x.tolist() for x in got] == [x.tolist() for x in due], (op, name)
            if op != "all_to_all" or name != "torus":
                assert sum(schedule.sizes.values()) == pytest.approx(n if op == "all_to_all" else 1.0)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(cluster=clusters(), nbytes=st.floats(1, 1e10))
def test_no_algorithm_beats_the_ports(cluster, nbytes):
    """Time >= bytes over rate for every link and phase, hence for the bytes of every port; and >= what every rank must send or get at least."""
    rates = capacity(cluster, FLAT)
    n = len(cluster.devices)
    for op, name in NAMES:
        made = planned(op, name, nbytes, cluster)
        if made is None:
            continue
        time = seconds(made, cluster, FLAT)
        carried = np.zeros(len(rates))
        for phase in made.phases:
            for link, weight in phase.weights:
                carried[link] += phase.bytes * weight
        assert time >= np.max(carried / rates, initial=0.0) * (1 - 1e-12), (op, name)
        leaving = {d: np.array([i for i, link in enumerate(cluster.links) if link.a == d]) for d in cluster.devices}
        entering = {d: np.array([i for i, link in enumerate(cluster.links) if link.b == d]) for d in cluster.devices}
        lacking = {"all_reduce": 1 / n, "all_gather": (n - 1) / n, "reduce_scatter": 1 / n, "all_to_all": (n - 1) / n}.get(op, 0.0)
        for d in cluster.devices:
            assert carried[entering[d]].sum() >= lacking * nbytes * (1 - 1e-9), (op, name)
            assert time >= carried[leaving[d]].sum() / rates[leaving[d]].sum() * (1 - 1e-12), (op, name)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(cluster=clusters(), nbytes=st.floats(1, 1e10))
def test_links_carry_what_the_ranks_send(cluster, nbytes):
    """On a network of ports all bytes that leave the ranks are on the first links: n times the mean that is reported."""
    if cluster.name in ("t",):
        return
    for op, name in NAMES:
        made = planned(op, name, nbytes, cluster)
        if made is None:
            continue
        leaving = sum(p.bytes * w for p in made.phases for i, w in p.weights if cluster.links[i].a in cluster.devices)
        assert leaving == pytest.approx(len(cluster.devices) * made.wire_bytes_per_rank, rel=1e-9), (op, name)
        entering = sum(p.bytes * w for p in made.phases for i, w in p.weights if cluster.links[i].b in cluster.devices)
        if name not in REDUCING:
            assert entering == pytest.approx(leaving, rel=1e-9), (op, name)


FLAT_NAMES = [("all_reduce", "ring"), ("all_gather", "ring"), ("reduce_scatter", "ring"), ("all_gather", "direct"), ("reduce_scatter", "direct")]
FLAT_NAMES += [("all_reduce", "direct"), ("all_to_all", "direct")]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(n=st.integers(2, 20), speeds=st.lists(st.floats(1e8, 1e12), min_size=20, max_size=20), nbytes=st.floats(1, 1e10))
def test_flat_rings_and_direct_exchanges(n, speeds, nbytes):
    """busbw <= the slowest port, and equal to it at zero latency; chunks change nothing; all-reduce = reduce-scatter + all-gather."""
    cluster = ideal(n, 0.0, 1.0)
    links = tuple(link._replace(bandwidth=speeds[cluster.devices.index(link.a if link.a in cluster.devices else link.b)]) for link in cluster.links)
    cluster = replace(cluster, links=links)
    slowest = min(speeds[:n])
    for op, name in FLAT_NAMES:
        time = seconds(plan(op, nbytes, cluster.devices, cluster, FLAT, name), cluster, FLAT)
        assert nbytes / time * busbw_factor(op, n) == pytest.approx(slowest, rel=1e-9)
        for k in (2, 7):
            chunk = seconds(plan(op, nbytes / k, cluster.devices, cluster, FLAT, name), cluster, FLAT)
            assert k * chunk == pytest.approx(time, rel=1e-9)
    for name in ("ring", "direct"):
        both = sum(seconds(plan(op, nbytes, cluster.devices, cluster, FLAT, name), cluster, FLAT) for op in ("reduce_scatter", "all_gather"))
        assert seconds(plan("all_reduce", nbytes, cluster.devices, cluster, FLAT, name), cluster, FLAT) == pytest.approx(both, rel=1e-9)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(cluster=clusters(), size=st.integers(1, 10**7), name=st.sampled_from(["ring", "direct", "tree", "halving-doubling", "hierarchical-pipelined"]))
def test_the_engine_takes_as_long_as_the_plan_alone(cluster, size, name):
    """Folded or not, with nothing else in flight; no link above its capacity in any interval of the timeline."""
    made = planned("all_reduce", name, size, cluster)
    if made is None:
        return
    for fold in (True, False):
        timeline = run("all_reduce", size, cluster, name, fold=fold)
        assert timeline.makespan == pytest.approx(seconds(made, cluster, FLAT), rel=1e-9)
        for row in timeline.flows:
            span = float(row["end"] - row["start"])
            assert float(row["bytes"]) <= timeline.links[row["link"]][2] * span * (1 + 1e-9) + 1e-9
