"""The table of published rows end to end: errors, score, baseline, cache, ledger, plot, exit codes; what the fit starts from and writes."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from parasim.cost.accuracy import accuracies
from parasim.cost.profile import load_profile
from validation import ledger
from validation.__main__ import app
from validation.cache import Cache, Task, answers, task_of
from validation.fit import PROFILES, Problem, Solution, _recipe, cross_validated
from validation.predict import DATA, Fastest, _shortened, prepare
from validation.rows import NotModelled, read_rows, to_case

FIT = DATA / "fit"
RUNNER = CliRunner()


def command(*words: str) -> tuple[int, str]:
    result = RUNNER.invoke(app, list(words))
    return result.exit_code, result.output


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def table(kept: Path, *words: str) -> tuple[int, dict[str, Any]]:
    code, text = command("published", *words, "--json", "-", "--workers", "1", "--cache", str(kept))
    return code, json.loads(text)


def test_table(kept: Path) -> None:
    code, tree = table(kept, str(FIT / "torchtitan.jsonl"), str(FIT / "megatron_bridge.jsonl"))
    assert code == 0 and tree["schema"] == "parasim.published/2" and tree["passed"] is True
    steps = [row for row in tree["rows"] if row["quantity"] == "step_time_s"]
    assert [row["measured"] for row in steps] == [2.8435, 2.4575, 9.0701, 9.3098]
    assert all(row["error"] == pytest.approx(row["predicted"] / row["measured"] - 1) and row["fitted"] for row in steps)
    titan = tree["by_source"]["torchtitan"]
    assert titan["n"] == 2 and titan["refused"] == 0 and titan["median_abs_error"] == pytest.approx(median(abs(r["error"]) for r in steps[:2]))
    assert titan["others"]["reserved_memory_bytes"]["n"] == 2  # torchtitan logs max_reserved_gib
    medians = [s["median_abs_error"] for s in tree["by_source"].values()]
    assert tree["score"] == pytest.approx(sum(medians) / 2)
    code, text = command("published", str(FIT / "torchtitan.jsonl"), "--max-error", "0.0001", "--workers", "1", "--cache", str(kept))
    assert code == 1 and "MISSED" in text and "assumed:" in text


def test_equal_runs_are_simulated_once_and_kept(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = list(read_rows(FIT / "megatron_bridge.jsonl"))
    first, second = (to_case(row) for row in rows)
    assert task_of(first.run, "h100-megatron") == task_of(second.run, "h100-megatron")
    table(kept, str(FIT / "megatron_bridge.jsonl"))
    monkeypatch.setattr("validation.cache.answers", lambda tasks: pytest.fail("simulated again"))
    assert table(kept, str(FIT / "megatron_bridge.jsonl"))[0] == 0
    assert Cache(kept).get(task_of(first.run, "a100-megatron")) is None  # another profile is another run


def test_a_defect_is_a_reason_and_stops_nothing() -> None:
    assert "defect" in answers([Task("{}", "datasheet")])[0]["refused"]


def test_a_judged_scoring_is_entered_before_a_row_is_shown(tmp_path: Path, kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    book = tmp_path / "LEDGER.md"
    monkeypatch.setattr(ledger.enter, "__defaults__", (book, ""))
    rows = tmp_path / "validation" / "torchtitan.jsonl"
    rows.parent.mkdir()
    rows.write_text((FIT / "torchtitan.jsonl").read_text())
    assert ledger.is_judge(rows) and not ledger.is_judge(FIT / "torchtitan.jsonl")
    assert table(kept, str(FIT / "torchtitan.jsonl"))[0] == 0 and not book.exists()
    assert table(kept, str(rows))[0] == 0
    lines = book.read_text().splitlines()
    assert lines[0] == "# Ledger" and lines[-1].count("|") == 6 and "torchtitan" in lines[-1]
    book.unlink()
    book.mkdir()  # cannot be written
    code, text = command("published", str(rows), "--workers", "1", "--cache", str(kept))
    assert code != 0 and "torchtitan-0000" not in text


def test_nothing_to_judge_is_not_a_success(tmp_path: Path, kept: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"model": {"layers": 2}}\n')
    code, tree = table(kept, str(tmp_path / "rows.jsonl"))
    assert code == 1 and tree["score"] is None and tree["rows"][0]["refused"] == "lacks cluster, strategy, measured"


def test_many_microbatches_from_two_shorter_steps() -> None:
    """The steady state of a pipeline repeats: the time from two shorter steps is that of the whole one."""
    row = next(read_rows(FIT / "vtrain_single.jsonl"))
    pipeline = {"tp": 1, "pp": 2, "dp": 1, "schedule": "1f1b", "micro_batch": 1, "global_batch": 33}
    run = to_case(row | {"strategy": row["strategy"] | pipeline, "cluster": row["cluster"] | {"devices": 2}}).run
    short, more = _shortened(run)
    assert [tree["batch"]["global"] for tree in short] == [5, 7] and more == 13  # 5 + (1 + 13) 2 = 33
    profile = load_profile("a100-megatron")
    assert prepare(run).values(profile)["step_time_s"] == pytest.approx(_whole(run, profile), rel=1e-9)


def test_of_microbatches_that_are_not_published_the_fastest_that_fits() -> None:
    row = next(read_rows(FIT / "vtrain_single.jsonl"))
    run = to_case(row | {"strategy": row["strategy"] | {"tp": 1, "pp": 1, "dp": 1, "global_batch": 4}, "cluster": row["cluster"] | {"devices": 1}}).run
    profile = load_profile("a100-megatron")

    def values(micro: Any, **more: Any) -> dict[str, float]:
        return prepare({**run, **more, "batch": {**run["batch"], "micro": micro}}).values(profile)

    alone = {n: values(n) for n in (1, 2, 4)}
    fastest = min(alone, key=lambda n: alone[n]["step_time_s"])
    assert fastest > 1 and values([1, 2, 4]) == alone[fastest]
    with pytest.raises(NotModelled, match="micro"):
        values([3, 8])


def test_what_does_not_fit_is_not_the_fastest() -> None:
    class Fixed:
        def __init__(self, step: float, peak: float) -> None:
            self.found, self.capacity = {"step_time_s": step, "peak_memory_bytes": peak}, 80e9

        def values(self, profile: Any, by: Any) -> dict[str, float]:
            return self.found

    profile = load_profile("a100-megatron")
    runs: Any = (Fixed(3.0, 40e9), Fixed(2.0, 70e9), Fixed(1.0, 90e9))
    assert Fastest(runs).values(profile)["step_time_s"] == 2.0
    assert Fastest(runs[2:]).values(profile)["step_time_s"] == 1.0  # nothing fits: what there is


def _whole(run: Any, profile: Any) -> float:
    from parasim.config import build
    from parasim.lowering import lower
    from parasim.report import summarize
    from parasim.sim import simulate

    loaded = build(dict(run))
    return summarize(simulate(lower(loaded.plan), loaded.cluster, profile), loaded).step_time


def test_picture(tmp_path: Path, kept: Path) -> None:
    out = tmp_path / "parity.png"
    command("published", str(FIT / "torchtitan.jsonl"), "--plot", str(out), "--workers", "1", "--cache", str(kept))
    assert out.read_bytes()[:4] == b"\x89PNG"


def test_few_numbers_are_fitted_and_all_have_a_source() -> None:
    recipe = _recipe()
    for entries, most in ((recipe["bases"], 12), (recipe["profiles"], 6)):
        for name, entry in entries.items():
            assert len(entry["fitted"]) + len(entry.get("numbers", {})) <= most, name
            profile = load_profile(name)
            assert {key for key in entry["fitted"] if profile.numbers[key].status != "fitted"} == set()
            assert {key for key in entry.get("numbers", {}) if key not in profile.numbers} == set()
    names = ["nvidia", *recipe["bases"], *recipe["profiles"]]
    own = [n for name in names for n in yaml.safe_load((PROFILES / f"{name}.yaml").read_text())["numbers"].values()]
    assert len([n for n in own if n["status"] != "datasheet"]) <= 40
    assert all(a.rows > 0 and 0 <= a.median <= a.p90 for a in accuracies()) and accuracies()


def test_cross_validation_leaves_a_layout_out() -> None:
    """One number, two layouts that pull it apart: each is predicted by the other. Residuals r = theta - y with y = 0 and 0.1, flat prior."""
    rows = {row["id"]: row for row in read_rows(FIT / "korthikanti_2022.jsonl")}
    case = to_case(rows["korthikanti_2022-0000"])
    other = to_case(rows["korthikanti_2022-0000"] | {"id": "other-0000"})
    from validation.fit import Point

    points = (Point(case, "step_time_s", 1.0), Point(other, "step_time_s", 1.0))
    problem = Problem("a100", ("a100/x",), np.zeros(1), np.full(1, 1e6), points)
    solution = Solution(np.zeros(1), np.array([0.0, -0.1]), np.ones((2, 1)))
    assert cross_validated(problem, solution) == pytest.approx([0.1, -0.1], abs=1e-6)
