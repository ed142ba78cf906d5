"""The topology that NCCL dumps as XML (NCCL_TOPO_DUMP_FILE): CPUs, PCIe switches, GPUs with their NVLinks, NICs with their rates.

Elements and attributes as NCCL reads them (NVIDIA/nccl, src/graph/xml.cc and topo.cc, version 1): system / cpu / pci / gpu / nvlink, and
pci / nic / net with its `speed` in Mb/s. Other elements are passed over, as NCCL does.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from xml.parsers import expat

from ...errors import Unparsable
from .common import Graph, facts, fault, nvlinks

ELEMENTS = ("system", "cpu", "pci", "gpu", "nvlink", "nic", "net", "c2c")
_GPU_CLASS = ("0x0300", "0x0302")


@dataclass
class Element:
    """One element with the line and the column of its `<`, and its text up to `>`."""

    tag: str
    attributes: Mapping[str, str]
    line: int
    column: int
    text: str
    name: str
    inner: list[Element] = field(default_factory=list)

    def fault(self, message: str, key: str = "") -> Unparsable:
        """An error at this element, or at the value of its attribute `key`."""
        found = re.search(rf"\s{key}\s*=\s*[\"']", self.text) if key else None
        before = self.text[: found.end()] if found else ""
        line = self.line + before.count("\n")
        column = len(before.rpartition("\n")[2]) + (1 if "\n" in before else self.column)
        return fault(self.name, line, message, column)

    def get(self, key: str) -> str:
        """An attribute that must be there. Raises `Unparsable` with the place."""
        if key not in self.attributes:
            raise self.fault(f"<{self.tag}> has no {key}; it has: {', '.join(self.attributes) or 'nothing'}")
        return self.attributes[key]

    def number(self, key: str, default: str | None = None) -> float:
        """An attribute that is a number."""
        text = self.attributes.get(key, default) if default is not None else self.get(key)
        try:
            found = float(str(text).split()[0])
        except (ValueError, IndexError):
            raise self.fault(f"<{self.tag}> has {key}={text!r}, which is no number", key) from None
        if not math.isfinite(found):
            raise self.fault(f"<{self.tag}> has {key}={text!r}, which is no finite number", key)
        return found

    def all(self, tag: str) -> list[Element]:
        """The inner elements of one tag."""
        return [element for element in self.inner if element.tag == tag]


def parse(text: str, name: str) -> Element:
    """The <system> in `text`. Raises `Unparsable` as file:line:column: message for what is no such file or is cut short."""
    start = text.find("<system")
    if start < 0:
        raise fault(name, 1, "no <system>: is this what NCCL wrote to NCCL_TOPO_DUMP_FILE?")
    before, indent = text.count("\n", 0, start), start - (text.rfind("\n", 0, start) + 1)
    end = text.find("</system>", start)
    body = text[start : end + len("</system>") if end >= 0 else None]
    rows = body.split("\n")
    open_: list[Element] = []
    found: list[Element] = []
    reader = expat.ParserCreate()

    def place(line: int, column: int) -> tuple[int, int]:
        """Of the file, from a place of the body: line from 1, column from 0."""
        return before + line, column + 1 + (indent if line == 1 else 0)

    def begin(tag: str, attributes: dict[str, str]) -> None:
        line, column = reader.CurrentLineNumber, reader.CurrentColumnNumber
        rest = "\n".join([rows[line - 1][column:], *rows[line : line + len(attributes) + 1]])
        element = Element(tag, attributes, *place(line, column), rest, name)
        (open_[-1].inner if open_ else found).append(element)
        open_.append(element)

    reader.StartElementHandler = begin
    reader.EndElementHandler = lambda _: open_.pop()
    try:
        reader.Parse(body, True)
    except expat.ExpatError as error:
        where = f"; <{open_[-1].tag}> of line {open_[-1].line} is not closed" if open_ else ""
        line, column = place(error.lineno, error.offset)
        raise fault(name, line, f"not valid XML: {expat.ErrorString(error.code)}{where}", column) from None
    if found[0].number("version") != 1:
        raise found[0].fault(f"version {found[0].get('version')} of the topology; version 1 is known", "version")
    return found[0]


def graph(text: str, name: str, accelerator: str | None = None) -> Graph:
    """The servers of a dump, each CPU with what is below it. Raises as `parse` does, and where there is no GPU."""
    system = parse(text, name)
    builder = _Builder(Graph("imported", accelerator or ""), accelerator)
    for cpu in system.all("cpu"):
        builder.cpu(cpu)
    if not builder.gpus:
        raise system.fault("no <gpu> in any <cpu>: there is no device")
    builder.finish()
    return builder.out


class _Builder:
    """Walks the elements once; NVLinks and sockets are joined when all are known."""

    def __init__(self, out: Graph, accelerator: str | None) -> None:
        self.out, self.fixed = out, accelerator
        self.gpus: dict[str, tuple[str, str, Element]] = {}  # bus id -> (node, server, <gpu>)
        self.sockets: dict[str, list[tuple[str, str]]] = {}  # server -> (node, bandwidth to another)
        self.names: set[str] = set()
        self.here = ""  # the CPU being read

    def cpu(self, cpu: Element) -> None:
        """A CPU with all that is below it."""
        server = f"node{list(dict.fromkeys([*self.sockets, host := cpu.attributes.get('host_hash', '')])).index(host)}"
        known = self.sockets.setdefault(host, [])
        node = self.out.node(f"{server}.cpu{len(known)}", "cpu")
        vendor, model = cpu.attributes.get("vendor", ""), cpu.number("modelid", "0")
        row = next(r for r in facts()["sockets"] if r["vendor"] in vendor and model >= r["model"])
        known.append((node, str(row["bandwidth"])))
        self.here = node
        for pci in cpu.all("pci"):
            self.pci(pci, node, server)
        for nic in cpu.all("nic"):
            self.nic(nic, node, server, None)

    def pci(self, pci: Element, above: str, server: str) -> None:
        """A PCIe switch with what is below it, a GPU or a NIC."""
        bandwidth, bus = self.rate(pci), pci.get("busid")
        for gpu in pci.all("gpu"):
            node = self.name(f"{server}.gpu{gpu.get('dev')}", gpu)
            self.out.node(node, "gpu", server)
            self.gpus[bus.lower()] = (node, server, gpu)
            self.recognise(pci, gpu)
            self.out.link(node, above, "pcie", bandwidth, str(facts()["latency"]["pcie"]))
            for c2c in gpu.all("c2c"):
                self.out.link(node, self.here, "host", f"{c2c.number('bw') * c2c.number('count', '1') / 1000:g} GB/s")
        for nic in pci.all("nic"):
            self.nic(nic, above, server, bandwidth)
        if pci.all("pci"):
            switch = self.out.node(f"{server}.pcie{bus}", "pcie")
            self.out.link(switch, above, "pcie", bandwidth)
            for inner in pci.all("pci"):
                self.pci(inner, switch, server)

    def nic(self, nic: Element, above: str, server: str, slot: str | None) -> None:
        """The ports of a NIC: no faster than its slot or its rate."""
        for net in nic.all("net"):
            speed = net.number("speed", "0")
            if speed <= 0:
                self.out.note(f"{net.get('name')} has no speed: {facts()['nic']}")
            rate = f"{speed / 1000:g} Gb/s" if speed > 0 else str(facts()["nic"])
            node = self.out.node(self.name(f"{server}.{net.get('name')}", net), "nic")
            self.out.link(node, above, "pcie", _narrower(rate, slot) if slot else rate, str(facts()["latency"]["pcie"]))

    def name(self, name: str, element: Element) -> str:
        """A name once. Raises `Unparsable` for the second."""
        if name in self.names:
            raise element.fault(f"<{element.tag}> {name.partition('.')[2]} is there twice")
        self.names.add(name)
        return name

    def rate(self, pci: Element) -> str:
        """Bytes/s of a slot: lanes times the rate of one."""
        table = facts()["pcie"]
        speed = pci.attributes.get("link_speed", "").partition(" ")[0].removesuffix(".0")
        if speed not in table:
            speed = ""
        width = pci.number("link_width", "16") or 16
        if not speed:
            self.out.note("some PCIe links have no known link_speed: taken for 8 GT/s, as NCCL does")
        return f"{width * float(str(table[speed]).split()[0]) / 1000:g} GB/s"

    def recognise(self, pci: Element, gpu: Element) -> None:
        """Which accelerator this is; the first GPU decides."""
        if self.out.accelerator:
            return
        tables, device, sm = facts()["accelerators"], pci.attributes.get("device", ""), int(gpu.number("sm", "0"))
        known = tables["device"].get(device) or tables["sm"].get(str(sm))
        if known is None:
            raise gpu.fault(f"GPU with device {device or 'unknown'} and sm {sm} is not known; give accelerator=", "sm")
        if device not in tables["device"]:
            self.out.note(f"no known PCI device id ({device or 'none'}): sm {sm}, taken for {known}")
        self.out.accelerator = str(known)

    def finish(self) -> None:
        """Sockets of a server to each other, then NVLinks."""
        for parts in self.sockets.values():
            for (a, bandwidth), (b, _) in combinations(parts, 2):
                self.out.link(a, b, "host", bandwidth, str(facts()["latency"]["sockets"]))
        shared = len(self.sockets) > 1
        done: set[tuple[str, str]] = set()
        for node, server, gpu in self.gpus.values():
            through, direct = 0, dict[str, int]()
            for target, count in self.targets(gpu):
                if target:
                    direct[target] = direct.get(target, 0) + count
                else:
                    through += count
            if through:
                switch = self.out.node("nvswitch" if shared else f"{server}.nvswitch", "switch")
                self.nvlink(node, switch, through)
            for peer, count in direct.items():
                if (peer, node) not in done:
                    done.add((node, peer))
                    self.nvlink(node, peer, count)
        if shared and "nvswitch" in self.out.nodes:
            for node, _, _ in self.gpus.values():
                self.out.nodes[node]["node"] = "node0"

    def targets(self, gpu: Element) -> Iterator[tuple[str, int]]:
        """The node of the peer, empty for an NVSwitch, and the number of NVLinks."""
        for link in gpu.all("nvlink"):
            target, count = link.get("target").lower(), int(link.number("count"))
            peer = self.gpus.get(target)
            if peer is None and link.attributes.get("tclass", "").startswith(_GPU_CLASS):
                self.out.note(f"line {link.line}: NVLink to GPU {target}, which is not in the file, is left out")
                continue
            yield peer[0] if peer else "", count

    def nvlink(self, a: str, b: str, count: int) -> None:
        """A bond of NVLinks."""
        self.out.link(a, b, "scale_up", nvlinks(count, self.out.accelerator), str(facts()["latency"]["nvlink"]))


def _narrower(gigabits: str, gigabytes: str) -> str:
    return gigabits if float(gigabits.split()[0]) / 8 <= float(gigabytes.split()[0]) else gigabytes
