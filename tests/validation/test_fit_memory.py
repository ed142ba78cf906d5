"""The fit of memory.fragmentation and the units of published peaks."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from parasim.cost.profile import load_profile
from validation import fit_memory
from validation.cache import Answer, Cache, Task
from validation.row_values import quantities

RECIPE: dict[str, Any] = {"profiles": {"h100-torchtitan": {"memory": ("torchtitan",)}, "h100-fsdp": {}}}


@pytest.mark.parametrize(("held", "value"), [(70e9, 0.222), (90e9, 0.0)])
def test_the_mean_of_logarithms(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, held: float, value: float) -> None:
    """82.4 and 77.0 GiB are 88.48 and 82.68 GB, 85.53 GB in the geometric mean: 1.222 of 70 GB, and less than 90 GB."""

    def answers(tasks: Iterable[Task], cache: Cache, workers: int) -> dict[Task, Answer]:
        return {task: {"values": {"peak_memory_bytes": held}} for task in tasks}

    monkeypatch.setattr(fit_memory, "predicted", answers)
    number = fit_memory.with_fragmentation(load_profile("h100-torchtitan"), RECIPE, Cache(tmp_path), 1).numbers["memory.fragmentation"]
    assert (number.value, number.status) == (value, "fitted") and "2 published peaks (torchtitan)" in number.source


def test_a_profile_without_published_peaks_stays_as_it_is(tmp_path: Path) -> None:
    profile = load_profile("h100-fsdp")
    assert fit_memory.with_fragmentation(profile, RECIPE, Cache(tmp_path), 1) is profile


def test_units_of_peaks() -> None:
    row = {"measured": {"peak_memory_gb_unit_unknown": 10}, "cluster": {}}
    run = {"batch": {"global": 1, "sequence": 1}}
    (plain,) = quantities(row, run, {})
    (binary,) = quantities(row, run, {"unit": "GiB", "reserved": True, "why": "as logged"})
    assert (plain.name, plain.value) == ("peak_memory_bytes", 10e9) and "not published" in plain.note
    assert (binary.name, binary.value, binary.note) == ("reserved_memory_bytes", 10 * 2**30, "peak in GiB: as logged")
