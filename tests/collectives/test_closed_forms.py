"""The engine against the closed forms of the field, on an uncontended full-duplex switch. S bytes, n ranks, B bytes/s per port, a seconds per step.

Thakur et al. 2005 (rings, halving, doubling, binomial), Bruck et al. 1997, Sanders et al. 2009 (two trees), NVIDIA nccl-tests doc/PERFORMANCE.md.
"""

from math import ceil, log2

import pytest
from one_collective import bytes_per_link, run

from parasim.collectives.plan import plan, seconds
from parasim.cost.profile import datasheet
from parasim.topology.builders import ideal

S, B, A = 4_032_000, 5e9, 3e-6  # S is a multiple of every n below
ANY = (2, 3, 4, 6, 8, 12, 16, 64)
POWERS = (2, 4, 8, 16, 64)
TREES = (4, 6, 8, 12, 16, 64)


def ring_share(n):
    return (n - 1) / n


FORMS = [  # op, algorithm, ns, steps, bytes of the busiest port over S, mean bytes sent per rank over S
    ("all_reduce", "ring", ANY, lambda n: 2 * (n - 1), lambda n: 2 * (n - 1) / n, None),
    ("all_gather", "ring", ANY, lambda n: n - 1, ring_share, None),
    ("reduce_scatter", "ring", ANY, lambda n: n - 1, ring_share, None),
    ("all_reduce", "direct", ANY, lambda n: 2, lambda n: 2 * (n - 1) / n, None),
    ("all_reduce", "two-shot", ANY, lambda n: 2, lambda n: 2 * (n - 1) / n, None),
    ("all_reduce", "one-shot", ANY, lambda n: 1, lambda n: n - 1, None),
    ("all_gather", "direct", ANY, lambda n: 1, ring_share, None),
    ("reduce_scatter", "direct", ANY, lambda n: 1, ring_share, None),
    ("all_to_all", "direct", ANY, lambda n: 1, ring_share, None),
    ("all_to_all", "pairwise", ANY, lambda n: n - 1, ring_share, None),
    ("all_gather", "bruck", ANY, lambda n: ceil(log2(n)), ring_share, None),
    ("all_to_all", "bruck", ANY, lambda n: ceil(log2(n)), lambda n: ceil(log2(n)) / 2, None),
    ("all_reduce", "halving-doubling", POWERS, lambda n: 2 * log2(n), lambda n: 2 * (n - 1) / n, None),
    ("reduce_scatter", "recursive-halving", POWERS, log2, ring_share, None),
    ("all_gather", "recursive-doubling", POWERS, log2, ring_share, None),
    ("all_reduce", "recursive-doubling", POWERS, log2, log2, None),
    ("all_reduce", "tree", TREES, lambda n: 2 * ceil(log2(n)), lambda n: 2.0, lambda n: 2 * (n - 1) / n),  # n-1 edges, both ways, two trees of S/2
    ("broadcast", "tree", TREES, lambda n: ceil(log2(n)), lambda n: 1.0, ring_share),
    ("reduce", "tree", TREES, lambda n: ceil(log2(n)), lambda n: 1.0, ring_share),
    ("all_reduce", "nvls", ANY, lambda n: 2, lambda n: 1 + 1 / n, None),
    ("all_reduce", "sharp", ANY, lambda n: 2, lambda n: 1.0, None),
    ("broadcast", "ring", ANY, lambda n: n - 1, lambda n: 1.0, ring_share),
    ("broadcast", "chain:1", ANY, lambda n: n - 1, lambda n: n - 1, ring_share),  # (n-2+c) (a + S/(cB))
    ("broadcast", "chain:6", ANY, lambda n: n + 4, lambda n: (n + 4) / 6, ring_share),
    ("broadcast", "direct", ANY, lambda n: 1, lambda n: n - 1, ring_share),
    ("broadcast", "binomial", POWERS, log2, lambda n: log2(n) * (log2(n) + 1) / 2, ring_share),
    ("reduce", "ring", ANY, lambda n: n - 1, lambda n: 1.0, ring_share),
    ("reduce", "binomial", ANY, lambda n: ceil(log2(n)), lambda n: ceil(log2(n)), ring_share),
    ("barrier", "direct", ANY, lambda n: 1, lambda n: 0.0, None),
    ("barrier", "dissemination", ANY, lambda n: ceil(log2(n)), lambda n: 0.0, None),
]


