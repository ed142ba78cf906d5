"""The fluid network: max-min fairness against an exact textbook twin, and finishing times computed by hand."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hand import network, profile, recv, run, send, times, work, workload
from hypothesis import given, settings
from hypothesis import strategies as st

from parasim.program.ops import P2P, Label, Op
from parasim.sim.clock import Clock
from parasim.sim.network import Network, max_min
from parasim.topology.cluster import Cluster

Loads = list[dict[int, int]]


class Flow:
    """What `max_min` needs to know of a fluid."""

    def __init__(self, loads: dict[int, float]) -> None:
        self.loads = loads


def textbook(loads: Loads, capacity: list[int]) -> list[Fraction]:
    """Progressive filling in exact arithmetic (Bertsekas and Gallager, Data Networks, section 6.5.2): raise all rates together, freeze at a full link."""
    rates: list[Fraction | None] = [None] * len(loads)
    while None in rates:
        level = {}
        for link, c in enumerate(capacity):
            used = sum((r * f.get(link, 0) for r, f in zip(rates, loads, strict=True) if r is not None), Fraction(0))
            weight = sum(f.get(link, 0) for r, f in zip(rates, loads, strict=True) if r is None)
            if weight:
                level[link] = (Fraction(c) - used) / weight
        lowest = min(level.values())
        full = {link for link, x in level.items() if x == lowest}
        rates = [lowest if r is None and full & {k for k, w in f.items() if w} else r for r, f in zip(rates, loads, strict=True)]
    return [r for r in rates if r is not None]


@st.composite
def networks(draw: Any) -> tuple[Loads, list[int]]:
    capacity = draw(st.lists(st.integers(1, 50), min_size=1, max_size=6))
    links = st.integers(0, len(capacity) - 1)
    return draw(st.lists(st.dictionaries(links, st.integers(1, 4), min_size=1, max_size=4), min_size=1, max_size=8)), capacity


@settings(max_examples=200, deadline=None, derandomize=True)
@given(networks())
def test_max_min_against_the_textbook(given_: tuple[Loads, list[int]]) -> None:
    loads, capacity = given_
    flows = [Flow({k: float(w) for k, w in f.items()}) for f in loads]
    rates = max_min(list(flows), [float(c) for c in capacity])  # type: ignore[arg-type]
    got = [rates[f] for f in flows]  # type: ignore[index]
    assert got == pytest.approx([float(x) for x in textbook(loads, capacity)], rel=1e-9)
    used = [sum(r * f.get(link, 0) for r, f in zip(got, loads, strict=True)) for link in range(len(capacity))]
    assert all(u <= c * (1 + 1e-9) for u, c in zip(used, capacity, strict=True))  # no link above capacity
    for rate, f in zip(got, loads, strict=True):  # a bottleneck: full, and nobody on it is faster
        full = [link for link in f if used[link] >= capacity[link] * (1 - 1e-9)]
        assert any(rate >= (1 - 1e-9) * max(r for r, g in zip(got, loads, strict=True) if link in g) for link in full)


def dumbbell(pairs: int, narrow: float = 10.0, port: float = 1000.0) -> Cluster:
    """`pairs` senders behind one switch, as many receivers behind another, one narrow link between."""
    ends = [(f"d{i}", "left" if i < pairs else "right", port) for i in range(2 * pairs)]
    return network(2 * pairs, [*ends, ("left", "right", narrow)], switches=("left", "right"))


def pairs_of(sizes: list[int], delays: list[float]) -> Any:
    """Sender i sends `sizes[i]` bytes to receiver n + i, `delays[i]` seconds after the start."""
    n = len(sizes)
    names = {f"x{i}": size for i, size in enumerate(sizes)}
    senders: list[list[Op]] = [[work(delays[i], f"x{i}"), send(f"x{i}", f"to{n + i}")] for i in range(n)]
    receivers: list[list[Op]] = [[recv(f"x{i}", f"to{i}")] for i in range(n)]
    return workload([*senders, *receivers], names)


def test_two_messages_share_a_link() -> None:
    """100 B and 50 B over 10 B/s: 5 B/s each until the small one ends at 50/5 = 10 s; the other then has 50 B left at 10 B/s: 15 s."""
    t = run(pairs_of([100, 50], [0.0, 0.0]), dumbbell(2))
    assert times(t, 0, 1) == (0.0, 0.0, 15.0)
    assert times(t, 1, 1) == (0.0, 0.0, 10.0)
    assert times(t, 2, 0) == (0.0, 0.0, 15.0)


def test_a_message_that_starts_half_way() -> None:
    """100 B alone for 5 s leave 50 B; then both run at 5 B/s and end at 15 s."""
    t = run(pairs_of([100, 50], [0.0, 5.0]), dumbbell(2))
    assert times(t, 0, 1) == (0.0, 0.0, 15.0)
    assert times(t, 1, 1) == (5.0, 5.0, 15.0)


def test_three_messages_of_which_one_has_its_own_bottleneck() -> None:
    """Ports of 2 B/s hold one to 2 B/s; the other two share the remaining 8: 4 B/s each."""
    links = [("d0", "l", 2.0), ("d1", "l", 99.0), ("d2", "l", 99.0), ("d3", "r", 99.0), ("d4", "r", 99.0), ("d5", "r", 99.0), ("l", "r", 10.0)]
    t = run(pairs_of([20, 40, 40], [0.0] * 3), network(6, links, switches=("l", "r")))
    assert [times(t, r, 1)[2] for r in range(3)] == pytest.approx([10.0, 10.0, 10.0])


def test_incast() -> None:
    """k senders of 30 B into one port of 10 B/s: each at 10/k B/s, all end after 3 k seconds."""
    for k in (2, 5):
        star = network(k + 1, [(f"d{i}", "s", 10.0) for i in range(k + 1)], switches=("s",))
        senders: list[list[Op]] = [[work(0.0, f"x{i}"), send(f"x{i}", f"to{k}")] for i in range(k)]
        sink: list[Op] = [recv(f"x{i}", f"to{i}", stream=f"r{i}") for i in range(k)]
        t = run(workload([*senders, sink], {f"x{i}": 30 for i in range(k)}), star)
        assert [times(t, r, 1)[2] for r in range(k)] == pytest.approx([3.0 * k] * k)


def test_directions_do_not_share() -> None:
    body = [[work(0.0, f"x{r}"), send(f"x{r}", f"to{1 - r}"), recv(f"x{1 - r}", f"to{1 - r}")] for r in (0, 1)]
    t = run(workload(body, {"x0": 100, "x1": 50}), network(2, [("d0", "d1", 10.0)]))
    assert (times(t, 0, 1), times(t, 1, 1)) == ((0.0, 0.0, 10.0), (0.0, 0.0, 5.0))


def test_a_batch_of_two_messages_ends_with_the_last() -> None:
    both = P2P(label=Label("send", 0), stream="pp", sends=(*send("a", "to1").sends, *send("b", "to1").sends))
    got = P2P(label=Label("recv", 0), stream="pp", recvs=(*recv("a", "to0").recvs, *recv("b", "to0").recvs))
    t = run(workload([[work(1.0, "a", "b"), both], [got]], {"a": 10, "b": 30}), network(2, [("d0", "d1", 10.0)]))
    # 5 B/s each: a ends after 2 s, b has 20 B left at 10 B/s: 1 + 4 s
    assert times(t, 0, 1) == (1.0, 1.0, 5.0) and times(t, 1, 0) == (0.0, 1.0, 5.0)


@pytest.mark.parametrize(("size", "due"), [(0, 0.0), (10, 0.5 + 1.0)])
def test_a_message_of_no_bytes_takes_no_time(size: int, due: float) -> None:
    t = run(pairs_of([size], [0.0]), network(2, [("d0", "d1", 10.0)], latency=0.5))
    assert times(t, 0, 1) == (0.0, 0.0, due)


def test_latency_does_not_occupy_the_link() -> None:
    """The first message is in its latency while the second, 1 s ahead, has the link alone: 2 s + 10 s and 1 s + 2 s."""
    links = [("d0", "l", 100.0), ("d1", "l", 100.0), ("d2", "l", 100.0), ("d3", "l", 10.0)]
    w = workload(
        [[work(1.0, "a"), send("a", "to3")], [work(0.0, "b"), send("b", "to3")], [], [recv("a", "to0", "r0"), recv("b", "to1", "r1")]], {"a": 100, "b": 20}
    )
    t = run(w, network(4, links, latency=0.5, switches=("l",)))
    # b: latency 1 s, alone [1, 2) moves 10 B; a's latency ends at 2; 5 B/s each: b's 10 B end at 4; a has 90 B left: 4 + 9 = 13
    assert times(t, 1, 1)[2] == pytest.approx(4.0) and times(t, 0, 1)[2] == pytest.approx(13.0)


def slow_finish(flows: list[tuple[float, int, tuple[int, ...]]], capacity: list[float]) -> list[float]:
    """Ends of fluids (start, bytes, links) by advancing from event to event with `textbook` rates."""
    now, left, end = Fraction(0), [Fraction(b) for _, b, _ in flows], [Fraction(0)] * len(flows)
    waiting = set(range(len(flows)))
    active: set[int] = set()
    while waiting or active:
        active |= {i for i in waiting if flows[i][0] <= now}
        waiting -= active
        ids = sorted(active)
        scale = [int(c) for c in capacity]
        rate = dict(zip(ids, textbook([dict.fromkeys(flows[i][2], 1) for i in ids], scale), strict=True)) if ids else {}
        ends = [now + left[i] / rate[i] for i in ids]
        following = min([*ends, *(Fraction(flows[i][0]) for i in waiting)])
        for i in ids:
            left[i] -= rate[i] * (following - now)
            if left[i] == 0:
                end[i] = following
                active.discard(i)
        now = following
    return [float(x) for x in end]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.lists(st.tuples(st.integers(0, 6), st.integers(1, 40), st.integers(0, 3), st.integers(4, 7)), min_size=1, max_size=6),
    st.lists(st.integers(1, 9), min_size=9, max_size=9),
    st.booleans(),
)
def test_random_traffic_against_the_slow_twin(messages: list[tuple[int, int, int, int]], bandwidth: list[int], folding: bool) -> None:
    """Four devices left, four right of a link; every message has its own streams and starts after its delay."""
    ends = [(f"d{i}", "left" if i < 4 else "right", float(bandwidth[i])) for i in range(8)]
    cluster = network(8, [*ends, ("left", "right", float(bandwidth[8]))], switches=("left", "right"))
    bodies: list[list[Op]] = [[] for _ in range(8)]
    flows = []
    places = []
    for n, (delay, size, a, b) in enumerate(messages):
        places.append((a, len(bodies[a]) + 1))
        bodies[a] += [work(float(delay), f"x{n}", stream=f"c{n}"), send(f"x{n}", f"to{b}", stream=f"s{n}")]
        bodies[b] += [recv(f"x{n}", f"to{a}", stream=f"r{n}")]
        flows.append((float(delay), size, cluster.route(f"d{a}", f"d{b}")))
    t = run(workload(bodies, {f"x{n}": m[1] for n, m in enumerate(messages)}), cluster, fold=folding)
    due = slow_finish(flows, [link.bandwidth for link in cluster.links])
    assert [times(t, rank, op)[2] for rank, op in places] == pytest.approx(due, rel=1e-9)
    # bytes are conserved: each link carries what crosses it
    crossing = sum(size * len(flow[2]) for (_, size, _, _), flow in zip(messages, flows, strict=True))
    carried = sum(float(f["bytes"]) * t.links[int(f["link"])][3] for f in t.flows)
    assert carried == pytest.approx(crossing)


def test_profile_factors_slow_a_message() -> None:
    """Half the bandwidth of the link kind, 0.25 of it for messages, 1 s per message and 2 s per link: 1 + 2 + 10/(10 x 0.5 x 0.25)."""
    p = profile(network__bandwidth_factor__nic=0.5, p2p__bandwidth_factor=0.25, p2p__latency=1.0, network__latency__nic=2.0)
    assert times(run(pairs_of([10], [0.0]), network(2, [("d0", "d1", 10.0)]), p), 0, 1)[2] == 11.0


def test_a_transfer_that_was_to_come_to_a_free_link_finds_another() -> None:
    """a of 10 B is on its way for 2 s from 0 and would pass alone from 2 to 3. b of 20 B comes at 1: alone until 2 it moves 10 B, then both run at
    5 B/s and end at 4; c of 10 B, asked for at 1 with 4 s to come, finds the link free at 5 and ends at 6."""
    clock, ends = Clock(), {}
    net = Network(clock, [10.0])
    path = net.path({0: 1.0})

    def begin(name: str, latency: float, nbytes: float) -> None:
        net.start(latency, nbytes, path, lambda of: ends.__setitem__(of, clock.now), name)

    begin("a", 2.0, 10.0)
    begin("b", 1.0, 20.0)
    clock.after(1.0, lambda _: begin("c", 4.0, 10.0), None)
    clock.run()
    assert ends == pytest.approx({"a": 4.0, "b": 4.0, "c": 6.0})
    assert not any(net.on_link)
