"""Logs of nccl-tests: documented forms (src/util.cu and src/common.cu of NVIDIA/nccl-tests), noise around them, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from parasim.cost.nccl_tests import OPS, Log, Row, element_count, parse, read, render
from parasim.cost.samples import Sample
from parasim.errors import Malformed, Unparsable

ROWS = Path(__file__).parents[2] / "validation" / "data" / "fit" / "collectives.jsonl"
HEAD = """# Collective test starting: all_reduce_perf
# nThread 1 nGpus 1 minBytes 8 maxBytes 16 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1 graph: 0
#
# Using devices
#  Rank  0 Group  0 Pid   6899 on    nodeA device  0 [0000:04:00] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid   6900 on    nodeB device  0 [0000:05:00] NVIDIA H100 80GB HBM3
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
"""
LINES = """           8             2     float     sum      -1    32.13    0.00    0.00      0    31.61    0.00    0.00      0
        1024           256     float     sum      -1    1.2e+06    0.03    0.06      0      N/A     N/A     N/A    N/A
"""
FOOT = "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 0.0312\n#\n"


def test_the_documented_form() -> None:
    (log,) = parse(HEAD + LINES + FOOT, "x.log")
    assert (log.op, log.ranks, log.nodes, log.device) == ("all_reduce", 2, 2, "NVIDIA H100 80GB HBM3")
    first, second = log.rows
    assert (first.nbytes, first.elements, first.dtype, first.at) == (8, 2, "float", "x.log:11")
    assert first.out_of_place == pytest.approx(32.13e-6, rel=1e-12) and first.in_place == pytest.approx(31.61e-6, rel=1e-12)
    assert second.out_of_place == pytest.approx(1.2, rel=1e-12) and second.in_place is None
    assert [s.seconds for s in log.samples()] == [first.out_of_place, second.out_of_place]


@pytest.mark.parametrize("prefix", ["[1,0]<stdout>:", "[1,0]<stdout>: ", "0: "])
def test_prefixes_and_information_lines(prefix: str) -> None:
    text = (HEAD + LINES + FOOT).splitlines()
    noise = "nodeA:6899:6899 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>"
    mixed = "\n".join(
        line for wanted in text for line in (prefix + noise, prefix + wanted, f"{prefix}nodeA:6899:7001 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0]")
    )
    (log,) = parse(mixed, "x.log")
    assert [row.nbytes for row in log.rows] == [8, 1024] and log.ranks == 2


def test_the_oldest_form_has_an_op_and_no_root() -> None:
    """NCCL 1's tests: bytes, N, type, op; the command names the test."""
    text = """./build/all_gather_perf -b 32K -g 2
# nThread 1 nGpus 2 minBytes 32768
#      bytes             N    type      op     time  algbw  busbw      res     time  algbw  busbw      res
       32768          8192   float    sum    13.39   2.45   1.22    0e+00    12.80   2.56   1.28    0e+00
"""
    (log,) = parse(text, "old.txt")
    assert (log.op, log.ranks, log.nodes) == ("all_gather", 2, 0)
    assert log.rows[0].out_of_place == pytest.approx(13.39e-6) and log.rows[0].in_place == pytest.approx(12.8e-6)


def test_several_tests_in_one_file() -> None:
    second = (HEAD + LINES).replace("all_reduce_perf", "alltoall_perf")
    assert [log.op for log in parse(HEAD + LINES + FOOT + second, "x.log")] == ["all_reduce", "all_to_all"]


