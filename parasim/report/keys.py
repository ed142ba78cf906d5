"""Grouping rows of structured columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray


def row_keys(rows: NDArray[Any] | Mapping[str, NDArray[Any]], columns: tuple[str, ...]) -> NDArray[np.int64]:
    """One integer per row, equal where the named integer columns are equal, in their lexicographic order."""
    key = np.zeros(len(rows[columns[0]]), dtype=np.int64)
    for column in columns if len(key) else ():
        values = rows[column].astype(np.int64)
        low = int(values.min())
        key = key * (int(values.max()) - low + 1) + values - low
    return key
