"""Every algorithm as messages on numpy arrays: the values are those of the op, and the bytes per link are those that are priced."""

import numpy as np
import pytest

from parasim.collectives import reference
from parasim.collectives.catalog import ALGORITHMS, MESSAGES
from parasim.collectives.messages import play
from parasim.collectives.plan import group_of
from parasim.cost.profile import datasheet
from parasim.errors import Refused
from parasim.topology.builders import IDEAL, RailFatTree, Wire, ideal, rail_fat_tree, servers
from parasim.topology.torus import torus

ICI = Wire("ici", 1e9, 1e-6)
NAMES = [(op, name) for op, known in ALGORITHMS.items() for name in known]
ROOTED = ("broadcast", "reduce", "scatter", "gather")
ROOTS = [(op, name, last) for op, name in NAMES for last in ((False, True) if op in ROOTED else (False,))]  # the first member, or the last


def rails(nodes, per_node, pod=32):
    draft = servers(nodes, per_node, IDEAL, Wire("scale_up", 1e9, 0.0))
    return rail_fat_tree(draft, RailFatTree(per_node, 1e9, 0.0, 0.0, pod, 1)).finish("rails")


CLUSTERS = {
    **{f"switch-{n}": ideal(n, 1e-6, 1e9) for n in range(2, 10)},
    "switch-16": ideal(16, 1e-6, 1e9),
    "2x4": rails(2, 4),
    "3x2": rails(3, 2),
    "5x1": rails(5, 1),
    "4x3 in two pods": rails(4, 3, 2),
    "ring of 4": torus("t", IDEAL, (4, 1), ICI, "all"),
    "ring of 5": torus("t", IDEAL, (5,), ICI, "all"),
    "line of 4": torus("t", IDEAL, (4,), ICI, "none"),
    "torus 4x3": torus("t", IDEAL, (4, 3), ICI, "all"),
    "half closed 4x3": torus("t", IDEAL, (4, 3), ICI, (True, False)),
    "mesh 3x2": torus("t", IDEAL, (3, 2), ICI, "none"),
    "torus 3x3x3": torus("t", IDEAL, (3, 3, 3), ICI, "all"),
}


def group(cluster, root=0, shares=None):
    return group_of(cluster.devices, cluster, datasheet(), root, shares)


def inputs_of(op, n, keys, root, rng):
    """Integers in floats, so that sums are exact in any order."""
    if op == "barrier":
        return [np.ones(1)] * n
    length = keys if op in ("all_reduce", "reduce", "reduce_scatter", "broadcast", "scatter") else keys // n
    data = [rng.integers(0, 100, length).astype(float) for _ in range(n)]
    return [x if i == root else None for i, x in enumerate(data)] if op in ("broadcast", "scatter") else data


def expected(op, inputs, root, n):
    if op == "barrier":
        return [np.ones(n)] * n
    if op == "broadcast":
        return [inputs[root]] * n
    if op == "scatter":
        return reference.scatter(inputs[root], n)
    if op in ("reduce", "gather"):
        return getattr(reference, op)(inputs, root)
    return getattr(reference, op)(inputs)


def weights_of(rounds):
    out = {}
    for one in rounds:
        for link, weight in one.weights.items():
            out[link] = out.get(link, 0.0) + weight
    return {link: weight for link, weight in out.items() if weight > 1e-15}


def weights_of_messages(schedule, made, switches):
    """Bytes per link of the messages; a place above the members is a switch, reached over one link."""
    name, out = (*made.members, *switches), {}
    for step in schedule.steps:
        for m in step:
            a, b, size = name[m.source], name[m.target], sum(schedule.sizes[k] for k in m.keys)
            n = made.size
            links = made.cluster.route(a, b) if m.source < n and m.target < n else [made.cluster.graph.adj[a][b]["link"]]
            for link in links:
                out[link] = out.get(link, 0.0) + size
    return {link: weight for link, weight in out.items() if weight > 1e-15}


def switches_of(name, made):
    """The switches that an in-network algorithm's places above the members stand for; None where several trees share switches."""
    if name == "sharp":
        from parasim.collectives.in_network import _branches

        edges = _branches(made)
        return [end for end in dict.fromkeys(e for edge in edges for e in edge) if end not in made.members]
    hubs = [f"{node}.switch" for node in dict.fromkeys(made.cluster.node_of[m] for m in made.members)]
    return hubs if name in ("nvls", "nvls-ring", "nvls-tree") or not name.startswith("nvls") else None


@pytest.mark.parametrize("where", CLUSTERS)
@pytest.mark.parametrize(("op", "name", "last"), ROOTS)
def test_values_and_bytes(op, name, last, where):
    cluster = CLUSTERS[where]
    n = len(cluster.devices)
    root = n - 1 if last else 0
    made = group(cluster, root)
    try:
        rounds = ALGORITHMS[op][name](made)
    except Refused:
        if op != "broadcast":
            assert name.startswith(("nvls", "sharp")) or (name == "torus") != ("torus" in where or "mesh" in where or "of" in where.split() or "half" in where)
        return
    schedule = MESSAGES[op][name](made)
    if name == "ring-all-reduce":
        op = "all_reduce"
    rng = np.random.default_rng(7)
    keys = len(schedule.sizes)
    inputs = inputs_of(op, n, keys, root, rng)
    got = play(op, schedule, inputs, root)
    for mine, due in zip(got, expected(op, inputs, root, n), strict=True):
        assert (mine is None) == (due is None)
        if due is not None:
            assert mine.tolist() == list(due)
    assert all(m.source != m.target for step in schedule.steps for m in step)
    if op == "barrier" or (name == "torus" and op in ("scatter", "gather")):
        return  # no bytes; or messages from end to end over several ways
    switches = switches_of(name, made)
    if (op, name) == ("all_to_all", "bruck"):
        switches = switches if n & (n - 1) == 0 else None  # slots stay empty where n is no power of two
    if switches is not None:
        priced = weights_of(rounds)
        assert weights_of_messages(schedule, made, switches) == pytest.approx(priced, rel=1e-9)
    if (op, name) != ("all_to_all", "torus"):  # counts what a rank sends on, too
        sent = sum(sum(schedule.sizes[k] for k in m.keys) for step in schedule.steps for m in step if m.source < n)
        if switches is not None and "sharp" not in name:
            assert sum(one.sent for one in rounds) == pytest.approx(sent / n, rel=1e-9)


@pytest.mark.parametrize("name", ["direct", "pairwise", "bruck", "rail", "torus"])
@pytest.mark.parametrize("where", ["switch-5", "switch-8", "2x4", "torus 4x3"])
def test_uneven_all_to_all(name, where):
    """Shares of their own per pair: the values arrive, the links carry what the messages carry."""
    cluster = CLUSTERS[where]
    n = len(cluster.devices)
    shares = np.random.default_rng(3).random((n, n))
    shares /= shares.sum(axis=1, keepdims=True)
    made = group(cluster, 0, shares)
    if name == "rail" and where == "torus 4x3":
        return
    schedule = MESSAGES["all_to_all"][name](made)
    inputs = [np.arange(n) + 100.0 * i for i in range(n)]
    assert [x.tolist() for x in play("all_to_all", schedule, inputs)] == [x.tolist() for x in reference.all_to_all(inputs)]
    rounds = ALGORITHMS["all_to_all"][name](made)
    assert weights_of_messages(schedule, made, []) == pytest.approx(weights_of(rounds), rel=1e-9)
    assert schedule.sizes == {(i, j): shares[i, j] for i in range(n) for j in range(n)}
