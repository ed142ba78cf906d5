"""Pictures of several runs and of a cluster's rungs, read back from their artists; and what the command draws from JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from matplotlib.figure import Figure

import parasim as ps
from parasim import plots
from parasim.errors import Malformed, Refused, Unparsable
from parasim.jobs import plot_file
from parasim.plots.pareto_plot import frontier
from parasim.topology.ladder import ladder
from parasim.topology.loader import load_cluster

PARTS = {"compute": 6.0, "idle": 1.0, "exposed": {"tp": 2.0, "cp": 0.0, "ep": 0.0, "dp": 1.0, "pp": 0.0}}


def row(devices: int, rate: float) -> dict[str, object]:
    return {"world_size": devices, "tokens_per_s": rate, "tokens_per_s_per_device": rate / devices, "time_s": PARTS, "name": "made up"}


def words(figure: Figure, panel: int = 0) -> list[str]:
    return [text.get_text() for text in figure.axes[panel].texts]


def test_scaling_has_the_ideal_line_and_shares_of_one() -> None:
    figure = plots.scaling([row(32, 300.0), row(8, 100.0)])
    ideal, predicted = figure.axes[0].lines
    assert list(ideal.get_ydata()) == [100.0, 400.0]  # four times the devices
    assert list(predicted.get_ydata()) == [100.0, 300.0]
    assert words(figure) == ["100 %", "75 %"]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["compute", "exposed tp", "exposed dp", "idle"]
    tops = [collection.get_paths()[0].get_extents().y1 for collection in figure.axes[1].collections]
    assert tops == pytest.approx([0.6, 0.8, 0.9, 1.0])


def test_cliff_says_the_loss_from_bar_to_bar() -> None:
    figure = plots.cliff([("tp 4", row(4, 40.0)), ("tp 8", row(8, 72.0)), ("tp 16", row(16, 72.0))])
    assert words(figure) == ["100 %", "90 %\n-10 %", "45 %\n-50 %"]


@pytest.mark.parametrize("draw", [lambda: plots.scaling([row(8, 1.0)]), lambda: plots.pareto([]), lambda: plots.bucket_sweep([]), lambda: plots.bubble({})])
def test_nothing_to_draw_is_refused(draw: object) -> None:
    with pytest.raises(Refused, match="nothing to draw"):
        draw()  # type: ignore[operator]


def test_the_frontier_is_what_nothing_beats_in_both() -> None:
    points = [("a", 1.0, 9.0), ("b", 2.0, 5.0), ("c", 3.0, 5.0), ("d", 2.5, 7.0), ("e", 4.0, 1.0)]
    assert [name for name, *_ in frontier(points)] == ["a", "b", "e"]
    assert {"a", "b", "e"} <= set(words(plots.pareto(points, capacity=8.0)))


def test_bucket_sweep_marks_its_minimum() -> None:
    figure = plots.bucket_sweep([(1e6, 4e-3), (8e6, 2.5e-3), (64e6, 3e-3)], best=(9e6, 2.4e-3))
    assert words(figure) == ["least: 8 MB"]
    assert [text.get_text() for text in figure.axes[0].get_legend().get_texts()] == ["exposed", "closed form"]


def test_bubble_has_the_closed_form() -> None:
    # 1F1B: (p - 1) / m over the ideal
    points = [(m, ps.time_schedule("1f1b", 4, m)[0].bubble_over_ideal) for m in (4, 8, 16)]
    figure = plots.bubble({"1f1b": points}, ideal=4)
    drawn, closed = figure.axes[0].lines
    assert list(drawn.get_ydata()) == pytest.approx(list(closed.get_ydata()), rel=1e-9)


def test_rungs_fall() -> None:
    # datasheets: HBM3 3.35 TB/s, NVLink 450 GB/s per direction, PCIe 5 64 GB/s, 400 Gb/s
    rungs = ladder(load_cluster("h100-hgx-ib400", 512))
    assert [(r.name, r.bandwidth) for r in rungs][:3] == [("memory of the device", 3.35e12), ("device over scale_up", 450e9), ("memory of the host", 64e9)]
    assert [r.name for r in rungs[3:]] == ["device over nic, leaf", "device over nic, leaf, spine"]
    assert {r.bandwidth for r in rungs[3:]} == {50e9}
    assert rungs[3].latency < rungs[4].latency
    figure = plots.ladder(load_cluster("h100-hgx-ib400", 512))
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == [r.name for r in rungs]


def test_phases_tint_what_lies_between_thresholds() -> None:
    figure = plots.phases({"fsdp": [(100, 8.5), (1000, 0.85)]}, {"fsdp": 850.0})
    assert words(figure) == ["fsdp: 850"]
    assert len(figure.axes[0].patches) == 2


def test_pictures_from_the_json_of_commands(tmp_path: Path) -> None:
    report = {**row(8, 100.0), "time_s": PARTS}
    variants = [{"set": {"dp.bucket": size, "devices": "16"}, "report": {**report, "world_size": n}} for size, n in (("1MiB", 16), ("4MiB", 32))]
    refused = {"set": {"dp.bucket": "9MiB"}, "report": None}
    (tmp_path / "whatif.json").write_text(json.dumps({"schema": "parasim.whatif/1", "baseline": report, "variants": [*variants, refused]}))
    layout = {"name": "tp 8", "step_time_s": 1.0, "peak_memory_bytes": 2e9}
    (tmp_path / "search.json").write_text(json.dumps({"schema": "parasim.search/1", "top": [layout], "pareto": [layout]}))
    for kind, source in (("scaling", "whatif"), ("cliff", "whatif"), ("buckets", "whatif"), ("pareto", "search")):
        plot_file(kind, str(tmp_path / f"{source}.json"), tmp_path / f"{kind}.svg", 1)
        assert (tmp_path / f"{kind}.svg").stat().st_size > 1000
    with pytest.raises(Malformed, match=r"parasim search --json"):
        plot_file("pareto", str(tmp_path / "whatif.json"), tmp_path / "x.svg", 1)
    (tmp_path / "bad.json").write_text("[")
    with pytest.raises(Unparsable, match="not JSON"):
        plot_file("pareto", str(tmp_path / "bad.json"), tmp_path / "x.svg", 1)
