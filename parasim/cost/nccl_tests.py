"""Logs and JSON reports of nccl-tests (and rccl-tests), read into samples.

The text form is that of src/util.cu and src/common.cu of NVIDIA/nccl-tests: lines of # with the devices and the header of the table, then a row
per size with out-of-place and in-place results. Older forms (op in place of redop, no root, no "Collective test starting") are read by the names
in their header. Prefixes of mpirun and srun are taken off; other lines (NCCL INFO, warnings) are passed over. The JSON form is that of -J.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from .. import documents
from ..errors import Malformed, ParasimError, Unparsable
from .samples import DTYPE_BYTES, Sample

OPS = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "alltoallv": "all_to_all",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "sendrecv": "sendrecv",
    "hypercube": "hypercube",
}
MICROSECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_PREFIX = re.compile(r"^(?:\[\d+,\d+\](?:<std(?:out|err)>)?:?|\d+:)\s?")
_PROGRAM = re.compile(r"\b(\w+?)_perf\b")
_RANK = re.compile(r"#\s+Rank\s+(\d+)\s+(?:Group\s+\d+\s+)?Pid\s+\d+\s+on\s+(\S+)\s+device\s+\d+\s+\[\S+\]\s*(.*)")
_COUNTS = re.compile(r"nThreads?:?\s+(\d+)\s+nGpus:?\s+(\d+)")
_UNIT = re.compile(r"\((us|ms|s)\)")


class Row(NamedTuple):
    """One size: the larger buffer of a rank (bytes), elements, dtype, seconds out of place and in place (None: not measured), where it stands."""

    nbytes: int
    elements: int
    dtype: str
    out_of_place: float | None
    in_place: float | None
    at: str


@dataclass
class Log:
    """One test: op as parasim names it, host of every rank, rows in order."""

    op: str
    hosts: dict[int, str] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    device: str = ""
    processes: int = 0

    @property
    def ranks(self) -> int:
        """Ranks of the communicator: the devices listed, else threads times GPUs of one process."""
        return len(self.hosts) or self.processes

    @property
    def nodes(self) -> int:
        """Servers; 0 where the devices are not listed."""
        return len(set(self.hosts.values()))

    def samples(self) -> Iterator[Sample]:
        """Every measured size once: out of place where there is such a time, else in place."""
        for row in self.rows:
            seconds = row.out_of_place if row.out_of_place is not None else row.in_place
            if seconds is not None and row.nbytes > 0:
                yield Sample(self.op, row.nbytes, self.ranks, self.nodes, seconds, row.at)


def read(path: Path) -> list[Log]:
    """The tests in a file. Raises `Malformed` for a missing file, `Unparsable` with file:line for what is no log or a row that is cut off."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise Malformed(f"{path}: cannot be read: {error.strerror}") from None
    return parse(text, str(path))


def parse(text: str, name: str) -> list[Log]:
    """As `read`, of text; `name` opens every message."""
    if not text.strip():
        raise Unparsable(f"{name}:1: is empty")
    if re.match(r"\s*(\{|\[\s*\{)", text):
        return _json(text, name)
    logs = [log for log in _Reader(name).read(text.splitlines()) if log.rows]
    if not logs:
        last = len(text.splitlines())
        raise Unparsable(f"{name}:{last}: ends without a row of nccl-tests (a header '# size count type ... time algbw busbw', then rows)")
    for log in logs:
        if log.ranks < 2:
            raise Unparsable(f"{log.rows[0].at}: a table without the number of its ranks ('#  Rank  0 ... on HOST device ...' or '# nThread 1 nGpus 8')")
    return logs


class _Columns(NamedTuple):
    """Where a table's header puts things: names before the first time, width of one block of results."""

    left: tuple[str, ...]
    width: int


