"""The matrix that `nvidia-smi topo -m` prints: which two of the GPUs and NICs of a server are joined by what.

X is the thing itself, NV# a bond of # NVLinks, PIX one PCIe bridge, PXB several, PHB the host bridge of a CPU, NODE several host bridges of a
NUMA node, SYS (older: SOC) the interconnect between CPUs (NVIDIA, "nvidia-smi topo" legend).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, takewhile

from ..shortest import islands
from .common import Graph, Word, facts, fault, lines, nvlinks

_LABEL = re.compile(r"(GPU|NIC)\d+$|mlx\d+_\w+$|(hfi|bnxt_re|rdmap|efa|irdma|roce|ib)\w*$")
_CELL = re.compile(r"X|NV\d+|PIX|PXB|PHB|NODE|SYS|SOC")
MOST_LINKS = 18  # NVLinks of one GPU, of any generation: more to all peers than that means a switch


@dataclass(frozen=True)
class Matrix:
    """`cells[a, b]` as printed, both ways; `affinity` the CPUs beside a GPU, where they are printed."""

    labels: tuple[str, ...]
    cells: Mapping[tuple[str, str], str]
    affinity: Mapping[str, str]

    @property
    def gpus(self) -> list[str]:
        """Labels of the GPUs, in order."""
        return [label for label in self.labels if label.startswith("GPU")]

    def links(self, a: str, b: str) -> int:
        """NVLinks between two GPUs."""
        cell = self.cells[a, b]
        return int(cell[2:]) if cell.startswith("NV") else 0


def parse(text: str, name: str) -> Matrix:
    """The first matrix in `text`; lines between its rows that are no rows (INFO of NCCL, warnings) are passed over.

    Raises `Unparsable` as file:line:column: message where there is none, an entry is unknown, the matrix is cut short or not symmetric.
    """
    header, source, start = _header(text, name)
    rows: dict[str, list[Word]] = {}
    line: dict[str, int] = {}
    affinity: dict[str, str] = {}
    for number, prefix, words, end in lines(text):
        if number <= start or prefix != source or not words:
            continue
        label = words[0].text
        if label not in header or len(rows) == len(header):
            if label == "Legend:":
                break
            continue
        if label in rows:
            raise fault(name, number, f"row {label} is there twice, first on line {line[label]}", words[0].column)
        rows[label], line[label] = _row(words, header, name, number, end), number
        affinity.update((label, cpus.text) for cpus in words[len(header) + 1 : len(header) + 2])
    missing = [label for label in header if label not in rows]
    if missing:
        last = max(line.values(), default=start)
        raise fault(name, last, f"the matrix ends here: {len(missing)} of {len(header)} rows are missing ({', '.join(missing)})")
    cells = {(a, b): cell for a, row in rows.items() for b, cell in zip(header, row, strict=True)}
    for a, b in combinations(header, 2):
        there, back = cells[a, b], cells[b, a]
        if there.text != back.text:
            raise fault(name, line[b], f"{b} to {a} is {back.text}, but {a} to {b} on line {line[a]} is {there.text}", back.column)
    return Matrix(tuple(header), {pair: cell.text for pair, cell in cells.items()}, affinity)


def _header(text: str, name: str) -> tuple[list[str], str, int]:
    """Labels of the columns, the launcher's prefix of the line, and its number."""
    number = 0
    for number, prefix, found, _ in lines(text):
        words = [word.text for word in found]
        if words and words[0].startswith("GPU") and all(_CELL.fullmatch(word) is None for word in words):
            labels = list(takewhile(lambda word: word not in ("CPU", "NUMA"), words))
            if all(_LABEL.match(label) for label in labels):
                return labels, prefix, number
    raise fault(name, max(number, 1), "no line with the columns GPU0, GPU1, ... : is this the output of nvidia-smi topo -m?")


def _row(words: Sequence[Word], header: Sequence[str], name: str, number: int, end: int) -> list[Word]:
    label, cells = words[0].text, list(words[1 : len(header) + 1])
    wrong = next((i for i, cell in enumerate(cells) if not _CELL.fullmatch(cell.text)), None)
    if wrong is not None and wrong < len(header) and not re.fullmatch(r"[\d,-]+|N/A", cells[wrong].text):
        known = "known: X, NV#, PIX, PXB, PHB, NODE, SYS"
        raise fault(name, number, f"{label} to {header[wrong]} is {cells[wrong].text!r}; {known}", cells[wrong].column)
    if wrong is not None or len(cells) < len(header):
        count, column = (len(cells), end) if wrong is None else (wrong, cells[wrong].column)
        raise fault(name, number, f"row {label} has {count} of {len(header)} entries: the line is cut short", column)
    own = cells[header.index(label)]
    if own.text != "X":
        raise fault(name, number, f"{label} to itself is {own.text}, not X: columns and rows differ", own.column)
    return cells


