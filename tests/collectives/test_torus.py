"""Tori by the engine: closed forms of rings and lines used from both sides, routes, and worked problems of jax-ml/scaling-book (Apache-2.0, 0819a7d).

w bytes/s per cable and direction, W = 2w, V bytes of the gathered array, D bytes per chip, N chips on an axis, n in all, k axes.
"""

import json
from functools import cache
from pathlib import Path

import pytest
from one_collective import bytes_per_link, run

from parasim.collectives.plan import plan, seconds, send
from parasim.collectives.torus import block_of
from parasim.cost.pricing import bytes_moved, flops
from parasim.cost.profile import Profile, datasheet
from parasim.errors import Malformed, Refused, Unreachable
from parasim.program.ops import Kernel
from parasim.topology.builders import IDEAL, Wire
from parasim.topology.torus import torus, wraps

TPU = Profile("tpu", "tpu")
W5E, HOP = 45e9, 1e-6  # v5e: 45 GB/s per cable and direction, about 1 us per hop (scaling-book, "TPU networking")
BOOK = {line["id"]: line for line in map(json.loads, (Path(__file__).parents[1] / "data" / "scaling_book.jsonl").read_text().splitlines())}


@cache
def pod(*shape, wrap="all", w=W5E, hop=HOP, **more):
    """Equal pods are one: thousands of chips and their plans are made once."""
    return torus("pod", IDEAL, shape, Wire("ici", w, hop), wrap, **more)


def time_of(op, nbytes, cluster, members=None, algorithm="auto", root=0):
    return seconds(plan(op, nbytes, members or cluster.devices, cluster, TPU, algorithm, root), cluster, TPU)


def axis(cluster, i, at=(0, 0, 0)):
    """The chips along axis i through a place."""
    shape = cluster.router.shape
    return [cluster.router.chips[0][(*at[:i], j, *at[i + 1 : len(shape)])] for j in range(shape[i])]


V, w = 64_512_000, 1e9


@pytest.mark.parametrize("n", [3, 4, 5, 8, 16])
@pytest.mark.parametrize(("wrap", "slower"), [("all", 1), ("none", 2)])
@pytest.mark.parametrize(("op", "times"), [("all_gather", 1), ("reduce_scatter", 1), ("all_reduce", 2)])
def test_one_axis(op, times, wrap, slower, n):
    """V/W (N-1)/N on a ring, V/w (N-1)/N on a line (the end chips have one cable); twice that for all-reduce."""
    cluster = pod(n, wrap=wrap, w=w, hop=0.0)
    timeline = run(op, V, cluster, "torus", TPU)
    assert timeline.makespan == pytest.approx(times * slower * V / (2 * w) * (n - 1) / n, rel=1e-6)
    assert sum(bytes_per_link(timeline)) == pytest.approx(n * times * (n - 1) / n * V, rel=1e-9)  # every chip receives what it lacks


@pytest.mark.parametrize("shape", [(4, 4), (8, 4), (16, 16), (3, 5), (4, 4, 4), (8, 4, 4), (16, 4, 8)])
@pytest.mark.parametrize(("op", "times"), [("all_gather", 1), ("reduce_scatter", 1), ("all_reduce", 2)])
def test_axes_used_together_divide_by_their_number(op, times, shape):
    """V/(kW) (n-1)/n: the orders of the axes get such parts that all cables carry the same."""
    cluster = pod(*shape, w=w, hop=0.0)
    n, k = len(cluster.devices), len(shape)
    timeline = run(op, V, cluster, "torus", TPU)
    assert timeline.makespan == pytest.approx(times * V / (k * 2 * w) * (n - 1) / n, rel=1e-6)
    assert bytes_per_link(timeline) == pytest.approx([times * V / (2 * k) * (n - 1) / n] * (2 * k * n), rel=1e-9)


def test_one_axis_after_the_other_is_slower():
    """X then Y: (V/N_y + V)/W up to (N-1)/N, against V/(2W) for both at once."""
    cluster = pod(8, 8, w=w, hop=0.0)
    one = time_of("all_gather", V / 8, cluster, axis(cluster, 0)) + time_of("all_gather", V, cluster, axis(cluster, 1))
    assert one == pytest.approx((V / 8 + V) / (2 * w) * 7 / 8, rel=1e-9)
    assert time_of("all_gather", V, cluster) == pytest.approx(V / (4 * w) * 63 / 64, rel=1e-9)


