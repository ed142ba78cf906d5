"""Collectives in traces of torch.profiler (Kineto): one file per rank, one event per NCCL kernel.

A kernel of a collective runs until the last member has come, so its length is work plus waiting. Of one call the shortest kernel over the ranks is
the work, and what the others take beyond it is skew. Fields are those of torch's record_param_comms: "Collective name", "In msg nelems",
"Out msg nelems", "dtype", "Group size", "Process Group Name", "Process Group Ranks", "Seq".
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from ..errors import Malformed, Refused, Unparsable
from .samples import DTYPE_BYTES, Sample

OPS = {
    **dict.fromkeys(("allreduce", "all_reduce", "allreduce_coalesced", "all_reduce_coalesced"), "all_reduce"),
    **dict.fromkeys(
        ("allgather", "all_gather", "_allgather_base", "all_gather_into_tensor", "allgather_into_tensor_coalesced", "allgather_coalesced"), "all_gather"
    ),
    **dict.fromkeys(("reduce_scatter", "_reduce_scatter_base", "reduce_scatter_tensor", "reduce_scatter_tensor_coalesced"), "reduce_scatter"),
    **dict.fromkeys(("alltoall", "all_to_all", "alltoall_base", "all_to_allv", "alltoallv", "all_to_all_single"), "all_to_all"),
    "broadcast": "broadcast",
    "reduce": "reduce",
}


class Kernel(NamedTuple):
    """One NCCL kernel of one rank; seconds; `call` tells its call from others of the group (sequence number, or how many came before)."""

    rank: int
    op: str
    nbytes: int
    size: int
    group: str
    call: str
    start: float
    seconds: float
    members: tuple[int, ...] = ()


@dataclass(frozen=True)
class Call:
    """One collective call over the ranks whose traces are there: `seconds` the shortest kernel, `waits` what each rank took beyond it; `members` as in
    Sample."""

    op: str
    nbytes: int
    ranks: int
    seconds: float
    waits: Mapping[int, float]
    members: tuple[int, ...] = ()

    @property
    def spread(self) -> tuple[int, ...]:
        """Where its ranks lie, seen from the first: groups of one spread cross the network alike."""
        return tuple(m - self.members[0] for m in self.members)

    @property
    def skew(self) -> float:
        """The longest wait: how late the last rank came, as far as kernels tell (s)."""
        return max(self.waits.values())

    @property
    def complete(self) -> bool:
        """Every member's trace is there. Otherwise the work may be shorter than `seconds`."""
        return len(self.waits) == self.ranks


@dataclass(frozen=True)
class Traces:
    """Calls of all files; `unknown` counts kernels of ops that parasim has no word for, by name."""

    calls: tuple[Call, ...]
    unknown: Mapping[str, int]

    def samples(self) -> list[Sample]:
        """One sample per op, size and spread of ranks: the median over calls of the shortest kernel (complete calls, where there are any)."""
        out = []
        for (op, nbytes, ranks, _), calls in self._alike().items():
            whole = [c for c in calls if c.complete] or calls
            out.append(Sample(op, nbytes, ranks, 0, median(c.seconds for c in whole), f"{len(whole)} calls", calls[0].members))
        return out

    def _alike(self) -> dict[tuple[str, int, int, tuple[int, ...]], list[Call]]:
        found: dict[tuple[str, int, int, tuple[int, ...]], list[Call]] = {}
        for c in self.calls:
            found.setdefault((c.op, c.nbytes, c.ranks, c.spread), []).append(c)
        return found

    def __str__(self) -> str:
        """Calls, work and skew per op, size and ranks."""
        if not self.calls and not self.unknown:
            return ""
        lines = [f"{'op':16} {'bytes':>14} {'ranks':>6} {'calls':>6} {'work':>10} {'skew, median':>13} {'most':>10}"]
        for sample, calls in zip(self.samples(), self._alike().values(), strict=True):
            skews = [c.skew * 1e6 for c in calls]
            partly = sum(not c.complete for c in calls)
            note = f"  ({partly} without the traces of all ranks)" if partly else ""
            work = sample.seconds * 1e6
            lines.append(f"{sample.op:16} {sample.nbytes:14} {sample.ranks:6} {len(calls):6} {work:8.1f}us {median(skews):11.1f}us {max(skews):8.1f}us{note}")
        lines += [f"passed over: {count} kernels of {name}" for name, count in self.unknown.items()]
        return "\n".join(lines)


