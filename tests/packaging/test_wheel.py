"""The wheel works by itself: built from the checkout, installed into another environment, run in another folder. No network is used."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.packaging


def _call(*command: str | Path, cwd: Path) -> str:
    """Standard output of a command that must succeed, run without any hint at the checkout."""
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run([str(c) for c in command], cwd=cwd, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    _call(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "--no-index", "-w", folder, ROOT, cwd=folder)
    (built,) = folder.glob("parasim-*.whl")
    return built


@pytest.fixture(scope="module")
def elsewhere(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """bin/ of an environment with the wheel; its dependencies are those of this environment (a .pth file shares packages, not editable installs)."""
    folder = tmp_path_factory.mktemp("elsewhere")
    _call(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder)
    python = folder / "bin" / "python"
    _call(sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps", "--no-index", wheel, cwd=folder)
    site = Path(_call(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder).strip())
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    assert Path(_call(python, "-c", "import parasim; print(parasim.__file__)", cwd=folder).strip()).is_relative_to(site)
    return folder / "bin"


def test_the_wheel_carries_every_data_file(wheel: Path) -> None:
    """Clusters, accelerators, models, profiles, the default run, the page and the mark of a typed package, byte for byte."""
    due = {f"parasim/_data/{p.relative_to(ROOT).as_posix()}": p for p in (ROOT / "topologies").rglob("*") if p.is_file()}
    due |= {p.relative_to(ROOT).as_posix(): p for p in (ROOT / "parasim").rglob("*.yaml") if "_data" not in p.parts}
    due |= {p.relative_to(ROOT).as_posix(): p for p in (ROOT / "parasim" / "html" / "static").iterdir()}
    due["parasim/py.typed"] = ROOT / "parasim" / "py.typed"
    assert len(due) > 15
    with zipfile.ZipFile(wheel) as archive:
        assert due.keys() <= set(archive.namelist())
        assert [name for name, path in due.items() if archive.read(name) != path.read_bytes()] == []
        strangers = {name.partition("/")[0] for name in archive.namelist() if ".dist-info/" not in name}
    assert strangers == {"parasim"}


def test_a_run_outside_the_checkout(elsewhere: Path, tmp_path: Path) -> None:
    _call(elsewhere / "parasim", "run", cwd=tmp_path)
    results = tmp_path / "parasim-out" / "default"
    assert {p.name for p in results.iterdir()} == {"report.json", "timeline.npz", "timeline.png", "memory.png", "trace.pftrace"}
    _call(elsewhere / "parasim", "report", results / "timeline.npz", "--html", "page.html", cwd=tmp_path)
    assert "const data = JSON.parse" in (tmp_path / "page.html").read_text()
    assert json.loads((results / "report.json").read_text())["world_size"] == 64


@pytest.mark.parametrize(
    ("kind", "member"),
    [("models", "llama3-70b"), ("clusters", "h100-hgx-ib400"), ("accelerators", "h100-sxm"), ("profiles", "h100-megatron"), ("schedules", "1f1b")],
)
def test_the_catalogs_outside_the_checkout(elsewhere: Path, tmp_path: Path, kind: str, member: str) -> None:
    assert member in _call(elsewhere / "parasim", "catalog", kind, cwd=tmp_path)
