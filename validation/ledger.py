"""The ledger of judged scorings: every time that rows of a validation set are scored, one line is added before any row is shown."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from parasim.errors import Malformed

LEDGER = Path(__file__).with_name("LEDGER.md")
HEAD = """# Ledger

Every scoring of rows that no number was fitted to: when, at which commit, and the score per source (median |error| of step times, bias, rows).
Lines are added by `python -m validation published` before it prints a row. Choosing a constant by looking at such rows would make them fit rows.

| date (UTC) | commit | files | score | per source: median, bias, n (refused) |
|---|---|---|---|---|
"""


def is_judge(path: Path) -> bool:
    """Whether `path` holds rows to be judged: a folder called `validation` is above it, other than this package with its fit rows."""
    here = Path(__file__).resolve().parent
    above = path.resolve().parents
    return any(folder.name == "validation" and folder != here for folder in above)


def enter(tree: Mapping[str, Any], paths: Sequence[Path], ledger: Path = LEDGER, what: str = "") -> None:
    """Add the scoring `tree` of `paths`; `what`: of which other model than the shipped one. Raises `Malformed` where it cannot
    be written: then nothing is to be shown."""
    per_source = [
        f"{name} {s['median_abs_error']:.1%}, {s['bias']:+.1%}, {s['n']} ({s['refused']})" if s["n"] else f"{name} - ({s['refused']})"
        for name, s in tree["by_source"].items()
    ]
    score = "-" if tree["score"] is None else f"{tree['score']:.4f}"
    when = datetime.now(UTC).strftime("%Y-%m-%d %H:%M")
    files = (f"{what}: " if what else "") + ", ".join(p.name for p in paths)
    line = f"| {when} | {commit()} | {files} | {score} | {'; '.join(per_source)} |\n"
    try:
        with ledger.open("a", encoding="utf-8") as file:
            file.write((HEAD if file.tell() == 0 else "") + line)
    except OSError as error:
        raise Malformed(f"{ledger}: cannot be written ({error.strerror}); nothing of a judged file is shown without its line there") from None


def commit() -> str:
    """The commit that is checked out, with a + where files differ from it; `unknown` outside a repository."""
    here = Path(__file__).parent
    try:
        name = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=here, capture_output=True, text=True, check=True).stdout.strip()
        changed = subprocess.run(["git", "status", "--porcelain", "-uno"], cwd=here, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return name + ("+" if changed else "")
