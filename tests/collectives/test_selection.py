"""Which algorithm runs and why: the table, what the profile and the user say, refusals; and the algorithms of two levels and of the network."""

from collections import Counter

import pytest

from parasim.collectives.catalog import ALGORITHMS, MESSAGES
from parasim.collectives.plan import _made, plan, seconds
from parasim.collectives.selection import RING_ORDER, call_of, choices, select, table
from parasim.collectives.tree import trees
from parasim.cost.profile import Profile, datasheet, load_profile, read_profile, save_profile
from parasim.errors import Malformed, Refused
from parasim.provenance import Number
from parasim.topology.builders import ideal
from parasim.topology.loader import load_cluster

FLAT = datasheet()


def servers(nodes, per_node=8, latency="1 us", nvls=False, sharp=False, accelerator="h100-sxm"):
    spec = {
        "accelerator": accelerator,
        "node": {"devices": per_node, "scale_up": {"bandwidth": "450 GB/s", "latency": latency, **({"reduces": "nvls"} if nvls else {})}},
        "scale_out": {"kind": "rail-fat-tree", "bandwidth": "400 Gb/s", "latency": latency, **({"reduces": "sharp"} if sharp else {})},
    }
    return load_cluster(spec, nodes * per_node)


def made(op, nbytes, cluster, algorithm="auto", profile=FLAT, members=None):
    return plan(op, nbytes, members or cluster.devices, cluster, profile, algorithm)


def time_of(op, nbytes, cluster, algorithm="auto", profile=FLAT):
    return seconds(made(op, nbytes, cluster, algorithm, profile), cluster, profile)


def test_every_back_end_has_a_row_for_every_op_and_every_row_an_algorithm():
    for backend in RING_ORDER:
        assert {row.op for row in table() if row.backend == backend and row.span == "any"} == set(ALGORITHMS)
    assert all(name in ALGORITHMS[row.op] for row in table() for name in row.algorithms)
    assert all(row.reason for row in table())


def test_every_algorithm_says_what_it_does_to_values():
    assert {op: list(known) for op, known in MESSAGES.items()} == {op: list(known) for op, known in ALGORITHMS.items()}


def test_inside_a_server_rings_unless_the_switch_reduces():
    assert made("all_reduce", 1e9, servers(1)).algorithm == "ring"
    nvls = servers(1, nvls=True)
    assert made("all_reduce", 1e9, nvls).algorithm == "nvls"
    assert "NVSwitch for more than 4 ranks" in made("all_reduce", 1e9, nvls).reason
    assert made("all_reduce", 1e9, nvls, members=nvls.devices[:4]).algorithm == "ring"  # NCCL starts above 4 ranks
    assert made("all_reduce", 1e9, servers(1, nvls=True, accelerator="a100-sxm-80")).algorithm == "ring"  # not before Hopper
    assert made("all_gather", 1e9, nvls).algorithm == "ring"


def test_across_servers_trees_for_latency_and_rings_for_bandwidth():
    cluster = servers(16)
    small, large = made("all_reduce", 1e4, cluster), made("all_reduce", 1e9, cluster)
    assert (small.algorithm, large.algorithm) == ("tree", "ring")
    assert small.reason.startswith("NCCL compares rings and double trees where latency matters; fastest by profile datasheet: ")
    assert "not ring" in small.reason
    assert made("all_reduce", 1e9, servers(2, nvls=True)).algorithm == "nvls-tree"  # S/g per NIC on two servers, a ring 1.875 S/g


def test_gloo_and_tpu_have_their_ways():
    cluster = servers(2)
    gloo, tpu = Profile("g", "gloo"), Profile("t", "tpu")
    assert [made(op, 1e6, cluster, profile=gloo).algorithm for op in ("all_reduce", "reduce_scatter", "broadcast", "reduce", "gather")] == [
        *("ring", "ring-all-reduce", "binomial", "ring-gather", "direct"),
    ]
    assert made("all_reduce", 1e6, cluster, profile=tpu).algorithm in ("hierarchical", "ring")


def test_the_profile_chooses_by_op_span_and_bytes():
    chosen = {"all_reduce/nodes/1 MiB": "recursive-doubling", "all_reduce/node": "one-shot, tree", "all_reduce": "hierarchical", "broadcast": "chain:4"}
    profile = Profile("mine", algorithms=chosen)
    one, two = servers(1), servers(2)
    assert made("all_reduce", 2**20, two, profile=profile).algorithm == "recursive-doubling"
    assert made("all_reduce", 2**20 + 1, two, profile=profile).algorithm == "hierarchical"
    assert made("all_reduce", 8, one, profile=profile).algorithm == "one-shot"  # one hop instead of six
    assert made("all_reduce", 1e9, one, profile=profile).algorithm == "tree"  # 2S instead of 7S
    assert made("broadcast", 1e6, two, profile=profile).algorithm == "chain:4"
    assert made("all_reduce", 1e9, one, profile=profile).reason.startswith("profile mine: algorithms.all_reduce/node says so")
    assert made("all_reduce", 1e9, one, "direct", profile).algorithm == "direct"  # the user comes first
    assert made("all_reduce", 1e9, one, "direct", profile).reason == "asked for"


