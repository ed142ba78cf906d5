"""Variants and sweeps side by side: what they set, what binds, and that a bad row is a row."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from parasim.config import build
from parasim.errors import Malformed
from parasim.plan.binding import binding, shares
from parasim.plan.settings import split, sweep, variant
from parasim.plan.whatif import asked, whatif
from parasim.plots import bars

KEYS = {
    "model": {"kind": "mlp", "layers": 4, "hidden": 256},
    "cluster": "h100-hgx-ib400",
    "devices": 16,
    "batch": {"global": 32, "micro": 1, "sequence": 128},
    "parallel": {"pp": 4, "dp": "auto"},
}


def test_settings_split_at_commas_outside_brackets() -> None:
    assert split("a=[1, 2],b={x: 1, y: 2},c=3") == ["a=[1, 2]", "b={x: 1, y: 2}", "c=3"]
    assert variant("zero.stage=2,batch.micro=4") == (("zero.stage", "2"), ("batch.micro", "4"))


def test_sweeps_multiply_add_or_list() -> None:
    assert sweep("k=1..8:2x") == ("k", ("1", "2", "4", "8"))
    assert sweep("k=1..7:3") == ("k", ("1", "4", "7"))
    assert sweep("k=2..4") == ("k", ("2", "3", "4"))
    assert sweep("k=25..100:2x MiB") == ("k", ("25 MiB", "50 MiB", "100 MiB"))
    assert sweep("k=gpipe,1f1b") == ("k", ("gpipe", "1f1b"))


@pytest.mark.parametrize("text", ["k", "k=", "k=8..1", "k=0..8:2x", "k=1..8:1x", "k=1..x", "k=0..1000000"])
def test_sweeps_of_the_wrong_form_are_malformed(text: str) -> None:
    with pytest.raises(Malformed, match="--sweep"):
        sweep(text)


def test_rows_keep_their_order_and_auto_is_resolved_anew() -> None:
    found = whatif(build(KEYS), asked(["parallel.pp=2", "batch.micro=2,zero.stage=1"], ["batch.global=32..64:2x"]))
    assert [v.name for v in found.variants] == ["parallel.pp=2", "batch.micro=2, zero.stage=1", "batch.global=32", "batch.global=64"]
    assert all(v.report is not None and v.report.world == 16 for v in found.variants)
    same, twice = found.variants[2].report, found.variants[3].report
    assert same is not None and twice is not None
    assert same.step_time == found.baseline.step_time  # batch.global=32 is what is written
    assert twice.tokens == 2 * same.tokens


def test_an_illegal_variant_is_a_row_with_its_reason_and_one_too_large_is_bound_by_memory() -> None:
    keys = KEYS | {"model": {"kind": "mlp", "layers": 4, "hidden": 32768}}  # 4 x 8 h^2 parameters: 34 GB x 8 B on one rank of 80 GB
    found = whatif(build(keys), asked(["parallel.tp=3", "parallel.pp=1", "parallel.pp=2,parallel.tp=8"], []))
    refused, large, fits = found.variants
    assert refused.report is None and refused.binds == "refused" and "devices=16 must be a multiple" in refused.refusal
    assert large.report is not None and not large.report.memory.fits and large.binds == "memory"
    assert fits.report is not None and fits.binds != "memory"
    rows = json.loads(json.dumps(found.to_json()))["variants"]
    assert [r["binding_after"] for r in rows][:2] == ["refused", "memory"] and rows[0]["report"] is None and rows[0]["refusal"]
    assert rows[0]["set"] == {"parallel.tp": "3"} and {r["binding_before"] for r in rows} == {binding(found.baseline)}
    assert "refused: devices=16" in str(found) and "(does not fit)" in str(found)


def test_unknown_keys_are_malformed() -> None:
    with pytest.raises(Malformed, match=r"zero\.stages"):
        whatif(build(KEYS), asked(["zero.stages=1"], []))


def test_shares_are_of_the_step_and_name_the_largest() -> None:
    report = whatif(build(KEYS), []).baseline
    parts = shares(report)
    assert sum(parts.values()) == pytest.approx(1.0, abs=1e-9)
    assert binding(report) == max(parts, key=lambda p: parts[p])
    idle = replace(report, times=replace(report.times, idle=report.step_time, compute=0.0))
    assert binding(idle) == "bubble"


def test_the_picture_has_a_bar_per_row(tmp_path: Path) -> None:
    figure = bars([("a", {"compute": 2.0, "bubble": 1.0}, True), ("b", {"compute": 1.0}, False)], "t")
    figure.savefig(tmp_path / "rows.png")
    widths = sorted(p.get_width() for p in figure.axes[0].patches)
    assert widths == [0.0, 1.0, 1.0, 2.0]  # the second row has no bubble
