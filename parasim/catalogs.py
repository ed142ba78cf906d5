"""What a run file can name: models, clusters, accelerators, schedules, stacks and profiles, each with a line about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .model.layers import parameters
from .schedules import SCHEDULES
from .units import format_memory
from .words import known


def catalog_of(kind: str) -> dict[str, str]:
    """Name -> one line about it, for a kind of thing that a run file can name."""
    return CATALOGS[known(kind, CATALOGS, "catalog")]()


def catalog_json(kind: str, entries: Mapping[str, str]) -> dict[str, Any]:
    """The contract `parasim.catalog/1`; of models also their parameters."""
    from .model.catalog import catalog

    more = {"parameters": {name: parameters(model) for name, model in catalog().items()}} if kind == "models" else {}
    return {"schema": "parasim.catalog/1", "kind": kind, "entries": dict(entries), **more}


def _models() -> dict[str, str]:
    from .model.catalog import catalog

    return {n: f"{m.kind}, {m.layers} layers, {parameters(m):,} parameters" for n, m in catalog().items()}


def _clusters() -> dict[str, str]:
    from .topology.loader import catalog

    return catalog()


def _accelerators() -> dict[str, str]:
    from .topology.loader import accelerators

    return {
        n: f"{a.kind}, {format_memory(a.memory.value)}, " + ", ".join(f"{d} {p.value / 1e12:g} TFLOP/s" for d, p in a.peak_flops.items())
        for n, a in accelerators().items()
    }


def _schedules() -> dict[str, str]:
    return {n: (s.orders.__doc__ or "").strip().splitlines()[0] for n, s in SCHEDULES.items()}


def _profiles() -> dict[str, str]:
    from .cost.profile import catalog

    return {n: p.description or f"{len(p.numbers)} numbers, {p.backend}" for n, p in catalog().items()}


def _stacks() -> dict[str, str]:
    from .config.stack import load_stack, stack_names

    return {name: load_stack(name).about for name in stack_names()}


CATALOGS: dict[str, Callable[[], dict[str, str]]] = {
    "models": _models,
    "clusters": _clusters,
    "accelerators": _accelerators,
    "schedules": _schedules,
    "stacks": _stacks,
    "profiles": _profiles,
}
