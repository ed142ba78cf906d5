"""Measured collectives (one JSON object a line): what a row says, its cluster and profile, and what is assumed where it is silent."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from parasim.collectives.table import busbw_factor
from parasim.errors import Malformed, Unparsable

from .predict import DATA
from .rows import NotModelled

SYSTEMS = DATA / "network_systems.yaml"
# As rows write an op, without case and signs -> as parasim does. sendrecv: every rank sends to the next one; copy: one rank sends.
OPS = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "a2a": "all_to_all",
    "all2all": "all_to_all",
    "alltoallv": "all_to_all",  # as nccl-tests' siblings run it, nearly even
    "all2allv": "all_to_all",
    "broadcast": "broadcast",
    "bcast": "broadcast",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "sendrecv": "sendrecv",
    "p2p": "copy",
    "pt2pt": "copy",
    "pointtopoint": "copy",
    "copy": "copy",
    "p2pcopy": "copy",
}
CLASSES: dict[str, float] = {"< 64 KiB": 1 << 16, "64 KiB - 1 MiB": 1 << 20, "1 - 16 MiB": 1 << 24, "16 - 256 MiB": 1 << 28, "> 256 MiB": math.inf}
_POWERS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
LARGE = 1 << 30  # bytes at which ratios of bandwidths are compared where a row gives no size


def op_of(word: object) -> str | None:
    """The op of a row: "all_reduce", "all-reduce", "AllReduce", "ncclAllReduce" and "all_reduce_perf" are one."""
    plain = re.sub(r"[^a-z0-9]", "", str(word).lower())
    return OPS.get(re.sub(r"^[nr]ccl|perf$", "", plain))


def size_class(nbytes: float) -> str:
    """The size class of a buffer: the first whose end is above it; the last begins after 256 MiB."""
    if nbytes == 1 << 28:
        return "16 - 256 MiB"
    return next(name for name, end in CLASSES.items() if nbytes < end)


@dataclass(frozen=True)
class Measured:
    """A row at `line` of its file; `seconds` as measured or from a bandwidth; `ratio` a busbw relative to another row of its system."""

    line: int
    data: Mapping[str, Any]
    seconds: float | None
    ratio: float | None = None


@dataclass(frozen=True)
class Case:
    """A row as a prediction needs it: `op` as parasim names it, or sendrecv, or copy."""

    row: Measured
    op: str
    nbytes: int
    ranks: int
    cluster: str | Mapping[str, Any]
    profile: str
    assumptions: tuple[str, ...]


def read_measured(path: Path) -> Iterator[Measured]:
    """The rows of a file. Raises `Malformed` for a missing file, `Unparsable` with file:line for what is no JSON object, or an empty file."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Malformed(f"{path}: cannot be read: {error}") from None
    count = 0
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            data = json.loads(line)
        except json.JSONDecodeError as error:
            raise Unparsable(f"{path}:{number}:{error.colno}: is not JSON: {error.msg}") from None
        if not isinstance(data, dict):
            raise Unparsable(f"{path}:{number}: is not an object")
        count += 1
        yield Measured(number, data, _seconds(data), _number(data, "busbw_ratio"))
    if not count:
        raise Unparsable(f"{path}: is empty")


def _number(data: Mapping[str, Any], key: str) -> float | None:
    """A positive finite number, also written as text, with K, M or G of nccl-tests where it is bytes; else None."""
    value: Any = data.get(key)
    if isinstance(value, str) and (written := re.fullmatch(r"\s*(\d+(?:\.\d*)?(?:[eE]\d+)?)\s*(?:([KMG])i?B?)?\s*", value)):
        value = float(written[1]) * (_POWERS[written[2]] if written[2] and key == "bytes" else math.nan if written[2] else 1)
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if plain and math.isfinite(value) and value > 0 else None


def _size(data: Mapping[str, Any]) -> float | None:
    """bytes, else a time times a bandwidth."""
    size, time = _number(data, "bytes"), _number(data, "time_us")
    if size is not None or time is None or data.get("bytes") is not None:
        return size
    algbw, busbw, ranks = _number(data, "algbw_gbs"), _number(data, "busbw_gbs"), _number(data, "gpus")
    if algbw is None and busbw is not None and ranks is not None and ranks >= 2:
        algbw = busbw / busbw_factor((op_of(data.get("op")) or ""), int(ranks))
    return None if algbw is None else max(1.0, round(time * 1e-6 * algbw * 1e9))


def _seconds(data: Mapping[str, Any]) -> float | None:
    """time_us, else bytes over a bandwidth: algbw, or busbw with nccl-tests' factor."""
    time, size = _number(data, "time_us"), _number(data, "bytes")
    if time is not None or size is None:
        return None if time is None else time * 1e-6
    algbw, busbw, ranks = _number(data, "algbw_gbs"), _number(data, "busbw_gbs"), _number(data, "gpus")
    if algbw is not None:
        return size / (algbw * 1e9)
    if busbw is None or ranks is None or ranks < 2:
        return None
    return size * busbw_factor((op_of(data.get("op")) or ""), int(ranks)) / (busbw * 1e9)


