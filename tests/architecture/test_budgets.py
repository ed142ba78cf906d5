"""Budgets that keep the rooms liveable: length of files, and no machine constant in code."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from .source import ROOT, modules

WARN, MOST = 400, 500  # lines of a file
LARGE = 1e6
UNIT_TABLE = "parasim.units"
PREFIXES = {1e9, 1e12, 1e15}  # giga, tera, peta: units of what is printed
# Elsewhere: numbers above a million that are no facts about a machine.
ALLOWED = {
    ("parasim.collectives.table", 2.0**20): "ranks beyond which a typo is likelier",
    ("parasim.documents", 2.0**26): "bytes beyond which it is no file that a person wrote",
    ("parasim.config.scalars", 2.0**53): "whole numbers that a float holds exactly",
    ("parasim.config.scalars", 2.0**20): "devices or layers beyond which a typo is likelier",
    **{("parasim.hashes", float(n)): "a multiplier of a published hash" for n in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)},
    ("parasim.html.columns", 2.0**32): "numbers that four bytes tell apart",
    ("parasim.report.reserved", 2.0**20): "a mebibyte, in which PyTorch's allocator counts its segments",
    ("parasim.report.reserved", 2.0**48): "beyond every address, so that a size and an address are one number",
    ("parasim.parallel.layout", 2.0**20): "the first bucket that PyTorch's DistributedDataParallel has by default",
    ("parasim.parallel.layout", 25 * 2.0**20): "the bucket that PyTorch's DistributedDataParallel has by default",
}


def test_files_stay_short() -> None:
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for top in ("parasim", "validation", "tests") for path in (ROOT / top).rglob("*.py")}
    long = {str(path.relative_to(ROOT)): n for path, n in lengths.items() if n > WARN}
    for path, n in sorted(long.items()):
        print(f"{path} has {n} lines; consider parting it (aim: {WARN}, most: {MOST})")
    assert [path for path, n in long.items() if n > MOST] == []


def test_no_machine_constant_in_code() -> None:
    """Numbers above 1e6 live in data files with unit and source; a constant expression counts by its value."""
    rest = [module for name, module in modules().items() if name != UNIT_TABLE]
    numbers = {(module.name, abs(value)) for module in rest for value in _numbers(module.tree)}
    found = {(name, value) for name, value in numbers if LARGE < value < float("inf") and value not in PREFIXES}
    assert found - ALLOWED.keys() == set()
    assert ALLOWED.keys() - found == set(), "allowed, but no longer there"


def _numbers(node: ast.AST) -> Iterator[float]:
    """The values of the largest constant numeric expressions below `node`."""
    value = _value(node)
    if value is not None:
        yield value
        return
    for child in ast.iter_child_nodes(node):
        yield from _numbers(child)


def _value(node: ast.AST) -> float | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool):
        return float(node.value)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult | ast.Pow | ast.Add | ast.Sub | ast.Div):
        left, right = _value(node.left), _value(node.right)
        if left is not None and right is not None:
            return float(eval(compile(ast.Expression(node), "constant", "eval")))  # numbers and operators only
    return None
