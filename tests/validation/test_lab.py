"""The lab without a network: commands, the way from a cluster to a network, the list of cases, two jobs in one workload, the gate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from parasim.config.loading import build
from parasim.cost.profile import Profile
from parasim.errors import Malformed, Refused
from parasim.lowering import lower
from parasim.program.checks import verify
from parasim.sim import simulate
from parasim.topology.cluster import Cluster
from parasim.topology.loader import load_cluster
from validation.lab.cases import CASES, Case, Single, cluster_of, read_cases
from validation.lab.controls import pure_latency, two_at_a_time
from validation.lab.crowding import crowded
from validation.lab.fitting import _latencies, bare
from validation.lab.judging import Verdict, gate
from validation.lab.networks import PAYLOAD, network_of
from validation.lab.ranks import Repetition
from validation.lab.shaping import FLOWS, layout, shaping
from validation.lab.together import beside

NETWORKS = {"star": (4, 1, 4), "2x2": (2, 1, 4), "2x4": (2, 1, 8), "slow-nic": (4, 1, 4), "trunk": (4, 2, 4)}  # hosts, switches, ranks
AXES = {
    "buckets", "zero1", "zero2", "zero3", "hsdp", "tp-megatron", "tp-all-gather", "gpipe", "1f1b", "interleaved-1f1b", "zb-h1", "zb-v", "dualpipe-v",
    "moe-even", "moe-hot", "3d", "two-jobs",
}  # fmt: skip


def test_payload_of_a_port() -> None:
    """(9000 - 52) / (9000 + 14): 52 bytes of IP, TCP and time stamps, 14 of Ethernet."""
    assert pytest.approx(8948 / 9014) == PAYLOAD


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_are_laid_out_as_their_files_say(name: str) -> None:
    cluster = cluster_of(name)
    network = network_of(cluster)
    hosts, switches, ranks = NETWORKS[name]
    assert (len(network.hosts), len(network.switches), len(network.home)) == (hosts, switches, ranks)
    assert len(network.cables) == hosts + switches - 1  # a tree
    assert [r for h in network.hosts for r in h.ranks] == list(range(ranks))
    rates = sorted(c.rate for c in network.cables)
    assert rates == sorted({"slow-nic": [200_000_000, *[400_000_000] * 3], "trunk": [200_000_000, *[400_000_000] * 4]}.get(name, [400_000_000] * hosts))


def test_pairs_of_hosts_are_told_apart_on_every_port_of_their_way() -> None:
    """On the trunk the two hosts of one side meet the two of the other: 4 pairs each way; at a host's own port it meets the three others."""
    network = network_of(cluster_of("trunk"))
    trunk = next(c for c in network.cables if all(e.namespace.startswith("s") for e in c.ends))
    assert [set(e.pairs) for e in trunk.ends] == [{(0, 2), (0, 3), (1, 2), (1, 3)}, {(2, 0), (2, 1), (3, 0), (3, 1)}]
    own = next(p for p, _ in network.ports if p.namespace == "h1")
    assert set(own.pairs) == {(1, 0), (1, 2), (1, 3)}


def test_a_catalog_cluster_of_hosts_under_one_switch_is_laid_out_too() -> None:
    network = network_of(load_cluster("ethernet-100g", 4))
    assert len(network.switches) == 1
    assert {c.rate for c in network.cables} == {100_000_000_000}


RING: Mapping[str, object] = {
    "name": "ring",
    "accelerator": "cpu",
    "nodes": [*({"id": f"c{i}", "kind": "cpu", "node": f"n{i}"} for i in range(3))],
    "links": [{"a": f"c{i}", "b": f"c{(i + 1) % 3}", "kind": "nic", "bandwidth": "1 Gb/s"} for i in range(3)],
}


def test_a_network_with_two_ways_is_refused() -> None:
    with pytest.raises(Refused, match="trees of hosts and switches"):
        network_of(load_cluster(RING, 3))


def test_commands_of_a_port() -> None:
    """One class for the port, one per pair, and FLOWS leaves below each with a queue and a filter; a pair is promised its share."""
    network = network_of(cluster_of("star"))
    port, rate = next((p, r) for p, r in network.ports if p.namespace == "h0")
    lines = shaping(port, rate, network)
    assert lines[0] == "qdisc add dev e0 root handle 1: htb default 99"
    assert lines[1] == "class add dev e0 parent 1: classid 1:1 htb rate 400000000bit ceil 400000000bit burst 10kb cburst 10kb quantum 64000"
    assert lines[3] == "class add dev e0 parent 1:1 classid 1:100 htb rate 133333333bit ceil 400000000bit burst 10kb cburst 10kb quantum 64000"
    assert lines[5] == "qdisc add dev e0 parent 1:1000 bfifo limit 250000"
    assert lines[6].endswith("match ip src 10.77.0.1/32 match ip dst 10.77.0.2/32 match ip sport 0x0 0x6 match ip dport 0x0 0x6 flowid 1:1000")
    assert sum(line.startswith("filter") for line in lines) == 3 * len(FLOWS) == 3 * 16
    ids = [line.split("classid ")[1].split()[0] for line in lines if line.startswith("class")]
    assert len(ids) == len(set(ids)) == 3 + 3 * 17 - 1


