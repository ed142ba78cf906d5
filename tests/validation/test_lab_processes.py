"""The lab for real, on two hosts: a run from end to end, and that nothing of it is left, however it ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from parasim.cost.profile import save_profile
from validation.lab.fitting import bare
from validation.lab.wrapper import lacking

MISSING = lacking()
pytestmark = [pytest.mark.processes, pytest.mark.root, pytest.mark.skipif(bool(MISSING), reason=MISSING)]
PATIENCE = 60.0  # seconds
CLUSTER = """
name: pair
accelerator: cpu
nodes: [{id: a, kind: cpu, node: one}, {id: b, kind: cpu, node: two}, {id: s, kind: switch}]
links:
- {a: a, b: s, kind: nic, bandwidth: 200 Mb/s}
- {a: b, b: s, kind: nic, bandwidth: 200 Mb/s}
"""
CASES = """
common: {{batch: {{global: 4, micro: 1}}, precision: fp32, optimizer: {{gradient_dtype: fp32}}}}
models:
  small: {{kind: fixed, layers: 2, forward: 10 ms, input_grad: 10 ms, weight_grad: 10 ms, optimizer: 0 s, parameters: 4096, boundary: 500 kB}}
cases:
- {{name: pair-1f1b, network: {0}, subject: 1f1b, model: {{of: small}}, parallel: {{pp: 2}}}}
- {{name: pair-long, network: {0}, subject: 1f1b, model: {{of: small, forward: 2 s}}, parallel: {{pp: 2}}}}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A cluster of two hosts, its cases, and a profile for it, so that nothing has to be fitted."""
    (tmp_path / "pair.yaml").write_text(CLUSTER)
    (tmp_path / "cases.yaml").write_text(CASES.format(tmp_path / "pair.yaml"))
    (tmp_path / "profiles").mkdir()
    save_profile(bare("pair"), tmp_path / "profiles" / "pair.yaml")
    return tmp_path


def _command(folder: Path, case: str) -> list[str]:
    where = ["--cases", str(folder / "cases.yaml"), "--profiles", str(folder / "profiles"), "--json", str(folder / "out.json")]
    return [sys.executable, "-m", "validation", "lab", "--case", case, "--repeats", "3", "--plot", str(folder / "plots"), *where]


def test_a_case_from_end_to_end(folder: Path) -> None:
    """Whether the machine is quiet enough to judge is not asked here: the case is run, compared, drawn, and the network is gone."""
    done = subprocess.run(_command(folder, "pair-1f1b"), capture_output=True, text=True, timeout=2 * PATIENCE)
    assert done.returncode in (0, 1), done.stderr
    assert "spread of 5 repetitions" in done.stdout
    found = json.loads((folder / "out.json").read_text())
    if "too noisy to judge now" in done.stderr:
        pytest.skip(f"the machine was not quiet: {done.stderr.strip()}")
    (case,) = found["cases"]
    assert (case["case"], len(case["steps_s"])) == ("pair-1f1b", 3)
    # 2 stages, 4 microbatches: (m + p - 1)(F + B) = 5 x 30 ms, and each of 4 messages back and forth on the way takes 500 kB / 25 MB/s = 20 ms
    assert 0.150 + 4 * 0.020 < case["predicted_s"] < 0.150 + 8 * 0.0206
    assert case["measured_s"] > 0.150 + 4 * 0.019  # shaped: on a bare veth the messages take less than a millisecond
    assert (folder / "plots" / "pair-1f1b.png").stat().st_size > 10_000
    assert not _named_namespaces()


def _named_namespaces() -> str:
    return subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout


def _children(pid: int) -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid:
            found.append(int(entry.parent.name))
    return found


def _below(pid: int) -> list[int]:
    """All processes that `pid` started, directly or not."""
    children = _children(pid)
    return [*children, *(p for c in children for p in _below(c))]


def _network_of(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/net")
    except OSError:
        return ""


def _everywhere() -> set[str]:
    """Network namespaces that some process is in."""
    return {_network_of(int(entry.name)) for entry in Path("/proc").glob("[0-9]*")}


@contextmanager
def _running(folder: Path) -> Iterator[tuple[subprocess.Popen[str], list[int], set[str]]]:
    """A lab whose two ranks are in their namespaces: the wrapper, the processes below it, their network namespaces."""
    own = _network_of(os.getpid())
    process = subprocess.Popen(_command(folder, "pair-long"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        end, networks, below = time.monotonic() + PATIENCE, set[str](), list[int]()
        while len(networks) < 3 and time.monotonic() < end:  # of the first process, and of two hosts
            time.sleep(0.05)
            below = _below(process.pid)
            networks = {_network_of(p) for p in below} - {own, ""}
        assert len(networks) >= 3, process.poll()
        yield process, below, networks
    finally:
        process.kill()
        process.communicate()


def _gone(pids: list[int], networks: set[str]) -> bool:
    """Do all processes and namespaces end in time?"""
    end = time.monotonic() + PATIENCE / 2
    while time.monotonic() < end:
        if not any(Path(f"/proc/{p}/ns/net").exists() and _network_of(p) in networks for p in pids) and not networks & _everywhere():
            return True
        time.sleep(0.1)
    return False


def test_an_interrupt_ends_all_of_it_in_order(folder: Path) -> None:
    with _running(folder) as (process, below, networks):
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=PATIENCE)
        assert process.returncode == 130
        assert said.strip() == "interrupted: the network and its processes are gone"
        assert _gone(below, networks)
        assert not _named_namespaces()
        assert json.loads((folder / "out.json").read_text())["cases"] == []


@pytest.mark.parametrize("victim", ["wrapper", "its child"])
def test_a_kill_leaves_nothing(folder: Path, victim: str) -> None:
    with _running(folder) as (process, below, networks):
        os.kill(process.pid if victim == "wrapper" else _children(process.pid)[0], signal.SIGKILL)
        process.communicate(timeout=PATIENCE)
        assert process.returncode != 0
        assert _gone(below, networks)
        assert not _named_namespaces()
