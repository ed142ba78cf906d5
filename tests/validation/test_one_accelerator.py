"""The script for one accelerator runs tiny on the processor: what it writes is whole, and time that is over leaves the rest out."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("torch")

from parasim.errors import Malformed
from validation.gpu import DRY_MICRO, DRY_MODELS, RECOMPUTE, gpu


def test_a_dry_run_measures_everything(tmp_path) -> None:
    out = tmp_path / "gpu.json"
    gpu(out, dry=True)
    data = json.loads(out.read_text())
    assert data["schema"] == "parasim.gpu/1" and data["dry"] and data["left_out"] == []
    assert {"torch", "device", "clocks", "date", "parasim"} <= data["provenance"].keys()
    cases = {(s["model"], s["recompute"], s["micro"]) for s in data["steps"]}
    assert cases == {(m, r, b) for m in DRY_MODELS for r in RECOMPUTE for b in DRY_MICRO}
    entries = [e for part in ("kernels", "steps", "collectives") for e in data[part]]
    assert all("error" not in e and min(e["seconds"]) > 0 for e in entries)
    peak = {(s["model"], s["recompute"], s["micro"]): s["predicted_peak_bytes"] for s in data["steps"]}
    assert all(peak[m, "full", b] < peak[m, "none", b] for m in ("tiny-2", "tiny-3") for b in DRY_MICRO)  # recomputation keeps less
    assert {c["op"] for c in data["collectives"]} == {"all_reduce", "all_gather", "reduce_scatter"}


def test_what_is_left_out_is_said(tmp_path) -> None:
    out = tmp_path / "gpu.json"
    gpu(out, dry=True, seconds=0.0)
    data = json.loads(out.read_text())
    assert data["kernels"] == data["steps"] == [] and "steps tiny-1 none 1" in data["left_out"]


def test_without_a_gpu_only_dry_runs(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(Malformed, match=r"gpu needs a GPU .*--dry"):
        gpu(tmp_path / "gpu.json")
