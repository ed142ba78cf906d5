"""What notebooks show of runs, reports and timelines."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import parasim as ps
from parasim.errors import Malformed, MissingExtra
from parasim.program.ops import AXES
from parasim.timeline import KINDS

NAME = "<b>a & b</b>\u202e"


@pytest.fixture(scope="module")
def result() -> ps.Result:
    model = {"kind": "mlp", "name": NAME, "layers": 4, "hidden": 64, "ffn": 64}
    return ps.simulate_run(ps.build({"model": model, "cluster": "loopback", "devices": 2, "batch": {"global": 8, "micro": 1}, "parallel": {"pp": 2}}))


def test_a_report_shows_its_headline_and_stages(result: ps.Result) -> None:
    shown = result.report._repr_html_()
    assert result._repr_html_() == shown
    assert shown.count("<table>") == 2 and shown.count("<tr>") == 1 + 2 + shown.split("Stages")[0].count("<tr>")
    assert "<bdi>&lt;b&gt;a &amp; b&lt;/b&gt;\u202e on 2 x" in shown and NAME not in shown


def test_a_timeline_shows_its_facts(result: ps.Result) -> None:
    assert f"<bdi>{len(result.timeline.ops):,}</bdi>" in result.timeline._repr_html_()


def test_ops_become_a_frame_with_names(result: ps.Result) -> None:
    t, frame = result.timeline, result.to_pandas()
    assert list(frame.columns) == [
        "rank", "op", "kind", "stream", "phase", "axis", "stage", "layer", "microbatch", "step", "bytes", "ready_s", "start_s", "end_s",
    ]  # fmt: skip
    assert (frame["end_s"].to_numpy() == t.ops["end"]).all()
    assert frame["kind"].tolist() == [KINDS[k] for k in t.ops["kind"]]
    assert frame["axis"].tolist() == ["" if a < 0 else AXES[a] for a in t.ops["axis"]]
    assert frame["stream"].tolist() == [t.streams[s] for s in t.ops["stream"]]


def test_the_other_tables_become_frames_too(result: ps.Result) -> None:
    t = result.timeline
    assert t.to_pandas("memory")["delta_bytes"].sum() == pytest.approx(t.memory["delta"].sum())
    assert t.to_pandas("flows")["link"].tolist() == [t.links[i][0] for i in t.flows["link"]]
    assert np.array_equal(t.to_pandas("edges")["waits_for"], t.edges["waits_for"])
    with pytest.raises(Malformed, match="table of a timeline"):
        t.to_pandas("links")


def test_stages_become_a_frame(result: ps.Result) -> None:
    frame = result.report.to_pandas()
    step = frame["compute_s"] + frame["idle_s"] + frame[[c for c in frame.columns if c.startswith("exposed_")]].sum(axis=1)
    assert frame["stage"].tolist() == [0, 1] and step.tolist() == pytest.approx([result.report.step_time] * 2)


def test_without_pandas_the_command_that_helps_is_named(result: ps.Result, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    for ask in (result.to_pandas, result.report.to_pandas, result.timeline.to_pandas):
        with pytest.raises(MissingExtra, match=r"pip install 'parasim\[pandas\]'") as refusal:
            ask()
        assert refusal.value.exit_code == 4
