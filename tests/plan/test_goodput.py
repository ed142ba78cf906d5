"""Goodput against published formulas, a published log, and failures drawn one by one; batch size as a budget."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parasim.config import build
from parasim.errors import Malformed, Refused, Unparsable
from parasim.model.layers import parameters
from parasim.plan.batch import examples_to_target, most_devices, steps_to_target, time_to_target, useful_speedup
from parasim.plan.goodput import Outages, daly, first_order_loss, shares, silent_rollback, young
from parasim.plan.goodput_ask import Asked, goodput, state_bytes
from parasim.plan.goodput_failures import load_failures
from parasim.plan.goodput_simulation import simulate

from ..conftest import Cli

ROWS = {r["id"]: r for r in map(json.loads, (Path(__file__).parent.parent / "data/goodput.jsonl").read_text(encoding="utf-8").splitlines())}
KEYS: dict[str, Any] = {
    "model": {"kind": "mlp", "layers": 4, "hidden": 256},
    "cluster": "h100-hgx-ib400",
    "devices": 16,
    "batch": {"global": 32, "micro": 1, "sequence": 128},
    "parallel": {"dp": "auto"},
}


def expected(name: str) -> Any:
    return ROWS[name]["expected"]


def test_intervals() -> None:
    assert young(60, 36_000) == pytest.approx(2078.46, abs=0.01)  # sqrt(2 x 60 x 36000)
    assert daly(60, 36_000) == pytest.approx(2078.46 * (1 + math.sqrt(60 / 72_000) / 3 + 60 / 72_000 / 9) - 60, abs=0.01)  # Daly 2006, eq. 37
    assert daly(100, 50) == 50  # C >= 2M


def test_rows_of_the_published_log() -> None:
    log = load_failures("llama3-54-days")
    counts = {c.name: c.rate * 54 * 86_400 * 16_384 for c in log.causes}
    assert sum(counts.values()) == pytest.approx(419) and log.planned * 54 * 86_400 * 16_384 == pytest.approx(47)
    assert counts["faulty GPU"] / 419 == pytest.approx(expected("fail-gpu-share")["unplanned"])
    assert counts["faulty GPU"] / 466 == pytest.approx(expected("fail-gpu-share")["all"])
    assert counts["host maintenance"] / 419 == pytest.approx(expected("fail-maintenance-share"))
    assert log.mtbf(16_384) / 3600 == pytest.approx(expected("fail-mtbf")["system_h"], rel=1e-9)
    assert log.mtbf(1) / 3600 == pytest.approx(expected("fail-mtbf")["device_h"], rel=1e-9)
    assert log.mtbf(32_768) / log.mtbf(16_384) == pytest.approx(expected("fail-scaling"))


def test_interval_and_loss_of_the_lecture() -> None:
    row = ROWS["fail-checkpoint-interval"]
    outages = Outages(row["inputs"]["mtbf_h"] * 3600, 60.0, 300.0)
    interval = young(60.0, outages.mtbf)
    assert interval == pytest.approx(row["expected"]["interval_s"], rel=1e-9)
    assert first_order_loss(outages, interval) == pytest.approx(row["expected"]["lost_fraction"], rel=1e-9)
    assert 1 - shares(outages, interval).training == pytest.approx(row["expected"]["lost_fraction"], rel=0.05)


def test_shares_sum_to_one_and_follow_daly_without_delay() -> None:
    outages = Outages(36_000, 60, 300, planned=1e6, slowdown=1.02, silent=0.1, silent_delay=1800, detection=30)
    assert sum(vars(shares(outages, 2000)).values()) == pytest.approx(1)
    plain = shares(Outages(36_000, 60, 300), 2000)
    wall = 36_000 * math.exp(300 / 36_000) * math.expm1(2060 / 36_000)  # Daly 2006, eq. 13, per interval
    assert plain.training == pytest.approx(2000 / wall) and plain.stragglers == plain.planned == 0
    # one device 10 % slow all the time: the slowest sets the pace of a synchronous step (row fail-straggler)
    assert plain.training / shares(Outages(36_000, 60, 300, slowdown=1.1), 2000).training == pytest.approx(expected("fail-straggler"))


@pytest.mark.parametrize(
    "outages",
    [
        Outages(3600, 60, 300),
        Outages(1000, 60, 300, detection=100),  # restarts fail too
        Outages(3600, 30, 120, detection=60, silent=0.2, silent_delay=1800, planned=50_000, slowdown=1.05),
    ],
)
def test_draws_agree_with_the_closed_form_within_their_error(outages: Outages) -> None:
    interval = young(outages.checkpoint, outages.mtbf)
    drawn = simulate(outages, interval, np.random.default_rng(1), 10_000)
    assert 0 < drawn.error < 0.01
    assert abs(drawn.fraction - shares(outages, interval).training) < 3 * drawn.error
    assert drawn == simulate(outages, interval, np.random.default_rng(1), 10_000)


def test_spares_wait_by_erlang() -> None:
    """a = repair / mtbf = 2: B(0) = 1, B(1) = 2/3, B(2) = 2/5 (Erlang's recursion); the first of n + 1 exponential repairs ends after repair / (n + 1)."""
    waits = [Outages(1000, 1, 0, spares=n, repair=2000).wait for n in (0, 1, 2)]
    assert waits == pytest.approx([2000, 2 / 3 * 1000, 2 / 5 * 2000 / 3])
    assert Outages(1000, 1, 0).wait == 0
    few = Outages(10_000, 1, 1, spares=1, repair=3000)  # short outages: the repairs during them hardly matter
    drawn = simulate(few, 200, np.random.default_rng(3), 20_000)
    assert drawn.fraction == pytest.approx(shares(few, 200).training, abs=4 * drawn.error + 0.01)


def test_a_silent_fault_costs_its_delay_and_the_age_of_the_last_clean_checkpoint() -> None:
    low, high = map(int, expected("fail-silent")["d=10,k=100"].split(".."))
    assert (silent_rollback(10, 0), silent_rollback(10, 100)) == (low, high)
    base = Outages(36_000, 60, 300)
    more = replace(base, silent=1.0, silent_delay=3600.0)
    assert more.delay - base.delay == 3600


def test_llama_3_trained_for_more_than_nine_tenths_of_its_54_days() -> None:
    """Published: more than 90 % effective training time (arXiv 2407.21783, section 3.3.4). Restart and detection are ours, stated with the answer."""
    layout = {"parallel": {"tp": 8, "pp": 18, "dp": "auto"}, "batch": {"global": 2016, "micro": 1, "sequence": 8192}}
    run = build(KEYS | layout | {"model": "llama3-405b", "devices": 16_128, "precision": "bf16"})
    derived = goodput(run, Asked(failures="llama3-54-days"))
    assert derived.outages.checkpoint == pytest.approx(405e9 * 14 / (16_128 * 122e6), rel=0.01)  # 14 B per parameter at 2 TB/s: 2.9 s
    for answer in (derived, goodput(run, Asked(failures="llama3-54-days", checkpoint="10 s"))):
        assert answer.row is not None and 0.90 < answer.row.fraction < 0.97
        text = str(answer)
        assert "--restart 5 min" in text and "--detection 1 min" in text and "a checkpoint every" in text
        assert {"interval", "mtbf", "checkpoint", "restart", "detection", "silent_delay"} == answer.sensitivity.keys()
    half, twice = answer.sensitivity["restart"]
    assert half > answer.row.fraction > twice


def test_checkpoint_from_the_state_and_the_storage() -> None:
    run = build(KEYS | {"precision": "bf16"})
    assert state_bytes(run) == parameters(run.plan.model) * 14  # 2 + 4 + 4 + 4 bytes per parameter
    answer = goodput(run, Asked(mtbf="10 h", storage="1 MB/s"))
    assert answer.outages.checkpoint == state_bytes(run) / 1e6


def test_budget_of_gpu_hours_in_wall_time_and_money(cli: Cli) -> None:
    flags = ["--mtbf", "10h", "--checkpoint", "60s", "--gpu-hours", "1.3e6", "--json", "--price", "2 USD/h"]
    answer = cli("goodput", "--set", "devices=24576", "--set", "batch.global=3072", *flags)
    found = json.loads(answer.out)
    assert answer.code == 0 and found["schema"] == "parasim.goodput/1" and found["curve"] is None
    assert found["checkpoint_interval_s"] == pytest.approx(2078, abs=0.5)  # sqrt(2 x 60 x 36000)
    assert found["wall_s"] / 3600 == pytest.approx(52.9, abs=0.05)  # 1.3e6 / 24576
    assert (found["gpu_hours"], found["cost_usd"]) == pytest.approx((1.3e6, 2.6e6))


def test_without_an_mtbf_a_curve(cli: Cli) -> None:
    found = json.loads(cli("goodput", "--checkpoint", "60 s", "--json").out)
    assert found["mtbf_s"] is found["effective_fraction"] is found["checkpoint_interval_s"] is None
    rows = {r["mtbf_s"]: r for r in found["curve"]}
    assert rows[36_000]["checkpoint_interval_s"] == pytest.approx(2078, abs=0.5)
    fractions = [r["effective_fraction"] for r in found["curve"]]
    assert fractions == sorted(fractions)


def test_tokens_and_targets_are_steps_of_the_simulated_run() -> None:
    run = build(KEYS)
    tokens = goodput(run, Asked(mtbf="10 h", checkpoint="1 s", tokens="4096k"))
    assert tokens.row is not None and tokens.job.seconds is not None
    step = tokens.job.seconds / 1000  # 32 x 128 rows a step
    assert tokens.to_json()["wall_s"] == pytest.approx(tokens.job.seconds / tokens.row.fraction)
    target = goodput(run, Asked(mtbf="10 h", checkpoint="1 s", critical_batch=64, minimum_steps=100))
    assert target.job.seconds == pytest.approx(300 * step)  # 100 (1 + 64 / 32)


@pytest.mark.parametrize(
    ("flags", "code", "words"),
    [
        ("--mtbf 0h", 2, "--mtbf 0h must be more than 0"),
        ("--mtbf=-1h", 2, "negative"),
        ("--mtbf 10", 2, "no unit"),
        ("--mtbf 10h --price=-1USD/h", 2, "--price -1USD/h is negative"),
        ("--mtbf 10h --storage 0GB/s", 2, "--storage 0GB/s must be more than 0"),
        ("--mtbf 10h --checkpoint 0s", 2, "--checkpoint 0s must be more than 0"),
        ("--mtbf 10h --checkpoint 1s --storage 1GB/s", 2, "either --checkpoint or --storage"),
        ("--mtbf 10h --interval soon", 2, "young, daly or a time"),
        ("--mtbf 10h --tokens 0", 2, "--tokens 0"),
        ("--mtbf 10h --tokens 1T --gpu-hours 5", 2, "give one of"),
        ("--mtbf 10h --critical-batch 5", 2, "go together"),
        ("--mtbf 10h --critical-batch -5 --minimum-steps 5", 2, "critical_batch -5"),
        ("--mtbf 10h --silent 2", 2, "--silent 2"),
        ("--mtbf 10h --spares=-1", 2, "--spares -1"),
        ("--mtbf 10h --stragglers 0.1", 2, "SHARExFACTOR"),
        ("--mtbf 10h --draws 1", 2, "--draws 1"),
        ("--failures llama", 2, "llama3-54-days"),
        ("--failures none.yaml", 2, "no such file"),
        ("--mtbf 1h --failures llama3-54-days", 2, "not both"),
        ("--mtbf 1s --checkpoint 60s", 1, "no progress"),
    ],
)
def test_nonsense_is_one_clear_line(cli: Cli, flags: str, code: int, words: str) -> None:
    answer = cli("goodput", *flags.split())
    assert answer.code == code and words in answer.err and answer.err.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ("causes: {}", Unparsable, "lacks causes"),
        ("causes: {a: {count: 3}}", Malformed, "observed"),
        ("causes: {a: {mtbf: 0 h}}", Malformed, "more than 0"),
        ("causes: {a: {mtbf: 5}}", Malformed, "unit"),
        ("causes: {a: {mtbf: 5 h, silnt: true}}", Malformed, "silent"),
        ("observed: {time: 0 d, devices: 3}\ncauses: {a: {count: 3}}", Malformed, "more than 0"),
        ("observed: {time: 1 d, devices: 3}\ncauses: {a: {count: 0}}", Malformed, "never fail"),
    ],
)
def test_files_of_failures(tmp_path: Path, text: str, error: type[Exception], words: str) -> None:
    path = tmp_path / "f.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(error, match=words):
        load_failures(str(path))


