"""Fitting recovers known numbers from made-up samples, and a tiny sweep runs on real ranks."""

from __future__ import annotations

import numpy as np
import pytest

from parasim.collectives.plan import plan, seconds, send
from parasim.cost.profile import Profile, load_profile, save_profile
from parasim.errors import Malformed
from parasim.executor.calibrate import ROUNDS, SLEPT, calibrate_collectives, fit
from parasim.topology.loader import load_cluster

SIZES = (1 << 16, 1 << 20, 1 << 22)


def samples(cluster, latency, factor, noise=0.0):
    """What a machine with these numbers would measure, five calls per size."""
    rng = np.random.default_rng(1)
    bare = Profile("bare", "gloo")
    found = {}
    for op in ("all_reduce", "p2p"):
        for n in SIZES:
            p = send(n, *cluster.devices[:2], cluster, bare) if op == "p2p" else plan(op, n, cluster.devices, cluster, bare)
            base = sum(phase.latency for phase in p.phases)
            exact = latency + base + (seconds(p, cluster, bare) - base) / factor
            found[op, n] = [float(exact * (1 + noise * x)) for x in rng.standard_normal(5)]
    return found


def test_exact_samples_give_the_numbers_back(tmp_path):
    cluster = load_cluster("loopback", 4)
    found = fit({**samples(cluster, 1e-3, 0.5), SLEPT: [1e-4, 2e-4, 9e-3]}, 4, cluster, "a test")
    for key in ("collective.all_reduce", "p2p"):
        assert found.numbers[f"{key}.latency"].value == pytest.approx(1e-3, rel=1e-6)
        assert found.numbers[f"{key}.bandwidth_factor"].value == pytest.approx(0.5, rel=1e-6)
        assert found.numbers[f"{key}.latency"].status == "fitted"
    assert found.numbers["compute.op_overhead"].value == 2e-4  # the median: one late wake-up does not count
    assert all(row.fitted == pytest.approx(row.seconds, rel=1e-6) for row in found.rows)
    save_profile(found.profile("mine"), tmp_path / "p.yaml")
    assert load_profile(tmp_path / "p.yaml").get("p2p.latency", 0.0) == pytest.approx(1e-3, rel=1e-6)
    profiled = seconds(plan("all_reduce", SIZES[1], cluster.devices, cluster, found.profile("mine")), cluster, found.profile("mine"))
    assert profiled == pytest.approx(found.rows[1].seconds, rel=1e-6)  # the Profile predicts what was measured


def test_noise_widens_the_interval_around_the_numbers():
    cluster = load_cluster("loopback", 4)
    found = fit(samples(cluster, 1e-3, 0.5, noise=0.05), 4, cluster, "a test")
    number = found.numbers["collective.all_reduce.bandwidth_factor"]
    low, high = number.interval
    assert low < number.value < high
    assert number.value == pytest.approx(0.5, rel=0.1)


def test_a_latency_below_the_links_own_is_zero():
    cluster = load_cluster("loopback", 4)
    found = fit(samples(cluster, -5e-5, 0.5), 4, cluster, "a test")
    assert found.numbers["p2p.latency"].value == 0.0


def test_refusals_name_field_and_rule():
    with pytest.raises(Malformed, match="op=gather must be one of all_reduce"):
        calibrate_collectives(2, ops=["gather"])
    with pytest.raises(Malformed, match=r"sizes=\[4096\] must hold at least two"):
        calibrate_collectives(2, [4096])
    with pytest.raises(Malformed, match="ranks=1 must be at least 2"):
        calibrate_collectives(1)


@pytest.mark.processes
def test_a_tiny_sweep_on_real_ranks_that_goes_on_with_what_it_has(tmp_path, capfd):
    pytest.importorskip("torch")
    kept = tmp_path / "p.yaml.samples.jsonl"
    calibrate_collectives(2, [4096, 1 << 20], count=3, kept=kept)
    lines = kept.read_text().splitlines()
    assert len(lines) == 1 + ROUNDS * 11  # five ops at two sizes, and the slept ops
    kept.write_text("\n".join(lines[:-15]) + "\n" + lines[-15][:9])  # as a crash leaves it: in the second round
    capfd.readouterr()
    found = calibrate_collectives(2, [4096, 1 << 20], count=3, kept=kept)
    again = kept.read_text().splitlines()
    assert again[:-15] == lines[:-15] and len(again) == len(lines)
    assert capfd.readouterr().err.splitlines() == [f"round 2 of {ROUNDS}: 4 cases", f"round 3 of {ROUNDS}: 11 cases"]
    with pytest.raises(Malformed, match=r"calls=3 \(now 2\); remove it or give another --out"):
        calibrate_collectives(2, [4096, 1 << 20], count=2, kept=kept)
    assert {row.op for row in found.rows} == {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "p2p"}
    assert all(len(row.samples) == 3 * ROUNDS * (2 if row.op == "p2p" else 1) and min(row.samples) > 0 for row in found.rows)
    assert len(found.numbers) == 2 * 5 + 1
