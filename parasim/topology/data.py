"""Where the data files are: topologies/accelerators, topologies/clusters and the tables beside them."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from ..errors import Malformed


@cache
def data_root() -> Path:
    """The folder `topologies`: inside the installed package, or at the root of a checkout."""
    package = Path(__file__).resolve().parents[1]
    places = (package / "_data" / "topologies", package.parent / "topologies")
    found = next((place for place in places if place.is_dir()), None)
    if found is None:
        raise Malformed(f"the data folder topologies is missing: looked in {' and '.join(map(str, places))}; reinstall parasim")
    return found


def data_files(kind: str) -> list[Path]:
    """The YAML files of topologies/<kind>, by name."""
    return sorted((data_root() / kind).glob("*.yaml"))