def test_algorithms_of_a_profile_come_before_those_that_compete_by_start_up_times():
    start = {f"algorithm.{name}.latency": Number(1e-6, "s", "made up", "assumed") for name in ("ring", "tree")}
    cluster = servers(16)
    assert "profile p compares" in made("all_reduce", 1e9, cluster, profile=Profile("p", numbers=start)).reason
    assert made("all_reduce", 1e9, cluster, profile=Profile("p", numbers=start, algorithms={"all_reduce": "direct"})).algorithm == "direct"


def test_algorithms_of_a_profile_are_read_and_written(tmp_path):
    profile = Profile("mine", algorithms={"all_reduce/nodes/64 MiB": "ring, tree"})
    save_profile(profile, tmp_path / "mine.yaml")
    assert load_profile(tmp_path / "mine.yaml") == profile
    for key, words in (
        ("allreduce", "nearest: all_reduce"),
        ("all_reduce/rack", "'rack' is none of node, nodes, torus, any and no size"),
        ("all_reduce/5 us", "no size"),
    ):
        with pytest.raises(Malformed, match=words):
            read_profile({"name": "mine", "algorithms": {key: "ring"}}, "mine.yaml")
    with pytest.raises(Malformed, match="must be the name of an algorithm"):
        read_profile({"name": "mine", "algorithms": {"all_reduce": 3}}, "mine.yaml")
    with pytest.raises(Malformed, match="must map op"):
        read_profile({"name": "mine", "algorithms": ["ring"]}, "mine.yaml")
    with pytest.raises(Malformed, match=r"profile mine: algorithms.all_reduce='rng' is not one of all_reduce; nearest: ring"):
        made("all_reduce", 1e6, ideal(4, 0.0), profile=Profile("mine", algorithms={"all_reduce": "rng"}))


@pytest.mark.parametrize("name", ["chain:0", "chain:-1", "chain:x", "chain:"])
def test_chunks_of_a_chain_are_counted(name):
    with pytest.raises(Malformed, match=r"the number of chunks after the colon must be 1 or more, such as chain:8"):
        made("broadcast", 1e6, ideal(4, 0.0), name)


def test_refusals_say_what_to_take_instead():
    cluster = servers(2)
    with pytest.raises(Refused, match=r"algorithm=nvls needs members whose ports meet in one switch; take ring"):
        made("all_reduce", 1e6, cluster, "nvls")
    with pytest.raises(Refused, match=r"algorithm=torus needs members that fill a block of one torus; take ring or direct"):
        made("all_reduce", 1e6, cluster, "torus")
    uneven = servers(2, nvls=True)
    assert plan("all_reduce", 1e9, uneven.devices[:9], uneven, FLAT).algorithm == "ring"  # nvls-tree refuses 8 + 1: left out of the comparison
    assert select("all_reduce", "nccl", "node", 8).name == "ring"
    assert choices("all_reduce", FLAT, made_call(cluster))[0].name in ("ring", "tree")


def made_call(cluster):
    return call_of(cluster.devices, cluster, 1.0)


# ---- two levels: g members per server, m servers, B1 = 450 GB/s inside, B2 = 50 GB/s between, a = 1 us


@pytest.mark.parametrize("m", [2, 4, 8])
def test_phases_of_two_levels_follow_each_other_or_overlap(m):
    """2S(g-1)/(g B1) + 2(S/g)(m-1)/(m B2) one after the other; pipelined in c chunks: max of the stages, and one chunk of the others around it."""
    cluster, g, c, nbytes = servers(m, latency="0 s"), 8, 8, 1e9
    inside, between = nbytes * (g - 1) / g / 450e9, 2 * nbytes / g * (m - 1) / m / 50e9
    assert time_of("all_reduce", nbytes, cluster, "hierarchical") == pytest.approx(2 * inside + between, rel=1e-9)
    # reduce-scatter | + between | all three (both directions of the ports inside: 2 x inside) | between + all-gather | all-gather
    stages = (inside / c, max(inside, between) / c, max(2 * inside, between) * (c - 2) / c, max(inside, between) / c, inside / c)
    pipelined = made("all_reduce", nbytes, cluster, "hierarchical-pipelined")
    assert seconds(pipelined, cluster, FLAT) == pytest.approx(sum(stages), rel=1e-9)
    assert pipelined.wire_bytes_per_rank == pytest.approx(made("all_reduce", nbytes, cluster, "hierarchical").wire_bytes_per_rank, rel=1e-12)
    assert max(2 * inside, between) < seconds(pipelined, cluster, FLAT) < 2 * inside + between


