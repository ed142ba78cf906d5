"""A small run file and a way to write it to disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

RUN = """\
model: {kind: mlp, layers: 8, hidden: 64, ffn: 256}
cluster: h100-hgx-ib400
devices: 8
batch: {global: 16, micro: 2, sequence: 1}
precision: bf16
parallel: {tp: 2, pp: 2, dp: auto}
dp: {mode: bucketed, bucket: 25 MiB}
zero: {stage: 1}
pipeline: {schedule: 1f1b}
"""

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """write(text, old, new) -> run.yaml in the working directory, with every `old` line replaced by `new`; messages then begin with run.yaml."""
    monkeypatch.chdir(tmp_path)

    def write_file(old: str = "", new: str = "", text: str = RUN) -> Path:
        assert old in text
        Path("run.yaml").write_text(text.replace(old, new, 1) if old else text + new, encoding="utf-8")
        return Path("run.yaml")

    return write_file
