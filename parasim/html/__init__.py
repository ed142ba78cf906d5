"""The page: a report as one HTML file with an interactive timeline, for any browser, without a network."""

from .document import page, write
from .side import Side

__all__ = ["Side", "page", "write"]
