"""What a page holds: numbers that are those of the timeline, text that stays text."""

from __future__ import annotations

import json
import re
import zlib
from base64 import b64decode, b64encode
from collections.abc import Callable
from dataclasses import fields, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import parasim as ps
from parasim.errors import Refused
from parasim.html import Side, page, side_of
from parasim.memory import memory_peaks
from parasim.program.ops import CATEGORIES
from parasim.report.labels import op_names
from parasim.timeline import Timeline

from ..conftest import Cli
from ..plots.conftest import pipeline as pipeline
from .conftest import HOSTILE

FIELDS = [f.name for f in fields(Timeline)]
Columns = dict[str, np.ndarray]
DATA = re.compile(r'<script type="application/json" id="data">(.*?)</script>', re.DOTALL)


def data_of(text: str) -> dict[str, Any]:
    return json.loads(DATA.search(text)[1])


def columns_of(side: dict[str, Any]) -> Columns:
    block = zlib.decompress(b64decode(side["columns"]["data"]))
    return {name: np.frombuffer(block, f"<{dtype}", n, at) for name, (dtype, at, n) in side["columns"]["where"].items()}


def seconds(side: dict[str, Any], columns: Columns, name: str, low: int, high: int) -> tuple[np.ndarray, np.ndarray]:
    """Starts and ends of one lane, put together as columns.js does."""
    gap, length = (columns[f"{name}_{part}"][low:high].astype(np.int64) for part in ("gap", "seconds"))
    end = np.cumsum(gap + length)
    return (end - length) * side["tick"], end * side["tick"]


@pytest.fixture(scope="module")
def side(before: ps.Result) -> dict[str, Any]:
    return data_of(page(before.side))["sides"][0]


def test_every_op_is_there_with_its_times(before: ps.Result, side: dict[str, Any]) -> None:
    columns, t = columns_of(side), before.timeline
    shown = 0
    for rank in side["ranks"]:
        found = []
        for _, low, high in rank["lanes"]:
            start, end = seconds(side, columns, "op", low, high)
            assert (start[1:] >= end[:-1]).all()  # bars of a lane never overlap
            found += list(zip(start, end, strict=True))
            shown += high - low
        ops = t.of(rank["rank"])
        # whole nanoseconds: each end is off by half of one, twice where it is rounded up to the end before
        assert np.array(sorted(found)) == pytest.approx(np.array(sorted(zip(ops["start"], ops["end"], strict=True))), abs=1.01e-9)
    assert shown == len(t.ops) == len(columns["op_key"])
    assert sum(rank["count"] for rank in side["ranks"]) == 8


def test_ops_have_their_name_bytes_links_and_kernels(before: ps.Result, side: dict[str, Any]) -> None:
    columns, t = columns_of(side), before.timeline
    _, low, high = side["ranks"][0]["lanes"][0]
    names, rows = op_names(t), np.flatnonzero((t.ops["rank"] == 0) & (t.ops["stream"] == t.streams.index("compute")))
    for i, row in zip(range(low, high), rows.tolist(), strict=True):
        kind, phase, axis, stage, layer, detail = side["keys"][columns["op_key"][i]]
        op = t.ops[row]
        assert (kind, side["phases"][phase], axis, stage, layer) == (op["kind"], t.phases[op["phase"]], op["axis"], op["stage"], op["layer"])
        assert columns["op_microbatch"][i] == op["microbatch"] and side["sizes"][columns["op_size"][i]] == op["bytes"]
        flows = t.flows[t.flows["op"] == row]
        assert sorted(side["link_lists"][columns["op_links"][i]]) == sorted([link, nbytes] for link, nbytes in flows[["link", "bytes"]].tolist())
        if "tp" in names[row]:
            assert side["details"][detail].split()[1] == "tp," and side["details"][detail].endswith(" 2 ranks")


