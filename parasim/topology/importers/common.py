"""What all importers share: the graph they collect, faults with file and line, and the facts that their files leave out."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from ... import documents
from ...errors import Unparsable
from ..data import data_root

_ESCAPES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_PREFIX = re.compile(r"(?:\[\d+,\d+\](?:<std(?:out|err)>)?:|\d+: |\[[\w.-]+:\d+\] )\s?")  # mpirun --tag-output, srun --label, hydra -prepend-rank


@cache
def facts() -> Mapping[str, Any]:
    """topologies/imports.yaml."""
    found: Mapping[str, Any] = documents.read(data_root() / "imports.yaml").mapping()
    return found


@dataclass
class Graph:
    """A cluster mapping in the making; `notes` say what the file did not, and what stands here for it."""

    name: str
    accelerator: str
    nodes: dict[str, dict[str, str]] = field(default_factory=dict)
    links: list[dict[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def node(self, name: str, kind: str, server: str | None = None) -> str:
        """Enter a node once; its name."""
        self.nodes.setdefault(name, {"id": name, "kind": kind} | ({"node": server} if server else {}))
        return name

    def link(self, a: str, b: str, kind: str, bandwidth: str, latency: str = "0 s") -> None:
        """A cable; `bandwidth` per direction."""
        self.links.append({"a": a, "b": b, "kind": kind, "bandwidth": bandwidth, "latency": latency})

    def note(self, text: str) -> None:
        """Say it once."""
        if text not in self.notes:
            self.notes.append(text)

    def mapping(self) -> dict[str, Any]:
        """As one would write it in cluster.yaml, devices first."""
        nodes = sorted(self.nodes.values(), key=lambda node: node["kind"] != "gpu")
        return {"name": self.name, "accelerator": self.accelerator, "nodes": nodes, "links": self.links}


def fault(name: str, line: int, message: str, column: int = 0) -> Unparsable:
    """An error at a line of a file, and at a column where one word is at fault; both from 1."""
    return Unparsable(f"{name}:{line}:{column}: {message}" if column else f"{name}:{line}: {message}")


class Word(NamedTuple):
    """A word and the column where it begins, from 1."""

    text: str
    column: int


def words(text: str, columns: Sequence[int] | None = None) -> list[Word]:
    """The words of a line; `columns[i]` is that of its i-th character, where that is not i + 1."""
    found = re.finditer(r"\S+", text)
    return [Word(m[0], m.start() + 1 if columns is None else columns[m.start()]) for m in found]


class Line(NamedTuple):
    """A line of a file: its number from 1, the prefix that a launcher put before it, its words without terminal escapes, and the column after it."""

    number: int
    prefix: str
    words: list[Word]
    end: int


def lines(text: str) -> Iterator[Line]:
    """The lines of what a launcher collected."""
    for number, raw in enumerate(text.splitlines(), 1):
        hidden = {i for m in _ESCAPES.finditer(raw) for i in range(m.start(), m.end())}
        columns = [i + 1 for i in range(len(raw)) if i not in hidden]
        line = "".join(raw[i - 1] for i in columns)
        prefix = _PREFIX.match(line)
        begin = prefix.end() if prefix else 0
        yield Line(number, prefix[0].strip() if prefix else "", words(line[begin:], columns[begin:]), len(raw.rstrip()) + 1)


def text_of(path: Path) -> str:
    """The text of a file. Raises `Malformed` when it is missing, `Unparsable` when it is empty or not text."""
    return documents.decoded(documents.content(path), str(path))


def nvlinks(count: int, accelerator: str) -> str:
    """Bandwidth of `count` NVLinks of an accelerator per direction, as text with its unit."""
    table = facts()["nvlink"]
    each = float(str(table.get(accelerator, table["default"])).split()[0])
    return f"{count * each:g} GB/s"
