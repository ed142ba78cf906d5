"""What a published row measured, in SI: step time, peak memory, layer times; conversions as the sources define their units, no tuning."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from parasim.units import parse


class Quantity(NamedTuple):
    """A measured number: step_time_s, layer_forward_s, layer_backward_s (seconds), peak_memory_bytes and reserved_memory_bytes (bytes, of
    tensors and of the allocator; `note`: how exact the unit is)."""

    name: str
    value: float
    note: str = ""


def quantities(row: Mapping[str, Any], run: Mapping[str, Any], memory: Mapping[str, Any]) -> Iterator[Quantity]:
    """The measured numbers that are predicted here. `run` gives the tokens of a step, `memory` what the source's peaks are (data/systems.yaml)."""
    measured = row["measured"]
    yield from _step(measured, run, int(row["cluster"].get("devices") or 0))
    name = "reserved_memory_bytes" if memory.get("reserved") else "peak_memory_bytes"
    if measured.get("peak_memory_bytes"):
        yield Quantity(name, float(measured["peak_memory_bytes"]))
    elif measured.get("peak_memory_gb_unit_unknown"):
        unit = str(memory.get("unit", "GB"))
        note = f"peak in {unit}: {memory['why']}" if "unit" in memory else "GB or GiB is not published: GB, up to 7 % less than GiB"
        yield Quantity(name, float(measured["peak_memory_gb_unit_unknown"]) * parse(f"1 {unit}", "bytes"), note)
    for way in ("forward", "backward"):
        if measured.get(f"layer_{way}_ms"):
            yield Quantity(f"layer_{way}_s", float(measured[f"layer_{way}_ms"]) / 1e3)


def _step(measured: Mapping[str, Any], run: Mapping[str, Any], devices: int) -> Iterator[Quantity]:
    tokens = run["batch"]["global"] * run["batch"]["sequence"]
    samples = run["batch"]["global"]
    if measured.get("step_time_s"):
        yield Quantity("step_time_s", float(measured["step_time_s"]))
    elif measured.get("tokens_per_s"):
        yield Quantity("step_time_s", tokens / float(measured["tokens_per_s"]), "from tokens/s")
    elif measured.get("tokens_per_s_per_gpu"):
        yield Quantity("step_time_s", tokens / (float(measured["tokens_per_s_per_gpu"]) * devices), "from tokens/s per device")
    elif measured.get("samples_per_gpu_per_s"):
        yield Quantity("step_time_s", samples / (float(measured["samples_per_gpu_per_s"]) * devices), "from samples/s per device")
    elif measured.get("mfu"):
        yield Quantity("mfu", float(measured["mfu"]), "compared as MFU, full attention counted")
