"""The mesh of a TPU row -> degrees, and its policy of rematerialisation -> what is repeated."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from .row_model import NotModelled

Tree = Mapping[str, Any]
OURS = ("fsdp", "data", "tp", "cp", "ep", "pp")


@dataclass(frozen=True)
class Degrees:
    """Degrees of a layout; `shard` of the dp replicas share the parameters."""

    tp: int
    cp: int
    ep: int
    pp: int
    dp: int
    shard: int

    def shared(self, parts: int) -> Degrees:
        """`parts` replicas as one whose sequences are cut."""
        return replace(self, cp=self.cp * parts, dp=self.dp // parts, shard=max(1, self.shard // parts))


def degrees(row: Tree, devices: int, slices: int, cores: int, axes: Tree, notes: list[str]) -> Degrees:
    """Degrees over chips from a mesh over `devices` of JAX in one slice, `cores` of them on a chip. Raises `NotModelled` where they do not fit."""
    inner = _filled(_printed(row, "ici", axes), devices, "fsdp", "ici", notes)
    outer = _filled(_printed(row, "dcn", axes), slices, "data", "dcn", notes)
    for _ in range(cores - 1):  # 2 cores: the cores of a chip lie along one axis
        axis = next((a for a in ("data", "fsdp", "tp", "cp", "ep", "pp") if inner[a] % cores == 0), None)
        if axis is None:
            raise NotModelled(f"ici sharding {inner} has no axis for the {cores} cores of a chip")
        inner[axis] //= cores
    whole = {axis: inner[axis] * outer[axis] for axis in OURS}
    return Degrees(whole["tp"], whole["cp"], whole["ep"], whole["pp"], whole["fsdp"] * whole["data"] * whole["ep"], whole["fsdp"] * whole["ep"])


def _printed(row: Tree, net: str, axes: Tree) -> dict[str, int]:
    """Our axis -> degree as printed, -1 for the rest: from `ici_sharding` (a text such as "fsdp=-1 (16),tensor=4", or a mapping), else from `config`."""
    written, config = row.get(f"{net}_sharding"), row.get("config")
    pairs: list[tuple[str, object]] = []
    if isinstance(config, Mapping):
        pairs += [(m[1], value) for key, value in config.items() if (m := re.fullmatch(rf"{net}_(\w+)_parallelism", str(key)))]
    if isinstance(written, Mapping):
        pairs += [(str(key).removeprefix(f"{net}_").removesuffix("_parallelism"), value) for key, value in written.items()]
    elif isinstance(written, str):
        pairs += re.findall(r"([a-z_]+)\s*=\s*(-?\d+)", written)
    out: dict[str, int] = {}
    for name, value in pairs:
        axis = next((ours for ours, names in axes.items() if name in names), None)
        degree = int(str(value)) if re.fullmatch(r"-?\d{1,9}", str(value)) else 1
        if axis is None and degree not in (0, 1):
            raise NotModelled(f"{net} sharding over {name} is not modelled")
        if axis is not None and (degree < 0 or out.get(axis, 1) < 0):
            out[axis] = -1
        elif axis is not None:
            out[axis] = out.get(axis, 1) * max(degree, 1)
    return out


def _filled(printed: Tree, devices: int, usual: str, net: str, notes: list[str]) -> dict[str, int]:
    """Every axis, the open one (that of MaxText's default, where none is printed as -1) taking the rest of `devices`."""
    if not printed and devices > 1:
        notes.append(f"{net} sharding not published: {usual}, MaxText's default")
    open_ = [axis for axis, degree in printed.items() if degree < 0]
    rest = open_[0] if open_ else usual
    out = {axis: printed.get(axis, 1) if printed.get(axis, 1) > 0 else 1 for axis in OURS}
    others = prod(degree for axis, degree in out.items() if axis != rest)
    if devices % others:
        raise NotModelled(f"{net} sharding {dict(printed)} does not divide {devices} devices")
    if not open_ and printed and out[rest] != devices // others:
        notes.append(f"{net} sharding as printed does not cover {devices} devices: {rest} {devices // others}")
    out[rest] = devices // others
    return out


def recompute(row: Tree, sparse: bool, vocabulary: Tree, notes: list[str]) -> dict[str, Any]:
    """`recompute` of the run file: all that the policy neither keeps nor offloads. Offloaded tensors count as kept."""
    config = row.get("config") if isinstance(row.get("config"), Mapping) else {}
    config = config or {}
    policy = str(row.get("remat") or config.get("remat_policy") or "").lower()
    if not policy:
        notes.append("remat not published: full, MaxText's default")
        policy = "full"
    if policy not in vocabulary["kept"]:
        notes.append(f"remat {policy} is not known here: full")
    kept = set(vocabulary["kept"].get(policy, ()))
    words = {str(key): str(value).lower() for key, value in config.items() if str(value).lower() in ("offload", "device")}
    if policy == "custom":
        kept |= {part for tensor, part in vocabulary["tensors"].items() if tensor in words}
    if "offload" in words.values() or "offload" in policy:
        notes.append("activations in the memory of the host count as kept: their way there takes no time here")
    if "all" in kept:
        return {"modules": "none"}
    if not kept:
        return {"modules": "full"}
    feed_forward = ("moe_act" if sparse else "act") if "mlp" in kept else ("moe" if sparse else "mlp")
    again = ["layernorm", *(part for part in ("qkv", "core_attn", "proj") if part not in kept), feed_forward]
    return {"modules": again}
