"""The harness end to end: the fit gives the catalog's files, the table judges, and the exit codes say so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from parasim.collectives.plan import plan, seconds
from parasim.cost.profile import load_profile
from parasim.topology.loader import load_cluster
from validation.__main__ import app
from validation.fit import fit_line, fit_profile

FIT = Path(__file__).parents[2] / "validation" / "data" / "fit"
RUNNER = CliRunner()


def command(*words: str) -> tuple[int, str]:
    result = RUNNER.invoke(app, list(words))
    return result.exit_code, result.output


@pytest.mark.parametrize(
    ("profile", "cluster", "op", "system"),
    [
        ("a100-megatron", "a100-hgx-ib200", "all_reduce", "Azure ND A100 v4 (A100-80 x8)"),
        ("h100-megatron", "h100-hgx-ib400", "all_gather", "HGX H100, 1 node x 8 GPU"),
        ("h100-megatron", "h100-hgx-ib400", "all_reduce", "AWS p5.48xlarge (H100 x8), 1 node"),
    ],
)
def test_planned_collectives_are_the_fitted_line(profile: str, cluster: str, op: str, system: str) -> None:
    fitted, node, line = load_profile(profile), load_cluster(cluster, 8), fit_line(op, system)
    for nbytes in (2**20, 2**27, 2**32):
        wire = nbytes * 7 / 8 * (2 if op == "all_reduce" else 1)  # ring over 8 ranks
        expected = line.latency + wire / line.bandwidth
        # the all-gather shares its bandwidth factor with the reduce-scatter, 1 % apart
        assert seconds(plan(op, nbytes, node.devices, node, fitted), node, fitted) == pytest.approx(expected, rel=0.02)


def test_the_fit_is_the_catalogs_file() -> None:
    assert fit_profile("a100-megatron") == load_profile("a100-megatron")


def test_table_and_gate(tmp_path: Path) -> None:
    rows = str(FIT / "korthikanti_2022.jsonl")
    code, text = command("published", rows, "--json", str(tmp_path / "out.json"))
    assert code == 0, text
    assert "refused korthikanti_2022-0001: selective recompute is not modelled yet" in text
    tree = json.loads((tmp_path / "out.json").read_text())
    assert tree["schema"] == "parasim.published/1" and tree["passed"] is True
    (row,) = tree["rows"]
    assert row["id"] == "korthikanti_2022-0000" and row["measured_s"] == 1.42
    assert row["error"] == pytest.approx(row["predicted_s"] / 1.42 - 1) and abs(row["error"]) < 0.25
    assert row["datasheet_error"] < row["error"]  # the datasheet is faster than any machine
    assert len(tree["refused"]) == 6
    code, text = command("published", rows, "--profile", "datasheet", "--max-error", "0.01")
    assert code == 1 and "MISSED" in text


def test_nothing_to_judge_is_not_a_success(tmp_path: Path) -> None:
    selective = [line for line in (FIT / "korthikanti_2022.jsonl").read_text().splitlines() if '"selective"' in line]
    (tmp_path / "rows.jsonl").write_text("\n".join(selective))
    code, text = command("published", str(tmp_path / "rows.jsonl"))
    assert code == 1 and "nothing to judge" in text