def test_the_name_of_the_file_names_the_test(tmp_path: Path) -> None:
    path = tmp_path / "reduce_scatter_output.dat.1"
    path.write_text((HEAD + LINES).split("\n", 1)[1])
    assert read(path)[0].op == "reduce_scatter"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "x.log:1: is empty"),
        ("hello\nworld\n", "x.log:2: ends without a row"),
        (HEAD, "x.log:10: ends without a row"),
        (HEAD + LINES[:60], r"x.log:11:61: the row is cut off after 6 columns of 13"),
        (HEAD + LINES[:95], r"x.log:11:94: the row is cut off after 10 columns of 13"),
        (HEAD + LINES.replace("32.13", "host:12"), r"x.log:11:57: 'host:12' is no number in the row"),
        ((HEAD + LINES).split("\n", 1)[1], r"x.log:10: a row of an unnamed test"),
        ("\n".join(line for line in (HEAD + LINES).splitlines() if "Rank" not in line), r"x.log:9: a table without the number of its ranks"),
        ('{"config": {"nthreads": 1', "x.log:1:26: is not JSON"),
        ('{"config": {}}', "holds no results"),
    ],
)
def test_what_is_refused_names_its_line(text: str, message: str) -> None:
    with pytest.raises(Unparsable, match=message):
        parse(text, "x.log")


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(Malformed, match="cannot be read"):
        read(tmp_path / "absent.log")


def test_the_json_report() -> None:
    """-J writes config.devices and results; a block that was not run is null, nwrong may be null."""
    devices = [{"rank": i, "hostname": "nodeA", "device_info": "NVIDIA H100"} for i in range(8)]
    block = {"time": 5000.0, "alg_bw": 200.0, "bus_bw": 175.0, "nwrong": None}
    row = {"size": 1000000000, "count": 31250000, "type": "float", "redop": "none", "root": "    -1", "out_of_place": block, "in_place": None}
    tree = {"version": 1, "args": ["/opt/all_gather_perf", "-b", "1G"], "config": {"nthreads": 1, "ngpus": 1, "devices": devices}, "results": [row]}
    (log,) = parse(json.dumps(tree), "x.json")
    (sample,) = log.samples()
    # 1 GB in 5 ms is 200 GB/s; busbw = 200 x 7/8 (nccl-tests, doc/PERFORMANCE.md)
    assert (sample.op, sample.ranks, sample.seconds) == ("all_gather", 8, pytest.approx(5e-3))
    assert sample.algbw == pytest.approx(200e9) and sample.busbw == pytest.approx(175e9)
    with pytest.raises(Unparsable, match=r"x\.json:1:\d+: results\[0\] lacks size or time"):
        parse(json.dumps(tree | {"results": [{"out_of_place": block}]}), "x.json")


def test_published_rows_survive_a_round_trip() -> None:
    """Every measured row, written as nccl-tests print it and read again."""
    groups: dict[tuple[str, int, int], Log] = {}
    for line in ROWS.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        log = Log(OPS[row["op"]], {i: f"node{i * row['nodes'] // row['gpus']}" for i in range(row["gpus"])})
        log = groups.setdefault((row["op"], row["gpus"], row["nodes"]), log)
        dtype = row.get("dtype") or "float"
        log.rows.append(Row(row["bytes"], element_count(row["bytes"], dtype), dtype, row["time_us"] * 1e-6, None, ""))
    for log in groups.values():
        (again,) = parse(render(log), "round.log")
        assert (again.op, again.ranks, again.nodes) == (log.op, log.ranks, log.nodes)
        assert [(r.nbytes, r.elements, r.dtype) for r in again.rows] == [(r.nbytes, r.elements, r.dtype) for r in log.rows]
        assert [r.out_of_place for r in again.rows] == pytest.approx([r.out_of_place for r in log.rows], rel=1e-9)
    assert sum(len(log.rows) for log in groups.values()) == 690


def test_bus_bandwidths() -> None:
    """Factors of doc/PERFORMANCE.md for n = 4: 2(n-1)/n, (n-1)/n, 1."""
    sizes = {op: Sample(op, 400, 4, 1, 1.0, "").busbw for op in ("all_reduce", "reduce_scatter", "broadcast")}
    assert sizes == {"all_reduce": 600.0, "reduce_scatter": 300.0, "broadcast": 400.0}
