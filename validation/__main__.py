"""`python -m validation COMMAND`: the harness as a program. One row per command; exit codes as everywhere in parasim."""

from __future__ import annotations

import sys

import typer

from parasim.errors import ParasimError

from .ablation import ablation
from .bench import bench
from .collectives import collectives
from .equality import equality
from .errors import errors
from .fit import fit
from .gpu import gpu
from .job import job
from .lab.command import lab
from .lecture import lecture
from .network import network
from .numeric import numeric
from .published import published
from .relative import relative
from .search import search
from .tables import tables
from .tpu import tpu

COMMANDS = (published, ablation, errors, relative, collectives, tpu, network, fit, bench, equality, job, lecture, numeric, tables, lab, gpu, search)

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Judge parasim against measurements that nobody here made.")
for command in COMMANDS:
    app.command()(command)


@app.callback()
def _root() -> None:
    """Keeps the commands named even when there is only one."""


def main() -> None:
    """Run one command; what parasim refuses on purpose is one message and its exit code."""
    try:
        app()
    except ParasimError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