def to_case(row: Measured) -> Case:
    """The row as a case. Raises `NotModelled` with the reason for what cannot be predicted."""
    data = row.data
    op, size, ranks = op_of(data.get("op")), _size(data), _number(data, "gpus")
    if op is None:
        raise NotModelled(f"op {data.get('op')!r} is no collective of parasim; known: {', '.join(OPS)}")
    notes: list[str] = []
    if size is None and data.get("bytes") is None and row.seconds is None and row.ratio is not None:
        size = float(LARGE)
        notes.append("ratios of bandwidths without a size: those of 1 GiB")
    if size is None:
        also = "" if data.get("bytes") is not None else ", nor do a time and a bandwidth give one: a bandwidth alone says no size and no time"
        raise NotModelled(f"bytes {data.get('bytes')!r} is no size{also}")
    nodes = _number(data, "nodes")
    per_node = re.search(r"[x×] ?(\d+)\b(?! ?G)", str(data.get("system", "")))
    if ranks is None and op == "copy":
        ranks = 2.0
    elif ranks is None and data.get("gpus") is None and nodes is not None and per_node:
        ranks = nodes * int(per_node[1])
        notes.append(f"number of ranks not given: {per_node[1]} per server, as its name says")
    if ranks is None or ranks < 2 or ranks % 1:
        raise NotModelled(f"gpus {data.get('gpus')!r} is no number of ranks of 2 or more")
    if nodes is None:
        nodes = 1.0
        notes.append("nodes not given: one")
    text = " | ".join(str(data.get(key, "")) for key in ("system", "interconnect", "note", "nccl_version"))
    cluster, profile, more = system_of(text, int(nodes), int(ranks))
    return Case(row, op, int(size), int(ranks), cluster, profile, (*notes, *more))


@cache
def _systems() -> Mapping[str, Any]:
    tree: Mapping[str, Any] = yaml.safe_load(SYSTEMS.read_text(encoding="utf-8"))
    return tree


def system_of(text: str, nodes: int, ranks: int) -> tuple[str | Mapping[str, Any], str, tuple[str, ...]]:
    """Cluster, profile and assumptions of a system described in words: server and network are the first entries whose pattern matches."""
    server = next(entry for entry in _systems()["servers"] if re.search(entry["match"], text, re.IGNORECASE))
    notes = [server["note"]] if "note" in server else []
    if "domain" in server:  # servers that share one scale-up network are one node
        nodes = math.ceil(ranks / server["domain"])
    per_node = math.ceil(ranks / nodes)
    node: dict[str, Any] = {"count": nodes, "devices": per_node}
    if per_node > 1:
        node["scale_up"] = {"kind": "switch"} | {key: server[key] for key in ("bandwidth", "latency", "reduces") if key in server}
    cluster = {"name": f"{server['name']}-{nodes}x{per_node}", "accelerator": server["accelerator"], "node": node}
    if nodes == 1:
        return cluster, server["profile"], tuple(notes)
    wire = next(entry for entry in _systems()["networks"] if re.search(entry["match"], text, re.IGNORECASE))
    notes += [wire["note"]] if "note" in wire else []
    if "cluster" in wire and per_node == wire["devices"] and re.search(wire["of"], text, re.IGNORECASE):
        return wire["cluster"], wire.get("profile", server["profile"]), tuple(notes)
    scale_out, said = _scale_out(wire, text, per_node)
    profile = wire.get("profile", server["profile"])
    return cluster | {"name": f"{cluster['name']}-{wire['name']}", "scale_out": scale_out}, profile, (*notes, *said)


def _scale_out(wire: Mapping[str, Any], text: str, per_node: int) -> tuple[dict[str, Any], list[str]]:
    """The network between servers: rates written in the text come before those of the entry."""
    notes: list[str] = []
    rate, count = float(wire["gbps"]), wire.get("nics")
    written = re.search(r"(\d+) ?[x×] ?(\d+) ?G(?!B)", text)
    each = re.search(r"[x×] ?(\d+) ?/ ?node", text)
    count = int(each[1]) if each else count
    alone = re.search(r"(\d+) ?G(?:b/s|bps|bE|bit)?\b(?! ?B)(?!iB)", text)
    if "nics" not in wire and written and int(written[2]) >= 10:
        count, rate = int(written[1]), float(written[2])
    elif "nics" not in wire and alone and int(alone[1]) >= 1:
        rate = float(alone[1])
    elif "nics" not in wire:
        notes.append(f"rate of the NICs not given: {rate:g} Gb/s")
    if wire.get("shared"):
        limit = min(rate, float(wire["most_gbps"]))
        return {"kind": "ethernet", "bandwidth": f"{limit:g} Gb/s", "latency": wire["latency"]}, notes
    if count is None:
        count = per_node
        notes.append("NICs per node not given: one per GPU")
    whole = per_node % count == 0 or count % per_node == 0
    rails = count if whole else per_node  # other counts: the same rate spread over all devices
    net = {"bandwidth": f"{rate * count / rails:g} Gb/s", "latency": wire["latency"], "pod_nodes": 32}
    return {"kind": "rail-fat-tree", "nic_per_device": rails / per_node, **net}, notes
