"""What a run of the lab found, as one JSON file."""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parasim.files import whole
from parasim.provenance import stamp

from .cases import CASES

if TYPE_CHECKING:
    from .session import Found

SCHEMA = "parasim.lab/1"


def results(found: Found) -> dict[str, Any]:
    """`parasim.lab/1`: verdicts, cases that did not end, the gate and the controls, the fitted numbers, and where it was."""
    held = found.gate
    return {
        "schema": SCHEMA,
        "provenance": stamp({CASES.name: CASES.read_bytes()}),
        "machine": {"kernel": platform.release(), "processors": os.cpu_count(), "load": os.getloadavg()},
        "cases": [v.to_json() for v in found.verdicts],
        "failed": found.failed,
        "gate": {"holds": held.holds, "lines": list(held.lines), "faults": list(held.faults), "refused": list(held.refused)},
        "controls": {name: {"fails": not gate.holds, "faults": list(gate.faults)} for name, gate in found.controls.items()},
        "fitted": {
            name: {key: {"value": n.value, "unit": n.unit} for key, n in sorted(profile.numbers.items()) if n.status == "fitted"}
            for name, profile in found.profiles.items()
        },
    }


def write(path: Path, found: Found) -> None:
    """Write the results; the file appears only when it is whole."""
    with whole(path) as draft:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text(json.dumps(results(found), indent=1))
