"""Columns as a pandas DataFrame; pandas is loaded when one is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .errors import MissingExtra


def data_frame(columns: Mapping[str, Any]) -> Any:
    """A pandas.DataFrame. Raises MissingExtra, naming the pip command, where pandas is not installed."""
    try:
        import pandas
    except ImportError:
        raise MissingExtra("pandas", "pandas") from None
    return pandas.DataFrame(dict(columns))
