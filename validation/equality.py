"""`python -m validation equality`: what makes the engine fast changes nothing. Folded = unfolded and fused = unfused on every op of every rank."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
import typer

from parasim.config import Run, build
from parasim.errors import Refused
from parasim.lowering import lower
from parasim.sim import simulate
from parasim.timeline import Timeline

TOLERANCE = 1e-9  # of the step
LARGE: dict[str, dict[str, Any]] = {
    "tp4 pp4 dp32 zero1 interleaved, one GPU a fifth slower": {
        "parallel": {"tp": 4, "pp": 4},
        "pipeline": {"schedule": "interleaved-1f1b"},
        "zero": {"stage": 1},
        "perturb": [{"rank": 77, "slowdown": 1.2}],
    },
    "pp8 dp64 zero1 1f1b, one NIC at a quarter": {
        "parallel": {"pp": 8},
        "zero": {"stage": 1},
        "perturb": [{"link": "node3.nic1", "bandwidth": 0.25}],
    },
    "pp2 dp256 ep32 with hot experts": {
        "parallel": {"pp": 2, "ep": 32},
        "experts": {"load": {"zipf": 1.2}},
    },
}
SMALL = {"kind": "transformer", "layers": 8, "hidden": 64, "heads": 4, "kv_heads": 4, "ffn": 128, "vocab": 128}


def large(name: str) -> Run:
    """A run on 512 devices."""
    keys = LARGE[name]
    model = SMALL | {"experts": {"count": 64, "topk": 2, "ffn": 64}} if "experts" in keys else SMALL
    replicas = 512 // (keys["parallel"].get("tp", 1) * keys["parallel"].get("pp", 1))
    return build({"model": model, "cluster": "h100-hgx-ib400", "devices": 512, "batch": {"global": 8 * replicas, "micro": 1, "sequence": 32}, **keys})


def difference(a: Timeline, b: Timeline) -> float:
    """The largest difference of when any op of any rank is ready, starts or ends, over the step. Raises Refused where the bytes differ."""
    worst = 0.0
    for rank in range(len(a.representative)):
        mine, other = a.part(rank), b.part(rank)
        if mine is None or other is None or not np.array_equal(mine["bytes"], other["bytes"]):
            raise Refused(f"rank {rank}: other ops or bytes")
        worst = max(worst, *(float(np.abs(mine[name] - other[name]).max(initial=0.0)) for name in ("ready", "start", "end")))
    return worst / b.makespan if b.makespan else worst


def both(run: Run) -> tuple[float, float]:
    """(folded against unfolded, fused against unfused), as `difference`."""
    workload = lower(run.plan)
    fast = simulate(workload, run.cluster, run.profile)
    whole = simulate(workload, run.cluster, run.profile, fold=False)
    plain = simulate(workload, run.cluster, run.profile, fuse=False)
    return difference(fast, whole), difference(fast, plain)


def equality(cases: Annotated[int, typer.Option(min=1, help="Random runs on 8 to 64 devices.")] = 200, seed: int = 0) -> None:
    """Compare folded with unfolded and fused with unfused simulations: random runs on 8 to 64 devices, and three on 512. Exit 1 where they differ."""
    from hypothesis import HealthCheck, given, settings
    from hypothesis import seed as seeded

    from .random_runs import runs

    found: list[tuple[float, float]] = []

    @seeded(seed)
    @settings(max_examples=cases, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(runs((8, 16, 32, 64)))
    def agree(run: Run) -> None:
        found.append(both(run))
        assert max(found[-1]) <= TOLERANCE, f"{run.source}: {found[-1]}"

    try:
        agree()
    except AssertionError as error:
        raise Refused(f"simulations differ: {error}") from error
    folded, fused = (max(column) for column in zip(*found, strict=True))
    typer.echo(f"{len(found)} random runs on 8 to 64 devices: of the step, folded - unfolded at most {folded:.1e}, fused - unfused {fused:.1e}")
    for name in LARGE:
        folded, fused = both(large(name))
        typer.echo(f"512 devices, {name}: folded - unfolded {folded:.1e}, fused - unfused {fused:.1e}")
        if max(folded, fused) > TOLERANCE:
            raise Refused(f"simulations differ: {name}")
