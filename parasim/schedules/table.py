"""Schedules as tables in the CSV form of torch.distributed.pipelining: row k is rank k, a cell one action; no header.

    cell   = "" | action | "(" action ";" action ")OVERLAP_F_B"      a blank cell is an idle time step of a table without transfers
    action = STAGE KIND [MICROBATCH], KIND one of F I W B SEND_F RECV_F SEND_B RECV_B, or without microbatch UNSHARD RESHARD REDUCE_GRAD

SEND carries the sender's stage, RECV the receiver's: `0SEND_F2` and `1RECV_F2` are the two ends of one message.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from ..errors import Malformed, Unparsable
from .actions import Action, Cell, Orders, Pair

ACTION = re.compile(r"(?P<stage>\d+)(?:(?P<kind>[FIWB])|(?P<way>SEND|RECV)_(?P<of>[FB])|(?P<state>UNSHARD|RESHARD|REDUCE_GRAD))(?P<microbatch>\d*)")
PAIR = re.compile(r"\(([^;()]*);([^;()]*)\)OVERLAP_F_B")
FORMS = "an action is a stage, one of F I W B SEND_F RECV_F SEND_B RECV_B and a microbatch (2F0), or a stage and UNSHARD, RESHARD or REDUCE_GRAD"


class Transfer(NamedTuple):
    """One end of a message: what the forward (`kind` F) or backward (B) of a neighbouring stage made. Printed `0SEND_F2`."""

    way: Literal["SEND", "RECV"]
    kind: Literal["F", "B"]
    stage: int
    microbatch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.way}_{self.kind}{self.microbatch}"

    @property
    def source(self) -> int:
        """The stage that made what is sent."""
        return self.stage if self.way == "SEND" else self.stage - (1 if self.kind == "F" else -1)

    @property
    def target(self) -> int:
        """The stage that needs it."""
        return self.stage if self.way == "RECV" else self.stage + (1 if self.kind == "F" else -1)


class StateChange(NamedTuple):
    """Parameters gathered (UNSHARD) or freed (RESHARD), gradients reduced (REDUCE_GRAD): kept in a table, not part of a schedule."""

    what: str
    stage: int

    def __str__(self) -> str:
        return f"{self.stage}{self.what}"


TableCell = Cell | Transfer | StateChange | None


@dataclass(frozen=True)
class Table:
    """The cells of every rank; None is an idle time step."""

    rows: tuple[tuple[TableCell, ...], ...]

    @property
    def orders(self) -> Orders:
        """The computation of every rank, in order."""
        return {rank: [c for c in row if isinstance(c, Action | Pair)] for rank, row in enumerate(self.rows)}

    @property
    def steps(self) -> dict[int, list[Cell | Transfer]]:
        """Computation and transfers of every rank, in order."""
        return {rank: [c for c in row if isinstance(c, Action | Pair | Transfer)] for rank, row in enumerate(self.rows)}

    @property
    def has_transfers(self) -> bool:
        """Whether any cell sends or receives."""
        return any(isinstance(c, Transfer) for row in self.rows for c in row)

    @classmethod
    def of(cls, orders: Orders) -> Table:
        """A table without transfers and idle cells."""
        return cls(tuple(tuple(orders[rank]) for rank in sorted(orders)))

    def unpaired(self) -> Table:
        """The same table with every overlapped pair run as its forward, then its backward."""
        return Table(tuple(tuple(a for c in row for a in (c if isinstance(c, Pair) else (c,))) for row in self.rows))

    def text(self) -> str:
        """The file that torch would write: commas, CRLF line ends."""
        return "".join(",".join("" if c is None else str(c) for c in row) + "\r\n" for row in self.rows)


def read_table(path: Path) -> Table:
    """The table in a file. Raises Malformed when there is none, Unparsable with line and column."""
    try:
        text = path.read_bytes().decode("utf-8")
    except OSError as e:
        raise Malformed(f"{path}: cannot be read ({e.strerror or e})") from e
    except UnicodeDecodeError as e:
        raise Unparsable(f"{path}: is not UTF-8 text (byte {e.start})") from e
    return parse_table(text, str(path))


def parse_table(text: str, name: str = "table") -> Table:
    """The table in a text; `name` heads the messages. Raises Unparsable with line and column."""
    lines = re.split(r"\r?\n", text.removeprefix("\ufeff"))
    while lines and not lines[-1].strip():
        lines.pop()
    if not lines:
        raise Unparsable(f"{name}: is empty; a row per rank is due")
    rows, idle = [], list[str]()
    for number, line in enumerate(lines, 1):
        row, column = list[TableCell](), 1
        for cell in line.split(","):
            where = f"{name}:{number}:{column}"
            row.append(_cell(cell.strip(), where))
            if row[-1] is None:
                idle.append(where)
            column += len(cell) + 1
        rows.append(tuple(row))
    table = Table(tuple(rows))
    if idle and table.has_transfers:
        raise Unparsable(f"{idle[0]}: a blank cell (an idle time step) has no place in a table with SEND and RECV")
    return table


def _cell(text: str, where: str) -> TableCell:
    if not text:
        return None
    if "(" not in text and ")" not in text:
        return _action(text, where)
    match = PAIR.fullmatch(text)
    parts: Sequence[TableCell] = [_action(part, where) for part in match.groups()] if match else ()
    forward, backward = parts or (None, None)
    if not (isinstance(forward, Action) and forward.kind == "F" and isinstance(backward, Action) and backward.kind == "B"):
        raise Unparsable(f"{where}: {text!r} is no overlapped pair; it is a forward and a backward: (0F3;3B1)OVERLAP_F_B")
    return Pair(forward, backward)


def _action(text: str, where: str) -> TableCell:
    match = ACTION.fullmatch(text)
    if match is None or (match["state"] is None) == (match["microbatch"] == ""):
        raise Unparsable(f"{where}: {text!r} is no action; {FORMS}")
    stage = int(match["stage"])
    if match["state"]:
        return StateChange(match["state"], stage)
    microbatch = int(match["microbatch"])
    if match["way"]:
        return Transfer(match["way"], match["of"], stage, microbatch)  # type: ignore[arg-type]
    return Action(match["kind"], stage, microbatch)  # type: ignore[arg-type]
