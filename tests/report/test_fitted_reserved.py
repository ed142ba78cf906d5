"""Reserved memory as fitted on published peaks: stated only where the profile has a number for it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from parasim.config import build
from parasim.cost.profile import Profile
from parasim.lowering import lower
from parasim.provenance import Number
from parasim.report import Report, summarize
from parasim.sim import simulate

RUN = {
    "model": {"kind": "mlp", "layers": 2, "hidden": 64},
    "cluster": "h100-hgx-ib400",
    "devices": 1,
    "batch": {"global": 4, "micro": 2},
}


def report(numbers: dict[str, Number]) -> Report:
    run = build(RUN)
    profile = Profile("test", numbers=numbers)
    return summarize(simulate(lower(run.plan), run.cluster, profile), replace(run, profile=profile))


def test_reserved_is_the_peak_and_its_fragmentation() -> None:
    found = report({"memory.fragmentation": Number(0.25, "1", "test", "assumed")})
    peak = found.memory.peak.nbytes
    assert found.memory.fitted_reserved == pytest.approx(1.25 * peak)
    assert found.to_json()["memory"]["fitted_reserved_bytes"] == found.memory.fitted_reserved
    assert "as fitted on published peaks" in str(found) and found.memory.fits and found.memory.headroom == found.memory.capacity - peak


def test_no_claim_without_the_number() -> None:
    found = report({})
    assert found.memory.fitted_reserved is None and "fitted_reserved_bytes" not in found.to_json()["memory"]
    assert "as fitted" not in str(found)
