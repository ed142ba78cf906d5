"""Stacks: structural defaults of a training software by name, from data files; what a run file writes itself wins."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from typing import Any

from ..documents import Document, parse
from ..errors import InvalidLayout, Violation

Tree = Mapping[str, Any]


@dataclass(frozen=True)
class Stack:
    """`keys` are those of a run file, `with_tp` further ones where parallel.tp is more than 1; `source` is where they are known from."""

    name: str
    about: str
    source: str
    keys: Tree
    with_tp: Tree


@cache
def stack_names() -> tuple[str, ...]:
    """Names of the stacks that ship with parasim, in order."""
    entries = (e.name for e in files(__package__).joinpath("stacks").iterdir())
    return tuple(sorted(e.removesuffix(".yaml") for e in entries if e.endswith(".yaml")))


@cache
def load_stack(name: str) -> Stack:
    """The stack called `name`, one of `stack_names`."""
    file = f"{name}.yaml"
    data = parse(files(__package__).joinpath("stacks", file).read_bytes(), file).mapping()
    return Stack(name, data["about"], data["source"], data["keys"], data.get("with_tp", {}))


@dataclass(frozen=True)
class Expanded:
    """A run file with the defaults of its stack, and what the stack gave: path -> value."""

    document: Document
    stack: str = ""
    given: Tree = field(default_factory=dict)

    def assumption(self) -> Iterator[str]:
        """What the stack stands for here, in one line."""
        if self.stack:
            yield f"stack {self.stack}: {', '.join(f'{path}={_text(value)}' for path, value in self.given.items()) or 'every key of it is written'}"

    def blame(self, error: InvalidLayout) -> InvalidLayout:
        """The same refusal, saying of each field that the stack gave it."""
        by_stack = {path.partition(".")[0] if path.startswith("recompute") else path for path in self.given}

        def said(v: Violation) -> Violation:
            mine = v.field in by_stack or v.field.partition(".")[0] in by_stack
            return replace(v, rule=f"{v.rule} (stack {self.stack} asks for it)") if mine else v

        return InvalidLayout([said(v) for v in error.violations])


def with_stack(document: Document) -> Expanded:
    """`document` with the defaults of the stack it names (a run file without one, or with an unknown name, stays as it is)."""
    data: Any = document.data
    name = data.get("stack") if isinstance(data, Mapping) else None
    if not isinstance(name, str) or name not in stack_names():
        return Expanded(document)
    found = load_stack(name)
    parallel = data.get("parallel")
    tp = parallel.get("tp", 1) if isinstance(parallel, Mapping) else 1
    given: dict[str, Any] = {}
    merged = _under(data, found.keys, "", given)
    if isinstance(tp, int) and tp > 1:
        merged = _under(merged, found.with_tp, "", given)
    return Expanded(replace(document, data=merged), name, given)


def _under(written: Tree, defaults: Tree, prefix: str, given: dict[str, Any]) -> dict[str, Any]:
    """`written` over `defaults`; a lone value where a mapping could stand is its `modules` (recompute: full)."""
    out = dict(written)
    for key, value in defaults.items():
        if isinstance(value, Mapping):
            mine = out.get(key, {})
            mine = {"modules": mine} if key == "recompute" and key in out and not isinstance(mine, Mapping) else mine
            if isinstance(mine, Mapping):
                out[key] = _under(mine, value, f"{prefix}{key}.", given)
        elif key not in out:
            out[key] = given[prefix + key] = value
    return out


def _text(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(str, value))}]"
    return str(value).lower() if isinstance(value, bool) else str(value)