class _Reader:
    """Reads line by line: what stands in the comments, then rows by the names of the last header."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.logs: list[Log] = []
        self.program = _PROGRAM.search(Path(name).stem.replace("_output", "_perf"))
        self.log = Log(self._op())
        self.columns: _Columns | None = None
        self.unit = MICROSECONDS["us"]

    def _op(self) -> str:
        word = self.program[1] if self.program else ""
        return OPS.get(word.removeprefix("nccl_").removeprefix("rccl_"), "")

    def read(self, lines: Sequence[str]) -> list[Log]:
        for number, raw in enumerate(lines, 1):
            prefix = _PREFIX.match(raw)
            begin = prefix.end() if prefix else 0
            line = raw.rstrip()[begin:]
            if line.lstrip().startswith("#"):
                self._comment(line.lstrip())
            elif self.columns is not None and re.match(r"\s*\d+(\s|$)", line):
                self._row(line, number, begin)
            elif program := _PROGRAM.search(line):
                self.program = program
                self.log.op = self.log.op if self.log.rows else self._op()
        return [*self.logs, self.log]

    def _comment(self, line: str) -> None:
        if line.startswith("# Collective test starting"):
            self._next()
            self.program = _PROGRAM.search(line)
            self.log.op = self._op()
        elif counts := _COUNTS.search(line):
            if self.log.rows:
                self._next()
            self.log.processes = int(counts[1]) * int(counts[2])
        elif rank := _RANK.match(line):
            self.log.hosts[int(rank[1])] = rank[2]
            self.log.device = self.log.device or rank[3].strip()
        elif (words := line.lstrip("# ").split()) and "time" in words and ("algbw" in words or "busbw" in words):
            first = words.index("time")
            width = words.index("time", first + 1) - first if words.count("time") > 1 else len(words) - first
            self.columns = _Columns(tuple(words[:first]), width)
        elif "algbw" not in line and (unit := _UNIT.search(line)):
            self.unit = MICROSECONDS[unit[1]]

    def _next(self) -> None:
        if self.log.rows:
            self.logs.append(self.log)
        self.log, self.columns = Log(self._op()), None

    def _row(self, line: str, number: int, begin: int) -> None:
        """A row of results; its words begin `begin` characters after the beginning of the line."""
        assert self.columns is not None  # read() asks
        words, starts = line.split(), [begin + m.start() + 1 for m in re.finditer(r"\S+", line)]
        at, last = f"{self.name}:{number}", begin + len(line) + 1
        left, width = self.columns
        if not self.log.op:
            raise Unparsable(f"{at}: a row of an unnamed test; a line '# Collective test starting: all_reduce_perf' or the command is due before it")
        found = len(words) - len(left)
        if found < 3:
            due = f"{len(left) + 2 * width}: {', '.join(left)}, time, algbw, busbw, ..."
            raise Unparsable(f"{at}:{last}: the row is cut off after {len(words)} columns of {due}")

        def read(place: int, how: Callable[[str], Any]) -> Any:
            try:
                return how(words[place])
            except ValueError as error:
                text = f"{words[place]!r} is no whole number" if how is int else str(error)
                raise Unparsable(f"{at}:{starts[place]}: {text} in the row '{' '.join(words)}'") from None

        places = {word: i for i, word in enumerate(left)}
        nbytes = read(0, int)
        count = next((read(places[key], int) for key in ("count", "N") if key in places), 0)
        first = read(len(left), partial(_time, unit=self.unit))
        for place in (len(left) + 1, len(left) + 2):
            read(place, partial(_time, unit=1.0))
        if width < found < width + 3:
            raise Unparsable(f"{at}:{last}: the row is cut off after {len(words)} columns of {len(left) + 2 * width}")
        second = read(len(left) + width, partial(_time, unit=self.unit)) if found >= width + 3 else None
        self.log.rows.append(Row(nbytes, count, words[places["type"]] if "type" in places else "", first, second, at))


def _time(word: str, unit: float) -> float | None:
    """A number in `unit`; N/A and 0 are no time. Raises ValueError for another word."""
    if word.upper() == "N/A":
        return None
    try:
        value = float(word)
    except ValueError:
        raise ValueError(f"{word!r} is no number") from None
    if not math.isfinite(value) or value < 0:
        raise ValueError(f"{word!r} is no time or bandwidth")
    return value * unit or None


def _json(text: str, name: str) -> list[Log]:
    """The report of -J: config.devices and results with size and out_of_place/in_place {time}."""
    try:
        tree = json.loads(text)
    except json.JSONDecodeError as error:
        raise Unparsable(f"{name}:{error.lineno}:{error.colno}: is not JSON (cut off?): {error.msg}") from None
    reports, whole = (tree, False) if isinstance(tree, list) else ([tree], True)
    return [_Report(text, name, () if whole else (i,)).read(report) for i, report in enumerate(reports)]


class _Report(NamedTuple):
    """One report of a JSON text; `at` are the keys that lead to it."""

    text: str
    name: str
    at: tuple[str | int, ...]

    def fault(self, message: str, *keys: str | int) -> Unparsable:
        """An error at the value of `keys`, or at what encloses it."""
        try:
            place = str(documents.parse(self.text.encode(), self.name).place((*self.at, *keys)))
        except ParasimError:  # JSON that YAML reads otherwise: tabs
            place = f"{self.name}: {documents.dotted((*self.at, *keys))}"
        return Unparsable(f"{place}: {message}")

    def read(self, tree: Any) -> Log:
        """Raises `Unparsable` as file:line:column: message."""
        if not isinstance(tree, Mapping) or not isinstance(tree.get("results"), list) or not tree["results"]:
            raise self.fault("holds no results of nccl-tests: an object with config and results is due", "results")
        args = tree.get("args") or []
        words = " ".join(map(str, args if isinstance(args, list) else [args])) + f" {tree.get('collective', '')}_perf"
        program = next((m[1] for m in _PROGRAM.finditer(words) if m[1] in OPS), None)
        if program is None:
            raise self.fault(f"names no test in args, such as all_reduce_perf; known: {', '.join(OPS)}", "args")
        log = self._config(OPS[program], tree.get("config") or {})
        for i, row in enumerate(tree["results"]):
            log.rows.append(self._result(row, i))
        return log

    def _config(self, op: str, config: Any) -> Log:
        log = Log(op)
        try:
            devices = [d for d in config.get("devices", []) if isinstance(d, Mapping)]
            log.hosts = {int(d["rank"]): str(d.get("hostname", "")) for d in devices if "rank" in d}
            log.device = str(devices[0].get("device_info", "")) if devices else ""
            log.processes = int(config.get("nthreads", 1)) * int(config.get("ngpus", 0))
        except (AttributeError, TypeError, ValueError) as error:
            raise self.fault(f"holds ranks that are no numbers: {error}", "config") from None
        if log.ranks < 2:
            raise self.fault("gives no ranks (devices, or nthreads and ngpus)", "config")
        return log

    def _result(self, row: Any, i: int) -> Row:
        times: list[float | None] = []
        keys: tuple[str, ...] = ()
        try:
            for key in ("out_of_place", "in_place"):
                keys = (key, "time")
                block = row.get(key)
                value = None if block is None else block.get("time", block.get("cpu_time"))
                times.append(None if value is None else _time(str(value), MICROSECONDS["us"]))
            keys = ("size",)
            nbytes = int(row["size"])
            keys = ("count",)
            return Row(
                nbytes, int(row.get("count", 0)), str(row.get("type", "")), times[0], times[1], f"{self.name}: {documents.dotted((*self.at, 'results', i))}"
            )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise self.fault(f"results[{i}] lacks size or time, or holds what is no number: {error}", "results", i, *keys) from None


def render(log: Log) -> str:
    """A log as nccl-tests prints it, with times in full."""
    program = next(word for word, op in OPS.items() if op == log.op)
    hosts = log.hosts or dict.fromkeys(range(log.ranks), "host0")
    lines = [
        f"# Collective test starting: {program}_perf",
        f"# nThread 1 nGpus {1 if log.hosts else log.ranks} minBytes 8 maxBytes 8 step: 2(factor)",
        "#",
        "# Using devices",
    ]
    lines += [f"#  Rank {rank:2} Group  0 Pid {1000 + rank:6} on {host:>10} device {rank:2} [0000:00:00] {log.device or 'GPU'}" for rank, host in hosts.items()]
    lines += [f"# {'':10}  {'':12}  {'':8}  {'':6}  {'':6} {'out-of-place':>24} {'in-place':>30}"]
    block = f"{'time':>7}  {'algbw':>6}  {'busbw':>6}  {'#wrong':>6}"
    lines += [
        f"# {'size':>10}  {'count':>12}  {'type':>8}  {'redop':>6}  {'root':>6}  {block}  {block}",
        "#  (B)  (elements)  (us)  (GB/s)  (GB/s)  (us)  (GB/s)  (GB/s)",
    ]
    for row in log.rows:
        blocks = "  ".join(_block(log, row, seconds) for seconds in (row.out_of_place, row.in_place))
        lines.append(f"{row.nbytes:12}  {row.elements:12}  {row.dtype or 'float':>8}  {'sum':>6}  {'-1':>6}  {blocks}")
    return "\n".join([*lines, "# Out of bounds values : 0 OK", ""])


def _block(log: Log, row: Row, seconds: float | None) -> str:
    if seconds is None:
        return f"{'N/A':>7}  {'N/A':>6}  {'N/A':>6}  {'N/A':>6}"
    sample = Sample(log.op, row.nbytes, log.ranks, log.nodes, seconds, row.at)
    return f"{float(f'{seconds * 1e6:.12g}'):>7}  {sample.algbw / 1e9:6.2f}  {sample.busbw / 1e9:6.2f}  {0:6}"


def element_count(nbytes: int, dtype: str) -> int:
    """Elements of a buffer of `nbytes`; an unknown dtype counts as 4 bytes."""
    return nbytes // DTYPE_BYTES.get(dtype.lower(), 4)


def samples(paths: Iterable[Path]) -> list[Sample]:
    """All samples of all files, in order."""
    return [sample for path in paths for log in read(path) for sample in log.samples()]
