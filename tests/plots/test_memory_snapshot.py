"""The snapshot, read back with PyTorch's own reader, and against the exact memory of the rank."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from parasim.errors import Malformed
from parasim.memory import memory_curve, memory_peak
from parasim.plots import write_memory_snapshot
from parasim.plots.memory_snapshot import ALIGNED, snapshot
from parasim.timeline import Timeline

Pipeline = Callable[..., Timeline]


def test_allocated_bytes_follow_the_curve(pipeline: Pipeline) -> None:
    timeline = pipeline(3, 4, layers=2)
    for rank in timeline.ranks:
        trace = snapshot(timeline, rank)["device_traces"][0][1:]  # after the segment
        held = np.cumsum([e["size"] if e["action"] == "alloc" else -e["size"] for e in trace])
        assert held.max() == memory_peak(timeline, rank).nbytes
        assert held[-1] == memory_curve(timeline, rank).total[-1]
        assert [e["time_us"] for e in trace] == sorted(e["time_us"] for e in trace)
        live: dict[int, int] = {}
        for e in trace:  # no address is given twice, none is freed that is not held
            if e["action"] == "alloc":
                assert e["addr"] % ALIGNED == 0 and e["addr"] not in live
                live[e["addr"]] = e["size"]
            else:
                assert live.pop(e["addr"]) == e["size"]


def test_blocks_of_the_end_fill_the_segment(pipeline: Pipeline) -> None:
    timeline = pipeline(2, 3, layers=1)
    (segment,) = snapshot(timeline, 0)["segments"]
    at = segment["address"]
    for block in segment["blocks"]:
        assert block["address"] == at
        at += block["size"]
    assert at == segment["address"] + segment["total_size"]
    assert segment["requested_size"] == memory_curve(timeline, 0).total[-1]


def test_pytorch_reads_it(pipeline: Pipeline, tmp_path: Path) -> None:
    viewer = pytest.importorskip("torch.cuda._memory_viz", reason="PyTorch is not installed")
    timeline = pipeline(2, 2, layers=1)
    write_memory_snapshot(timeline, 1, tmp_path / "m.pickle")
    data = pickle.loads((tmp_path / "m.pickle").read_bytes())
    actions = [e["action"] for e in data["device_traces"][0]]
    assert viewer.trace(data).count("= a[") == actions.count("alloc") > 1  # b = a[0:18.6GiB]: an allocation in segment a
    assert viewer.trace(data).count("# free completed for") == actions.count("free_completed") > 1
    assert "segment" in viewer.segsum(data).lower()
    assert "<script" in viewer.trace_plot(data)


def test_wrong_rank_and_place(pipeline: Pipeline, tmp_path: Path) -> None:
    timeline = pipeline(2, 2, layers=1)
    with pytest.raises(Malformed, match="rank=2 must be one of 0 to 1"):
        snapshot(timeline, 2)
    with pytest.raises(Malformed, match="cannot be written"):
        write_memory_snapshot(timeline, 0, tmp_path / "none" / "m.pickle")
