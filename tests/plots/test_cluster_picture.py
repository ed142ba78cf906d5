"""The picture of a cluster, read back from its sketch and its artists."""

from __future__ import annotations

import time
from collections import Counter
from itertools import pairwise

import pytest
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from parasim import plots
from parasim.plots.cluster_layout import sketch
from parasim.plots.cluster_plot import NODE_COLOURS
from parasim.plots.palette import LINK_COLOURS
from parasim.topology.builders import IDEAL, from_graph, ideal
from parasim.topology.changes import remove
from parasim.topology.cluster import LINK_KINDS, NODE_KINDS, Link
from parasim.topology.loader import catalog, load_cluster


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.axes[0].texts]


def legend(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_a_small_cluster_is_drawn_whole() -> None:
    cluster = load_cluster("h100-hgx-ib400", 16)
    made = sketch(cluster)
    assert set(made.key_of) == set(cluster.nodes)
    assert 2 * sum(wire.count for wire in made.wires) == len(cluster.links)  # one line for both directions of a cable
    assert [words for *_, words in made.frames] == ["node0", "node1"]


def test_rows_are_the_levels_of_the_network() -> None:
    made = sketch(load_cluster({"base": "h100-hgx-ib400", "scale_out": {"pod_nodes": 1, "core": {"pods": 1}}}, 16))
    rows = {name: made.boxes[made.key_of[name]].y for name in ("node0.switch", "node0.gpu0", "node0.nic0", "pod0.leaf0", "zone0.spine0", "core0")}
    assert sorted(rows, key=rows.__getitem__) == list(rows)


def test_boxes_of_a_row_do_not_cover_each_other() -> None:
    for name in catalog():
        made = sketch(load_cluster(name, 8))
        rows: dict[float, list[tuple[float, float]]] = {}
        for box in made.boxes.values():
            rows.setdefault(round(box.y, 6), []).append((box.x - box.width / 2, box.x + box.width / 2))
        for spans in rows.values():
            spans.sort()
            assert all(left[1] <= right[0] + 1e-9 for left, right in pairwise(spans)), name


def test_2048_gpus_are_one_server_its_leaves_and_the_rest_in_words() -> None:
    cluster = load_cluster("h100-hgx-ib400", 2048)
    made = sketch(cluster)
    assert len(made.boxes) < 40
    assert [words for *_, words in made.frames] == ["256 servers like node0"]
    assert {"32 spines", "56 more leaves"} <= {box.text for box in made.boxes.values()}  # 8 pods of 32 nodes, 8 leaves each
    spines = {(wire.a, wire.b): wire.count for wire in made.wires if wire.kind == "spine"}
    assert Counter(spines.values()) == {32: 8, 56 * 32: 1}
    assert {"32 x", "1792 x"} <= set(texts(plots.cluster(cluster)))


def test_a_rack_of_72_shows_eight() -> None:
    words = [words for *_, words in sketch(load_cluster("nvl72-ib400", 144)).frames]
    assert words == ["2 servers like node0, 8 of 72 devices drawn"]


def test_unequal_servers_are_drawn_apart() -> None:
    spec = {"base": "h100-hgx-ib400", "node": {"devices": [8] * 20 + [4] * 10}}
    assert [words for *_, words in sketch(load_cluster(spec, 200)).frames] == ["20 servers like node0", "10 servers like node20"]


def test_a_torus_is_a_grid() -> None:
    figure = plots.cluster(load_cluster("tpu-v5e", 64))
    assert "axis 0 of 8: open, axis 1 of 8: open" in texts(figure)
    made = sketch(load_cluster("tpu-v5e", 64))
    assert len(made.boxes) == 64
    assert len(made.wires) == 2 * 7 * 8  # neighbours along each axis
    large = sketch(load_cluster("tpu-v5p", 6144))
    assert any("planes are drawn" in note for note in large.notes)
    assert len(large.boxes) < 1000


def test_lines_have_the_colour_of_their_kind_and_are_wider_with_bandwidth() -> None:
    figure = plots.cluster(load_cluster("h100-hgx-ib400", 16))
    lines = [c for c in figure.axes[0].collections if isinstance(c, LineCollection)]
    width = {tuple(c.get_colors()[0][:3]): c.get_linewidths()[0] for c in lines}
    assert len(lines) == 4
    assert max(width, key=width.__getitem__) == pytest.approx((0, 0x9E / 255, 0x73 / 255))  # scale_up: 450 GB/s
    assert legend(figure) == ["scale_up: 450 GB/s", "nic: 50 GB/s", "leaf: 50 GB/s", "spine: 50 GB/s"]


def test_every_kind_has_a_colour() -> None:
    assert set(LINK_COLOURS) == set(LINK_KINDS)
    assert set(NODE_COLOURS) == set(NODE_KINDS)


def test_graphs_ideal_and_broken_networks_can_be_drawn() -> None:
    nodes = {f"g{i}": "gpu" for i in range(10)} | {"s": "switch", "t": "switch"}
    links = [Link(f"g{i}", "s" if i < 4 else "t", "scale_up", 1e9, 0.0) for i in range(10)] + [Link("s", "t", "spine", 1e9, 0.0)]
    for cluster in (from_graph("uneven", IDEAL, nodes, links, {}), ideal(4, 1e-6), remove(load_cluster("h100-hgx-ib400", 16), "node0.nic3")):
        figure = plots.cluster(cluster, "mine")
        assert figure.axes[0].get_title(loc="left") == "mine"


@pytest.mark.parametrize("name", sorted(catalog()))
def test_every_cluster_of_the_catalog_can_be_drawn_quickly(name: str) -> None:
    cluster = load_cluster(name, 8)
    start = time.process_time()
    plots.cluster(cluster).savefig("/dev/null", format="svg")
    assert time.process_time() - start < 3.0
