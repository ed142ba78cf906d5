"""Sweeps: points and their order, rows that survive a kill, and every back end giving the table of one process."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from parasim.errors import Malformed, MissingExtra, Unparsable
from parasim.plan.sweep import load_sweep, run_sweep

from ..conftest import Cli

RUN = """
model: {kind: fixed, layers: 8, forward: 10 ms, input_grad: 10 ms, weight_grad: 10 ms, optimizer: 0 s, parameters: 0, boundary: 0 B}
cluster: h100-hgx-ib400
devices: 4
batch: {global: 8, micro: 1}
parallel: {pp: 4}
"""
GOODPUT = """
measure: goodput
vary:
  goodput.mtbf: [1 h, 10 h]
  goodput.checkpoint: 30..60:30 s
"""


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture
def closed(tmp_path: Path) -> Path:
    return write(tmp_path / "s.yaml", GOODPUT)


def serial(path: Path) -> dict[str, Any]:
    return run_sweep(load_sweep(path), workers=1).to_json()


def test_points_are_all_combinations_the_last_key_fastest(closed: Path) -> None:
    table = serial(closed)
    assert table["schema"] == "parasim.sweep/1" and table["points"] == 4
    assert [tuple(r["set"].values()) for r in table["rows"]] == [("1 h", "30 s"), ("1 h", "60 s"), ("10 h", "30 s"), ("10 h", "60 s")]
    assert table["rows"][-1]["checkpoint_interval_s"] == pytest.approx(2078.46, abs=0.01)  # sqrt(2 x 60 x 36000)


def test_steps_are_simulated_and_an_illegal_point_is_a_row(tmp_path: Path, cli: Cli) -> None:
    write(tmp_path / "run.yaml", RUN)
    sweep = write(tmp_path / "s.yaml", "run: run.yaml\nvary: {parallel.pp: [4, 3], batch.global: 8..16:2x}\n")
    answer = cli("sweep", sweep, "--workers", "1", "--json")
    assert answer.code == 0 and "4/4 points" in answer.err
    first, second, refused, _ = json.loads(answer.out)["rows"]
    # 1F1B with m microbatches on 4 stages of 2 layers x (10 + 20) ms: (m + 3) x 60 ms
    assert (first["step_time_s"], second["step_time_s"]) == pytest.approx((11 * 0.06, 19 * 0.06))
    assert refused.keys() == {"set", "refusal"} and "devices" in refused["refusal"]


def test_rows_are_kept_and_only_the_missing_are_done_again(closed: Path) -> None:
    table = serial(closed)
    rows = closed.with_suffix(".sqlite")
    with sqlite3.connect(rows) as connection:
        connection.execute("delete from rows where key = (select min(key) from rows)")
    said: list[str] = []
    again = run_sweep(load_sweep(closed), workers=1, resume=True, progress=said.append)
    assert again.to_json() == table and said == [s for s in said if s.startswith("4/4")] and len(said) == 1
    assert run_sweep(load_sweep(closed), workers=1, resume=True).to_json() == table  # nothing left to do
    with pytest.raises(Malformed, match="--resume"):
        run_sweep(load_sweep(closed), workers=1)


def test_a_file_of_rows_cut_short_is_one_line(closed: Path, cli: Cli) -> None:
    serial(closed)
    rows = closed.with_suffix(".sqlite")
    whole = rows.read_bytes()
    for kept in (0, 50, 4096, len(whole) - 100):
        rows.write_bytes(whole[:kept])
        answer = cli("sweep", closed, "--resume")
        assert answer.code == 3 and "no whole file of rows" in answer.err and answer.err.count("\n") == 1, kept
    rows.unlink()
    sqlite3.connect(rows).execute("create table other (x)")
    assert cli("sweep", closed, "--resume").code == 3


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        ("vary: {}", 2, "vary: is empty"),
        ("run: run.yaml", 3, "vary: is missing"),
        ("vary: {batch.micro: []}", 2, "has no values"),
        ("vary: {batch.micro: 4..1}", 2, "a range rises"),
        ("vary: {goodput.mtbf: [1 h]}", 2, "measure: goodput"),
        ("measure: goodput\nvary: {goodput.mtbf: [0 h], goodput.checkpoint: [1 s]}", 2, "--mtbf 0 h must be more than 0"),
        ("measure: goodput\nvary: {goodput.mtfb: [1 h]}", 2, "goodput.mtfb is unknown"),
        ("vary: {batch.mirco: [1]}", 2, "batch.mirco"),
        ("vary: {batch.micro: [1]}\nworkers: 3", 2, "workers: is unknown"),
        ("measure: steps\nvary: {batch.micro: [1]}", 2, "nearest: step"),
        ("run: none.yaml\nvary: {batch.micro: [1]}", 2, "no such file"),
        ("vary: {batch.micro: 1..4000, devices: 1..4000}", 2, "16000000 points"),
        ("", 3, "empty"),
    ],
)
def test_nonsense_is_one_clear_line(tmp_path: Path, cli: Cli, text: str, code: int, words: str) -> None:
    answer = cli("sweep", write(tmp_path / "s.yaml", text), "--workers", "1")
    assert answer.code == code and words in answer.err and answer.err.count("\n") == 1, answer.err


def test_flags(closed: Path, cli: Cli) -> None:
    assert cli("sweep", closed, "--backend", "ray").code == 2
    assert cli("sweep", closed, "--workers", "0").code == 2
    assert cli("sweep", closed.with_name("no.yaml")).code == 2


@pytest.mark.parametrize(("backend", "library"), [("dask", "distributed"), ("slurm", "submitit")])
def test_a_missing_library_names_the_command(closed: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch, backend: str, library: str) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    answer = cli("sweep", closed, "--backend", backend)
    assert answer.code == MissingExtra.exit_code == 4 and f"pip install 'parasim[{backend}]'" in answer.err


def test_a_file_of_another_form_is_unparsable(closed: Path) -> None:
    write(closed.with_suffix(".sqlite"), "no database at all, but some text that is longer than a header of one hundred bytes " * 3)
    with pytest.raises(Unparsable):
        run_sweep(load_sweep(closed), workers=1, resume=True)


@pytest.mark.processes
@pytest.mark.parametrize(("backend", "library"), [("local", "sqlite3"), ("dask", "distributed"), ("slurm", "submitit")])
def test_back_ends_give_the_table_of_one_process(closed: Path, backend: str, library: str) -> None:
    """In processes of their own: Dask warns and logs in its own ways."""
    if find_spec(library) is None:
        pytest.skip(f"{library} is not installed (pip install 'parasim[{backend}]')")
    table = serial(closed)
    other = write(closed.with_name("other.yaml"), GOODPUT + "options: {cluster: local}\n" * (backend == "slurm"))
    answer = subprocess.run([sys.executable, "-m", "parasim", "sweep", other, "--backend", backend, "--json"], capture_output=True, text=True, timeout=120)
    assert answer.returncode == 0, answer.stderr
    assert json.loads(answer.stdout) == table


def _count(rows: Path) -> int:
    try:
        return int(sqlite3.connect(f"file:{rows}?mode=ro", uri=True, timeout=5).execute("select count(*) from rows").fetchone()[0])
    except sqlite3.Error:
        return 0


def _children(pid: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (entry / "stat").read_text().rpartition(")")[2].split()[1] == str(pid):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


@pytest.mark.processes
@pytest.mark.skipif(sys.platform != "linux", reason="finds its workers in /proc")
@pytest.mark.parametrize(("backend", "library"), [("local", "sqlite3"), ("dask", "distributed")])
def test_killed_workers_and_a_killed_parent_lose_nothing(tmp_path: Path, backend: str, library: str) -> None:
    """2,000 points; a worker is killed, and after more rows its parent; what is left is done by a second run."""
    if find_spec(library) is None:
        pytest.skip(f"{library} is not installed (pip install 'parasim[{backend}]')")
    text = "measure: goodput\nvary: {goodput.mtbf: 1..50 h, goodput.checkpoint: 10..400:10 s}\n"
    table = serial(write(tmp_path / "a.yaml", text))
    sweep, rows = write(tmp_path / "b.yaml", text), tmp_path / "b.sqlite"
    command = [sys.executable, "-m", "parasim", "sweep", str(sweep), "--backend", backend, "--json"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as parent:
        deadline = time.monotonic() + 60
        while not _count(rows) and parent.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        workers = [c for c in _children(parent.pid) if b"spawn_main" in Path(f"/proc/{c}/cmdline").read_bytes()]
        if workers:
            os.kill(workers[0], signal.SIGKILL)
        before = _count(rows)
        while _count(rows) == before and parent.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        parent.kill()
    assert workers and 0 < _count(rows) < table["points"] == 2000
    answer = subprocess.run([*command, "--resume"], capture_output=True, text=True, timeout=120)
    assert answer.returncode == 0, answer.stderr
    assert json.loads(answer.stdout) == table
