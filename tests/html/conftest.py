"""Runs whose pages are looked at: a pipeline with a hostile name, and the same changed."""

from __future__ import annotations

import pytest

import parasim as ps

# Ends its element, opens others, quotes, an entity, a mark that turns text around, letters from right to left, a placeholder of the template.
HOSTILE = "<script>alert(1)</script>\"'&amp;<!--\u202e\u05d0\u05d1 </title>{{data}}<img src=x onerror=alert(2)>"
KEYS = {
    "model": {"kind": "transformer", "name": HOSTILE, "layers": 4, "hidden": 1024, "heads": 8, "ffn": 4096, "vocab": 1024},
    "cluster": "h100-hgx-ib400",
    "devices": 8,
    "batch": {"global": 16, "micro": 1, "sequence": 1024},
    "parallel": {"tp": 2, "pp": 2, "dp": 2},
}


@pytest.fixture(scope="session")
def before() -> ps.Result:
    """tp 2, pp 2, dp 2; a hostile model name."""
    return ps.simulate_run(ps.build(KEYS))


@pytest.fixture(scope="session")
def after(before: ps.Result) -> ps.Result:
    """The same with full recomputation."""
    return ps.simulate_run(ps.vary(before.run, ["recompute=full"]))
