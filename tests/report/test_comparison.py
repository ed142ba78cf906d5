"""compare: errors signed and matched op by op, and refusals that name the first difference."""

from __future__ import annotations

import json

import pytest
from timeline_sketch import Sketch, two_stages

from parasim.comparison import compare
from parasim.errors import Refused


def slower() -> Sketch:
    """`two_stages` as measured: rank 1's F takes 2 s for 1, so all that follows is a second later; step 9 s."""
    s = two_stages()
    for op in s.ops:
        if (op["rank"], op["op"]) in ((1, 2), (1, 3), (0, 2), (0, 3)):
            op["start"] += 1
            op["end"] += 1
    s.ops[5]["end"] += 1  # rank 1, F
    assert (s.ops[5]["rank"], s.ops[5]["op"]) == (1, 1)
    return s


def test_equal_timelines_have_no_error() -> None:
    out = compare(two_stages().timeline(), two_stages().timeline()).to_json()
    assert out["schema"] == "parasim.comparison/1"
    assert (out["step_error"], out["starts"]["max_s"]) == (0.0, 0.0)
    assert all(g["error"] == 0.0 for g in out["ops"])


def test_signed_errors() -> None:
    result = compare(two_stages().timeline(), slower().timeline(source="measured"))
    out = result.to_json()
    assert (out["predicted_step_s"], out["measured_step_s"]) == (8.0, 9.0)
    assert out["step_error"] == pytest.approx(8 / 9 - 1)
    forward = next(g for g in out["ops"] if g["phase"] == "F")
    # two F: 2 s and 1 s predicted, 2 s and 2 s measured
    assert (forward["kind"], forward["ops"], forward["predicted_s"], forward["measured_s"]) == ("compute", 2, 1.5, 2.0)
    assert forward["error"] == pytest.approx(-0.25)
    # starts: four of eight ops are a second late
    assert out["starts"]["mean_s"] == 0.5
    assert (out["starts"]["bias_s"], out["starts"]["max_s"], out["starts"]["max_over_step"]) == (-0.5, 1.0, pytest.approx(1 / 9))
    assert sum(p["error_share"] for p in out["parts"]) == pytest.approx(out["step_error"])
    json.dumps(out, allow_nan=False)


def test_parts_tell_compute_from_waiting() -> None:
    parts = {p.name: (p.predicted, p.measured) for p in compare(two_stages().timeline(), slower().timeline()).parts}
    assert parts["compute"] == (3.0, 3.5)
    assert parts["exposed pp"] == (1.5, 1.5)
    assert parts["idle"] == (3.5, 4.0)
    assert "exposed tp" not in parts


def test_optimizer_is_a_part_of_its_own(sketch: Sketch) -> None:
    sketch.add(0, "F", 0, 1)
    sketch.add(0, "S", 1, 4)
    t = sketch.timeline()
    assert {p.name: p.measured for p in compare(t, t).parts} == {"compute": 1.0, "optimizer": 3.0, "idle": 0.0}


def test_a_folded_prediction_is_compared_with_every_rank() -> None:
    folded = Sketch()
    folded.add(0, "F", 0, 2)
    full = Sketch()
    for rank, seconds in enumerate((2.0, 3.0, 4.0)):
        full.add(rank, "F", 0, seconds)
    out = compare(folded.timeline(representative=[0, 0, 0]), full.timeline()).to_json()
    assert (out["ops"][0]["ops"], out["ops"][0]["measured_s"]) == (3, 3.0)
    assert out["ops"][0]["error"] == pytest.approx(2 / 3 - 1)


def test_names_do_not_depend_on_their_numbering() -> None:
    other = two_stages()
    order = list(reversed(other.phases))
    for op in other.ops:
        op["phase"] = order.index(other.phases[op["phase"]])
    other.phases = order
    assert compare(two_stages().timeline(), other.timeline()).step_error == 0.0


def test_other_op_is_refused_by_name() -> None:
    other = two_stages()
    other.ops[3]["microbatch"] = 5  # rank 0's B
    with pytest.raises(Refused, match=r"rank 0, op 3: predicted has B0 .*stage 0.* measured has B5"):
        compare(two_stages().timeline(), other.timeline())


def test_missing_op_is_refused() -> None:
    other = two_stages()
    other.ops.pop()
    other.waits.pop()
    with pytest.raises(Refused, match=r"rank 1, op 3: predicted has pp send 0 .*pp\.send\.B1, measured has no more ops \(3 in all\)"):
        compare(two_stages().timeline(), other.timeline())


def test_other_world_is_refused(sketch: Sketch) -> None:
    sketch.add(0, "F", 0, 1)
    with pytest.raises(Refused, match="predicted has 2, measured has 1"):
        compare(two_stages().timeline(), sketch.timeline())


def test_text_names_the_worst_op() -> None:
    text = str(compare(two_stages().timeline(), slower().timeline()))
    for words in ("error -11.1 %", "compute F", "p2p pp send", "exposed pp", "-25.0 %", "at most"):
        assert words in text
