"""The tables of torch's pipelining, run for real: `python -m validation tables FOLDER`.

Every table becomes a Workload of slept actions and one-byte messages, as `parasim schedule --csv` times it, and runs on as many gloo processes as it
has ranks. Transfers go one at a time per rank (`stream`) where the simulator says that this ends, else each on a stream of its own (`async`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from parasim.api import time_study
from parasim.errors import Malformed, Refused
from parasim.lowering.study import Study, lower_study
from parasim.program.workload import Workload
from parasim.schedules.table import Table, read_table
from parasim.schedules.validate import violations

ACTION = 2e-4  # seconds that an action of a rank's share is slept
RANKS = 4  # processes at most
TIMEOUT = 30.0  # seconds before a table is given up


def tables(
    folder: Annotated[Path, typer.Argument(help="Tables in torch's form, *.csv; a *.fixed.csv takes the place of the one it mends.")],
    ranks: Annotated[int, typer.Option(min=2, help="Tables of more ranks are left out.")] = RANKS,
) -> None:
    """Run every table on real processes, and say under which model of communication."""
    chosen = select(folder, ranks)
    if not chosen:
        raise Malformed(f"{folder}: holds no table of 2 to {ranks} ranks")
    counts: dict[str, int] = defaultdict(int)
    for world, names in chosen.items():
        for name, comm, actions in run(names, world):
            counts[comm] += 1
            typer.echo(f"ok   {name:52s} {world} ranks, {actions:4} actions, {comm}")
    typer.echo(f"{sum(counts.values())} tables ran: " + ", ".join(f"{n} {comm}" for comm, n in counts.items()))


def select(folder: Path, ranks: int) -> dict[int, list[Path]]:
    """The sound tables of 2 to `ranks` ranks, by their ranks."""
    out: dict[int, list[Path]] = defaultdict(list)
    for path in sorted(folder.glob("*.csv")):
        if path.with_suffix(".fixed.csv").exists():
            continue
        world = len(read_table(path).rows)
        if 2 <= world <= ranks:
            out[world].append(path)
    return dict(sorted(out.items()))


def workload(table: Table) -> tuple[Workload, str]:
    """The table as a Workload, and the model of communication under which it ends. Raises Refused for a table that breaks a rule."""
    broken = [v for v in violations(table) if v.field != "cycle"]
    if broken:
        raise Refused(broken)
    for comm in ("stream", "async"):
        study = Study(table.orders, 1, (ACTION, ACTION, ACTION), (), comm, table.steps if table.has_transfers else None)
        if time_study(study, 0.0)[1] is not None:
            return lower_study(study), comm
    raise Refused("the table ends under no model of communication")


def run(paths: Sequence[Path], world: int) -> list[tuple[str, str, int]]:
    """(name, model of communication, actions that ran) of tables of `world` ranks. Raises Failed where a rank dies or is late."""
    from parasim.executor.launch import spawn

    made = [workload(read_table(path)) for path in paths]
    ran = spawn(_all, world, [w for w, _ in made], timeout=TIMEOUT * len(made))[0]
    return [(path.name, comm, n) for path, (_, comm), n in zip(paths, made, ran, strict=True)]


def _all(workloads: Sequence[Workload]) -> list[int]:
    """On one of the ranks: run them one after the other; the ops of every one."""
    from parasim.executor.execution import Execution, Settings
    from parasim.executor.payloads import given

    return [len(Execution(w, Settings("sleep", TIMEOUT, given)).run(1).ops) for w in workloads]
