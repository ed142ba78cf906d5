"""What the parts of the command line share: its flags and how it prints."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

RunFile = Annotated[Path | None, typer.Argument(metavar="[RUN.yaml]", help="A run file; without one, the embedded default run (Llama 3 70B on 64 H100).")]
Overrides = Annotated[list[str] | None, typer.Option("--set", metavar="PATH=VALUE", help="Override a key of the run file; repeatable.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
ProfileName = Annotated[str | None, typer.Option(help="Profile: a catalog name or a file; without one, datasheet numbers.")]


def print_text(text: str) -> None:
    """To standard output, unless whoever started us closed it."""
    if sys.stdout is not None:
        sys.stdout.write(text if text.endswith("\n") else text + "\n")


def print_json(value: Any) -> None:
    """One strict JSON object."""
    from .api import as_json

    print_text(as_json(value))


def print_answer(found: Any, json: bool) -> None:
    """An answer with `to_json()` and `str()`."""
    print_json(found.to_json()) if json else print_text(str(found))