def test_a_hierarchy_of_two_servers_saves_bytes_on_the_nics():
    """2S(m-1)/(m g) per NIC against the 2S(n-1)/(n g) of flat rings on g rails: S/g against 1.875 S/g."""
    cluster = servers(2)

    def nic(name):
        p = made("all_reduce", 1e9, cluster, name)
        return max(sum(ph.bytes * w for ph in p.phases for i, w in ph.weights if i == link) for link, k in enumerate(cluster.links) if k.kind == "nic")

    assert nic("hierarchical") == pytest.approx(1e9 / 8, rel=1e-12)
    assert nic("ring") == pytest.approx(1.875e9 / 8, rel=1e-12)


def test_reduction_in_the_network():
    """NVLS inside: 2a + S(1+1/g)/B1. SHARP on the rails (S/g)/B2 + 2a. Both: S(1+1/g)/B1 + (S/g)/B2 + 4a. NVLSTree: the longer of the two, in one pipeline."""
    one, four, a = servers(1), servers(4), 1e-6
    assert time_of("all_reduce", 1e9, one, "nvls") == pytest.approx(2 * a + 1e9 * 9 / 8 / 450e9, rel=1e-9)
    both = time_of("all_reduce", 1e9, four, "nvls-sharp")
    assert both == pytest.approx(4 * a + 1e9 * 9 / 8 / 450e9 + 1e9 / 8 / 50e9, rel=1e-9)
    assert time_of("all_reduce", 1e9, four, "nvls-tree") == pytest.approx((2 + 2 * 2) * a + max(1e9 * 9 / 8 / 450e9, 2 * 1e9 / 8 / 50e9), rel=1e-9)
    assert time_of("all_reduce", 1e9, four, "nvls-ring") == pytest.approx((2 + 6) * a + 1e9 * 9 / 8 / 450e9 + 1.5e9 / 8 / 50e9, rel=1e-9)
    single = servers(4, per_node=1)
    assert time_of("all_reduce", 1e9, single, "sharp") == pytest.approx(2 * a + 1e9 / 50e9, rel=1e-9)


def test_all_to_all_along_rails_crosses_no_spine():
    """S(g-1)/(g B1), then S(m-1)/(m B2); direct messages to other rails go over the spines where servers have rails only."""
    cluster = servers(4, latency="0 s")
    assert time_of("all_to_all", 1e9, cluster, "rail") == pytest.approx(1e9 * 7 / 8 / 450e9 + 1e9 * 3 / 4 / 50e9, rel=1e-9)
    kinds = {name: {cluster.links[i].kind for ph in made("all_to_all", 1e9, cluster, name).phases for i, _ in ph.weights} for name in ("rail", "direct")}
    assert "spine" not in kinds["rail"] and "spine" in kinds["direct"]


@pytest.mark.parametrize("m", range(1, 40))
def test_two_trees(m):
    """n-1 edges each, at most two children, depth ceil(log2 m); nobody has more than four edges in both: 2S over a port in each direction."""
    first, second = trees(m)
    assert len(first) == len(second) == m - 1
    edges = Counter()
    for tree in (first, second):
        assert max(Counter(tree.values()).values(), default=0) <= 2
        depths = []
        for place in range(m):
            steps = 0
            while place in tree:
                place, steps = tree[place], steps + 1
            depths.append(steps)
        assert max(depths) == (m - 1).bit_length()
        edges.update(tree.keys())
        edges.update(tree.values())
    assert max(edges.values(), default=0) <= 4


def test_a_chain_inside_one_server_is_what_nccl_does():
    """2(g-1) hops and 2S(g-1)/(g B): 8 chains of S/8, up and down."""
    assert time_of("all_reduce", 1e9, servers(1), "chain-tree") == pytest.approx(14e-6 + 14 / 8 * 1e9 / 450e9, rel=1e-9)


def test_a_sweep_over_sizes_makes_its_rounds_once():
    cluster = servers(4)
    plan("all_reduce", 1e9, cluster.devices, cluster, FLAT)
    before = _made.cache_info()
    for size in range(10):
        plan("all_reduce", 1e9 + size, cluster.devices, cluster, FLAT)
    assert (_made.cache_info().hits - before.hits, _made.cache_info().misses - before.misses) == (10, 0)
