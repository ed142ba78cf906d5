"""Fixtures of the report's tests."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from timeline_sketch import Sketch, two_stages

from parasim.config.plan import Plan
from parasim.model.spec import Transformer
from parasim.parallel.layout import Batch, Degrees, Layout
from parasim.provenance import Number


@pytest.fixture
def sketch() -> Sketch:
    """An empty drawing."""
    return Sketch()


@pytest.fixture
def pipeline() -> Sketch:
    """`two_stages`, ready to be drawn on."""
    return two_stages()


@pytest.fixture
def run() -> Any:
    """A run of two devices of 100 FLOP/s and 1000 bytes at 36 USD/h. One layer of width 1 and 2 tokens: 10 model FLOPs are easy to count."""
    model = Transformer("tiny", layers=1, hidden=1, heads=1, kv_heads=1, head_dim=1, ffn=1, vocab=1, activation="gelu")
    layout = Layout(Degrees(pp=2), Batch(global_=1, micro=1, sequence=2, microbatches=1))
    accelerator = SimpleNamespace(name="toy", kind="cpu", peak=lambda dtype: 100.0, memory=Number(1000.0, "bytes", "made up", "assumed"))
    return SimpleNamespace(
        name="hand",
        plan=Plan(model, layout, ("layers are split evenly",)),
        cluster=SimpleNamespace(name="pair", accelerator=accelerator, price=36.0),
        profile=SimpleNamespace(name="datasheet", numbers={}),
        devices=2,
        source={"model": "tiny"},
        provenance={"inputs": {"run.yaml": "0123"}},
    )
