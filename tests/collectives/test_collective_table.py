"""Rows of the collective table, sizes and ranks as people write them."""

import pytest

from parasim.collectives.table import busbw_factor, compared, parse_ranks, parse_sizes, rows, spreads
from parasim.cost.profile import datasheet
from parasim.errors import Malformed, Refused
from parasim.topology.loader import load_cluster


def test_all_gather_of_one_gigabyte_in_five_milliseconds():
    """nccl-tests: algbw = S/t = 200 GB/s, busbw = 7/8 of it = 175 GB/s; a port of 175 GB/s moves 7/8 GB in 5 ms."""
    cluster = load_cluster({"accelerator": "h100-sxm", "node": {"devices": 8, "scale_up": {"bandwidth": "175 GB/s"}}}, 8)
    (row,) = rows(cluster, datasheet(), "all_gather", range(8), [10**9])
    assert row == {
        "op": "all_gather",
        "bytes": 10**9,
        "ranks": 8,
        "cluster": "inline",
        "profile": "datasheet",
        "algorithm": "ring",
        "steps": 7,
        "time_s": pytest.approx(5e-3, rel=1e-12),
        "algbw_Bps": pytest.approx(200e9, rel=1e-12),
        "busbw_Bps": pytest.approx(175e9, rel=1e-12),
        "busbw_factor": 0.875,
        "limit_error": pytest.approx(1 / 7, rel=1e-12),
        "larger_over_smaller": 8,
        "wire_bytes_per_rank": pytest.approx(875e6, rel=1e-12),
        "wire_bytes_busiest_rank": pytest.approx(875e6, rel=1e-12),
        "reason": "NCCL gathers around rings, one per rail",
    }


def test_factors_of_nccl_tests():
    assert [busbw_factor(op, 8) for op in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce")] == [
        *(1.75, 0.875, 0.875, 0.875, 1.0, 1.0),
    ]


def test_one_rank_has_no_bandwidth():
    cluster = load_cluster("h100-hgx-ib400", 8)
    (row,) = rows(cluster, datasheet(), "all_reduce", [3], [1024])
    assert (row["time_s"], row["algbw_Bps"], row["busbw_Bps"], row["wire_bytes_per_rank"]) == (0.0, None, None, 0.0)


def test_a_rank_beyond_the_cluster_is_refused():
    with pytest.raises(Refused, match=r"rank-list=8 is beyond the devices of cluster h100-hgx-ib400; 0 to 7"):
        rows(load_cluster("h100-hgx-ib400", 8), datasheet(), "all_reduce", [0, 8], [8])


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("8:128:2", [8, 16, 32, 64, 128]),
        ("1K:1M:32", [1024, 32 * 1024, 1024 * 1024]),  # K, M, G are powers of 1024 in nccl-tests
        ("8:100:10", [8, 80]),
        ("100MB", [100_000_000]),
        ("25 MiB", [25 * 2**20]),
        ("1g", [2**30]),
        ("4096", [4096]),
        ("512:512", [512]),
        ("0", [0]),
        ("1:3:1.5", [1, 2]),  # 1, 1.5, 2.25
    ],
)
def test_sizes(text, sizes):
    assert parse_sizes(text) == sizes


def test_the_range_of_the_manual():
    sizes = parse_sizes("8:16G:2")
    assert (sizes[0], sizes[-1], len(sizes)) == (8, 2**34, 32)  # 2^3 to 2^34


@pytest.mark.parametrize("text", ["", "8:16G:1", "8:16G:x", "8:16:2:2", "16:8:2", "0:8:2", "8:4 us:2", "-8", "8 Q", "1e400"])
def test_malformed_sizes(text):
    with pytest.raises(Malformed, match="bytes"):
        parse_sizes(text)


def test_ranks():
    assert parse_ranks("0-7,16") == [*range(8), 16]
    assert parse_ranks("3") == [3]
    assert parse_ranks(" 4 - 5 , 1") == [4, 5, 1]


@pytest.mark.parametrize("text", ["", "a", "3-1", "0-3,2", "1,,2", "-1", "1.5"])
def test_malformed_ranks(text):
    with pytest.raises(Malformed, match="rank-list"):
        parse_ranks(text)


def test_trees_load_their_inner_ranks_most():
    """Two trees of half the bytes: a rank inside one of them sends up once and down twice, and up once in the other, S/2 each: 2 S, not 2 S 7/8."""
    cluster = load_cluster("h100-hgx-ib400", 8)
    (row,) = rows(cluster, datasheet(), "all_reduce", range(8), [400_000_000], "tree")
    assert (row["wire_bytes_per_rank"], row["wire_bytes_busiest_rank"]) == (pytest.approx(700e6), pytest.approx(800e6))


def test_measured_times_and_comparisons():
    """2 x 3/4 x 400 MB / 1.6 ms = 375 GB/s; a ring of 9 leaves its server by one NIC: 2 (8/9) / 50 against 2 (7/8) / 450."""
    cluster = load_cluster("h100-hgx-ib400", 9)
    (row,) = rows(cluster, datasheet(), "all_reduce", range(4), [400_000_000], measured=1.6e-3)
    assert row["busbw_Bps"] == pytest.approx(375e9)
    table = [r for n in (8, 9) for r in rows(cluster, datasheet(), "all_reduce", range(n), [10**9], "ring")]
    assert [r["over_first"] for r in compared(table)] == [1.0, pytest.approx(9.142857, rel=0.01)]
    assert spreads(table) == [{"bytes": 10**9, "busbw_spread": pytest.approx(8 / 9, rel=0.01)}]
