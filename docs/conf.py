"""Sphinx: the documentation of parasim. `make docs` builds it with warnings as errors; nothing is fetched while it builds."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "extensions"))  # the pieces below
sys.path.insert(0, str(HERE.parent))  # validation, which is part of the checkout only

os.environ.setdefault("MPLBACKEND", "agg")
warnings.filterwarnings("ignore", message=".*is non-interactive.*")

import parasim  # noqa: E402

project = "parasim"
author = "the parasim authors"
copyright = "the parasim authors"
release = version = parasim.__version__

extensions = ["myst_parser", "sphinx_gallery.gen_gallery", "parasim_reference"]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
exclude_patterns = ["_build", "gallery", "extensions", "examples", "Thumbs.db"]
root_doc = "index"
nitpicky = True

myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence", "deflist"]
myst_links_external_new_tab = False

html_theme = "furo"
html_title = "parasim"
html_static_path = ["_static"]
html_css_files = ["parasim.css"]
html_copy_source = False
html_show_sphinx = False
html_theme_options = {"navigation_with_keys": True, "top_of_page_buttons": []}
pygments_style = "friendly"
pygments_dark_style = "monokai"

sphinx_gallery_conf = {
    "examples_dirs": "gallery",
    "gallery_dirs": "lectures",
    "filename_pattern": r"/\w+\.py$",
    "ignore_pattern": r"__init__\.py",
    "within_subsection_order": "FileNameSortKey",
    "nested_sections": True,
    "show_memory": False,
    "show_signature": False,
    "download_all_examples": False,
    "min_reported_time": 2,
    "write_computation_times": False,  # its pages would fetch a style sheet
    "image_scrapers": ("parasim_figures.scrape",),
    "reset_modules": (),
    "capture_repr": ("_repr_html_", "__str__"),
    "abort_on_example_error": False,
    "only_warn_on_example_error": True,  # -W makes it fatal, after all others have run
    "default_thumb_file": str(HERE / "_static" / "table.png"),  # pages that show tables only
    "plot_gallery": "True",
    "remove_config_comments": True,
}
suppress_warnings = ["config.cache"]