def graph(text: str, name: str, accelerator: str | None = None) -> Graph:
    """The server of a matrix. The GPU is recognised by its number of NVLinks unless `accelerator` names it. Raises as `parse` does."""
    matrix = parse(text, name)
    most = max((matrix.links(a, b) for a, b in combinations(matrix.gpus, 2)), default=0)
    total = max((sum(matrix.links(a, b) for b in matrix.gpus if b != a) for a in matrix.gpus), default=0)
    switched = total > MOST_LINKS
    own = most if switched else total
    table = facts()["accelerators"]["links"]
    chosen = accelerator or next(found for count, found in sorted(((int(k), v) for k, v in table.items()), reverse=True) if own >= count)
    out = Graph("imported", chosen)
    if accelerator is None:
        out.note(f"the matrix names no GPU: {own} NVLinks each, taken for {chosen}")
    for label in matrix.labels:
        out.node(label, "gpu" if label in matrix.gpus else "nic", "node0" if label in matrix.gpus else None)
    _nvlinks(out, matrix, switched)
    _pcie(out, matrix)
    return out


def _nvlinks(out: Graph, matrix: Matrix, switched: bool) -> None:
    latency = str(facts()["latency"]["nvlink"])
    if switched:
        for gpu in matrix.gpus:
            count = max(matrix.links(gpu, peer) for peer in matrix.gpus if peer != gpu)
            if count:
                out.link(gpu, out.node("nvswitch", "switch"), "scale_up", nvlinks(count, out.accelerator), latency)
        return
    for a, b in combinations(matrix.gpus, 2):
        if matrix.links(a, b):
            out.link(a, b, "scale_up", nvlinks(matrix.links(a, b), out.accelerator), latency)


def _pcie(out: Graph, matrix: Matrix) -> None:
    """Things under one PCIe switch (PIX, PXB) below the CPU of a NUMA node (PHB, NODE); CPUs joined to each other.

    The matrix prints NVLink in place of what is on PCIe: two such GPUs are beside each other where a NIC is beside both.
    """
    slots, latency = facts()["slot"], str(facts()["latency"]["pcie"])
    slot = str(slots.get(out.accelerator, slots["default"]))
    out.note(f"the matrix has no rates: PCIe slots of {slot}, NICs limited by theirs")
    switch = islands(matrix.labels, _pairs(matrix, ("PIX", "PXB")))
    numa = islands(matrix.labels, [*_pairs(matrix, ("PIX", "PXB", "PHB", "NODE")), *_unsaid(matrix)])
    cpu = {part: f"cpu{i}" for i, part in enumerate(dict.fromkeys(numa.values()))}
    beside: dict[int, list[str]] = {}
    for label, part in switch.items():
        beside.setdefault(part, []).append(label)
    for i, members in enumerate(beside.values()):
        home = out.node(cpu[numa[members[0]]], "cpu")
        above = out.node(f"pcie{i}", "pcie") if len(members) > 1 else home
        for label in members:
            out.link(label, above, "pcie", slot, latency)
        if above != home:
            out.link(above, home, "pcie", slot, latency)
    rows = facts()["sockets"]
    for a, b in combinations(cpu.values(), 2):
        out.link(a, b, "host", str(rows[-1]["bandwidth"]), str(facts()["latency"]["sockets"]))
    if len(cpu) > 1:
        out.note(f"the matrix names no CPU: {rows[-1]['bandwidth']} between sockets")


def _pairs(matrix: Matrix, cells: Sequence[str]) -> list[tuple[str, str]]:
    return [pair for pair in combinations(matrix.labels, 2) if matrix.cells[pair] in cells]


def _unsaid(matrix: Matrix) -> list[tuple[str, str]]:
    """Where NVLink hides what is on PCIe: GPUs with the same CPUs; without a single word of PCIe or CPUs all are taken for beside each other."""
    silent = not matrix.affinity and all(cell == "X" or cell.startswith("NV") for cell in matrix.cells.values())
    cpus = matrix.affinity
    return [(a, b) for a, b in combinations(matrix.gpus, 2) if silent or (a in cpus and cpus[a] == cpus.get(b))]
