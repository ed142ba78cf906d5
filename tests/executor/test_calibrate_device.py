"""Calibration of one device: made-up samples give known numbers back, samples outlive what measured them, and a tiny sweep runs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

pytest.importorskip("torch")

from parasim.calibrating import STACKS, calibrate_kernels, calibrate_step, step_run
from parasim.cost.profile import Profile, load_profile
from parasim.cost.timing import seconds
from parasim.errors import Malformed, Refused, Unparsable
from parasim.executor.fitting import fit_kernels, fit_steps
from parasim.executor.journal import Journal
from parasim.lowering import lower
from parasim.program.ops import Compute, Kernel, Ref
from parasim.provenance import Number
from parasim.topology.loader import accelerators, load_cluster

CPU = accelerators()["cpu"]  # 50 GFLOP/s in fp32, 10 GB/s
MACHINE = {"torch": "1", "device": "a test"}
KEYS = ("matmul_efficiency", "attention_efficiency", "attention_grad_efficiency", "memory_efficiency")


def kernel(name: str, *dims: int) -> Kernel:
    return Kernel(name, (Ref("x", 0), Ref("w", 0)), (Ref("y", 0),), dims, "fp32")


KERNELS = {"product": kernel("linear", 1000, 1000, 1000), "core": kernel("attention", 1, 1000, 10, 10, 50), "add": kernel("residual_add", 1000, 1000)}


def test_efficiencies_come_back_from_exact_times() -> None:
    launch = 1e-5
    samples = {
        "product": [2e9 / (50e9 * 0.5) + launch],  # 2 r i c FLOPs at half of 50 GFLOP/s
        "core": [1e9 / (50e9 * 0.25) + launch],  # 2 h s^2 d FLOPs, causal, at a quarter
        "add": [12e6 / (10e9 * 0.8) + launch],  # 3 r c elements of 4 bytes at four fifths of 10 GB/s
        "launch": [launch],
    }
    found = fit_kernels(samples, KERNELS, {"launch": "compute.kernel_launch"}, CPU, "a test")
    values = {"matmul_efficiency": 0.5, "attention_efficiency": 0.25, "memory_efficiency": 0.8, "kernel_launch": launch}
    assert {k.removeprefix("compute."): n.value for k, n in found.items()} == pytest.approx(values, rel=1e-9)
    assert {n.status for n in found.values()} == {"fitted"}


def test_what_sizes_disagree_on_widens_the_interval_and_short_kernels_do_not_count() -> None:
    kernels = {"one": kernel("linear", 1000, 1000, 1000), "two": kernel("linear", 2000, 1000, 1000), "short": kernel("linear", 10, 10, 10)}
    samples = {"one": [2e9 / (50e9 * 0.4)], "two": [4e9 / (50e9 * 0.6)], "short": [3e-6], "launch": [1e-6]}
    number = fit_kernels(samples, kernels, {"launch": "compute.kernel_launch"}, CPU, "a test")["compute.matmul_efficiency"]
    assert number.value == pytest.approx(0.5, rel=1e-4)  # the median of 0.4 and 0.6; 3 launches of the short one tell of no rate
    assert number.interval == pytest.approx((0.4, 0.6), rel=1e-4)


def test_a_case_without_samples_is_refused() -> None:
    with pytest.raises(Refused, match=r"2 cases are not measured yet .*run again to go on"):
        fit_kernels({"product": [1.0]}, KERNELS, {}, CPU, "a test")


def test_steps_give_back_the_numbers_that_priced_them() -> None:
    true = dict(zip(KEYS, (0.5, 0.3, 0.2, 0.7), strict=True)) | {"kernel_launch": 1e-5}
    profile = Profile("true", "gloo", {f"compute.{k}": Number(v, "1", "a test", "assumed") for k, v in true.items()})
    workload = lower(step_run(STACKS["small"], "none", "fp32").plan)
    resolved = workload.program_of(0).resolved
    ops = [op for i in range(len(resolved)) if isinstance(op := resolved.op(i), Compute)]
    chip = load_cluster("loopback", 1).accelerator
    times = np.array([[sum(seconds(k, chip, profile) for k in op.kernels) for op in ops]] * 3)
    found = fit_steps([(ops, times)], chip, "a test")
    got = {k.removeprefix("compute."): n.value for k, n in found.items()}
    assert got == pytest.approx(true, rel=1e-6)


def test_a_journal_goes_on_where_a_crash_left_it(tmp_path) -> None:
    path = tmp_path / "p.samples.jsonl"
    said: list[str] = []
    journal = Journal(path, MACHINE)
    journal.collect({"a": lambda: [1.0], "b": lambda: [2.0]}, 100.0, 2, said.append)
    assert journal.samples == {"a": [[1.0], [1.0]], "b": [[2.0], [2.0]]} and len(said) == 2
    path.write_text(path.read_text()[:-5])  # the last line is torn
    again = Journal(path, MACHINE)
    assert again.samples == {"a": [[1.0], [1.0]], "b": [[2.0]]}
    called: list[str] = []
    again.collect({"a": lambda: [called.append("a") or 3.0], "b": lambda: [called.append("b") or 4.0]}, 100.0, 2, said.append)
    assert called == ["b"]  # only what was lost
    assert Journal(path, MACHINE).samples["b"] == [[2.0], [4.0]]
    with pytest.raises(Malformed, match=r"was measured otherwise: torch=1 \(now 2\)"):
        Journal(path, {**MACHINE, "torch": "2"})
    path.write_text(path.read_text() + "nonsense\n")
    with pytest.raises(Unparsable, match=r"p.samples.jsonl:6: is no line of samples"):
        Journal(path, MACHINE)


def test_time_that_is_over_ends_a_round_and_is_said(tmp_path) -> None:
    said: list[str] = []
    journal = Journal(tmp_path / "j", MACHINE)
    journal.collect({"a": lambda: [1.0], "b": lambda: [2.0]}, 0.0, 2, said.append)
    assert journal.samples == {"a": [[1.0]]}  # one at least, so that repeated runs come to an end
    assert said == ["0 s are over in round 1 of 2; run again to go on"]


def test_refusals(tmp_path) -> None:
    with pytest.raises(Malformed, match="--accelerator 'h100' is unknown"):
        calibrate_kernels(tmp_path / "p.yaml", "h100", limit=1.0, tell=print)
    with pytest.raises(Malformed, match=r"--out .*p.txt: a profile ends in .yaml"):
        calibrate_kernels(tmp_path / "p.txt", "cpu", limit=1.0, tell=print)
    with pytest.raises(Malformed, match="--seconds 0 must be more than 0"):
        calibrate_kernels(tmp_path / "p.yaml", "cpu", limit=0.0, tell=print, sizes="tiny")


def test_a_tiny_sweep_of_kernels_writes_a_profile(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("parasim.calibrating.ROUNDS", 2)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    out = tmp_path / "kernels.yaml"
    text = calibrate_kernels(out, "cpu", limit=60.0, tell=lambda _: None, sizes="tiny")
    profile = load_profile(out)
    assert set(profile.numbers) == {f"compute.{k}" for k in (*KEYS, "kernel_launch")}
    for n in profile.numbers.values():
        assert n.status == "fitted" and n.interval is not None and n.interval[0] <= n.value <= n.interval[1]
    assert "torch" in profile.description and "clocks" in profile.description and "'s datasheet" in text


def test_tiny_steps_write_a_profile_and_say_what_peak_they_mean(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("parasim.calibrating.ROUNDS", 2)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    out = tmp_path / "step.yaml"
    text = calibrate_step(out, None, limit=60.0, tell=lambda _: None, sizes="tiny")
    assert "step, recompute none" in text and "step, recompute full" in text and "whose peaks were measured here" in text
    cluster = {"base": "loopback", "accelerator": str(tmp_path / "step.accelerator.yaml")}
    run = step_run(STACKS["tiny"], "none", "fp32", cluster=cluster, profile=str(out))
    assert run.cluster.accelerator.name == "step-device"
    assert all(n.status == "fitted" for n in run.profile.numbers.values()) and run.profile.numbers
    sample = json.loads((tmp_path / "step.yaml.samples.jsonl").read_text().splitlines()[-1])["sample"]
    assert sample[0] >= max(sample[2:]) > 0  # the step is longer than the longest of its ops


def _interruptible() -> None:
    """What a shell in the foreground gives its jobs; one in the background lets them ignore interrupts, and so would we."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.processes
def test_an_interrupt_keeps_the_samples(tmp_path) -> None:
    out = tmp_path / "k.yaml"
    out.write_text("earlier: results\n")
    command = [sys.executable, "-m", "parasim", "calibrate", "kernels", "--accelerator", "cpu", "--out", str(out)]
    process = subprocess.Popen(command, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""}, stderr=subprocess.PIPE, text=True, preexec_fn=_interruptible)
    samples = tmp_path / "k.yaml.samples.jsonl"
    end = time.monotonic() + 60
    while time.monotonic() < end and not (samples.exists() and samples.read_text().count("\n") > 3):
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=30)[1]
    assert process.returncode == 130, said
    assert "interrupted; the samples until now are in" in said and "Traceback" not in said
    assert samples.read_text().count("\n") > 3 and out.read_text() == "earlier: results\n"
