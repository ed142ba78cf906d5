"""`python -m validation lab`: the command line; everything else happens in namespaces of its own."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from parasim.errors import Malformed

from .cases import CASES, read_cases
from .session import Options
from .wrapper import contained


def lab(
    case: Annotated[list[str] | None, typer.Option(help="Case to run (repeatable); all if none is given.")] = None,
    cases: Annotated[Path, typer.Option(help="The list of cases.")] = CASES,
    json: Annotated[Path | None, typer.Option(help="Write what was measured here.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Folder for a picture of both timelines of every case.")] = None,
    repeats: Annotated[int, typer.Option(min=3, help="Repetitions of a case after one to warm up; the median counts.")] = 5,
    controls: Annotated[bool, typer.Option("--controls", help="Also try wrong predictions, and a network without shapers: they must fail the gate.")] = False,
    profiles: Annotated[
        Path | None, typer.Option(help="Folder of fitted profiles, one per network: those there are used, others are fitted and written.")
    ] = None,
    fit_only: Annotated[bool, typer.Option("--fit-only", help="Fit the start-up times of the networks, write them into --profiles, and stop.")] = False,
) -> None:
    """Lay cluster files out as real networks on this machine, run the cases there on gloo ranks with slept compute, and judge the simulator. Needs root."""
    if fit_only and profiles is None:
        raise Malformed("--fit-only needs --profiles: the folder that the fitted profiles are written into")
    read_cases(cases).named(case or ())
    paths = {"cases": cases, "out": json, "plot": plot, "profiles": profiles}
    found = {key: str(path.absolute()) if path is not None else "" for key, path in paths.items()}
    code = contained(Options(case=tuple(case or ()), repeats=repeats, controls=controls, fit_only=fit_only, **found).text())
    if code:
        sys.exit(code)
