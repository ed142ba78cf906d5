"""One HTML file that holds everything: markup, style, script, and the data as JSON that no browser can take for anything else."""

from __future__ import annotations

import hashlib
import json
from base64 import b64encode
from functools import cache
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from .. import __version__
from ..files import whole
from ..plots import palette
from ..program.ops import AXES, CATEGORIES
from ..report import NAMES
from .bars import Bars
from .difference import difference, words
from .drawing import layout
from .panes import communication, links
from .side import Side

SCHEMA = "parasim.page/1"
SCRIPTS = (
    "columns", "format", "dom", "colours", "axis", "model", "paint", "rows", "timeline", "selection",
    "memory", "links", "communication", "layout", "network", "summary", "comparison", "main",
)  # fmt: skip
MARKS = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}  # so that no text of the data ends its element or begins another


def page(side: Side, other: Side | None = None) -> str:
    """The page of one timeline, or of two on one time axis. Raises Refused for a timeline without ops."""
    sides = [side] if other is None else [side, other]
    called = ("",) if other is None else words(side, other)
    parts = [_side(s, c) for s, c in zip(sides, called, strict=True)]
    data = {
        "schema": SCHEMA,
        "parasim": __version__,
        "title": " and ".join(dict.fromkeys(s.name for s in sides)),
        "axes": list(AXES),
        "names": list(NAMES),
        "categories": list(CATEGORIES),
        "colours": {
            "phases": palette.PHASE_COLOURS,
            "phase_names": palette.PHASE_NAMES,
            "other": palette.OTHER_COLOUR,
            "axes": palette.AXIS_COLOURS,
            "categories": palette.CATEGORY_COLOURS,
            "links": palette.LINK_COLOURS,
            "on_dark": palette.ON_DARK,
        },
        "sides": parts,
        "comparison": None if other is None else difference(side, other, (parts[0]["communication"], parts[1]["communication"])),
    }
    return _filled(str(data["title"]), data)


def write(path: Path, side: Side, other: Side | None = None) -> None:
    """Write `page`; the file appears only when it is whole. Raises Malformed where it cannot be written."""
    text = page(side, other)
    with whole(path) as draft:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text(text, encoding="utf-8")


def _side(side: Side, called: str) -> dict[str, Any]:
    timeline, window = side.timeline, side.window
    bars = Bars(side)
    capacity = timeline.meta.get("capacity_bytes")
    more = {"links": links(side, bars.columns), "communication": communication(side), "layout": layout(side, bars.columns)}
    return {
        "name": side.name,
        "called": called,
        "source": side.source,
        "report": side.report,
        "world": len(timeline.representative),
        "kept": len(timeline.ranks),
        "ops": len(timeline.ops),
        "window": [window.start, window.end],
        "makespan": timeline.makespan,
        "step": window.step,
        "phases": list(timeline.phases),
        "capacity": capacity if isinstance(capacity, int | float) and 0 < capacity < float("inf") else None,
        **more,
        **bars.to_json(),
    }


def as_data(value: Any) -> str:
    """Strict JSON in ASCII that stays inside its element."""
    text = json.dumps(value, allow_nan=False, ensure_ascii=True, separators=(",", ":"))
    for mark, code in MARKS.items():
        text = text.replace(mark, code)
    return text


@cache
def _static(name: str) -> str:
    return files(__package__).joinpath("static", name).read_text(encoding="utf-8")


@cache
def _script() -> str:
    """The scripts in one function, so that nothing of them is global."""
    return '(() => {\n"use strict";\n' + "\n".join(_static(f"{name}.js") for name in SCRIPTS) + "\n})();"


def _filled(title: str, data: dict[str, Any]) -> str:
    """The page. What its policy names by hash is all that a browser may run or apply, whatever the data hold."""
    style, script = _static("style.css"), _script()
    parts = {
        "title": escape(f"\u2068{title}\u2069: parasim"),
        "policy": f"default-src 'none'; img-src data:; style-src '{_hash(style)}'; script-src '{_hash(script)}'; base-uri 'none'; form-action 'none'",
        "style": style,
        "data": as_data(data),
        "script": script,
    }
    before, *rest = _static("page.html").split("{{")
    out = [before]
    for part in rest:
        name, _, text = part.partition("}}")
        out += [parts[name], text]
    return "".join(out)


def _hash(text: str) -> str:
    return f"sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