def read(paths: Sequence[Path], *, needed: bool = True) -> Traces:
    """The calls in the traces of several ranks; without `needed` there may be none.

    Raises `Malformed` for a missing file, `Unparsable` for one that is no trace, `Refused` where two files are of one rank or no collective is found.
    """
    kernels: list[Kernel] = []
    unknown: dict[str, int] = {}
    seen: dict[int, Path] = {}
    for number, path in enumerate(paths):
        tree = load_trace(path)
        info = tree.get("distributedInfo")
        rank = int(info["rank"]) if isinstance(info, Mapping) and isinstance(info.get("rank"), int) else number
        if rank in seen:
            raise Refused(f"{path}: is a trace of rank {rank}, and so is {seen[rank]}; give one file per rank")
        seen[rank] = path
        kernels += nccl_kernels(tree["traceEvents"], rank, unknown)
    if needed and not kernels:
        raise Refused(
            f"{', '.join(map(str, paths))}: no NCCL kernel with 'Collective name' and sizes; profile with torch.profiler on a version that records them"
        )
    return Traces(tuple(calls_of(kernels)), unknown)


def load_trace(path: Path) -> dict[str, Any]:
    """The document of a trace, plain or gzip, with its traceEvents. Raises Malformed for a missing file, Unparsable for one that is no trace."""
    try:
        raw = path.read_bytes()
        text = (gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw).decode("utf-8", errors="replace")
    except OSError as error:
        if not path.is_file():
            raise Malformed(f"{path}: cannot be read: {error.strerror or error}") from None
        raise Unparsable(f"{path}: is not whole gzip: {error}") from None
    except (EOFError, zlib.error) as error:
        raise Unparsable(f"{path}: is not whole gzip: {error}") from None
    try:
        tree = json.loads(text)
    except json.JSONDecodeError as error:
        raise Unparsable(f"{path}:{error.lineno}:{error.colno}: is not JSON (cut off?): {error.msg}") from None
    if isinstance(tree, list):
        tree = {"traceEvents": tree}
    if not isinstance(tree, dict) or not isinstance(tree.get("traceEvents"), list):
        raise Unparsable(f"{path}:1: holds no traceEvents; a trace of torch.profiler is due")
    return tree


def nccl_kernels(events: Sequence[Any], rank: int, unknown: dict[str, int]) -> Iterator[Kernel]:
    """NCCL kernels in order of start; a kernel without the fields takes those of the record_param_comms with its external id."""
    notes = {e["args"].get("External id"): e["args"] for e in complete(events) if e.get("name") == "record_param_comms" and isinstance(e.get("args"), Mapping)}
    order: dict[tuple[str, str, int], int] = {}
    for event in sorted(complete(events), key=lambda e: float(e["ts"])):
        name = str(event.get("name", ""))
        if not name.lower().startswith("nccl") or event.get("cat") not in ("kernel", "Kernel"):
            continue
        args: Mapping[str, Any] = event["args"] if isinstance(event.get("args"), Mapping) else {}
        args = args if "Collective name" in args else {**notes.get(args.get("External id"), {}), **args}
        word = str(args.get("Collective name", name))
        op, nbytes, size = OPS.get(word), larger_bytes(args), args.get("Group size")
        if op is None or nbytes is None or not isinstance(size, int) or size < 2:
            unknown[word] = unknown.get(word, 0) + 1
            continue
        group = f"{args.get('Process Group Name', '')}{args.get('Process Group Ranks', '')}"
        key = (group, op, nbytes)
        order[key] = order.get(key, 0) + 1
        call = f"seq {args['Seq']}" if "Seq" in args else f"call {order[key]}"
        yield Kernel(rank, op, nbytes, size, group, call, float(event["ts"]) * 1e-6, float(event["dur"]) * 1e-6, _members(args, size))


def _members(args: Mapping[str, Any], size: int) -> tuple[int, ...]:
    """The ranks of "Process Group Ranks" ("[0, 1]"); () where it is missing or cut short."""
    ranks = tuple(int(r) for r in re.findall(r"\d+", str(args.get("Process Group Ranks", ""))))
    return ranks if len(ranks) == size else ()


def complete(events: Sequence[Any]) -> Iterator[Mapping[str, Any]]:
    """Events with a start and a duration (microseconds)."""
    for event in events:
        if isinstance(event, Mapping) and event.get("ph") == "X" and all(isinstance(event.get(key), int | float) for key in ("ts", "dur")):
            yield event


def larger_bytes(args: Mapping[str, Any]) -> int | None:
    """Bytes of the larger buffer of a call; None where counts or the dtype are unknown."""
    counts = [args.get("In msg nelems"), args.get("Out msg nelems")]
    width = DTYPE_BYTES.get(str(args.get("dtype", "")).lower())
    known = [c for c in counts if isinstance(c, int)]
    return max(known) * width if known and width and max(known) > 0 else None


def calls_of(kernels: Sequence[Kernel]) -> Iterator[Call]:
    """Kernels of one group, op, size and number over all ranks make a call; one that took no time makes none."""
    groups: dict[tuple[str, str, int, str], list[Kernel]] = {}
    for kernel in kernels:
        groups.setdefault((kernel.group, kernel.op, kernel.nbytes, kernel.call), []).append(kernel)
    for members in groups.values():
        work = min(k.seconds for k in members)
        if work > 0:
            yield Call(members[0].op, members[0].nbytes, members[0].size, work, {k.rank: k.seconds - work for k in members}, members[0].members)
