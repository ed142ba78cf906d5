"""Slurm's topology.conf: switches with their children (topology/tree), blocks of nodes on one scale-up network (topology/block).

SchedMD, topology.conf(5): one switch or block a line, names as hostlist expressions, keys in any case, # begins a comment, a backslash at the
end goes on with the next line. LinkSpeed has no unit and Slurm does not use it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ...errors import Unparsable
from .common import Graph, fault, words

_KEYS = ("SwitchName", "Switches", "Nodes", "LinkSpeed", "BlockName", "BlockSizes")
_MOST_NAMES = 100_000


class Token(NamedTuple):
    """A word of the file and where it begins."""

    text: str
    line: int
    column: int

    def fault(self, name: str, message: str, skip: int = 0) -> Unparsable:
        """An error here, or at the `skip`-th character after it."""
        return fault(name, self.line, message, self.column + skip)


@dataclass(frozen=True)
class Entry:
    """A switch or a block: names of what is below it, and where they are written."""

    name: str
    line: int
    switches: tuple[str, ...]
    nodes: tuple[str, ...]
    written: Mapping[str, Token]

    def fault(self, child: str, key: str, name: str, message: str) -> Unparsable:
        """An error at a child in the list of `key`: where its name stands in full, else where the list begins."""
        token = self.written[key]
        found = re.search(rf"(?:^|,){re.escape(child)}(?:,|$)", token.text)
        skip = found.start() + found[0].startswith(",") if found else 0
        return token.fault(name, message, skip)


@dataclass(frozen=True)
class Topology:
    """Switches and blocks by name, in the order of the file."""

    switches: Mapping[str, Entry]
    blocks: Mapping[str, Entry]

    @property
    def nodes(self) -> list[str]:
        """Every node once: those of blocks first, which stand together."""
        return list(dict.fromkeys(n for entry in (*self.blocks.values(), *self.switches.values()) for n in entry.nodes))


def parse(text: str, name: str) -> Topology:
    """The switches and blocks in `text`. Raises `Unparsable` as file:line:column: message for what is no topology.conf, is cut short or no tree."""
    switches: dict[str, Entry] = {}
    blocks: dict[str, Entry] = {}
    for line in _logical(text, name):
        keys = _pairs(line, name)
        if "blocksizes" in keys and len(keys) == 1:
            continue
        table, kind = (switches, "switchname") if "switchname" in keys else (blocks, "blockname")
        first = line[0]
        if kind not in keys:
            said = " ".join(word.text for word in line)
            raise first.fault(name, f"{said!r} names no switch and no block; it begins with SwitchName=, BlockName= or BlockSizes=")
        children, nodes = (tuple(hostlist(keys[key], name)) if key in keys else () for key in ("switches", "nodes"))
        title = keys[kind]
        if not children and not nodes:
            raise line[-1].fault(name, f"{title.text} has neither Switches nor Nodes: is the line cut short?", len(line[-1].text))
        for one in hostlist(title, name):
            if one in table:
                raise title.fault(name, f"{one} is there twice, first on line {table[one].line}")
            table[one] = Entry(one, first.line, children, nodes, keys)
    if not switches and not blocks:
        raise fault(name, max(1, text.count("\n")), "no SwitchName and no BlockName: is this a topology.conf?")
    _check_tree(switches, name)
    return Topology(switches, blocks)


def _logical(text: str, name: str) -> Iterator[list[Token]]:
    """The words of every line without its comment, joined where one ends in a backslash."""
    held: list[Token] = []
    going = Token("", 0, 0)
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.partition("#")[0].rstrip()
        goes_on = line.endswith("\\")
        held += [Token(word, number, column) for word, column in words(line[:-1] if goes_on else line)]
        going = Token("\\", number, len(line)) if goes_on else going._replace(line=0)
        if not goes_on:
            if held:
                yield held
            held = []
    if going.line:
        raise going.fault(name, "the file ends in a line that goes on (backslash)")


def _pairs(line: Sequence[Token], name: str) -> dict[str, Token]:
    """key=value words; keys in lower case, values with their places."""
    out: dict[str, Token] = {}
    known = {key.casefold() for key in _KEYS}
    for word in line:
        key, equals, value = word.text.partition("=")
        if key.casefold() not in known:
            raise word.fault(name, f"{word.text!r}: {key} is not a key of topology.conf; known: {', '.join(_KEYS)}")
        if not equals or not value:
            raise word.fault(name, f"{word.text!r}: {key} has no value; is the line cut short?", len(word.text))
        if key.casefold() in out:
            raise word.fault(name, f"{key} is there twice")
        out[key.casefold()] = Token(value, word.line, word.column + len(key) + 1)
    return out


def hostlist(token: Token, name: str) -> Iterator[str]:
    """The names of a hostlist expression: tux[0-3,12,18-20],login -> tux0, tux1, ... Leading zeros stay. Raises `Unparsable`."""
    depth, begin = 0, 0
    text = token.text
    for i, character in enumerate(text + ","):
        depth += (character == "[") - (character == "]")
        if depth not in (0, 1):
            raise token.fault(name, f"{text!r}: brackets do not match", i)
        if character == "," and not depth:
            yield from _expanded(text[begin:i], begin, token, name)
            begin = i + 1
    if depth:
        raise token.fault(name, f"{text!r}: the bracket is not closed; is the line cut short?", len(text))


def _expanded(word: str, at: int, token: Token, name: str) -> Iterator[str]:
    """The names of one entry of a hostlist, which begins at the `at`-th character of `token`."""
    head, bracket, rest = word.partition("[")
    if not bracket:
        if word:
            yield word
        return
    inner, _, tail = rest.partition("]")
    begin = at + len(head) + 1
    for part in inner.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        low, high = (match[1], match[2] or match[1]) if match else ("", "")
        if match is None or int(high) < int(low) or int(high) - int(low) > _MOST_NAMES:
            raise token.fault(name, f"{token.text!r}: {part!r} is no number and no range such as 0-15", begin)
        begin += len(part) + 1
        for i in range(int(low), int(high) + 1):
            for end in _expanded(tail, at + len(head) + len(inner) + 2, token, name) if tail else ("",):
                yield f"{head}{i:0{len(low)}d}{end}"


def _check_tree(switches: Mapping[str, Entry], name: str) -> None:
    """Every switch named is described, nothing has two parents, nothing is below itself."""
    parent: dict[str, Entry] = {}
    for entry in switches.values():
        for child in entry.switches:
            if child not in switches:
                raise entry.fault(child, "switches", name, f"{entry.name} is above {child}, which no line describes; is the file cut short?")
        for key, word in [*(("switches", child) for child in entry.switches), *(("nodes", node) for node in entry.nodes)]:
            child = word if key == "switches" else f"node {word}"
            if child in parent:
                other = f"{parent[child].name} (line {parent[child].line})"
                raise entry.fault(word, key, name, f"{child} is below {entry.name} and {other}; a tree has one way up")
            parent[child] = entry
    for entry in switches.values():
        seen, above = {entry.name}, parent.get(entry.name)
        while above is not None:
            if above.name in seen:
                raise entry.written["switchname"].fault(name, f"{entry.name} is below itself")
            seen.add(above.name)
            above = parent.get(above.name)


@dataclass(frozen=True)
class Server:
    """What every node is: its devices, their scale-up port and NIC, as text with units. The file does not say it."""

    accelerator: str
    devices: int
    scale_up: str
    scale_up_latency: str
    nic: str
    latency: str


def graph(text: str, name: str, server: Server, oversubscription: float = 1.0) -> Graph:
    """The network of a topology.conf with `server` as every node; each switch has 1/oversubscription of its bandwidth upwards. Raises as `parse`."""
    topology = parse(text, name)
    out = Graph("imported", server.accelerator)
    out.note(f"every node: {server.devices} x {server.accelerator}, {server.scale_up} inside, one NIC of {server.nic} per device")
    block = {node: entry.name for entry in topology.blocks.values() for node in entry.nodes}
    leaf = {node: entry.name for entry in topology.switches.values() for node in entry.nodes}
    for node in topology.nodes:
        domain = block.get(node, node)
        above = out.node(leaf.get(node, "network"), "switch")
        inside = out.node(f"{domain}.switch", "switch")
        for i in range(server.devices):
            device, nic = out.node(f"{node}.gpu{i}", "gpu", domain), out.node(f"{node}.nic{i}", "nic")
            out.link(device, inside, "scale_up", server.scale_up, server.scale_up_latency)
            out.link(device, nic, "nic", server.nic)
            out.link(nic, above, "leaf", server.nic, server.latency)
    if any(node not in leaf for node in topology.nodes):
        out.note("nodes below no switch: all on one network that blocks nobody")
    _uplinks(out, topology.switches, server, oversubscription)
    return out


def _uplinks(out: Graph, switches: Mapping[str, Entry], server: Server, oversubscription: float) -> None:
    """Switch to switch: what is below, over the oversubscription."""
    nic, unit = server.nic.split()

    def ports(entry: Entry) -> float:
        return len(entry.nodes) * server.devices + sum(ports(switches[child]) for child in entry.switches) / oversubscription

    tops = [entry for entry in switches.values() if not any(entry.name in other.switches for other in switches.values())]
    for entry in switches.values():
        for child in entry.switches:
            out.node(entry.name, "switch")
            out.link(out.node(child, "switch"), entry.name, "spine", f"{ports(switches[child]) / oversubscription * float(nic):g} {unit}")
    out.note(f"rates between switches are not in the file: {_words(oversubscription)}")
    if len(tops) > 1:
        out.note(f"{len(tops)} switches have none above them: the network is in parts ({', '.join(entry.name for entry in tops[:6])})")


def _words(oversubscription: float) -> str:
    return "as much up as down" if oversubscription == 1 else f"1/{oversubscription:g} of what is below each"
