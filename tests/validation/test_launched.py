"""Where processes of torchrun and Slurm stand, and the jobs on two that torchrun starts."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys

import pytest

from parasim.cost.profile import load_profile
from parasim.errors import Malformed, Refused
from parasim.timeline import Timeline
from validation.job import job
from validation.launched import environment, first_host

SLURM = {"SLURM_PROCID": "5", "SLURM_NTASKS": "8", "SLURM_LOCALID": "1", "SLURM_JOB_ID": "41007", "SLURM_JOB_NODELIST": "gpu[07-08]"}


@pytest.mark.parametrize(("nodes", "first"), [("gpu[07-09,12],login", "gpu07"), ("a,b", "a"), ("n1", "n1"), ("r[1-2]-ib", "r1-ib"), ("dgx-[3,5]", "dgx-3")])
def test_the_first_host_of_a_list(nodes: str, first: str) -> None:
    assert first_host(nodes) == first


def test_slurm_variables_become_those_of_torchrun() -> None:
    expected = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "MASTER_ADDR": "gpu07", "MASTER_PORT": "29507"}  # 29500 + 41007 mod 1000
    assert environment("srun", SLURM) == expected
    assert environment("srun", {**SLURM, "MASTER_ADDR": "head", "MASTER_PORT": "1234"}) == {**expected, "MASTER_ADDR": "head", "MASTER_PORT": "1234"}


def test_refusals(tmp_path) -> None:
    with pytest.raises(Refused, match=r"SLURM_JOB_NODELIST not set; start this with srun"):
        environment("srun", {k: v for k, v in SLURM.items() if k != "SLURM_JOB_NODELIST"})
    with pytest.raises(Refused, match=r"RANK, WORLD_SIZE.* not set; start this with torchrun"):
        environment("torchrun", {})
    with pytest.raises(Malformed, match="--launcher 'mpirun' is unknown"):
        environment("mpirun", {})
    with pytest.raises(Malformed, match="--launcher needs --out"):
        job(launcher="torchrun")


def test_torchrun_says_where_a_process_stands() -> None:
    said = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "here", "MASTER_PORT": "1"}
    assert environment("torchrun", said).items() <= said.items()


@pytest.mark.processes
def test_two_processes_of_a_step_of_slurm(tmp_path) -> None:
    """As srun starts them: each with the variables of Slurm; the same command on every one."""
    pytest.importorskip("torch")
    asked = [sys.executable, "-m", "validation", "job", "--launcher", "srun", "--runs", "1", "--out", str(tmp_path)]
    where = {**SLURM, "SLURM_NTASKS": "2", "SLURM_JOB_NODELIST": "localhost", "MASTER_PORT": str(free_port())}
    started = [
        subprocess.Popen(asked, env={**os.environ, **where, "SLURM_PROCID": r, "SLURM_LOCALID": r}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for r in "01"
    ]
    said = [process.communicate(timeout=120) for process in started]
    assert [process.returncode for process in started] == [0, 0], said
    rows = json.loads((tmp_path / "errors.json").read_text())["rows"]
    assert [row["case"] for row in rows] == ["pp2-1f1b", "dp2-bucketed", "dp2-zero3"]
    for row in rows:
        measured = Timeline.load(tmp_path / f"{row['case']}-measured.npz")
        assert measured.meta["world"] == 2 and row["measured_s"] == measured.meta["makespans_s"][1]
        assert row["error"] == pytest.approx(row["predicted_s"] / row["measured_s"] - 1)
        assert row["measured_s"] > 0.2  # five slots of 40 ms, or eight layers of it, are slept at least
    numbers = load_profile(tmp_path / "profile.yaml").numbers
    assert {"p2p.latency", "collective.all_reduce.bandwidth_factor"} <= numbers.keys() and {n.status for n in numbers.values()} == {"fitted"}
    assert [out.count("pp2-1f1b") for out, _ in said] == [1, 0]  # rank 0 alone speaks


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        return int(listener.getsockname()[1])
