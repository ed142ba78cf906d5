"""memory.fragmentation of profiles: the one number by which peaks of tensors are multiplied to give what rows publish as reserved.

Least squares of log(published / what tensors hold at the peak) over all fit rows of the profile's sources, hence the mean of the logarithms; 0
where tensors alone come to more (as for torchtitan, which is left without the number: the replayed allocator stands for it).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from parasim.cost.profile import Profile
from parasim.provenance import Number

from .cache import Cache, predicted, task_of
from .predict import DATA
from .rows import Case, NotModelled, read_rows, to_case

KEY, RESERVED, HELD, DIGITS = "memory.fragmentation", "reserved_memory_bytes", "peak_memory_bytes", 3


def with_fragmentation(profile: Profile, recipe: Mapping[str, Any], cache: Cache, workers: int) -> Profile:
    """`profile` with the number, where the recipe names sources for it (`memory`). Peaks are those under the profile of that name in the catalog."""
    sources = recipe["profiles"].get(profile.name, {}).get("memory", ())
    ratios = _ratios(profile.name, sources, cache, workers)
    if not ratios:
        return profile
    value = max(0.0, float(f"{np.expm1(np.mean(np.log(ratios))):.{DIGITS}g}"))
    source = f"least squares of log ratios over {len(ratios)} published peaks ({', '.join(sources)}): python -m validation fit --memory"
    return replace(profile, numbers={**profile.numbers, KEY: Number(value, "1", source, "fitted")})


def _ratios(name: str, sources: tuple[str, ...], cache: Cache, workers: int) -> list[float]:
    """Published reserved memory over what tensors hold, of every fit row of `sources` that can be simulated."""
    cases = [case for source in sources for case in _cases(source) if case.profile == name]
    answers = predicted([task_of(case.run, name) for case in cases], cache, workers)
    out = []
    for case in cases:
        values = answers[task_of(case.run, name)].get("values", {})
        out += [q.value / values[HELD] for q in case.measured if q.name == RESERVED and values.get(HELD)]
    return out


def _cases(source: str) -> list[Case]:
    found = []
    for row in read_rows(DATA / "fit" / f"{source}.jsonl"):
        try:
            found.append(to_case(row))
        except NotModelled:
            continue
    return found
