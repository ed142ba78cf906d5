"""Hash collisions of equal-cost multipath (ECMP): how much longer the slowest up-link is busy than with an even spread."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from ..documents import read
from ..provenance import Number
from .data import data_root


def slowest_link(uplinks: int, queue_pairs: int) -> Number:
    """Expected load of the busiest of `uplinks` over the mean when as many equal flows are hashed onto them in `queue_pairs` parts each.

    Between the entries of topologies/ecmp.yaml straight lines over the logarithms; beyond 64 up-links or 16 parts as there, below 8 up-links
    down to 1 for one.
    """
    source, status, parts, rows = _table()
    counts = [1, *rows]
    column = [1.0] + [float(np.interp(math.log2(queue_pairs), np.log2(parts), row)) for row in rows.values()]
    ratio = float(np.interp(math.log2(uplinks), np.log2(counts), column))
    return Number(ratio, "1", f"{source}: {uplinks} up-links, {queue_pairs} queue pairs", status)


@cache
def _table() -> tuple[str, Any, Sequence[int], Mapping[int, Sequence[float]]]:
    tree: Any = read(data_root() / "ecmp.yaml").data
    return tree["source"], tree["status"], tree["queue_pairs"], {int(n): row for n, row in tree["slowest"].items()}