def test_dependencies_are_those_of_the_timeline(before: ps.Result, side: dict[str, Any]) -> None:
    columns, t = columns_of(side), before.timeline
    a, b = (np.cumsum(columns[f"edge_{end}"].astype(np.int64)) % 2**32 for end in "ab")
    assert len(a) == len(t.edges) > 10
    start, end = np.concatenate([seconds(side, columns, "op", low, high) for rank in side["ranks"] for _, low, high in rank["lanes"]], axis=1)
    assert (start[a] >= end[b] - 1e-9).all()
    sent, received = (np.cumsum(columns[f"partner_{end}"].astype(np.int64)) % 2**32 for end in "ab")
    # 8 microbatches go down and up between two stages
    assert len(sent) == 16
    assert start[sent] == pytest.approx(start[received]) and end[sent] == pytest.approx(end[received])


def test_memory_keeps_its_peak(before: ps.Result, side: dict[str, Any]) -> None:
    columns = columns_of(side)
    held = np.stack([np.cumsum(columns[f"memory_{i}"].astype(np.int64)) % 2**32 for i in range(len(CATEGORIES))])
    for rank in side["ranks"]:
        low, high = rank["memories"]
        assert held[:, low:high].sum(axis=0).max() * side["bytes_tick"] == pytest.approx(memory_peaks(before.timeline)[rank["rank"]].nbytes, rel=1e-6)


def test_layout_has_coordinates_servers_and_the_network(before: ps.Result, side: dict[str, Any]) -> None:
    columns, layout = columns_of(side), side["layout"]
    assert layout["axes"] == ["tp", "dp", "pp"]
    assert columns["at_tp"].tolist() == [0, 1] * 4 and columns["at_pp"].tolist() == [0] * 4 + [1] * 4
    assert layout["servers"] == ["node0"] and columns["server"].tolist() == [0] * 8
    assert sorted(box[6] for box in layout["network"]["boxes"] if box[6] >= 0) == list(range(8))


def test_the_comparison_has_every_number_twice(before: ps.Result, after: ps.Result) -> None:
    data = data_of(page(before.side, after.side))
    rows = {name: values for name, _, *values in data["comparison"]["rows"]}
    assert [s["called"] for s in data["sides"]] == ["before", "after"]
    assert rows["step time"] == [before.report.step_time, after.report.step_time]
    assert rows["compute"] == pytest.approx([before.report.times.compute, after.report.times.compute])
    assert rows["bytes sent, dp"] == pytest.approx([before.report.comm_bytes["dp"]] * 2)
    assert data["comparison"]["ops"] is None and "different programs" in data["comparison"]["why"]


def test_one_program_is_compared_op_by_op(before: ps.Result) -> None:
    slow = ps.simulate_run(ps.vary(before.run, ["perturb=[{rank: 0, slowdown: 2}]"]))
    measured = replace(slow.side, timeline=slow.timeline.with_meta(source="measured"))
    data = data_of(page(before.side, measured))
    assert [s["called"] for s in data["sides"]] == ["predicted", "measured"]
    assert data["comparison"]["ops"]["step_error"] == pytest.approx(before.report.step_time / slow.report.step_time - 1)


def test_text_stays_text(before: ps.Result) -> None:
    text = page(replace(before.side, name=HOSTILE))
    assert data_of(text)["sides"][0]["name"] == HOSTILE
    assert data_of(text)["sides"][0]["report"]["provenance"]["model"] == HOSTILE
    body = DATA.search(text)[1]
    assert not set("<>&") & set(body) and body.isascii()
    assert text.count("<script") == 2 and text.count("</script>") == 2 and text.count("<title>") == text.count("</title>") == 1
    assert "<img" not in text


def test_the_page_names_what_may_run_and_fetches_nothing(before: ps.Result) -> None:
    text = page(before.side)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)[1]
    script, style = re.findall(r"<script>(.*?)</script>", text, re.DOTALL), re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
    assert len(script) == len(style) == 1
    for what, source in (("script", script[0]), ("style", style[0])):
        assert f"{what}-src 'sha256-{b64encode(sha256(source.encode()).digest()).decode()}'" in policy
    assert policy.startswith("default-src 'none'")
    assert set(re.findall(r"https?://[^\s\"')]+", text)) == {"http://www.w3.org/2000/svg"}


