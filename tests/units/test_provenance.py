"""The stamp on artifacts: versions and hashes, nothing that changes from one call to the next."""

from __future__ import annotations

import json
import platform

import parasim
from parasim.provenance import digest, stamp


def test_stamp() -> None:
    got = stamp({"run.yaml": b"abc", "text": "abc"})
    assert (got["parasim"], got["python"]) == (parasim.__version__, platform.python_version())
    # SHA-256 of "abc": FIPS 180-2, appendix B.1
    known = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert got["inputs"] == {"run.yaml": known, "text": known}
    assert set(got["libraries"]) == {"networkx", "numpy", "pydantic", "pyyaml", "simpy"}  # type: ignore[call-overload]
    assert json.dumps(got) == json.dumps(stamp({"text": "abc", "run.yaml": b"abc"}))
    assert digest("é") == digest("é".encode())
