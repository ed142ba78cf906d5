"""The model without one mechanism and with nothing fitted: what each takes away, which rows are asked, what is written and entered."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from parasim.cost.profile import LEGAL, catalog, load_profile
from parasim.errors import ParasimError
from parasim.sim.clock import Clock
from parasim.sim.network import Network
from validation import ledger
from validation.__main__ import app
from validation.ablation import sampled
from validation.cache import Cache, predicted, task_of
from validation.predict import DATA
from validation.rows import read_rows, to_case
from validation.variants import ABLATIONS, AS_IT_IS, NOTHING_FITTED, VARIANTS, Alone, nothing_fitted

FIT = DATA / "fit"


def test_a_sample_is_spread_over_every_source() -> None:
    rows = [{"id": f"one-{i:04}"} for i in range(7)] + [{"id": "two-0000"}]
    assert [row["id"] for row in sampled(rows, 3)] == ["one-0000", "one-0002", "one-0004", "two-0000"]  # places 7 i / 3
    assert sampled(rows, 10) == rows


def test_with_nothing_fitted_every_number_is_neutral() -> None:
    """Of datasheets the profiles hold what memory reaches by the vendor's guide: else the values of KEYS are left, rates whole and overheads none."""
    for profile in catalog().values():
        bare = nothing_fitted(profile)
        assert set(bare.numbers) <= {"compute.memory_efficiency"} and bare.algorithms == profile.algorithms and bare.backend == profile.backend
    ratios = {key: k.default for key, k in LEGAL.items() if "efficiency" in key or "factor" in key or key == "compute.memory_passes"}
    assert set(ratios.values()) == {1.0} and all(k.default == 0 for key, k in LEGAL.items() if key not in ratios)


def test_every_ablation_takes_something_away() -> None:
    """From the profile, the run or the replay; those of the profile from one that is shipped."""
    run = {"pipeline": {"schedule": "1f1b", "comm": "blocking"}, "model": {"vocab": 51200, "layers": 2}}
    for name in ABLATIONS:
        variant = VARIANTS[name]
        profiles = [p for p in catalog().values() if variant.profile(p) != p]
        assert profiles or variant.run(run) != run or variant.simulate is not VARIANTS[AS_IT_IS].simulate, name
    assert VARIANTS["sends"].run(run)["pipeline"] == {"schedule": "1f1b", "comm": "async"}
    assert VARIANTS["vocabulary"].run(run)["model"] == {"vocab": 128, "layers": 2}
    host = VARIANTS["host"].profile(load_profile("h100-nanotron"))
    assert not any(host.get(f"compute.host_launch{more}") for more in ("", "_shared", "_between")) and host.get("compute.kernel_launch") > 0


@pytest.mark.parametrize(("network", "ends"), [(Network, [2.0, 3.0]), (Alone, [1.0, 2.0])])
def test_alone_nothing_shares_a_link(network: type[Network], ends: list[float]) -> None:
    """A link of 10 B/s, 10 and 20 bytes at once. Shared 5 B/s each until 2 s, then the rest of 10 bytes alone; else 1 s and 2 s."""
    clock, done = Clock(), []
    net = network(clock, [10.0])
    path = net.path({0: 1.0})
    for nbytes in (10.0, 20.0):
        net.start(0.0, nbytes, path, lambda _: done.append(clock.now), None)
    clock.run()
    assert done == pytest.approx(ends)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ablations")


def test_a_mechanism_less_is_faster(kept: Path) -> None:
    """What a variant takes away costs time: without it no step of a tensor-parallel row takes longer."""
    case = to_case(next(read_rows(FIT / "megatron_bridge.jsonl")))
    costs = ("tiles", "starts", "passes", "launch", "slow-down", "latencies", NOTHING_FITTED)
    tasks = {name: task_of(case.run, case.profile, name) for name in (AS_IT_IS, *costs)}
    answers = predicted(tasks.values(), Cache(kept), 1)
    step = {name: answers[task]["values"]["step_time_s"] for name, task in tasks.items()}
    assert all(step[name] < step[AS_IT_IS] for name in costs) and min(step, key=lambda name: step[name]) == NOTHING_FITTED


def test_table_ledger_and_page(tmp_path: Path, kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    book = tmp_path / "LEDGER.md"
    monkeypatch.setattr(ledger.enter, "__defaults__", (book, ""))
    rows = tmp_path / "validation" / "vtrain_single.jsonl"
    rows.parent.mkdir()
    rows.write_text("".join((FIT / "vtrain_single.jsonl").read_text().splitlines(keepends=True)[:2]))
    common = ("--workers", "1", "--cache", str(kept))
    done = CliRunner().invoke(app, ["ablation", str(rows), "--sample", "1", "--json", str(tmp_path / "a.json"), *common])
    assert done.exit_code == 0, done.output
    tree = json.loads((tmp_path / "a.json").read_text())
    assert tree["sample"] == 1 and set(tree["without"]) == {AS_IT_IS, *ABLATIONS}
    assert tree[NOTHING_FITTED]["by_source"]["vtrain_single"]["n"] == 2  # all rows
    assert all(t["by_source"]["vtrain_single"]["n"] == 1 and t["refused"] == 0 for t in tree["without"].values())
    assert f"| {NOTHING_FITTED}: vtrain_single.jsonl | {tree[NOTHING_FITTED]['score']:.4f} |" in book.read_text()
    assert CliRunner().invoke(app, ["published", str(rows), "--json", str(tmp_path / "t.json"), "--quiet", *common]).exit_code == 0
    page = CliRunner().invoke(app, ["errors", str(tmp_path / "t.json"), "--ablation", str(tmp_path / "a.json")]).output
    bare = tree[NOTHING_FITTED]["by_source"]["vtrain_single"]["median_abs_error"]
    assert f"| {bare:.1%} |\n" in page and "## Without one mechanism" in page and "| contention | transfers share links |" in page
    wrong = CliRunner().invoke(app, ["errors", str(tmp_path / "t.json"), "--ablation", str(tmp_path / "t.json")]).exception
    assert isinstance(wrong, ParasimError) and wrong.exit_code == 3
