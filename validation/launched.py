"""The slept jobs on processes that torchrun or srun started, on one host or several: sweep, fit, predict, run, and a table of errors."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import typer

from parasim.cost.profile import save_profile
from parasim.errors import Malformed, Refused
from parasim.files import whole
from parasim.lowering import lower
from parasim.provenance import stamp
from parasim.sim import simulate
from parasim.topology.loader import load_cluster
from parasim.words import known

from .job import SWEEP_OPS, SWEEP_SIZES, Priced, Verdict, by_default, job_run, jobs, measure

SCHEMA = "parasim.job/1"
LAUNCHERS = ("torchrun", "srun")
TIMEOUT = 120.0  # seconds before any wait gives up
FIRST_PORT, PORTS = 29500, 1000  # where the ranks of a Slurm job meet, by the number of the job
OF_TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


def environment(launcher: str, environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of torchrun that place this process, from those that `launcher` set. Raises Malformed, Refused where they are missing."""
    known(launcher, LAUNCHERS, "--launcher")
    if launcher == "torchrun":
        _need(environ, OF_TORCHRUN, "torchrun --nproc_per_node N -m validation job --launcher torchrun")
        return {name: environ[name] for name in OF_TORCHRUN}
    needed = ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_JOB_ID")
    _need(environ, (*needed, "SLURM_JOB_NODELIST"), "srun --ntasks N python -m validation job --launcher srun")
    rank, world, local, number = (environ[name] for name in needed)
    return {
        "RANK": rank,
        "WORLD_SIZE": world,
        "LOCAL_RANK": local,
        "MASTER_ADDR": environ.get("MASTER_ADDR") or first_host(environ["SLURM_JOB_NODELIST"]),
        "MASTER_PORT": environ.get("MASTER_PORT") or str(FIRST_PORT + int(number) % PORTS),
    }


def _need(environ: Mapping[str, str], names: Sequence[str], line: str) -> None:
    missing = [name for name in names if name not in environ]
    if missing:
        raise Refused(f"{', '.join(missing)} not set; start this with {line}")


def first_host(nodes: str) -> str:
    """The first name of a Slurm list of nodes: "gpu[07-09,12],login" -> gpu07. Raises Malformed."""
    found = re.match(r"([^\[,]+)(?:\[(\d+)[^\]]*\]([^,\[]*))?", nodes)
    if found is None:
        raise Malformed(f"SLURM_JOB_NODELIST={nodes!r} names no node; a list such as gpu[01-04] is due")
    return found[1] + (found[2] or "") + (found[3] or "")


def launched(launcher: str, backend: str, cluster: str, cases: Sequence[str] | None, out: Path, runs: int) -> None:
    """Run the jobs on all processes; rank 0 writes profile.yaml, errors.json and the two timelines of every case into `out`."""
    os.environ.update(environment(launcher, os.environ))
    from parasim.executor.launch import joined

    world, lead = int(os.environ["WORLD_SIZE"]), os.environ["RANK"] == "0"
    if world < 2:
        raise Refused(f"WORLD_SIZE={world}: at least 2 processes are due, nothing is sent by one")
    legal = jobs(world)
    names = [known(name, legal, "--case") for name in cases or legal]
    if lead:
        out.mkdir(parents=True, exist_ok=True)
    with joined(backend, TIMEOUT), TemporaryDirectory() as scratch:
        verdicts = _verdicts(names, backend, cluster, world, out if lead else Path(scratch), runs)
    if lead:
        _tell(verdicts, out, {"launcher": launcher, "backend": backend, "cluster": cluster, "ranks": world})


def _verdicts(names: Sequence[str], backend: str, cluster: str, world: int, folder: Path, runs: int) -> list[Verdict]:
    """Every rank sweeps, fits the same numbers, predicts and runs; each keeps what it writes in its own folder."""
    from parasim.executor.calibrate import calibrate_collectives

    profile = folder / "profile.yaml"
    found = calibrate_collectives(None, SWEEP_SIZES, ops=SWEEP_OPS, cluster=load_cluster(cluster, world), backend=backend, timeout=TIMEOUT)
    save_profile(found.profile("measured"), profile)
    verdicts = []
    for name in names:
        run = job_run(name, profile, world, cluster)
        workload = lower(run.plan)
        predicted = simulate(workload, run.cluster, run.profile)
        predicted.save(folder / f"{name}-predicted.npz")
        measured = measure(workload, Priced(run.cluster.accelerator, run.profile), runs + 1, TIMEOUT)
        measured.save(folder / f"{name}-measured.npz")
        verdicts.append(Verdict(name, predicted, measured, tuple(measured.meta["makespans_s"][1:]), by_default(name, world, cluster)))
    return verdicts


def _tell(verdicts: Sequence[Verdict], out: Path, made: Mapping[str, Any]) -> None:
    """Print the table of errors and write it."""
    rows = [
        {"case": v.name, "predicted_s": v.predicted.makespan, "default_s": v.default, "measured_s": v.measured_step, "steps_s": list(v.steps), "error": v.error}
        for v in verdicts
    ]
    how = {key: verdicts[0].measured.meta[key] for key in ("torch", "host")}
    with whole(out / "errors.json") as draft:
        draft.write_text(json.dumps({"schema": SCHEMA, "provenance": {**stamp({}), **how, **made}, "rows": rows}, indent=1) + "\n", encoding="utf-8")
    for v in verdicts:
        typer.echo(f"{v.name:16s} predicted {v.predicted.makespan * 1e3:8.2f} ms  measured {v.measured_step * 1e3:8.2f} ms  error {v.error:+.1%}")
    typer.echo(f"wrote {out}/profile.yaml, {out}/errors.json and the timelines")