def test_ranks_that_stand_for_many_keep_their_number(pipeline: Callable[..., Timeline]) -> None:
    t = pipeline(4, 8)
    folded = Timeline(**{name: getattr(t, name) for name in FIELDS} | {"representative": np.repeat(np.arange(4), 4096)})
    side = data_of(page(Side("folded", folded)))["sides"][0]
    assert [(r["rank"], r["count"], r["members"]) for r in side["ranks"]][:2] == [(0, 4096, "0-4095"), (1, 4096, "4096-8191")]
    assert (side["world"], side["kept"]) == (16384, 4)


def test_more_ops_than_a_page_holds_leave_out_ranks_not_stages(pipeline: Callable[..., Timeline], monkeypatch: pytest.MonkeyPatch) -> None:
    t = pipeline(3, 4)
    monkeypatch.setattr("parasim.html.side.MOST_OPS", 1)
    assert Side("small", t).shown == [0]
    monkeypatch.setattr("parasim.html.side.MOST_OPS", len(t.ops))
    assert Side("all", t).shown == [0, 1, 2]


def test_a_timeline_finds_the_report_beside_it(before: ps.Result, tmp_path: Path) -> None:
    before.timeline.save(tmp_path / "timeline.npz")
    assert side_of(tmp_path / "timeline.npz").report is None
    (tmp_path / "report.json").write_text(json.dumps(before.report.to_json()))
    found = side_of(tmp_path / "timeline.npz")
    assert found.report is not None and found.name == before.report.name
    for wrong in ({"step_time_s": 1.0}, {"world_size": 9}, {"schema": "x"}, {"name": 3}):
        (tmp_path / "report.json").write_text(json.dumps(before.report.to_json() | wrong))
        assert side_of(tmp_path / "timeline.npz").report is None
    (tmp_path / "report.json").write_text("{")
    assert side_of(tmp_path / "timeline.npz").report is None


def test_report_writes_a_page(cli: Cli, before: ps.Result, tmp_path: Path) -> None:
    before.timeline.save(tmp_path / "a.npz")
    run = tmp_path / "run.yaml"
    run.write_text("model: {kind: mlp, layers: 4, hidden: 64, ffn: 64}\ncluster: loopback\ndevices: 2\nbatch: {global: 8, micro: 1}\nparallel: {pp: 2}\n")
    answer = cli("report", str(run), "--variant", "pipeline.schedule=gpipe", "--html", str(tmp_path / "new" / "x.html"))
    assert (answer.code, answer.out) == (0, f"wrote {tmp_path / 'new' / 'x.html'}\n")
    assert [s["name"] for s in data_of((tmp_path / "new" / "x.html").read_text())["sides"]] == ["run", "run, pipeline.schedule=gpipe"]
    assert cli("report", str(tmp_path / "a.npz"), str(run), "--html", str(tmp_path / "y.html")).code == 0
    for arguments, code, words in (
        ((str(tmp_path / "a.npz"), "--html", str(tmp_path / "x.png")), 2, "must be .html"),
        ((str(tmp_path / "a.npz"), "--html", str(tmp_path / "x.html"), "--set", "devices=3"), 2, "change run files"),
        ((str(tmp_path / "none.npz"), "--html", str(tmp_path / "x.html")), 2, "no such file"),
        ((str(run), str(run), "--variant", "devices=4", "--html", str(tmp_path / "x.html")), 2, "not both"),
        ((str(run), "--html", "/dev/null/x.html"), 2, "cannot write there"),
    ):
        answer = cli("report", *arguments)
        assert answer.code == code and words in answer.err


def test_a_timeline_without_ops_is_refused(pipeline: Callable[..., Timeline]) -> None:
    t = pipeline(2, 2)
    empty = Timeline(**{name: getattr(t, name) for name in FIELDS} | {"ops": t.ops[:0], "edges": t.edges[:0]})
    with pytest.raises(Refused, match="holds no op"):
        page(Side("empty", empty))
