"""Collectives on TPU interconnects: each row from the others of its accelerator."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from validation.__main__ import app
from validation.predict import DATA
from validation.rows import NotModelled
from validation.tpu import fit, judge, predict, to_case

V5E = {
    "id": "x-1",
    "kind": "micro",
    "accelerator": "TPU v5e",
    "topology": "8x4",
    "op": "all_gather over axis of 4 (no wraparound)",
    "bytes": 32e6,
    "time_us": 680,
}


def test_the_published_rows_pass() -> None:
    judged, refused = judge([DATA / "fit" / "tpu.jsonl"])
    assert len(judged) == 14 and not refused
    assert {row.passed for row in judged} == {True, None} and sum(row.passed is None for row in judged) == 1  # the row between slices


def test_a_line_of_four() -> None:
    """No wraparound: the end chips have one cable, V (n-1)/n / w (jax-ml/scaling-book): 32 MB x 3/4 / 45 GB/s = 533 us."""
    case = to_case(V5E)
    assert len(case.members) == 4 and predict(case, fit([])) == pytest.approx(32e6 * 0.75 / 45e9, rel=1e-6)


def test_a_single_other_row_gives_one_number() -> None:
    large, small = to_case(V5E), to_case(V5E | {"bytes": 131072, "time_us": 8})
    assert fit([large]).get("network.bandwidth_factor.ici") == pytest.approx(32e6 * 0.75 / 45e9 / 680e-6, rel=1e-6)
    assert fit([large]).get("collective.all_gather.latency") == 0 and fit([small]).get("network.bandwidth_factor.ici") == 1
    assert predict(small, fit([small])) == pytest.approx(8e-6)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"accelerator": "TPU v99"}, "accelerator 'TPU v99' is not known"),
        ({"topology": ""}, "gives no topology"),
        ({"op": "all_gather over axis of 5"}, "has no axis of 5"),
        ({"bytes": 0}, "gives no bytes"),
    ],
)
def test_what_cannot_be_predicted(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(NotModelled, match=reason):
        to_case(V5E | change)


def test_the_command(tmp_path: Path) -> None:
    path, out = tmp_path / "rows.jsonl", tmp_path / "out.json"
    path.write_text(json.dumps(V5E))
    assert CliRunner().invoke(app, ["tpu", str(path), "--json", str(out)]).exit_code == 0
    assert json.loads(out.read_text())["rows"][0]["others"] == 0
    path.write_text(json.dumps(V5E | {"time_us": 100}))
    assert CliRunner().invoke(app, ["tpu", str(path)]).exit_code == 1
    path.write_text(json.dumps(V5E | {"op": "matmul"}))
    assert CliRunner().invoke(app, ["tpu", str(path)]).exit_code == 1  # nothing to judge