def test_components_add_their_rates(tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    path.write_text("causes: {gpu: {mtbf: 50000 h, replace: true}, cable: {mtbf: 200000 h}}", encoding="utf-8")
    log = load_failures(str(path))
    assert log.mtbf(1000) == pytest.approx(3600 / (1000 / 50_000 + 1000 / 200_000))
    assert log.share(replace=True) == pytest.approx(0.8)


def test_critical_batch() -> None:
    for ratio, row in expected("batch-critical-curve").items():
        batch = float(ratio) * 100
        assert steps_to_target(batch, 100, 1) == pytest.approx(row["steps"])
        assert examples_to_target(batch, 100, 1) == pytest.approx(row["examples"])
    assert useful_speedup(100, 800, 100) == pytest.approx(expected("batch-useful-dp"))  # 2 / 1.125
    assert time_to_target(2.0, 100, 100, 50) == 200  # 2 s x 50 x 2
    with pytest.raises(Malformed, match="batch 0"):
        steps_to_target(0, 100, 1)


def test_who_spends_the_batch() -> None:
    most = expected("batch-max-gpus")
    assert (most_devices(512), most_devices(512, tp=8)) == (most["dp"], most["dp_tp8"])


def test_a_job_that_gets_nowhere_is_refused() -> None:
    with pytest.raises(Refused, match="no progress"):
        shares(Outages(1.0, 60.0, 0.0), 10.0)
    with pytest.raises(Refused, match="too many"):
        simulate(Outages(100.0, 400.0, 500.0), 200.0, np.random.default_rng(0))
