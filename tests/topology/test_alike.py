"""Sets of devices that look alike get one plan; the links of the others are translated, and must be those of a plan of their own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from parasim.collectives.plan import CollectivePlan, plan, send
from parasim.cost.profile import datasheet, load_profile
from parasim.topology.alike import SMALL
from parasim.topology.cluster import Cluster
from parasim.topology.loader import load_cluster

SHAPES = [(2, 1), (8, 1), (8, 8), (16, 4), (5, 7), (70, 3)]  # members of a set, devices from one to the next


def rows_of(cluster: Cluster, size: int, stride: int) -> np.ndarray:
    """Forty sets at any place, and ten in any order."""
    rng = np.random.default_rng(size * 100 + stride)
    world = len(cluster.devices)
    starts = rng.integers(0, world - size * stride + 1, size=40)
    ordered = starts[:, None] + np.arange(size)[None] * stride
    return np.concatenate([ordered, [rng.permutation(world)[:size] for _ in range(10)]])


def put(planned: CollectivePlan) -> list[tuple[float, float, list[tuple[int, float]]]]:
    return [(p.latency, p.bytes, sorted((link, round(w, 9)) for link, w in p.weights)) for p in planned.phases]


def check(cluster: Cluster, rows: np.ndarray, make) -> int:
    """Up to three rows of a look: every row's own plan is the translated plan of the first row alike; returns how many were translated."""
    assert cluster.alike is not None
    looks = cluster.alike.looks(rows)
    translated = 0
    for look in np.unique(looks):
        same = np.nonzero(looks == look)[0]
        first = make(rows[same[0]])
        for row in same[1:4]:
            own = make(rows[row])
            there = []
            for p in first.phases:
                links = cluster.alike.translate(np.array([link for link, _ in p.weights], dtype=np.int64), rows[same[0]], rows[[row]])
                assert links is not None
                there.append((p.latency, p.bytes, sorted((link, round(w, 9)) for link, (_, w) in zip(links[0].tolist(), p.weights, strict=True))))
            assert put(own) == [(pytest.approx(a), pytest.approx(b), c) for a, b, c in there]
            translated += 1
    return translated


@pytest.mark.parametrize("name", ["h100-hgx-ib400", "selene-hdr200x8", "nvl72-ib400"])
@pytest.mark.parametrize("op", ["all_reduce", "all_to_all", "all_gather"])
def test_translated_plans_are_the_plans_of_their_own_members(name: str, op: str) -> None:
    cluster = load_cluster(name, 576)
    profile = load_profile("nccl-h100")
    total = 0
    for size, stride in SHAPES:
        rows = rows_of(cluster, size, stride)
        total += check(cluster, rows, lambda row: plan(op, 1e6, [cluster.devices[i] for i in row], cluster, profile))
    assert total > 40


def test_messages_too() -> None:
    cluster = load_cluster("h100-hgx-ib400", 1024)
    assert check(cluster, rows_of(cluster, 2, 300), lambda row: send(1e6, *(cluster.devices[i] for i in row), cluster, datasheet())) >= 3


def test_a_weak_link_makes_its_sets_look_different() -> None:
    cluster = load_cluster("h100-hgx-ib400", 512)
    rows = np.arange(512).reshape(64, 8)
    assert cluster.alike is not None and len(set(cluster.alike.looks(rows).tolist())) == 1
    links = list(cluster.links)
    weak = cluster.route(cluster.devices[0], cluster.devices[9])[0]
    links[weak] = links[weak]._replace(bandwidth=links[weak].bandwidth / 2)
    worse = replace(cluster, links=tuple(links))
    assert worse.alike is not None
    looks = worse.alike.looks(rows).tolist()
    assert looks.count(looks[0]) == 1 and looks.count(looks[1]) == 63  # the first server holds the weak port


def test_a_weak_spine_link_too() -> None:
    cluster = load_cluster("h100-hgx-ib400", 1024)
    pairs = np.stack([np.arange(256), np.arange(256) + 512], axis=1)  # across the spines
    route = cluster.route(cluster.devices[0], cluster.devices[512])
    spine = next(i for i in route if cluster.links[i].kind == "spine")
    links = list(cluster.links)
    links[spine] = links[spine]._replace(bandwidth=links[spine].bandwidth / 2)
    worse = replace(cluster, links=tuple(links))
    assert worse.alike is not None
    crossing = [spine in worse.route(worse.devices[a], worse.devices[b]) for a, b in pairs.tolist()]
    looks = worse.alike.looks(pairs)
    assert 0 < sum(crossing) < 256
    assert not set(looks[crossing].tolist()) & set(looks[~np.array(crossing)].tolist())
    wide = np.stack([np.arange(SMALL + 1), np.arange(SMALL + 1) + 512])
    assert len(set(worse.alike.looks(wide).tolist())) == 2  # too many pairs to compare: each by itself
