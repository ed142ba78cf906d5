"""Exact memory from births and deaths."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from timeline_sketch import Sketch

from parasim.config import build
from parasim.lowering import lower
from parasim.memory import memory_curve, memory_peak, memory_peaks
from parasim.program.ops import CATEGORIES
from parasim.sim import simulate

ACTIVATIONS, PARAMETERS = CATEGORIES.index("activations"), CATEGORIES.index("parameters")


def drawn(sketch: Sketch) -> Sketch:
    """100 resident; a [0, 2] of 30, b [1, 3] of 50, c born at 3, when b dies, of 60; a host copy that does not count."""
    sketch.add(0, "F", 0, 4)
    sketch.hold(0, "weights", "parameters", 100)
    sketch.hold(0, "a", "activations", 30, 0, 2)
    sketch.hold(0, "b", "buffers", 50, 1, 3)
    sketch.hold(0, "c", "activations", 60, 3, 4)
    sketch.hold(0, "offloaded", "host", 1e6, 0, 4)
    return sketch


def test_peak_and_its_composition(sketch: Sketch) -> None:
    peak = memory_peak(drawn(sketch).timeline(), 0, top=2)
    # [1, 2): 100 + 30 + 50 = 180; at 3 b dies before c is born: 160, not 210
    assert (peak.nbytes, peak.time) == (180.0, 1.0)
    assert peak.by_category == {"parameters": 100, "gradients": 0, "optimizer": 0, "activations": 30, "gathered": 0, "buffers": 50}
    assert peak.largest == (("weights", 100.0), ("b", 50.0))


def test_curve_steps(sketch: Sketch) -> None:
    curve = memory_curve(drawn(sketch).timeline(), 0)
    assert curve.times.tolist() == [0.0, 0.0, 1.0, 2.0, 3.0, 4.0]  # resident, then the events
    assert curve.total.tolist() == [100.0, 130.0, 180.0, 150.0, 160.0, 100.0]
    assert curve.by_category[4, ACTIVATIONS] == 60.0
    assert set(curve.by_category[:, PARAMETERS]) == {100.0}


def test_of_equal_peaks_the_first(sketch: Sketch) -> None:
    sketch.add(0, "F", 0, 4)
    sketch.hold(0, "a", "activations", 5, 0, 1)
    sketch.hold(0, "b", "buffers", 5, 2, 3)
    assert memory_peak(sketch.timeline(), 0).time == 0.0


def test_same_names_are_summed(sketch: Sketch) -> None:
    sketch.add(0, "F", 0, 4)
    for birth in (0, 1, 2):
        sketch.hold(0, "h3", "activations", 7, birth, 4)
    sketch.hold(0, "loss", "buffers", 8, 0, 4)
    assert memory_peak(sketch.timeline(), 0).largest == (("h3", 21.0), ("loss", 8.0))


def test_a_rank_without_memory_has_none(sketch: Sketch) -> None:
    sketch.add(0, "F", 0, 1)
    sketch.add(1, "F", 0, 1)
    sketch.hold(1, "weights", "parameters", 3)
    peaks = memory_peaks(sketch.timeline())
    assert {r: p.nbytes for r, p in peaks.items()} == {0: 0.0, 1: 3.0}
    assert len(memory_curve(sketch.timeline(), 0).times) == 0


def test_a_folded_rank_reads_its_representative(sketch: Sketch) -> None:
    sketch.add(0, "F", 0, 1)
    sketch.hold(0, "weights", "parameters", 3)
    t = sketch.timeline(representative=[0, 0, 0])
    assert (memory_peak(t, 2).nbytes, memory_peak(t, 2).rank) == (3.0, 0)


lives = st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9), st.sampled_from(CATEGORIES), st.integers(1, 99)), min_size=1, max_size=20)


@given(lives)
def test_equals_counting_the_living(buffers: list[tuple[int, int, str, int]]) -> None:
    s = Sketch()
    s.add(0, "F", 0, 20)
    for i, (birth, life, category, nbytes) in enumerate(buffers):
        s.hold(0, f"b{i}", category, nbytes, birth, birth + life)
    living = [sum(n for b, life, _, n in buffers if b <= k < b + life) for k in range(20)]
    t = s.timeline()
    peak = memory_peak(t, 0)
    assert peak.nbytes == max(living) == sum(peak.by_category.values())
    assert peak.time == int(np.argmax(living))
    assert sum(n for _, n in memory_peak(t, 0, top=99).largest) == peak.nbytes
    curve = memory_curve(t, 0)
    for k in range(20):
        held = curve.total[np.searchsorted(curve.times, k, "right") - 1] if k >= curve.times[0] else 0
        assert held == pytest.approx(living[k])


def test_the_parts_of_buffers_at_the_peak_are_named() -> None:
    """A short model with a wide vocabulary peaks in its head: 2 bytes each of logits and their gradient, 2,000 x 64 tokens."""
    model = {"kind": "transformer", "layers": 1, "hidden": 16, "heads": 2, "vocab": 2000, "activation": "gelu"}
    run = build({"model": model, "cluster": "h100-hgx-ib400", "devices": 1, "batch": {"global": 1, "sequence": 64}})
    peak = memory_peak(simulate(lower(run.plan), run.cluster, run.profile), 0)
    assert sum(peak.buffers.values()) == peak.by_category["buffers"]
    assert peak.buffers["logits"] == peak.buffers["logits.grad"] == 2 * 2000 * 64