@pytest.mark.parametrize("shape", [(4,), (8,), (16,), (6,), (4, 8), (16, 16), (4, 4, 8)])
@pytest.mark.parametrize(("wrap", "by"), [("all", 8), ("none", 4)])
def test_all_to_all_is_bound_by_the_longest_axis(shape, wrap, by):
    """D N_max/(8w) on rings, D N_max/(4w) on lines."""
    cluster = pod(*shape, wrap=wrap, w=w, hop=0.0)
    assert run("all_to_all", V, cluster, "torus", TPU).makespan == pytest.approx(V * max(shape) / (by * w), rel=1e-6)


@pytest.mark.parametrize("shape", [(4,), (8, 4), (4, 4, 4)])
def test_all_to_all_loads_are_those_of_the_routes(shape):
    """Dimension-ordered routes of all pairs, walked one by one, load rings of a multiple of 4 as the closed form does."""
    cluster = pod(*shape, w=w, hop=0.0)
    for algorithm in ("torus", "direct"):
        assert time_of("all_to_all", V, cluster, algorithm=algorithm) == pytest.approx(V * max(shape) / (8 * w), rel=1e-9)


@pytest.mark.parametrize("shape", [(4,), (4, 4), (8, 4), (4, 4, 4)])
def test_one_root_is_bound_by_its_cables(shape):
    """V/(2kw) for a broadcast, (n-1)/n of it for scatter and gather, over the 2k cables of the root."""
    cluster = pod(*shape, w=w, hop=0.0)
    n, k = len(cluster.devices), len(shape)
    assert run("broadcast", V, cluster, "torus", TPU).makespan == pytest.approx(V / (2 * k * w), rel=1e-6)
    for op in ("scatter", "gather"):
        assert time_of(op, V, cluster, root=n // 2) == pytest.approx(V / (2 * k * w) * (n - 1) / n, rel=1e-9)
    with pytest.raises(Refused, match="needs rings on all axes for a broadcast"):
        time_of("broadcast", V, pod(4, 4, wrap="none"), algorithm="torus")


@pytest.mark.parametrize(("shape", "wrap", "hops"), [((8,), "all", 4), ((8,), "none", 7), ((5,), "all", 2), ((4, 8), "all", 6), ((4, 4, 4), "all", 6)])
def test_small_messages_take_the_hops(shape, wrap, hops):
    """hop N/2 on a ring, hop (N-1) on a line, the sum over axes; the longer of latency and bytes holds, not their sum."""
    cluster = pod(*shape, wrap=wrap, w=w, hop=HOP)
    assert run("all_gather", len(cluster.devices), cluster, "torus", TPU).makespan == pytest.approx(hops * HOP, rel=1e-6)
    large = run("all_gather", V, cluster, "torus", TPU).makespan
    assert large == pytest.approx(run("all_gather", V, pod(*shape, wrap=wrap, w=w, hop=0.0), "torus", TPU).makespan, rel=1e-9)


def test_messages_use_every_axis_with_an_offset():
    """bytes/(ports w) after hop x distance; the ways share no link."""
    cluster = pod(4, 4, 4, wrap="none", w=w, hop=HOP)
    chip = cluster.router.chips[0]
    for far, ports, hops in (((3, 0, 0), 1, 3), ((3, 2, 0), 2, 5), ((3, 3, 3), 3, 9)):
        made = send(V, chip[0, 0, 0], chip[far], cluster, TPU)
        assert seconds(made, cluster, TPU) == pytest.approx(hops * HOP + V / (ports * w), rel=1e-9)
        links = [link for link, _ in made.phases[0].weights]
        assert len(links) == len(set(links)) == ports * hops


def test_hot_links_of_neighbours_mapped_diagonally():
    """A shift by (1, 1): each message splits over two ways; by (2, 0) all go along one axis and each link carries two messages."""
    cluster = pod(4, 4, w=w, hop=0.0)
    chip = cluster.router.chips[0]
    for shift, most in (((1, 0), 1.0), ((2, 0), 2.0), ((1, 1), 1.0)):
        load = dict.fromkeys(range(len(cluster.links)), 0.0)
        for (x, y), name in chip.items():
            for link, weight in send(1.0, name, chip[(x + shift[0]) % 4, (y + shift[1]) % 4], cluster, TPU).phases[0].weights:
                load[link] += weight
        assert max(load.values()) == pytest.approx(most if shift != (2, 0) else 1.0)  # at half of the ring even chips go up, odd ones down


def test_blocks_of_a_torus():
    cluster = pod(8, 4)
    chip = cluster.router.chips[0]
    row = block_of(axis(cluster, 0), cluster)
    assert (row.sizes, row.rings) == ((8,), (True,))
    part = block_of([chip[x, y] for x in (2, 3, 4) for y in range(4)], cluster)
    assert (part.sizes, part.rings) == ((3, 4), (False, True))  # a part of an axis is a line
    assert block_of([chip[0, 0], chip[2, 0]], cluster) is None
    assert plan("all_reduce", 1e6, [chip[0, 0], chip[2, 0], chip[5, 1]], cluster, TPU).algorithm == "ring"
    assert plan("all_reduce", 1e6, cluster.devices, cluster, TPU).algorithm == "torus"


def test_which_axes_close():
    assert wraps((4, 4, 4), "cubes") == (True,) * 3 and wraps((8, 4, 12), "cubes") == (True,) * 3
    assert wraps((2, 2, 4), "cubes") == (False,) * 3  # no full cube
    assert wraps((16, 16), "sixteen") == (True, True) and wraps((16, 8), "sixteen") == (True, False) and wraps((4, 8), "sixteen") == (False, False)
    assert wraps((2, 3), "all") == (False, True)  # two chips have one cable
    assert wraps((4, 3), (False, True)) == (False, True)
    with pytest.raises(Malformed, match="cubes, sixteen, all, none or 2 flags"):
        wraps((4, 4), "twisted")


def test_links_per_chip_and_the_farthest_corner():
    cluster = pod(4, 4, 4)
    assert {len(cluster.graph.adj[chip]) for chip in cluster.devices} == {6}
    assert max(len(cluster.route(cluster.devices[0], chip)) for chip in cluster.devices) == 6  # 2 + 2 + 2


def test_slices_are_joined_by_the_data_centre_network():
    cluster = pod(4, 4, slices=2, dcn=Wire("dcn", 1e9, 10e-6), chips_per_host=4)
    route = cluster.route(cluster.devices[0], cluster.devices[16])
    assert [cluster.links[i].kind for i in route] == ["pcie", "dcn", "dcn", "pcie"]
    assert len(cluster.devices) == 32 and len(set(cluster.node_of.values())) == 2
    made = plan("all_reduce", 16e6, cluster.devices, cluster, TPU)
    assert made.algorithm in ("hierarchical", "ring") and seconds(made, cluster, TPU) > 0
    with pytest.raises(Malformed, match="need a network between them"):
        pod(4, 4, slices=2)
    lonely = pod(4)
    with pytest.raises(Unreachable):
        lonely.route(lonely.devices[0], "elsewhere")


# ---- worked problems; the book drops the factor (N-1)/N of a gather, which the engine has


def book(name):
    recomputed = BOOK[name]["recomputed"]
    return recomputed if isinstance(recomputed, dict) else float(recomputed)


def test_all_gather_on_a_row_of_v5e():
    """2048 x 8192 bf16 over 4 chips: 560 us on a line, 373 us (x 3/4) on a ring; measured 680. 256 x 256: 3 hops."""
    line, ring = (pod(8, 4, wrap=wrap) for wrap in ("sixteen", "all"))
    size = BOOK["shard-pop2a"]["inputs"]["bytes"]
    assert time_of("all_gather", size, line, axis(line, 1)) * 1e6 == pytest.approx(book("shard-pop2a")["nowrap"], rel=1e-3)
    assert time_of("all_gather", size, ring, axis(ring, 1)) * 1e6 == pytest.approx(book("shard-pop2a")["ideal"] * 3 / 4, rel=1e-3)
    small = 4 * BOOK["shard-pop2b"]["inputs"]["shard_bytes"]
    assert time_of("all_gather", small, line, axis(line, 1)) * 1e6 == pytest.approx(BOOK["shard-pop2b"]["answer"]["pred_us"], rel=1e-3)


def test_sharded_matrices_on_v4p():
    """B 1024, D 4096, bf16, 4 x 4 x 4: gathering X of [B_X, D_Y] 23 us, XY 46 us; reducing over Z the local shard 11.6 us."""
    cluster = pod(4, 4, 4)
    whole = 2 * 1024 * 4096
    plane = [cluster.router.chips[0][x, y, 0] for x in range(4) for y in range(4)]
    assert time_of("all_gather", whole / 4, cluster, axis(cluster, 0)) * 1e6 == pytest.approx(book("shard-2a") * 3 / 4, rel=2e-3)
    assert time_of("all_gather", whole, cluster, plane) * 1e6 == pytest.approx(book("shard-2b") * 15 / 16, rel=2e-3)
    shard = time_of("all_reduce", whole / 16, cluster, axis(cluster, 2)) * 1e6
    assert shard == pytest.approx(book("shard-2c") / 16 * 3 / 4, rel=2e-3)  # the book's 190 us reduces the whole array on every chip
    assert time_of("all_reduce", whole, cluster, axis(cluster, 2)) * 1e6 == pytest.approx(book("shard-2c") * 3 / 4, rel=2e-3)
    assert time_of("all_gather", 256, cluster, axis(cluster, 0)) * 1e6 == pytest.approx(book("shard-3"), rel=1e-6)


def test_latency_bound_sizes():
    """A hop's latency moves w x hop = 45 kB: a ring of 4 gathers that much per hop in as long as the hop takes."""
    assert pytest.approx(book("lat-bytes")) == W5E * HOP
    cluster = pod(4)
    edge = 2 * book("lat-bytes") * 2 * 4 / 3  # 2 hops hide V/W (N-1)/N
    assert time_of("all_gather", edge, cluster) == pytest.approx(2 * HOP, rel=1e-9)
    assert time_of("all_gather", 2 * edge, cluster) == pytest.approx(4 * HOP, rel=1e-9)


def test_gather_over_all_to_all():
    """From one side a gather of the whole moves twice an all-to-all's bytes per link, from both sides four times."""
    n = 16
    cluster = pod(n, hop=0.0)
    whole = 1.6e9
    both = time_of("all_gather", whole, cluster) / time_of("all_to_all", whole / n, cluster)
    assert both * n / (n - 1) == pytest.approx(BOOK["shard-10"]["answer"]["ratio_bidi"], rel=1e-9)


def test_corner_to_corner_on_v5e():
    """16 MiB over 6 hops and 2 ports of a 4 x 4 without wraparound: 6 us to the first byte, 186 us more for the rest."""
    problem = BOOK["tpu-5"]["inputs"]
    cluster = pod(4, 4, wrap="sixteen")
    made = send(problem["bytes"], cluster.devices[0], cluster.devices[-1], cluster, TPU)
    assert made.phases[0].latency * 1e6 == pytest.approx(BOOK["tpu-5"]["answer"]["first_byte_us"], rel=1e-9)
    assert (seconds(made, cluster, TPU) - made.phases[0].latency) * 1e6 == pytest.approx(book("tpu-5")["bandwidth_us"], rel=1e-3)


def test_a_matrix_gathered_at_a_corner_of_v5e():
    """15 of 16 GB enter chip (0, 0) of a 4 x 4 over two cables: 167 ms."""
    cluster = pod(4, 4, wrap="sixteen")
    assert time_of("gather", BOOK["tpu-6"]["inputs"]["bytes"], cluster) * 1e3 == pytest.approx(book("tpu-6")["ici_ms"], rel=1e-3)


def critical(work, comm):
    """Tokens at which work (seconds per token) takes as long as communication (seconds)."""
    return comm / work


def test_critical_batches_of_rooflines():
    """[B, D] x [D, F] with large D and F: FLOPs over bytes is B, so memory and compute balance at B = C/HBM."""
    for name in ("roof-base", "roof-5"):
        peak, memory = BOOK[name]["inputs"]["C"], BOOK[name]["inputs"]["HBM"]
        tokens, d = round(book(name)), 10**7
        kernel = Kernel("linear", (), (), (tokens, d, d), "bf16")
        assert flops(kernel) / peak == pytest.approx(bytes_moved(kernel) / memory, rel=3e-3)


def test_two_chips_that_share_a_contraction():
    """Each multiplies half of D, 2 B (D/2) F FLOPs, and sends the other its B F bf16 sums: equal at D/2 = C/W."""
    problem = BOOK["roof-net-2chip"]["inputs"]
    cluster = pod(2, w=problem["W"], hop=0.0)
    b, f = 1000, 2000
    comm = time_of("all_reduce", 2 * b * f, cluster, algorithm="one-shot")
    assert comm / (2 * b * f / 2 / problem["C"]) == pytest.approx(book("roof-net-2chip"), rel=1e-9)


def test_data_parallel_needs_tokens_per_chip():
    """v5p: reducing 2 D F bf16 gradients twice against 8 B D F FLOPs in the backward pass: C/W tokens per chip, over k for k axes."""
    problem = BOOK["tr-icint"]["inputs"]
    d, f = 8192, 30000
    for shape in ((16,), (16, 16), (8, 8, 8)):
        cluster = pod(*shape, w=problem["bidi"] / 2, hop=0.0)
        n = len(cluster.devices)
        comm = 2 * time_of("all_reduce", 2 * d * f, cluster) * n / (n - 1)
        assert critical(8 * d * f / problem["C"], comm) == pytest.approx(book("tr-icint") / len(shape), rel=1e-6)
    chips = BOOK["tr-dsv2"]["inputs"]["B"] / critical(8 * d * f / problem["C"], comm)
    assert chips == pytest.approx(book("tr-dsv2"), rel=1e-3)
    assert BOOK["at-7"]["inputs"]["B"] / 8960 < critical(8 * d * f / problem["C"], comm)  # 468 < 850: bound by communication


def test_tensor_parallel_limit():
    """Gathering B D activations and scattering as many against 4 B D F / Y FLOPs: Y = F W / C."""
    problem = BOOK["tr-icint"]["inputs"]
    cluster = pod(16, w=problem["bidi"] / 2, hop=0.0)
    b, d, f = 128, 8192, BOOK["tr-tp"]["inputs"]["F"]
    comm = (time_of("all_gather", 2 * b * d, cluster) + time_of("reduce_scatter", 2 * b * d, cluster)) * 16 / 15
    assert 4 * b * d * f / problem["C"] / comm == pytest.approx(book("tr-tp"), rel=1e-2)


@pytest.mark.parametrize("name", ["hw-torus-allreduce-1axis", "hw-torus-allreduce-3axes", "hw-torus-vs-switch-a2a"])
def test_the_lines_of_the_lecture(name):
    expected = {"hw-torus-allreduce-1axis": 10.416666666666668e-3, "hw-torus-allreduce-3axes": 1 / 3, "hw-torus-vs-switch-a2a": {8: 16 / 7, 16: 64 / 15}}[name]
    if name == "hw-torus-allreduce-1axis":
        assert time_of("all_reduce", 1e9, pod(16, w=90e9)) == pytest.approx(expected, rel=0.03)  # 2 V/W (N-1)/N
    elif name == "hw-torus-allreduce-3axes":
        line, cube = (time_of("all_reduce", 1e9, pod(*shape, w=90e9, hop=0.0)) for shape in ((8,), (8, 8, 8)))
        assert cube / line == pytest.approx(expected * (511 / 512) / (7 / 8), rel=1e-9)  # what a rank sends: (N-1)/N of all
    else:
        for n, ratio in expected.items():  # ring D N/(8w), switch D (N-1)/N/(2w)
            assert time_of("all_to_all", 1e9, pod(n)) / (1e9 * (n - 1) / n / (2 * W5E)) == pytest.approx(ratio, rel=1e-9)


def test_datasheet_profile_on_a_torus_uses_rings_of_its_back_end():
    cluster = pod(4, 4)
    assert plan("all_reduce", 1e6, cluster.devices, cluster, datasheet()).algorithm == "ring"
