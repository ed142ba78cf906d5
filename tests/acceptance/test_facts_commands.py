"""Commands about facts, as people type them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ..conftest import Cli

FIXED = """
model: {kind: fixed, layers: 4, forward: 10 ms, input_grad: 10 ms, weight_grad: 10 ms, parameters: 4096}
cluster: h100-hgx-ib400
devices: 8
batch: {global: 8, micro: 1}
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("run.yaml").write_text(FIXED, encoding="utf-8")
    return tmp_path


def asked(cli: Cli, *arguments: str, code: int = 0) -> dict:
    answer = cli(*arguments, "--json")
    assert answer.code == code, answer.err
    return json.loads(answer.out)


def test_facts_of_clusters_and_what_is_refused(cli: Cli) -> None:
    found = asked(cli, "cluster", "a100-hgx-tcp", "--devices", "16", "--versus", "a100-hgx-ib200")
    assert found["schema"] == "parasim.cluster/1" and found["over"]["route"]["latency_s"] >= 5
    assert "HBM" in cli("cluster", "h100-hgx-ib400", "--devices", "16").out
    answer = cli("cluster", "single-node", "--devices", "8", "--to", "8")
    assert answer.code == 2 and "0 to 7" in answer.err


def test_a_broken_batch_as_data(cli: Cli) -> None:
    """130 rows over 8 ranks: two of 17, six of 16; dp 5 would divide it."""
    found = asked(cli, "check", "run.yaml", "--set", "batch.global=130", code=1)
    (row,) = found["violations"]
    assert row["slices"] == [17, 17, *[16] * 6] and sum(row["weights"]) == pytest.approx(1) and row["largest_legal_dp"] == 5
    assert row["largest_legal_batch"] == 128
    (row,) = asked(cli, "check", "run.yaml", "--set", "batch.global=4", code=1)["violations"]
    assert row["field"] == "parallel.dp" and row["largest_legal_dp"] == 4  # one sequence per rank


def test_schedules_beside_each_other(cli: Cli) -> None:
    """p 4, m 16, F = I = W = 1: 1F1B 57, ZB-H1 51; a hop of 0.1 costs GPipe 2 (p-1) c."""
    found = asked(cli, "schedule", "--name", "zb-h1", "--ranks", "4", "--microbatches", "16", "--versus", "1f1b")
    assert found["over"]["makespan"] == pytest.approx(51 / 57) and found["over"]["throughput_gain"] == pytest.approx(57 / 51 - 1)
    found = asked(cli, "schedule", "--name", "gpipe", "--ranks", "4", "--microbatches", "8", "--comm", "0.1")
    assert found["comm_s"] == pytest.approx(0.6) and found["busy"] == pytest.approx([24 / 33.6] * 4) and found["bubble_s"] == pytest.approx(9.6)


def test_variants_over_the_baseline(cli: Cli) -> None:
    """A rank that is a tenth slower sets the pace of all."""
    found = asked(cli, "whatif", "run.yaml", "--variant", "perturb=[{rank: 3, slowdown: 1.1}]")["variants"][0]["over_baseline"]
    assert found["step_time"] == pytest.approx(1.1, rel=1e-3) and found["lost_per_device"] == pytest.approx(1 - 1 / 1.1, rel=1e-3)


def test_a_batch_as_a_budget_and_a_log_of_failures(cli: Cli) -> None:
    """At the critical batch both steps and examples are twice their least; 8 times the batch then is 2 / 1.125 times as fast. 148 of 419 failures."""
    found = asked(cli, "goodput", "run.yaml", "--critical-batch", "8", "--minimum-steps", "100", "--failures", "llama3-54-days")
    assert found["target"]["steps_over_minimum"] == found["target"]["examples_over_minimum"] == 2.0
    assert found["target"]["speedup_when_batch_and_devices_grow"]["8"] == pytest.approx(2 / 1.125)
    assert found["failures"]["causes"]["faulty GPU"]["share_of_unplanned"] == pytest.approx(148 / 419)
    assert found["failures"]["mtbf_factor_when_devices_double"] == pytest.approx(0.5) and found["lost_fraction"] == pytest.approx(
        1 - found["effective_fraction"]
    )


def test_the_rest_in_words(cli: Cli) -> None:
    assert (
        "16 bytes per parameter" in cli("account", "run.yaml").out
        and cli("roofline", "--peak", "460TFLOP/s", "--bandwidth", "180GB/s", "--ffn", "53248", "--fsdp", "16x2").code == 0
    )
    assert "undefined" in cli("values", "--op", "gather", "--inputs", "[[1],[2]]").out
    assert asked(cli, "catalog", "models")["parameters"]["gpt2"] == 124439808
