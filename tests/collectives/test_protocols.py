"""Rings between servers by LL, LL128 and Simple: what each takes, and where one takes over from the other."""

import pytest

from parasim.collectives.plan import group_of, phases_of, rounds_of
from parasim.collectives.planner import LL, LL128, SIMPLE
from parasim.collectives.protocols import Start
from parasim.collectives.selection import named
from parasim.cost.profile import load_profile
from parasim.topology.loader import load_cluster


def ring(cluster: str, profile: str, ranks: int, op: str = "all_gather") -> Start:
    """What starting a ring over `ranks` devices costs."""
    network, numbers = load_cluster(cluster, ranks), load_profile(profile)
    group = group_of(network.devices, network, numbers)
    return phases_of(op, "ring", rounds_of(named(op, "ring", "op"), group), group, numbers)[1]


def test_the_host_checks_lines_of_ll() -> None:
    """16 channels (two per NIC) of 1.28 GB/s, 15/16 of the buffer: at 20 GB/s where the NICs have 400; inside a server LL has its own cost."""
    between, inside = ring("h100-hgx-ib400", "nccl-h100", 16), ring("h100-hgx-ib400", "nccl-h100", 8)
    assert between.seconds(2e6, LL) - between.seconds(1e6, LL) == pytest.approx(1e6 * 15 / 16 / (16 * 1.28e9))
    assert inside.small == pytest.approx(1.55 * inside.per_byte)


def test_small_messages_that_a_receiver_grants() -> None:
    """Twice the bytes, and the longer of lines and grants: 1 + 2 x 0.5 n + max((1.5 - 0.5) n, min(4 n, 20))."""
    start = Start(call=0.0, latency=1.0, per_byte=0.5, small=1.5, grant=4.0, hides=20.0)
    assert [start.seconds(n, LL) for n in (2.0, 10.0, 40.0)] == [1 + 2 + 8, 1 + 10 + 20, 1 + 40 + 40]


def test_grants_are_asked_for_per_message() -> None:
    """A chunk of S/n waits at each of the crossings: two of an all-gather among 8 ranks, 128 among 512."""
    few, many = ring("polaris-slingshot", "nccl-slingshot-tcp-2.21", 8), ring("polaris-slingshot", "nccl-slingshot-tcp-2.21", 512)
    assert many.grant * 512 / 128 == pytest.approx(few.grant * 8 / 2)
    assert many.hides == pytest.approx(few.hides * 128 / 2)


def test_large_messages_hide_what_they_wait_for_between_servers() -> None:
    """Two crossings of 5 of 30 s pass while bytes move, half as long as these move."""
    start = Start(call=0.0, latency=4.0, per_byte=1.0, large=26.0, overlap=0.5, hides=10.0)
    assert [start.seconds(n, SIMPLE) for n in (8.0, 20.0, 60.0)] == [34.0, 40.0, 80.0]


# Ranks, 8 per server -> MiB from which AWS takes LL128 for an all-gather, and Simple (aws-ofi-nccl, src/tuner/nccl_ofi_regions.cpp, P5en),
# as it measured them on H200 over EFA. Between them the profile has NCCL's own constants, and NVLink as fitted in one server.
MEASURED = {16: (0.75, 226), 64: (None, 912), 128: (4.5, None), 384: (13, 6912), 512: (19, None), 1024: (32, None)}


@pytest.mark.parametrize("ranks", MEASURED)
def test_protocols_take_over_where_they_do_on_many_servers(ranks: int) -> None:
    """Within a third in size from 2 to 128 servers: the price of a step by each protocol, and of its bytes, grows as it does there."""
    start = ring("aws-p5-efa", "nccl-efa-v2", ranks)
    for (slower, faster), mib in zip(((LL, LL128), (LL128, SIMPLE)), MEASURED[ranks], strict=True):
        if mib is not None:
            assert start.seconds(mib / 1.5 * 2**20, slower) < start.seconds(mib / 1.5 * 2**20, faster)
            assert start.seconds(mib * 1.5 * 2**20, slower) > start.seconds(mib * 1.5 * 2**20, faster)


def test_an_exchange_starts_one_kernel_and_posts_a_message_to_every_peer_on_other_servers() -> None:
    """1 MiB over servers of four: 4 (8) servers have 12 (28) peers elsewhere, each posted once; messages of up to 192 B more. In a server nothing is posted."""
    profile = load_profile("nccl-slingshot-2.21")
    call, post, short = (profile.get(key, 0.0) for key in ("collective.all_to_all.latency", "p2p.post", "p2p.short_post"))
    assert call == pytest.approx(6.6e-6)
    for servers, away in ((1, 0), (4, 12), (8, 28)):
        cluster = load_cluster("polaris-slingshot", 4 * servers)
        group = group_of(cluster.devices, cluster, profile)
        start = phases_of("all_to_all", "direct", rounds_of(named("all_to_all", "direct", "op"), group), group, profile)[1]
        assert start.started(2.0**20) == pytest.approx(call + away * post)
        assert start.started(192.0 * 4 * servers) == pytest.approx(call + away * (post + short))
