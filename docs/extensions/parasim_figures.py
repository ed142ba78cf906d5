"""Figures of parasim's plots in gallery pages: they are made without pyplot, so the gallery finds them by type among what a block has named."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure
from sphinx_gallery.scrapers import figure_rst

DPI = 110


def scrape(block: Any, block_vars: dict[str, Any], gallery_conf: dict[str, Any]) -> str:
    """Save every figure that a block has made and none before it, in the order of its names; the RST that shows them."""
    paths = []
    for name, value in list(block_vars["example_globals"].items()):
        if name.startswith("_") or not isinstance(value, Figure) or getattr(value, "_parasim_shown", False):
            continue
        value._parasim_shown = True  # type: ignore[attr-defined]
        path = next(block_vars["image_path_iterator"])
        value.savefig(path, dpi=DPI)
        paths.append(path)
    return figure_rst(paths, gallery_conf["src_dir"])