@pytest.mark.parametrize(("op", "algorithm", "ranks", "steps", "share", "mean"), FORMS, ids=[f"{f[0]}-{f[1]}" for f in FORMS])
def test_time_and_bytes(op, algorithm, ranks, steps, share, mean):
    for n in ranks:
        timeline = run(op, S, ideal(n, A, B), algorithm)
        assert timeline.makespan == pytest.approx(steps(n) * A + share(n) * S / B, rel=1e-6), n
        on_links = bytes_per_link(timeline)
        sent = n * (mean or share)(n) * S
        # Every byte crosses two links: a port up to the switch, another down. Reduced in the switch, n bytes up are n bytes down.
        assert sum(on_links) == pytest.approx(2 * sent, rel=1e-9), n
        if mean is None:
            assert on_links == pytest.approx([share(n) * S] * len(on_links), rel=1e-9), n
            assert len(on_links) == (2 * n if sent else 0)
        if n <= 8:
            assert run(op, S, ideal(n, A, B), algorithm, fold=False).makespan == pytest.approx(timeline.makespan, rel=1e-12)


@pytest.mark.parametrize("n", [3, 5, 6, 7, 12])
@pytest.mark.parametrize(
    ("op", "algorithm", "steps", "share"),
    [
        ("all_reduce", "halving-doubling", lambda n: 2 * log2(n), lambda n: 2 * (n - 1) / n),
        ("all_reduce", "recursive-doubling", log2, log2),
        ("reduce_scatter", "recursive-halving", log2, ring_share),
        ("all_gather", "recursive-doubling", log2, ring_share),
        ("all_to_all", "bruck", log2, lambda n: log2(n) / 2),
    ],
)
def test_other_numbers_of_ranks_are_never_faster_than_the_formula(op, algorithm, steps, share, n):
    cluster = ideal(n, A, B)
    nbytes = S * n  # divisible
    bandwidth_only, both = (seconds(plan(op, nbytes, c.devices, c, datasheet(), algorithm), c, datasheet()) for c in (ideal(n, 0.0, B), cluster))
    assert both >= steps(n) * A + bandwidth_only - 1e-15
    assert both >= steps(n) * A + share(n) * nbytes / B


@pytest.mark.parametrize("n", ANY)
@pytest.mark.parametrize("op", ["scatter", "gather"])
@pytest.mark.parametrize(("algorithm", "steps"), [("direct", lambda n: 1), ("binomial", lambda n: ceil(log2(n)))])
def test_scatter_and_gather(op, algorithm, steps, n):
    """(n-1)/n S over the root's port; a binomial tree halves what is left in every step where n is a power of two."""
    cluster = ideal(n, A, B)
    made = plan(op, S, cluster.devices, cluster, datasheet(), algorithm)
    time = seconds(made, cluster, datasheet())
    expected = steps(n) * A + (n - 1) / n * S / B
    assert time == pytest.approx(expected, rel=1e-9) if algorithm == "direct" or n in POWERS else time >= expected - 1e-15
    port = cluster.route(cluster.devices[0], cluster.devices[1])[0] if op == "scatter" else cluster.route(cluster.devices[1], cluster.devices[0])[-1]
    assert sum(p.bytes * w for p in made.phases for link, w in p.weights if link == port) == pytest.approx((n - 1) / n * S, rel=1e-12)


def test_a_chain_of_many_chunks_tends_to_the_ring():
    cluster = ideal(6, 0.0, B)
    times = [run("broadcast", S, cluster, f"chain:{c}").makespan for c in (1, 4, 16, 64)]
    assert times == pytest.approx([(4 + c) / c * S / B for c in (1, 4, 16, 64)], rel=1e-9)
    assert run("broadcast", S, cluster, "ring").makespan == pytest.approx(S / B, rel=1e-9)
