"""Chakra execution traces on disk: lengths and messages, and the graph of what waits for what."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError

from ..errors import Malformed, Refused, Unparsable
from ..files import whole
from .chakra_schema import METADATA, NODE_TYPES, GlobalMetadata, Node, value_of

MOST_SHOWN = 12  # nodes of a cycle in a message
LONGEST_LENGTH = 10  # bytes of a varint


@dataclass(frozen=True)
class TraceNode:
    """One node: `waits_for` are the ids that its control and data dependencies name, `seconds` its duration."""

    id: int
    name: str
    type: int
    waits_for: tuple[int, ...]
    seconds: float
    inputs: str
    attributes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def word(self) -> str:
        """Its id and name."""
        return f"{self.id} ({self.name})" if self.name else str(self.id)


def write_nodes(path: Path, version: str, nodes: Iterable[Any]) -> int:
    """Write a trace of protobuf Nodes; the file appears only when it is whole. The number of nodes. Raises Malformed where it cannot be written."""
    count = 0
    with whole(path) as draft, open(draft, "wb") as file:
        for message in (GlobalMetadata(version=version), *nodes):
            content = message.SerializeToString()
            file.write(_varint(len(content)) + content)
            count += 1
    return count - 1


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def read_nodes(path: Path) -> list[TraceNode]:
    """The nodes of a trace, in its order.

    Raises Malformed for a missing file; Unparsable for one that is empty, cut off or something else, for two nodes of one id and for a dependency
    on a node that is not there; Refused, naming the path, where nodes wait for each other in a circle.
    """
    try:
        data = path.read_bytes()
    except OSError as e:
        raise Malformed(f"{path}: cannot be read ({e.strerror or e})") from e
    if not data:
        raise Unparsable(f"{path}: is empty; a Chakra execution trace begins with its GlobalMetadata")
    if data[:1] in b"{[" or data[:2] == b"\x1f\x8b":
        what = "is compressed" if data[:1] == b"\x1f" else "looks like JSON"
        raise Unparsable(f"{path}: {what}; a Chakra execution trace in protobuf is due, as chakra_converter writes it")
    messages = _messages(path, data)
    at, content = next(messages)
    metadata = _decoded(path, at, content, GlobalMetadata)
    if not metadata.version and not metadata.attr:
        raise Unparsable(f"{path}: byte {at}: the first message is no GlobalMetadata; is this a Chakra execution trace?")
    nodes = [_node(path, at, content) for at, content in messages]
    _check(path, nodes)
    return nodes


def _messages(path: Path, data: bytes) -> Iterator[tuple[int, bytes]]:
    """Offset and content of every message."""
    at = number = 0
    while at < len(data):
        length, start = _length(path, data, at)
        if start + length > len(data):
            raise Unparsable(f"{path}: byte {at}: is cut off, or no Chakra execution trace: message {number} has {length} bytes, {len(data) - start} are left")
        yield at, data[start : start + length]
        at, number = start + length, number + 1


def _length(path: Path, data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for k, byte in enumerate(data[at : at + LONGEST_LENGTH]):
        value |= (byte & 127) << 7 * k
        if byte < 128:
            return value, at + k + 1
    raise Unparsable(f"{path}: byte {at}: is cut off, or no Chakra execution trace: the length of a message is due")


def _decoded(path: Path, at: int, content: bytes, message: Any) -> Any:
    try:
        return message.FromString(content)
    except DecodeError as e:
        raise Unparsable(f"{path}: byte {at}: is no {message.DESCRIPTOR.name} of a Chakra execution trace") from e


def _node(path: Path, at: int, content: bytes) -> TraceNode:
    node = _decoded(path, at, content, Node)
    if not 0 < node.type < len(NODE_TYPES):
        raise Unparsable(f"{path}: byte {at}: node {node.id} has no type of the schema ({node.type}); is this a Chakra execution trace?")
    attributes = {a.name: value_of(a) for a in node.attr}
    exact = attributes.get("seconds")
    seconds = exact if isinstance(exact, float) and exact >= 0 else node.duration_micros * 1e-6
    return TraceNode(node.id, node.name, node.type, (*node.ctrl_deps, *node.data_deps), seconds, node.inputs.values, attributes)


def _check(path: Path, nodes: Sequence[TraceNode]) -> None:
    by_id: dict[int, TraceNode] = {}
    for node in nodes:
        if node.id in by_id:
            raise Unparsable(f"{path}: two nodes have the id {node.id}: {by_id[node.id].name!r} and {node.name!r}")
        by_id[node.id] = node
    for node in nodes:
        lacking = next((i for i in node.waits_for if i not in by_id), None)
        if lacking is not None:
            raise Unparsable(f"{path}: node {node.word} waits for node {lacking}, which is not in the file; is it whole?")
    circle = cycle(by_id)
    if circle:
        words = [by_id[i].word for i in circle]
        shown = words if len(words) <= MOST_SHOWN else [*words[: MOST_SHOWN - 1], f"... {len(words) - MOST_SHOWN} more ...", words[-1]]
        raise Refused(f"{path}: nodes wait for each other: {' -> '.join([*shown, words[0]])}")


def cycle(nodes: Mapping[int, TraceNode]) -> list[int]:
    """Ids of which each waits for the next and the last for the first; empty where there are none. Without recursion, in one pass over the edges."""
    followers: dict[int, list[int]] = {i: [] for i in nodes}
    open_edges = {}
    for i, node in nodes.items():
        open_edges[i] = len(node.waits_for)
        for j in node.waits_for:
            followers[j].append(i)
    ready = [i for i, count in open_edges.items() if not count]
    while ready:
        for i in followers[ready.pop()]:
            open_edges[i] -= 1
            if not open_edges[i]:
                ready.append(i)
    left = {i for i, count in open_edges.items() if count}
    if not left:
        return []
    path: dict[int, int] = {}
    at = min(left)
    while at not in path:  # every node that is left waits for another one that is left
        path[at] = len(path)
        at = next(j for j in nodes[at].waits_for if j in left)
    return list(path)[path[at] :]


def groups_of(nodes: Sequence[TraceNode]) -> dict[str, tuple[int, ...]]:
    """Process groups by name: the ranks that METADATA nodes list, as torch's execution traces do (a JSON list of pg_name and ranks)."""
    import json

    found: dict[str, tuple[int, ...]] = {}
    for node in nodes:
        if node.type != METADATA or "process_group" not in node.name:
            continue
        text = node.inputs[node.inputs.find("[{") : node.inputs.rfind("}]") + 2]
        try:
            rows = json.loads(text)
        except ValueError:
            continue
        for row in rows:
            if isinstance(row, dict) and isinstance(row.get("ranks"), list) and all(isinstance(r, int) for r in row["ranks"]):
                found[str(row.get("pg_name"))] = tuple(row["ranks"])
    return found
