"""Public names: what `parasim.__all__` promises can be imported and is documented, and no module shadows a function."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import parasim
import parasim.api

from .source import ROOT, Module, modules

REFERENCE = ROOT / "docs" / "reference" / "api.md"


def test_public_names_are_importable() -> None:
    assert [name for name in parasim.__all__ if not hasattr(parasim, name)] == []
    assert sorted(parasim.__all__) == parasim.__dir__()
    assert set(parasim.api.__all__) | {"plots", "__version__"} == set(parasim.__all__)


def test_public_names_are_documented() -> None:
    """The reference names each of them at the beginning of a row, and nothing else."""
    rows = re.findall(r"^\| `(\w+)` \|", REFERENCE.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(rows) == sorted(parasim.__all__)


def test_public_functions_say_what_they_do() -> None:
    silent = [name for name in parasim.__all__ if name != "__version__" and not (getattr(parasim, name).__doc__ or "").strip()]
    assert silent == []


@pytest.mark.parametrize("command", [("-c", "import parasim"), ("-m", "parasim", "--help"), ("-m", "parasim", "run", "--help")])
def test_no_heavy_library_at_the_start(command: tuple[str, ...], tmp_path: Path) -> None:
    """-X importtime names every module that is loaded, one a line, after the last bar."""
    done = subprocess.run([sys.executable, "-X", "importtime", *command], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True)
    loaded = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()}
    assert "parasim" in loaded
    assert loaded & {"torch", "matplotlib"} == set()


def test_no_public_name_of_a_package_is_also_a_module_in_it() -> None:
    """Once imported, a module becomes an attribute of its package and would hide a function of that name."""
    inside = {p: {name.rpartition(".")[2] for name in modules() if name.rpartition(".")[0] == p} for p, module in modules().items() if module.is_package}
    wrong = [f"{package}.{name}" for package, names in inside.items() for name in _public(modules()[package]) & names]
    assert wrong == ["parasim.plots"]  # the package itself


def _public(module: Module) -> set[str]:
    """The names in `__all__`."""
    listed = [node.value for node in module.tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"]
    return {str(name) for value in listed for name in ast.literal_eval(value)}
