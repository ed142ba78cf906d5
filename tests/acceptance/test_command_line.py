"""The contracts of the command line: what it prints, what it writes, how it refuses."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from parasim.api import RESULTS, load, simulate_run, write_results
from parasim.cli import main
from parasim.plots.artist import Artist
from parasim.timeline import Timeline

from ..conftest import Cli
from ..contract import REPORT_KEYS

ROOT = Path(__file__).parent.parent.parent
FIXED = """
model: {kind: fixed, layers: 8, forward: 10 ms, input_grad: 10 ms, weight_grad: 10 ms, optimizer: 0 s, parameters: 0, boundary: 0 B}
cluster: h100-hgx-ib400
devices: 4
batch: {global: 8, micro: 1}
precision: bf16
parallel: {pp: 4}
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(name: str, text: str) -> str:
    Path(name).write_text(text, encoding="utf-8")
    return name


def report_of(cli: Cli, *arguments: str) -> dict:
    answer = cli("run", *arguments, "--json")
    assert answer.code == 0, answer.err
    return json.loads(answer.out)


def test_run_without_arguments_writes_five_files(cli: Cli, here: Path) -> None:
    answer = cli("run")
    assert answer.code == 0
    written = here / "parasim-out" / "default"
    assert sorted(p.name for p in written.iterdir()) == sorted(RESULTS)
    assert (written / "timeline.png").read_bytes()[:8] == (written / "memory.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert json.loads((written / "report.json").read_text())["schema"] == "parasim.report/1"
    assert len(Timeline.load(written / "timeline.npz").ops) > 1000
    assert (written / "trace.pftrace").stat().st_size > 10_000


def test_the_example_gives_the_keys_of_the_contract(cli: Cli) -> None:
    report = report_of(cli, str(ROOT / "docs/examples/llama3-70b-64xh100.yaml"))
    assert set(REPORT_KEYS) <= set(report)
    assert set(report["time_s"]["exposed"]) >= {"tp", "cp", "ep", "dp", "pp"}
    assert sum(report["memory"]["by_category"].values()) == pytest.approx(report["memory"]["peak_bytes"], rel=1e-12)
    assert report["world_size"] == 64 and report["memory"]["fits"]
    for stage in report["stages"]:
        assert stage["compute_s"] + stage["idle_s"] + sum(stage["exposed_s"].values()) == pytest.approx(report["step_time_s"], rel=1e-6)


def test_a_hugging_face_config_gives_the_keys_of_the_contract(cli: Cli) -> None:
    write("config.json", json.dumps({"model_type": "llama", "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 4,
          "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 1000, "tie_word_embeddings": True}))  # fmt: skip
    text = "model: config.json\ncluster: h100-hgx-ib400\ndevices: 8\nbatch: {global: 8, micro: 1, sequence: 128}\nparallel: {tp: 2, pp: 2}\n"
    report = report_of(cli, write("run.yaml", text))
    assert set(REPORT_KEYS) <= set(report)
    assert report["world_size"] == 8


def test_free_boundaries_leave_only_the_bubble(cli: Cli) -> None:
    """8 layers over 4 ranks: F + I + W = 2 x 30 ms a stage; step (m + p - 1) 60 ms, of it (p - 1) 60 ms idle, nothing exposed."""
    report = report_of(cli, write("run.yaml", FIXED))
    assert report["step_time_s"] == pytest.approx(11 * 0.060, rel=1e-9)
    assert report["time_s"]["exposed"]["pp"] == 0
    for stage in report["stages"]:
        assert stage["idle_s"] == pytest.approx(3 * 0.060, rel=1e-6)
        assert stage["compute_s"] == pytest.approx(8 * 0.060, rel=1e-6)
    assert report["bubble_makespan"] == pytest.approx(3 / 11, rel=1e-9)


SHARE = 0.020  # F = I = W of a rank's two layers


@pytest.mark.parametrize(
    ("schedule", "chunks", "bubble"),
    [
        ("interleaved-1f1b", 2, 3 * 3 * SHARE / 2),  # (p - 1) (F + I + W) / v: Narayanan et al. 2021, section 2.2
        ("looped-bfs", 2, 3 * 3 * SHARE / 2),
        ("zb-h1", 1, 3 * SHARE),  # (p - 1) (F + I - W): Qi et al. 2023, table 2
        ("zb1p-interleaved", 2, 3 * SHARE / 2),
        ("zb-v", 2, 3 * SHARE / 2),  # the makespan keeps (p - 1) F of a chunk
    ],
)
def test_bubbles_of_other_schedules_in_a_whole_step(cli: Cli, schedule: str, chunks: int, bubble: float) -> None:
    report = report_of(cli, write("run.yaml", FIXED), "--set", f"pipeline={{schedule: {schedule}, chunks: {chunks}}}")
    assert report["step_time_s"] == pytest.approx(8 * 3 * SHARE + bubble, rel=1e-9)


def test_a_pipeline_sends_each_boundary_once(cli: Cli) -> None:
    """2 m (p - 1) = 2 x 8 x 3 = 48 messages in the Programs of all four ranks."""
    name = write("run.yaml", FIXED)
    sent = sum(cli("program", name, "--rank", str(rank)).out.splitlines()[0].count(" send.") for rank in range(4))
    assert sent == 48


@pytest.mark.parametrize(("stage", "gigabytes"), [(0, 120.0), (1, 31.4)])
def test_state_of_mixed_precision_adam(cli: Cli, stage: int, gigabytes: float) -> None:
    """7.5e9 parameters, 64 replicas: 2 + 2 + 12 bytes each, or 2 + 2 + 12 / 64 with ZeRO-1 (Rajbhandari et al. 2020, figure 1)."""
    text = FIXED.replace("parameters: 0", "parameters: 7.5e9").replace("devices: 4", "devices: 64").replace("pp: 4", "pp: 1").replace("global: 8", "global: 64")
    answer = cli("run", write("run.yaml", text), "--set", f"zero.stage={stage}", "--json")
    memory = json.loads(answer.out)["memory"]["by_category"]
    assert sum(memory[c] for c in ("parameters", "gradients", "optimizer")) / 1e9 == pytest.approx(gigabytes, abs=0.05)
    assert answer.code == (0 if stage else 1)  # 120 GB do not fit into 80 GB
    if not stage:
        assert "stage 0" in answer.err and "optimizer 90 GB" in answer.err and "fits with: --set zero.stage=1" in answer.err


@pytest.mark.parametrize("algorithm", ["ring", "direct"])
def test_all_reduce_of_100_mb(cli: Cli, algorithm: str) -> None:
    """2 (n - 1) / n x 100 MB / 50 GB/s = 2 x 7/8 x 2 ms = 3.5 ms."""
    text = "name: eight-ports\naccelerator: h100-sxm\nnode: {count: 1, devices: 8, scale_up: {kind: switch, bandwidth: 50 GB/s, latency: 0 s}}\n"
    cluster = write("eight.yaml", text)
    answer = cli("collective", "--cluster", cluster, "--op", "all_reduce", "--ranks", "8", "--bytes", "100MB", "--algorithm", algorithm, "--json")
    row = json.loads(answer.out)["rows"][0]
    assert row["time_s"] == pytest.approx(3.5e-3, rel=1e-12)
    assert row["busbw_Bps"] == pytest.approx(50e9, rel=1e-12)


def test_schedule_json(cli: Cli) -> None:
    answer = cli("schedule", "--name", "1f1b", "--ranks", "4", "--microbatches", "8", "--times", "1,1,1", "--json")
    out = json.loads(answer.out)
    assert list(out) == ["schema", "makespan", "bubble_s", "ideal_over_makespan", "busy", "comm_s", "over", "bubble_makespan", "bubble_span",
                         "bubble_over_ideal",
                         "rank_start", "rank_end", "peak_inflight", "peak_inflight_to_input_grad", "orders", "deadlock"]  # fmt: skip
    assert out["busy"] == [pytest.approx(24 / 33)] * 4 and out["bubble_s"] == 33 - 24  # 8 x (1 + 1 + 1) of 8 x 3 + 3 x 3
    assert out["makespan"] == 33 and out["deadlock"] is None and out["orders"][3][:2] == ["3F0", "3B0"]


def test_equal_runs_give_equal_bytes(cli: Cli) -> None:
    name = write("run.yaml", FIXED)
    for out in ("a", "b"):
        assert cli("run", name, "--out", out).code == 0
    for result in ("timeline.npz", "timeline.png", "memory.png", "trace.pftrace"):
        assert Path("a", result).read_bytes() == Path("b", result).read_bytes(), result


def test_folding_changes_nothing(cli: Cli) -> None:
    text = "model: llama3-8b\ncluster: h100-hgx-ib400\ndevices: 32\nbatch: {global: 8, micro: 1, sequence: 2048}\nparallel: {tp: 4, pp: 2}\nzero: {stage: 1}\n"
    name = write("run.yaml", text)
    folded, unfolded = report_of(cli, name), report_of(cli, name, "--no-fold")
    assert (folded["engine"]["ranks"], unfolded["engine"]["ranks"]) == (2, 32)
    assert folded["step_time_s"] == pytest.approx(unfolded["step_time_s"], rel=1e-9)
    assert folded["memory"]["peak_bytes"] == unfolded["memory"]["peak_bytes"]


@pytest.mark.usefixtures("undrawn")
def test_plot_and_compare_read_saved_timelines(cli: Cli) -> None:
    assert cli("run", write("run.yaml", FIXED.replace("boundary: 0 B", "boundary: 1 MB")), "--out", "out").code == 0
    for kind in ("gantt", "memory", "links"):
        assert cli("plot", kind, "out/timeline.npz", "--out", f"{kind}.svg").code == 0
        assert Path(f"{kind}.svg").read_text().startswith("<?xml")
    answer = cli("compare", "out/timeline.npz", "out/timeline.npz", "--json")
    assert answer.code == 0 and json.loads(answer.out)["step_error"] == 0


def test_catalogs(cli: Cli) -> None:
    for kind, name in (
        ("models", "llama3-405b"),
        ("clusters", "loopback"),
        ("accelerators", "a100-sxm-80"),
        ("schedules", "gpipe"),
        ("profiles", "h100-megatron"),
    ):
        assert name in cli("catalog", kind).out
    assert cli("catalog", "stacks").code == 0


REFUSED = [
    # what is wrong, arguments, exit code, words of the message
    ("missing unit", ["--set", "dp.bucket=25"], 2, ["dp.bucket", "25", "no unit"]),
    ("illegal tensor degree", ["--set", "parallel={tp: 6, pp: 1}", "--set", "devices=48"], 1, ["parallel.tp=6", "64", "1, 2, 4, 8"]),
    ("fractional batch", ["--set", "parallel={tp: 8, pp: 8}", "--set", "devices=1472", "--set", "batch.global=32"], 1, ["dp=23", "23, 46"]),
    ("unknown cluster", ["--set", "cluster=h100-hgx-ib40"], 2, ["h100-hgx-ib40", "h100-hgx-ib400"]),
    ("unknown model", ["--set", "model=llama3-7b"], 2, ["llama3-7b", "llama3-70b"]),
    ("unknown key", ["--set", "zero.stge=1"], 2, ["stge", "stage"]),
    ("override without a value", ["--set", "zero.stage"], 2, ["zero.stage", "="]),
    ("missing file", ["nowhere.yaml"], 2, ["nowhere.yaml"]),
    ("truncated YAML", ["truncated.yaml"], 3, ["truncated.yaml:"]),
    ("empty file", ["empty.yaml"], 3, ["empty.yaml"]),
    ("config.json without its keys", ["keyless.yaml"], 3, ["config.json", "hidden_size", "num_hidden_layers"]),
    ("a directory for a file", ["."], 2, ["."]),
    ("context", ["--set", "parallel.cp=7", "--set", "devices=448"], 1, ["parallel.cp=7", "batch.sequence"]),
    ("too many devices", ["tiny.yaml"], 1, ["devices=4", "at most 2"]),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "code", "words"), [r[1:] for r in REFUSED], ids=[r[0] for r in REFUSED])
def test_wrong_input_is_one_clear_message(cli: Cli, here: Path, arguments: list[str], code: int, words: list[str]) -> None:
    write("truncated.yaml", "model: llama3-70b\nparallel: {tp: 8, pp:")
    write("empty.yaml", "")
    write("config.json", '{"model_type": "llama", "vocab_size": 1000}')
    write("keyless.yaml", FIXED.replace(FIXED.splitlines()[1], "model: config.json"))
    node = "{count: 1, devices: 2, scale_up: {kind: switch, bandwidth: 50 GB/s, latency: 0 s}}"
    write("tiny.yaml", FIXED.replace("cluster: h100-hgx-ib400", f"cluster: {{name: t, accelerator: h100-sxm, node: {node}}}"))
    before = sorted(here.iterdir())
    for command in (["run", *arguments, "--out", "made"], ["run", *arguments, "--json"], ["check", *arguments]):
        answer = cli(*command)
        assert answer.code == code, answer
        assert answer.out == "" and "Traceback" not in answer.err
        for word in words:
            assert word in answer.err, (word, answer.err)
    assert [p for p in sorted(here.iterdir()) if p.name != "made"] == before
    assert not any(Path("made").iterdir()) if Path("made").exists() else True


def test_unwritable_output_is_refused_before_anything_runs(cli: Cli, here: Path) -> None:
    write("file", "")
    answer = cli("run", write("run.yaml", FIXED), "--out", "file/below")
    assert (answer.code, answer.out) == (2, "") and "file/below" in answer.err
    assert cli("plot", "gantt", "missing.npz", "--out", "x.png").code == 2
    write("bad.npz", "not a zip")
    assert cli("plot", "gantt", "bad.npz", "--out", "x.png").code == 3


@pytest.mark.usefixtures("undrawn")
def test_a_layout_that_does_not_fit_names_a_way_out(cli: Cli, here: Path) -> None:
    """70.6e9 parameters x 16 bytes / 8 devices = 141 GB of state alone: more devices are needed, and the named ones suffice."""
    asked = [word for key in ("model=llama3-70b", "devices=8", "parallel.pp=1", "batch.global=2") for word in ("--set", key)]
    answer = cli("run", *asked, "--out", "made")
    assert answer.code == 1
    assert "stage 0" in answer.err and "largest part" in answer.err
    assert sorted(p.name for p in Path("made").iterdir()) == sorted(RESULTS)  # the picture of memory is wanted most when it does not fit
    way = answer.err.split("fits with: ")[1].split(" (")[0].split()
    assert json.loads(cli("run", *asked, *way, "--json").out)["memory"]["fits"]


@pytest.mark.usefixtures("undrawn")
def test_results_of_an_earlier_run_survive_a_refused_one(cli: Cli) -> None:
    assert cli("run", write("run.yaml", FIXED), "--out", "out").code == 0
    before = {p.name: p.read_bytes() for p in Path("out").iterdir()}
    assert cli("run", "run.yaml", "--set", "parallel.pp=3", "--out", "out").code == 1
    assert {p.name: p.read_bytes() for p in Path("out").iterdir()} == before


def test_flags_of_the_wrong_kind(cli: Cli) -> None:
    for arguments in (["schedule", "--name", "1f1b", "--ranks", "x", "--microbatches", "8"], ["nonsense"], ["catalog", "planets"],
                      ["schedule", "--name", "2f2b", "--ranks", "2", "--microbatches", "8"],
                      ["schedule", "--name", "1f1b", "--ranks", "2", "--microbatches", "8", "--times", "1,2"],
                      ["schedule", "--name", "1f1b", "--ranks", "2", "--microbatches", "8", "--times", "1,nan,1"],
                      ["collective", "--cluster", "loopback", "--op", "all_reduce"], ["collective", "--cluster", "loopback", "--op", "swap", "--ranks", "2"],
                      ["program", "--rank", "64"]):  # fmt: skip
        answer = cli(*arguments)
        assert answer.code == 2 and "Traceback" not in answer.err, (arguments, answer)


def test_memory_bound_of_check_is_below_the_exact_peak(cli: Cli) -> None:
    bound = json.loads(cli("check", "--json").out)["memory_bound_bytes"]
    exact = report_of(cli)["memory"]["per_stage_peak_bytes"]
    assert all(0.9 * e < b <= e for b, e in zip(bound, exact, strict=True))
    assert np.argmax(bound) == np.argmax(exact)


def test_a_profile_from_nccl_tests(cli: Cli) -> None:
    """Two all-gathers of 8 ranks: 1 GB in 5 ms and 1 MB in 0.1 ms; the profile that is written gives both times back."""
    log = "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong\n"
    log += "   1000000        31250     float    none      -1    100.0   10.00    8.75      0    100.0   10.00    8.75      0\n"
    log += "1000000000     31250000     float    none      -1   5000.0  200.00  175.00      0   5000.0  200.00  175.00      0\n"
    write("all_gather.log", "# Collective test starting: all_gather_perf\n# nThread 1 nGpus 8 minBytes 1000000 maxBytes 1000000000\n" + log)
    answer = cli("calibrate", "nccl-tests", "all_gather.log", "--cluster", "h100-hgx-ib400", "--out", "mine.yaml")
    assert answer.code == 0, answer
    arguments = ["collective", "--cluster", "h100-hgx-ib400", "--op", "all_gather", "--ranks", "8", "--profile", "mine.yaml", "--json", "--bytes"]
    times = [json.loads(cli(*arguments, size).out)["rows"][0]["time_s"] for size in ("1000000", "1000000000")]
    assert times == pytest.approx([100e-6, 5e-3], rel=1e-3)


def test_numbers_that_would_take_for_ever_are_refused_at_once(cli: Cli) -> None:
    deep = FIXED.replace("layers: 8", "layers: 100000")
    for code, arguments, word in (
        (1, ["check", "--set", "batch.global=4194304"], "at most 32768"),  # 2^14 microbatches of 1 on each of 2 replicas
        (1, ["check", write("deep.yaml", deep)], "at most 8192"),
        (2, ["collective", "--cluster", "loopback", "--op", "all_reduce", "--ranks", "100000000"], "at most 1048575"),
        (2, ["collective", "--cluster", "loopback", "--op", "all_reduce", "--rank-list", "0,1000000000"], "at most 1048575"),
        (2, ["schedule", "--name", "1f1b", "--ranks", "4", "--microbatches", "1000000000"], "at most 262144"),
        (2, ["schedule", "--name", "1f1b", "--ranks", "4", "--microbatches", "8", "--comm", "inf"], "comm"),
        (2, ["schedule", "--name", "1f1b", "--ranks", "4", "--microbatches", "8", "--times", "1e308,1,1"], "1e+06"),
        (2, ["check", "/dev/zero"], "no regular file"),
    ):
        answer = cli(*arguments)
        assert answer.code == code and word in answer.err and "Traceback" not in answer.err, (arguments, answer)


def test_json_nested_beyond_reason(cli: Cli) -> None:
    write("config.json", "[" * 100_000)
    answer = cli("check", write("run.yaml", FIXED.replace(FIXED.splitlines()[1], "model: config.json")))
    assert answer.code == 3 and "config.json" in answer.err


def test_an_output_that_takes_no_more(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk behind standard output is one message; a reader that left, and an output that is closed, are no failure."""
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        monkeypatch.setattr(sys, "argv", ["parasim", "catalog", "models"])
        with pytest.raises(SystemExit) as exit_:
            main()
        assert exit_.value.code == 2
    monkeypatch.setattr(sys, "stdout", None)
    with pytest.raises(SystemExit) as exit_:
        main()
    assert not exit_.value.code


def test_the_artist_and_this_process_draw_the_same(tmp_path: Path) -> None:
    """With the drawing process, without one, and with one that died, the pictures are equal to the byte."""
    result = simulate_run(load(write("run.yaml", FIXED)))
    with Artist() as artist:
        write_results(result, tmp_path / "a", artist)
    write_results(result, tmp_path / "b")
    with Artist() as artist:
        assert artist.process is not None
        artist.process.kill()
        artist.process.wait()
        write_results(result, tmp_path / "c", artist)
    for name in ("timeline.png", "memory.png"):
        assert len({(tmp_path / d / name).read_bytes() for d in "abc"}) == 1, name
