"""Traces of torch.profiler: the shortest kernel of a call is its work, the rest of the others is waiting."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from parasim.cost.kineto import read
from parasim.errors import Malformed, ParasimError, Refused, Unparsable

FIELDS = {"Collective name": "allreduce", "In msg nelems": 1024, "Out msg nelems": 1024, "dtype": "Float", "Group size": 2}
GROUP = {"Process Group Name": "0", "Process Group Ranks": "[0, 1]"}


def kernel(ts: float, dur: float, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "ts": ts, "dur": dur, "args": {**FIELDS, **GROUP, **args}}


def trace(folder: Path, rank: int, events: list[dict[str, Any]]) -> Path:
    path = folder / f"rank{rank}.json"
    path.write_text(json.dumps({"distributedInfo": {"backend": "nccl", "rank": rank, "world_size": 2}, "traceEvents": events}))
    return path


def test_the_shortest_kernel_is_the_work(tmp_path: Path) -> None:
    # call 1: rank 0 comes 70 us early and waits; call 2: rank 1 waits 20 us; work 30 us and 40 us, median 35 us
    files = [trace(tmp_path, 0, [kernel(0, 100), kernel(200, 40)]), trace(tmp_path, 1, [kernel(70, 30), kernel(180, 60)])]
    traces = read(files)
    assert [round(c.seconds * 1e6) for c in traces.calls] == [30, 40]
    assert [round(c.skew * 1e6) for c in traces.calls] == [70, 20] and all(c.complete for c in traces.calls)
    (sample,) = traces.samples()
    assert (sample.op, sample.nbytes, sample.ranks) == ("all_reduce", 4096, 2)  # 1024 elements of 4 bytes
    assert sample.seconds == pytest.approx(35e-6)
    assert "70.0us" in str(traces)


def test_sequence_numbers_match_calls_that_one_rank_lacks(tmp_path: Path) -> None:
    files = [trace(tmp_path, 0, [kernel(0, 90, Seq=1), kernel(100, 50, Seq=2)]), trace(tmp_path, 1, [kernel(100, 30, Seq=2)])]
    calls = read(files).calls
    assert [(len(c.waits), round(c.seconds * 1e6), c.complete) for c in calls] == [(1, 90, False), (2, 30, True)]
    assert read(files).samples()[0].seconds == pytest.approx(30e-6)  # a call whose other ranks are not there says less


def test_the_larger_buffer_counts(tmp_path: Path) -> None:
    gather = {"Collective name": "_allgather_base", "In msg nelems": 512, "Out msg nelems": 1024, "dtype": "BFloat16"}
    (sample,) = read([trace(tmp_path, 0, [kernel(0, 10, **gather)])]).samples()
    assert (sample.op, sample.nbytes) == ("all_gather", 2048)


def test_fields_of_the_host_event(tmp_path: Path) -> None:
    """Older traces note them at record_param_comms only; External id joins the two."""
    bare = {"ph": "X", "cat": "kernel", "name": "ncclKernel_AllReduce", "ts": 10, "dur": 5, "args": {"External id": 7}}
    host = {"ph": "X", "cat": "cpu_op", "name": "record_param_comms", "ts": 1, "dur": 2, "args": {"External id": 7, **FIELDS, **GROUP}}
    assert read([trace(tmp_path, 0, [host, bare])]).samples()[0].seconds == pytest.approx(5e-6)


def test_unknown_kernels_are_counted(tmp_path: Path) -> None:
    files = [trace(tmp_path, 0, [kernel(0, 10), kernel(20, 5, **{"Collective name": "send"}), kernel(30, 5, dtype="Complex")])]
    assert read(files).unknown == {"send": 1, "allreduce": 1}


def test_compressed_and_cut_files(tmp_path: Path) -> None:
    plain = trace(tmp_path, 0, [kernel(0, 10)]).read_bytes()
    packed = tmp_path / "rank0.json.gz"
    packed.write_bytes(gzip.compress(plain))
    assert len(read([packed]).calls) == 1
    cases: list[tuple[bytes, type[ParasimError], str]] = [
        (plain[:-20], Unparsable, r"cut.json:1:\d+: is not JSON"),
        (gzip.compress(plain)[:-20], Unparsable, "is not whole gzip"),
        (b"{}", Unparsable, "holds no traceEvents"),
        (b'{"traceEvents": []}', Refused, "no NCCL kernel"),
    ]
    for content, error, message in cases:
        cut = tmp_path / "cut.json"
        cut.write_bytes(content)
        with pytest.raises(error, match=message):
            read([cut])
    with pytest.raises(Malformed, match="cannot be read"):
        read([tmp_path / "absent.json"])
    with pytest.raises(Refused, match="is a trace of rank 0, and so is"):
        read([packed, packed])
