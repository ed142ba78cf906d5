"""What the pictures say, read back from their artists; that they are quick; that nothing is loaded or left behind."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.collections import PathCollection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from parasim import plots
from parasim.errors import Malformed, Refused
from parasim.memory import memory_peak
from parasim.plots import style
from parasim.timeline import FLOWS, Timeline

Pipeline = Callable[..., Timeline]


def boxes(figure: Figure) -> dict[str, list[tuple[float, float, float]]]:
    """colour -> (x0, x1, y0) of its rectangles."""
    out: dict[str, list[tuple[float, float, float]]] = {}
    for collection in figure.axes[0].collections:
        assert isinstance(collection, PathCollection)
        for path in collection.get_paths():
            corners = path.vertices.reshape(-1, 5, 2)
            out.setdefault(to_hex(collection.get_facecolor()[0]).upper(), []).extend((c[0, 0], c[1, 0], c[0, 1]) for c in corners)
    return out


def legend(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_gantt_is_laid_out_by_time(pipeline: Pipeline) -> None:
    t = pipeline(3, 4)
    figure = plots.gantt(t)
    drawn = boxes(figure)
    forward = t.ops[t.ops["phase"] == t.phases.index("F")]
    assert len(drawn[style.PHASE_COLOURS["F"]]) == len(forward) == 3 * 4
    assert sorted(x0 for x0, _, _ in drawn[style.PHASE_COLOURS["F"]]) == pytest.approx(sorted(forward["start"] * 1e3))  # in ms
    assert figure.axes[0].get_xlim() == (0, pytest.approx(t.makespan * 1e3))
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["rank 0\nstage 0", "rank 1\nstage 1", "rank 2\nstage 2"]


def test_gantt_covers_the_compute_lane(pipeline: Pipeline) -> None:
    # boxes and gaps of a rank fill its lane from 0 to the end of the step
    t = pipeline(3, 4)
    drawn = boxes(plots.gantt(t, ranks=[1]))
    lane = [b for colour, group in drawn.items() for b in group if b[2] == 0.0]
    assert sum(x1 - x0 for x0, x1, _ in lane) == pytest.approx(t.makespan * 1e3)


def test_gantt_joins_the_layers_of_a_microbatch(pipeline: Pipeline) -> None:
    drawn = boxes(plots.gantt(pipeline(2, 4, layers=5), ranks=[0]))
    assert len(drawn[style.PHASE_COLOURS["B"]]) == 4


def test_gantt_prints_durations_microbatches_and_legend(pipeline: Pipeline) -> None:
    figure = plots.gantt(pipeline(3, 4, layers=2))
    texts = [text.get_text() for text in figure.axes[0].texts]
    caption = next(text for text in texts if text.startswith("per stage"))
    for words in ("F 10 ms", "B 20 ms", "S 5 ms", "dp transfer 8 ms", "pp transfer 2 ms"):
        assert words in caption
    assert texts.count("3") == 3 * 2  # F3 and B3 on three ranks
    assert legend(figure)[:2] == ["F forward", "B backward"]
    assert {"dp transfer", "pp transfer", "waits for dp", "waits for pp", "idle"} <= set(legend(figure))


def test_gantt_numbers_only_boxes_with_room(pipeline: Pipeline) -> None:
    texts = [text.get_text() for text in plots.gantt(pipeline(4, 300)).axes[0].texts]
    assert not any(text.isdigit() for text in texts)


def test_gantt_default_is_one_rank_per_stage(pipeline: Pipeline) -> None:
    t = pipeline(3, 2)
    ops = t.ops.copy()
    ops["stage"][ops["rank"] == 2] = 1
    figure = plots.gantt(replace(t, ops=ops))
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["rank 0\nstage 0", "rank 1\nstage 1"]


@pytest.mark.parametrize("ranks", [[], [7], [-1, 0]])
def test_unknown_ranks_are_malformed(pipeline: Pipeline, ranks: list[int]) -> None:
    for picture in (plots.gantt, plots.memory):
        with pytest.raises(Malformed, match="each of 0 to 1"):
            picture(pipeline(2, 2), ranks=ranks)


def test_gantt_of_two_hundred_thousand_bars_is_quick(pipeline: Pipeline, tmp_path: Path) -> None:
    t = pipeline(16, 128, layers=48)
    assert len(t.ops) > 200_000
    began = time.process_time()
    plots.gantt(t).savefig(tmp_path / "step.png", dpi=110)
    assert time.process_time() - began < 6.0  # about 1.2 s on a quiet machine


def test_memory_shows_stages_peaks_and_capacity(pipeline: Pipeline) -> None:
    t = pipeline(3, 4)
    figure = plots.memory(t)
    panels = [axes for axes in figure.axes if axes.get_visible()]
    titles = [axes.get_title(loc="left") for axes in panels]
    # 50e9 resident; 3, 2 and 1 microbatches of 2e9 in flight
    assert [memory_peak(t, r).nbytes for r in range(3)] == [56e9, 54e9, 52e9]
    assert [title.split(":")[0] for title in titles] == ["rank 0, stage 0", "rank 1, stage 1", "rank 2, stage 2"]
    assert "56 GB" in titles[0]
    assert legend(figure) == ["parameters", "optimizer", "activations"]
    assert any("device memory 80 GB" in text.get_text() for text in panels[0].texts)
    assert panels[0].get_ylim()[1] > 80e9 / 2**30


def test_memory_far_below_capacity_is_still_seen(pipeline: Pipeline) -> None:
    t = pipeline(2, 2)
    figure = plots.memory(replace(t, meta={"capacity_bytes": 1e12}))
    assert figure.axes[0].get_ylim()[1] < 70
    assert any("above the scale" in text.get_text() for text in figure.axes[0].texts)


def test_links_show_the_use_of_the_busiest(pipeline: Pipeline) -> None:
    t = pipeline(2, 2)
    flow = np.array([(0, 0, 5e8, 0.0, t.makespan)], dtype=FLOWS)
    busy = replace(t, flows=flow, links=(("node0.nic0", "nic", 1e9 / t.makespan, 1),))
    figure = plots.links(busy)
    assert figure.axes[0].get_title(loc="left") == "nic: node0.nic0, mean 50.0 %"
    values = figure.axes[0].patches[0].get_data().values
    assert np.asarray(values) == pytest.approx(np.full(400, 0.5))
    with pytest.raises(Refused, match="holds no flows"):
        plots.links(t)


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_pictures_can_be_saved(pipeline: Pipeline, tmp_path: Path, suffix: str) -> None:
    t = pipeline(2, 3)
    for picture in (plots.gantt, plots.memory):
        picture(t).savefig(tmp_path / f"step.{suffix}")
        assert (tmp_path / f"step.{suffix}").stat().st_size > 1000


def test_nothing_heavy_is_imported_before_use() -> None:
    code = "import sys, parasim.plots, parasim.report; print([m for m in ('matplotlib', 'perfetto', 'torch') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"


def test_global_state_is_left_alone() -> None:
    code = "import sys; from parasim.plots import gantt, memory, links; print('matplotlib.pyplot' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "False"


def test_unknown_picture_names_the_known() -> None:
    with pytest.raises(AttributeError, match="gantt, ladder, links, memory"):
        plots.pie  # noqa: B018
    assert plots.__all__ == sorted(plots.__all__)