def test_batches_name_things_before_they_use_them() -> None:
    """Namespaces first; a cable is made in one namespace and given to the other; without shapers no tc at all."""
    network = network_of(cluster_of("trunk"))
    batches = list(layout(network))
    assert batches[0].lines == tuple(f"netns add {n}" for n in ("s0", "s1", "h0", "h1", "h2", "h3"))
    made = [line for b in batches for line in b.lines if line.startswith("link add") and "bridge" not in line]
    assert "link add p2 mtu 9000 type veth peer name p0 mtu 9000 netns s1" in made  # the trunk
    assert len(made) == 5
    assert [b.namespace for b in batches if b.tool == "tc"] == [p.namespace for p, _ in network.ports]
    assert {b.tool for b in layout(network, shaped=False)} == {"ip"}
    host = next(b for b in batches if b.namespace == "h3" and b.tool == "ip")
    assert host.lines[-1] == "route replace 10.77.0.0/24 dev e0 proto kernel scope link src 10.77.0.4 congctl cubic"


# ---- the list of cases


def test_the_list_covers_what_it_must() -> None:
    """At least 60 cases that are judged, every network, every subject; every case lowers to a sound workload that fits its network."""
    cases = read_cases(CASES)
    assert {c.subject for c in cases.cases} == AXES
    assert set(cases.networks) == set(NETWORKS)
    for name in NETWORKS:
        assert len({c.subject for c in cases.cases if c.network == name}) >= 5
    assert {c.op for c in cases.singles} >= {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "p2p"}
    assert all(c.nbytes >= 1e6 for c in cases.singles)
    left_out = set()
    networks = {name: network_of(cluster_of(name)) for name in NETWORKS}
    for case in cases.all:
        workload = case.workload()
        assert workload.world == NETWORKS[case.network][2], case.name
        left_out |= {case.name} if crowded(workload, networks[case.network]) else set()
    assert left_out == {
        "2x2-hsdp", "2x2-moe", "2x2-tp2-dp2", "2x2-tp2-pp2-sp", "2x2-pp2-and-dp2", "2x4-moe-hot", "2x4-tp2-pp2-dp2", "2x4-tp2-dp2-pp2-zb-h1", "2x4-pp4-dp2",
        "2x4-two-zero1", "2x4-all-to-all-4M",
    }  # fmt: skip
    assert len([c for c in cases.cases if not c.reported and c.name not in left_out]) >= 60


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cases: [{name: a, network: star}]", "case a lacks subject"),
        ("cases: [{name: a, network: nowhere, subject: x, model: {of: m}}]", "network=nowhere"),
        ("cases: [{name: a, network: star, subject: x, model: {of: m}}]", "model"),
        ("cases: [{name: a, network: star, subject: x, reported: because}]", "reported"),
        ("singles: [{name: a, network: star, op: p2p, bytes: 1 MB}, {name: a, network: star, op: p2p, bytes: 2 MB}]", "two cases are called a"),
        ("jobs: []", "jobs"),
    ],
)
def test_a_wrong_list_is_refused_with_its_place(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "cases.yaml"
    path.write_text(text)
    with pytest.raises(Malformed, match=message):
        read_cases(path)


def test_an_unknown_case_names_the_nearest() -> None:
    with pytest.raises(Malformed, match="star-1f1b"):
        read_cases(CASES).named(["star-1fib"])


# ---- two jobs in one workload


def _keys(**more: object) -> dict[str, object]:
    model = {"kind": "fixed", "layers": 2, "forward": "10 ms", "input_grad": "10 ms", "weight_grad": "10 ms", "optimizer": "0 s"}
    model |= {"parameters": 250_000, "boundary": "500 kB"}
    optimizer = {"gradient_dtype": "fp32"}
    return {"model": model, "batch": {"global": 2, "micro": 1}, "precision": "fp32", "optimizer": optimizer, "cluster": "loopback", "devices": 2, **more}


def test_jobs_beside_each_other_share_links_and_nothing_else() -> None:
    """Two replicas on hosts 0, 2 and two on 1, 3 reduce 1 MB each over the trunk of 25 MB/s: alone 2(n-1)/n S/B = 1 MB / 25 MB/s = 40 ms
    after 2 x 30 ms of compute; together each has half of the trunk."""
    trunk, job = cluster_of("trunk"), lower(build(_keys(parallel={"dp": 2}, dp={"mode": "flat"})).plan)
    both = beside([(job, (0, 2)), (job, (1, 3))])
    assert verify(both) == ()
    assert both.world == 4
    assert {name: t.tolist() for name, t in both.groups.items() if name.endswith(".dp")} == {"job0.dp": [[0, 2]], "job1.dp": [[1, 3]]}
    gloo = Profile("bare", "gloo")
    assert simulate(both, trunk, gloo).makespan == pytest.approx(0.060 + 0.080)
    moved = beside([(job, (0, 1)), (job, (2, 3))])  # each under one switch: 1 MB / 50 MB/s
    assert simulate(moved, trunk, gloo).makespan == pytest.approx(0.060 + 0.020)


def test_messages_of_jobs_keep_to_their_own_partners() -> None:
    job = lower(build(_keys(parallel={"pp": 2}, batch={"global": 2, "micro": 1})).plan)
    both = beside([(job, (0, 3)), (job, (1, 2))])
    assert verify(both) == ()
    assert both.peers["job0.pp+1"].tolist()[0] == 3
    assert both.peers["job1.pp+1"].tolist()[1] == 2
    assert both.peers["job1.pp+1"].tolist()[0] == -1


# ---- fitting, the gate and its controls


def test_start_up_times_are_what_made_them() -> None:
    """Costs of 0.5 ms per call and 0.1 ms per step of a ring all-reduce (2(n-1) steps), beside the wire time of 1 kB."""
    star, base = cluster_of("star"), bare("star")
    wire = [2 * (n - 1) / n * 1024 / (50e6 * PAYLOAD) for n in (2, 4)]
    costs = np.array([0.5e-3 + 0.1e-3 * 2 * (n - 1) + w for n, w in zip((2, 4), wire, strict=True)])
    assert _latencies("all_reduce", (2, 4), costs, star, base) == pytest.approx((0.5e-3, 0.1e-3), rel=1e-3)


def _verdict(name: str, factor: float, spread: float = 0.0) -> Verdict:
    """A case whose measured steps are its prediction times `factor`."""
    case = next(c for c in read_cases(CASES).all if c.name == name)
    predicted = simulate(case.workload(), cluster_of(case.network), bare("x"), fold=False)
    repetitions = []
    for stretch in (1.0, 1.0 - spread, 1.0):
        ops = predicted.ops.copy()
        for column in ("ready", "start", "end"):
            ops[column] *= factor * stretch
        repetitions.append(Repetition(replace(predicted, ops=ops), 1e-4, 2e-4, 0.0))
    return Verdict(case, predicted, tuple(repetitions))


def test_the_gate_holds_its_limits() -> None:
    """1.5 % in the median, 5 % at worst, 4 % for single collectives of four ranks; a case whose repetitions differ by more than 3 % is a fault."""
    names = ("star-dp4-flat", "star-1f1b", "star-tp4")
    assert gate([_verdict(n, 1.01) for n in names]).holds
    assert "median" in gate([_verdict(n, 1.02) for n in names]).faults[0]
    assert "worst" in gate([*(_verdict(n, 1.01) for n in names), _verdict("star-zb-v", 1.08)]).faults[0]
    assert gate([_verdict("star-all-reduce-4M", 1.03)]).holds
    assert "single collectives of 4" in gate([_verdict("star-all-reduce-4M", 1.06)]).faults[0]
    assert gate([_verdict("2x4-all-reduce-4M", 1.06)]).holds
    noisy = _verdict("star-1f1b", 1.0, spread=0.04)
    assert "too noisy" in gate([noisy]).faults[0]
    many = [_verdict("star-zb-v", 1.01)] * 19
    left = gate([*many, noisy])  # one of twenty: left out, and said
    assert left.holds and len(left.refused) == 1 and "too noisy" in left.refused[0]
    assert not gate([*many, noisy, noisy]).holds


def test_what_sleeping_threads_and_the_hypervisor_say_is_heard() -> None:
    verdict = _verdict("star-1f1b", 1.0)
    late = Repetition(verdict.repetitions[0].timeline, 1e-4, 8e-3, 0.0)
    stolen = Repetition(verdict.repetitions[0].timeline, 1e-4, 2e-4, 0.1)
    assert Verdict(verdict.case, verdict.predicted, (late, *verdict.repetitions[1:])).disturbed == (0,)
    assert not Verdict(verdict.case, verdict.predicted, (late, stolen, verdict.repetitions[2])).quiet


def _simulated(case: Case | Single) -> float:
    return simulate(case.workload(), cluster_of(case.network), bare("x")).makespan


def test_controls_are_wrong_where_they_should_be() -> None:
    """Transfers that never share a link make a saturated pipeline faster. Of two buckets at a time the fourth starts before the third has ended."""
    by_name = {c.name: c for c in read_cases(CASES).all}
    saturated = by_name["star-interleaved-1500k"]
    cluster: Cluster = cluster_of("star")
    assert pure_latency(saturated.workload(), cluster, bare("x")).makespan < 0.9 * _simulated(saturated)
    plain = by_name["star-dp4-flat"]  # one transfer at a time: the same
    assert pure_latency(plain.workload(), cluster, bare("x")).makespan == pytest.approx(_simulated(plain))
    buckets = by_name["star-dp4-buckets-8"].workload()
    turned = two_at_a_time(buckets)
    assert verify(turned) == ()
    for workload, together in ((buckets, False), (turned, True)):
        timeline = simulate(workload, cluster, bare("x"))
        sums = np.sort(timeline.of(0)[timeline.of(0)["kind"] == 1], order="start")
        assert bool(sums["start"][3] < sums["end"][2]) is together
