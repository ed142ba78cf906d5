"""Measured collectives against predictions: rows read, systems found by their words, gates, exit codes; the quick prediction equals the plan's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from parasim.collectives.plan import plan, seconds
from parasim.cost.profile import load_profile
from parasim.errors import Malformed, Unparsable
from parasim.topology.loader import load_cluster
from validation.__main__ import app
from validation.collective_rows import CLASSES, read_measured, size_class, system_of, to_case
from validation.collectives import judge, summaries
from validation.network import RECIPES, ROWS, fit_of, upwards
from validation.network_fit import Fit, Point, predict, simplex
from validation.rows import NotModelled


def written(folder: Path, *rows: dict[str, Any]) -> Path:
    path = folder / "rows.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return path


GOOD = {"system": "HGX H100", "interconnect": "NVLink4", "nodes": 1, "gpus": 8, "op": "all_gather", "dtype": "float", "bytes": 10**9}


def test_fitted_rows_are_within_the_gates() -> None:
    judged, skipped = judge([ROWS])
    assert len(judged) == 690 and not skipped
    tables = summaries(judged)
    assert list(tables["by_size"]) == list(CLASSES)
    assert all(s.passed for table in tables.values() for s in table.values())


def test_a_time_from_a_bandwidth(tmp_path: Path) -> None:
    # algbw 200 GB/s for 1 GB is 5 ms, and so is busbw 175 over 8 ranks (all_gather: 7/8); time comes first
    rows = [GOOD | {"time_us": 5000}, GOOD | {"algbw_gbs": 200}, GOOD | {"busbw_gbs": 175}, GOOD | {"time_us": 5000, "busbw_gbs": 1}]
    assert [row.seconds for row in read_measured(written(tmp_path, *rows))] == pytest.approx([5e-3] * 4)


def test_words_and_numbers_as_people_write_them(tmp_path: Path) -> None:
    names = ["all_gather", "all-gather", "AllGather", "ncclAllGather", "all_gather_perf", "ALLGATHER"]
    rows = [GOOD | {"op": name, "busbw_gbs": 175} for name in names] + [GOOD | {"bytes": "1e9", "time_us": "5000"}]
    judged, skipped = judge([written(tmp_path, *rows)])
    assert not skipped and {(row.collective, row.bytes, row.gpus) for row in judged} == {("all_gather", 10**9, 8)}
    assert [row.measured_s for row in judged] == pytest.approx([5e-3] * 7)
    exchanges, _ = judge([written(tmp_path, *(GOOD | {"op": name, "time_us": 5000} for name in ("alltoallv_perf", "all2all", "AllToAll")))])
    assert {row.collective for row in exchanges} == {"all_to_all"}
    (size,), _ = judge([written(tmp_path, GOOD | {"bytes": "512M", "time_us": 5000})])
    assert size.bytes == 512 * 2**20  # as nccl-tests reads its flags
    unsaid = {key: value for key, value in GOOD.items() if key != "gpus"} | {"nodes": 2, "time_us": 5000}
    (ranks,), _ = judge([written(tmp_path, unsaid | {"system": "AWS p5 (H100 x8)"})])
    assert ranks.gpus == 16 and "number of ranks not given: 8 per server, as its name says" in ranks.assumptions


def test_rows_with_ratios_are_compared_not_scored(tmp_path: Path) -> None:
    rows = [{**GOOD, "nodes": n, "gpus": 8 * n, "op": "all_reduce", "busbw_ratio": r} for n, r in ((2, 1.0), (16, 0.8))]
    judged, _ = judge([written(tmp_path, *rows)])
    assert [row.error for row in judged] == [None, None]
    assert judged[0].predicted_ratio == 1.0 and 0 < (judged[1].predicted_ratio or 0) <= 1
    assert CliRunner().invoke(app, ["collectives", str(tmp_path / "rows.jsonl")]).exit_code == 1  # nothing could be judged


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"op": "hypercube"}, "op 'hypercube' is no collective"),
        ({"op": None}, "op None"),
        ({"bytes": 0}, "bytes 0 is no size"),
        ({"gpus": 1}, "gpus 1 is no number of ranks"),
        ({"gpus": "eight"}, "gpus 'eight' is no number"),
    ],
)
def test_what_cannot_be_predicted(change: dict[str, Any], reason: str, tmp_path: Path) -> None:
    (row,) = read_measured(written(tmp_path, GOOD | {"time_us": 1} | change))
    with pytest.raises(NotModelled, match=reason):
        to_case(row)


@pytest.mark.parametrize(
    ("text", "nodes", "ranks", "profile", "bandwidth"),
    [
        ("ALCF Polaris (A100) | Slingshot-11 x2/node; TCP sockets | setting 1 | 2.18.x", 8, 32, "nccl-slingshot-tcp-2.18", 25e9),
        ("ALCF Polaris (A100) | Slingshot-11 x2/node; libfabric cxi | setting 5: alt_read | 2.21.x", 8, 32, "nccl-slingshot-alt-read-2.21", 25e9),
        ("AWS p4d.24xlarge | EFA v1 4x100G/node | | ", 4, 32, "nccl-efa-v1", 12.5e9),
        ("AWS p5.48xlarge | EFA v2 | | ", 4, 32, "nccl-efa-v2", 50e9),
        ("HGX H100 | NVLink4 + 400G RDMA NIC per GPU | | ", 10, 80, "nccl-h100", 50e9),
        ("DGX A100 | NVLink3, 8x HDR 200 Gb/s | | ", 4, 32, "nccl-a100", 25e9),
        ("DGX A100 | NVLink3, 4x100G RoCE | | ", 4, 32, "nccl-a100", 12.5e9),
        ("two hosts | gloo over 10 GbE | | ", 2, 2, "nccl-slingshot-tcp-2.21", 1.25e9),
        ("| | |", 3, 20, "nccl-a100", 25e9),
    ],
)
def test_systems_are_found_by_their_words(text: str, nodes: int, ranks: int, profile: str, bandwidth: float) -> None:
    cluster, found, _ = system_of(text, nodes, ranks)
    built = load_cluster(cluster, ranks)
    assert found == profile and profile in load_profile(profile).name
    kind = "leaf" if any(link.kind == "leaf" for link in built.links) else "nic"
    assert {link.bandwidth for link in built.links if link.kind == kind} == {bandwidth}


def test_rows_without_a_size(tmp_path: Path) -> None:
    """A time and a bandwidth give the size (5 ms at busbw 175 over 8 ranks, 7/8 for all_gather: 1 GB); a ratio needs none; a bandwidth has none."""
    bare = {k: v for k, v in GOOD.items() if k != "bytes"} | {"bytes": None}
    rows = [bare | {"time_us": 5000, "algbw_gbs": 200}, bare | {"time_us": 5000, "busbw_gbs": 175}, bare | {"busbw_ratio": 0.5}, bare | {"busbw_gbs": 175}]
    *sized, without = read_measured(written(tmp_path, *rows))
    assert [to_case(row).nbytes for row in sized] == [10**9, 10**9, 2**30]
    assert any("without a size" in note for note in to_case(sized[2]).assumptions)
    with pytest.raises(NotModelled, match="bytes None is no size, nor do a time and a bandwidth give one"):
        to_case(without)


def test_broken_files(tmp_path: Path) -> None:
    broken = written(tmp_path, GOOD | {"time_us": 1})
    broken.write_text(broken.read_text() + '\n{"system": ')
    with pytest.raises(Unparsable, match=r"rows.jsonl:2:\d+: is not JSON"):
        list(read_measured(broken))
    with pytest.raises(Malformed, match="cannot be read"):
        list(read_measured(tmp_path / "absent.jsonl"))
    broken.write_text("\n")
    with pytest.raises(Unparsable, match="is empty"):
        list(read_measured(broken))


def test_size_classes() -> None:
    sizes = (65535, 65536, 2**20, 2**24, 2**28, 2**28 + 1)
    assert [size_class(n) for n in sizes] == [*list(CLASSES)[:4], list(CLASSES)[3], list(CLASSES)[4]]


def test_the_command(tmp_path: Path) -> None:
    rows = written(tmp_path, GOOD | {"time_us": 2700}, GOOD | {"op": "hypercube", "time_us": 1})
    out = tmp_path / "out.json"
    done = CliRunner().invoke(app, ["collectives", str(rows), "--json", str(out)])
    assert done.exit_code == 0, done.output
    tree = json.loads(out.read_text())
    (row,) = tree["rows"]
    assert {"line", "system", "op", "bytes", "measured_s", "predicted_s", "error"} <= row.keys()
    assert (row["line"], row["op"], row["measured_s"]) == (1, "all_gather", pytest.approx(2.7e-3))
    assert row["error"] == pytest.approx(row["predicted_s"] / 2.7e-3 - 1)
    assert tree["by_size"]["> 256 MiB"]["n"] == 1 and tree["by_op"].keys() == {"all_gather"} and tree["by_system"].keys() == {"HGX H100"}
    assert tree["refused"][0]["line"] == 2
    assert CliRunner().invoke(app, ["collectives", str(written(tmp_path, GOOD | {"time_us": 1000}))]).exit_code == 1


@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "all_to_all", "reduce_scatter"])
def test_the_quick_prediction_is_that_of_the_plan(op: str) -> None:
    for name, spec, ranks in (("nccl-h100", "h100-hgx-ib400", 16), ("nccl-slingshot-2.18", "polaris-slingshot", 12), ("nccl-h100", "h100-hgx-ib400", 8)):
        cluster, profile = load_cluster(spec, ranks), load_profile(name)
        sizes = [256 * 7**k for k in range(8)]
        planned = [seconds(plan(op, float(s), cluster.devices[:ranks], cluster, profile), cluster, profile) for s in sizes]
        assert predict([Point(op, s, ranks, cluster, 0.0) for s in sizes], profile) == pytest.approx(planned, rel=1e-9)


def test_the_simplex_finds_a_minimum() -> None:
    """(x - 1)^2 + 10 (y + 2)^2 is least at (1, -2)."""
    found = simplex(lambda v: float((v[0] - 1) ** 2 + 10 * (v[1] + 2) ** 2), np.array([3.0, 3.0]), tolerance=1e-12)
    assert found == pytest.approx([1.0, -2.0], abs=1e-3)


def test_a_fit_gives_the_file_that_ships() -> None:
    import yaml

    recipes = yaml.safe_load(RECIPES.read_text(encoding="utf-8"))["profiles"]
    fitted = fit_of("nccl-slingshot-2.18", recipes["nccl-slingshot-2.18"], {}).fitted()
    assert fitted == load_profile("nccl-slingshot-2.18")
    assert all(n.interval is not None and n.interval[0] <= n.value <= n.interval[1] for n in fitted.numbers.values() if n.status == "fitted")


def test_more_is_predicted_from_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hidden at once: of every op its rows on the most servers, and there of most ranks; the fit sees none of them. Between servers all-reduces."""
    import yaml

    recipes = yaml.safe_load(RECIPES.read_text(encoding="utf-8"))["profiles"]
    seen: list[set[tuple[str, int]]] = []
    monkeypatch.setattr(Fit, "fitted", lambda fit: seen.append({(p.op, p.ranks) for p in fit.points}) or fit.profile)
    found = {t.title: {p.ranks for p in t.points} for t in upwards(fit_of("nccl-h100", {**recipes["nccl-h100"], "like": {}}, {}))}
    inside = {f"most ranks: {op}": {8} for op in ("all_gather", "all_reduce", "reduce_scatter", "sendrecv")}
    assert found == inside | {"most ranks: all_to_all": {16}}  # over two servers the recipe leaves sendrecv out
    assert seen.pop() == {(op, 4) for op in ("all_gather", "all_reduce", "reduce_scatter", "sendrecv")} | {("all_to_all", n) for n in (4, 8)}
    (table,) = upwards(fit_of("nccl-slingshot-2.18", recipes["nccl-slingshot-2.18"], {}))
    assert table.title == "crossings: all_reduce" and {p.op for p in table.points} == {"all_reduce"}
    assert seen.pop() == {("all_gather", 8), ("all_to_all", 8)} and not seen
