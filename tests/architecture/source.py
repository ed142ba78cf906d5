"""The package as its source says it: modules, and which of them imports what, read from the syntax trees without importing anything."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeGuard

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Module:
    """A source file: its dotted name, whether it is a package's __init__, its syntax tree."""

    name: str
    path: Path
    tree: ast.Module

    @property
    def is_package(self) -> bool:
        return self.path.name == "__init__.py"

    @property
    def package(self) -> str:
        return self.name if self.is_package else self.name.rpartition(".")[0]


@dataclass(frozen=True)
class Import:
    """`source` imports `names` (none: all) of `target` (a dotted name) on a line; `typing_only` under TYPE_CHECKING."""

    source: str
    target: str
    names: tuple[str, ...]
    line: int
    typing_only: bool

    def __str__(self) -> str:
        return f"{self.source}:{self.line} imports {self.target}"


def modules(package: str = "parasim") -> dict[str, Module]:
    """Every module of `package` by dotted name."""
    return _modules(package)


@cache  # by the package, whether or not it was left out
def _modules(package: str) -> dict[str, Module]:
    found = {}
    for path in sorted((ROOT / package).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = Module(name, path, ast.parse(path.read_text(encoding="utf-8"), str(path)))
    return found


def imports(package: str = "parasim") -> tuple[Import, ...]:
    """Every import statement of `package`, at any depth of the code; `from a import b` targets a.b where that is a module, else a."""
    return _imports_of(package)


@cache
def _imports_of(package: str) -> tuple[Import, ...]:
    return tuple(found for module in modules(package).values() for found in _imports(module))


def _imports(module: Module) -> Iterator[Import]:
    typing_only = {id(n) for node in _statements(module.tree) if _guarded(node) for n in _statements(node)}
    for node in _statements(module.tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            for target, names in _targets(node, module):
                yield Import(module.name, target, names, node.lineno, id(node) in typing_only)


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """Every statement below `node`, at any depth; no expressions, which are most of a tree."""
    for part in ("body", "orelse", "handlers", "finalbody", "cases"):
        below = getattr(node, part, ())
        for child in below if isinstance(below, list) else ():
            yield child
            yield from _statements(child)


def _guarded(node: ast.AST) -> TypeGuard[ast.If]:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def _targets(node: ast.Import | ast.ImportFrom, module: Module) -> Iterator[tuple[str, tuple[str, ...]]]:
    if isinstance(node, ast.Import):
        yield from ((alias.name, ()) for alias in node.names)
        return
    parts = module.package.split(".")
    base = parts[: len(parts) - node.level + 1] if node.level else []
    origin = ".".join([*base, *(node.module.split(".") if node.module else [])])
    inner = {alias.name: f"{origin}.{alias.name}" for alias in node.names}
    known = modules(parts[0])
    yield from ((target, ()) for target in inner.values() if target in known)
    rest = tuple(name for name, target in inner.items() if target not in known)
    if rest:
        yield origin, rest
