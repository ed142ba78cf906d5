"""Rows of `parasim collective`: time and bandwidths of one collective over sizes, in the words of nccl-tests."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from ..cost.profile import Profile
from ..errors import Malformed, Refused, Violation
from ..topology.cluster import Cluster
from ..units import parse
from .plan import CollectivePlan, plan, seconds

_SCALE = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_BARE = re.compile(r"(\d+(?:\.\d+)?)([KMGT]?)", re.IGNORECASE)
_SHARED_OPS = ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")


def busbw_factor(op: str, ranks: int) -> float:
    """busbw over algbw as nccl-tests define it (doc/PERFORMANCE.md): 2(n-1)/n, (n-1)/n, or 1 for broadcast, reduce and barrier."""
    if op == "all_reduce":
        return 2 * (ranks - 1) / ranks
    return (ranks - 1) / ranks if op in _SHARED_OPS else 1.0


def rows(
    cluster: Cluster, profile: Profile, op: str, ranks: Sequence[int], sizes: Sequence[int], algorithm: str = "auto", measured: float | None = None
) -> list[dict[str, Any]]:
    """One row per size: op, bytes (the larger buffer of a rank), ranks, algorithm, time_s, algbw_Bps, busbw_Bps, wire_bytes_per_rank, reason.

    Also steps (serial steps of the algorithm), busbw_factor (busbw over algbw), limit_error (of the factor for very many ranks in its place),
    wire_bytes_busiest_rank (what leaves the member that sends most), larger_over_smaller (bytes of the larger over the smaller buffer).
    `measured`: seconds that take the place of the predicted time. Bandwidths are None where the time is zero. Raises `Refused` for a rank
    beyond the cluster, `Malformed` for an unknown op or algorithm.
    """
    beyond = [rank for rank in ranks if not 0 <= rank < len(cluster.devices)]
    if beyond:
        limit = len(cluster.devices) - 1
        raise Refused([Violation("rank-list", str(beyond[0]), f"is beyond the devices of cluster {cluster.name}", f"0 to {limit}")])
    return [_row(cluster, profile, op, ranks, size, algorithm, measured) for size in sizes]


def _row(cluster: Cluster, profile: Profile, op: str, ranks: Sequence[int], size: int, algorithm: str, measured: float | None) -> dict[str, Any]:
    made = plan(op, size, [cluster.devices[rank] for rank in ranks], cluster, profile, algorithm)
    time = seconds(made, cluster, profile) if measured is None else measured
    algbw = size / time if time > 0 else None
    n, factor = len(ranks), busbw_factor(op, len(ranks))
    return {
        "op": op,
        "bytes": size,
        "ranks": n,
        "cluster": cluster.name,
        "profile": profile.name,
        "algorithm": made.algorithm,
        "steps": made.steps,
        "time_s": time,
        "algbw_Bps": algbw,
        "busbw_Bps": None if algbw is None else algbw * factor,
        "busbw_factor": factor,
        "limit_error": _limit(op) / factor - 1 if factor else None,
        "larger_over_smaller": n if op in ("all_gather", "reduce_scatter", "gather", "scatter") else 1,
        "wire_bytes_per_rank": made.wire_bytes_per_rank,
        "wire_bytes_busiest_rank": _busiest(made, cluster, [cluster.devices[rank] for rank in ranks]),
        "reason": made.reason,
    }


def _busiest(made: CollectivePlan, cluster: Cluster, members: Sequence[str]) -> float:
    """Bytes that leave the member that sends most: the mean times what it puts on its links over what a member does on the average."""
    out = dict.fromkeys(members, 0.0)
    for phase in made.phases:
        for link, weight in phase.weights:
            if cluster.links[link].a in out:
                out[cluster.links[link].a] += phase.bytes * weight
    mean = sum(out.values()) / len(out)
    return made.wire_bytes_per_rank * max(out.values()) / mean if mean else made.wire_bytes_per_rank


def _limit(op: str) -> float:
    """busbw over algbw for ever more ranks."""
    return 2.0 if op == "all_reduce" else 1.0


def compared(table: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows with over_first: their time over that of the first row of the same size (None where that takes none)."""
    first: dict[int, float] = {}
    for row in table:
        first.setdefault(row["bytes"], row["time_s"])
    return [{**row, "over_first": row["time_s"] / first[row["bytes"]] if first[row["bytes"]] else None} for row in table]


def spreads(table: Sequence[dict[str, Any]]) -> list[dict[str, float]]:
    """Per size of the rows: how far the lowest busbw is below the highest, as a fraction of it."""
    found: dict[int, list[float]] = {}
    for row in table:
        if row["busbw_Bps"] is not None:
            found.setdefault(row["bytes"], []).append(row["busbw_Bps"])
    return [{"bytes": size, "busbw_spread": 1 - min(values) / max(values)} for size, values in found.items()]


def parse_sizes(text: str) -> list[int]:
    """Sizes in bytes of "min:max:factor" or of one size.

    As in nccl-tests a bare number is bytes and K, M, G are powers of 1024; with a B it is a quantity as everywhere (100 MB, 25 MiB).
    """
    parts = text.split(":")
    if len(parts) == 1:
        return [_size(text)]
    if len(parts) > 3:
        raise Malformed(f"bytes={text!r} has {len(parts)} parts; write min:max:factor, such as 8:16G:2")
    low, high, factor = _size(parts[0]), _size(parts[1]), _factor(parts[2] if len(parts) == 3 else "2", text)
    if not 0 < low <= high:
        raise Malformed(f"bytes={text!r}: min must be 1 or more and at most max ({low} to {high} bytes)")
    out, value = [], float(low)
    while value <= high:
        out.append(round(value))
        value *= factor
    return list(dict.fromkeys(out))


def _size(text: str) -> int:
    bare = _BARE.fullmatch(text.strip())
    if bare is not None:
        return round(float(bare[1]) * _SCALE[bare[2].upper()])
    try:
        return round(parse(text, "bytes"))
    except Malformed as error:
        raise Malformed(f"bytes: {error}; a bare number is bytes and K, M, G are powers of 1024, as in nccl-tests") from None


def _factor(text: str, whole: str) -> float:
    try:
        factor = float(text)
    except ValueError:
        factor = 0.0
    if not 1 < factor < float("inf"):
        raise Malformed(f"bytes={whole!r}: factor {text!r} must be a number above 1, such as 2")
    return factor


MOST_RANKS = 2**20  # beyond that a typo is likelier than a machine


def parse_ranks(text: str) -> list[int]:
    """Ranks of "0-7,16" in the order written. Raises `Malformed` for repeats, descending ranges and what is no number."""
    out: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", part)
        if match is None or (match[2] is not None and int(match[2]) < int(match[1])):
            raise Malformed(f"rank-list={text!r}: {part.strip()!r} is no rank and no range a-b with a <= b, such as 0-7,16")
        if int(match[2] or match[1]) >= MOST_RANKS:
            raise Malformed(f"rank-list={text!r}: rank {match[2] or match[1]} is beyond what is planned; at most {MOST_RANKS - 1}")
        out += range(int(match[1]), int(match[2] or match[1]) + 1)
    if len(set(out)) < len(out):
        twice = next(rank for rank, times in Counter(out).items() if times > 1)
        raise Malformed(f"rank-list={text!r}: rank {twice} is there twice; a group has each rank once")
    return out
