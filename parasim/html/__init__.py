"""The page: a report as one HTML file with an interactive timeline, for any browser, without a network.

Python prepares numbers and names; what a browser does with them is in `static/`.
"""

from .document import page, write
from .side import Side, side_of

__all__ = ["Side", "page", "side_of", "write"]
