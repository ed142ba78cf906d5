"""Training steps on TPUs, as MaxText prints them (rows with `kind`) -> the parts of a case: slices, sharding, rematerialisation, what was measured.

The axes fsdp share parameters out within a slice (ZeRO stage 3) and data replicates them, over the data-centre network between slices; tensor
cuts layers with sequence parallelism, context cuts the sequence. What a row does not say is MaxText's default (configs/base.yml), and is said.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from itertools import permutations
from math import isfinite, prod
from pathlib import Path
from typing import Any

import yaml

from parasim.model.layers import model_flops
from parasim.model.schema import read_model
from parasim.topology.loader import accelerators

from .row_model import NotModelled, model
from .row_values import Quantity
from .tpu_sharding import Degrees, degrees, recompute

DATA = Path(__file__).with_name("data")
Tree = Mapping[str, Any]
MOST_CHIPS, MOST_LAYERS, MOST = 2**17, 2**12, 2**50  # beyond that a typo is likelier
UNGATED = ("gpt", "opt", "mpt", "palm", "nemotron")


@cache
def vocabulary() -> Tree:
    """data/tpu_training.yaml."""
    tree: Tree = yaml.safe_load((DATA / "tpu_training.yaml").read_text(encoding="utf-8"))
    return tree


def is_tpu(row: Tree) -> bool:
    """Whether a row has the form of TPU rows."""
    return "kind" in row or ("accelerator" in row and "cluster" not in row)


def tpu_step(row: Tree) -> dict[str, Any]:
    """accelerator, run, stack, profile, measured, layout and assumptions of a row. Raises `NotModelled` with the reason."""
    kind = row.get("kind") or ("train" if "model_dims" in row else "micro")
    if kind != "train":
        raise NotModelled(f"kind {kind}: no training step; `python -m validation tpu` judges collectives")
    name = str(row.get("accelerator"))
    spec = next((s for s in vocabulary()["accelerators"] if re.search(r"tpu|trillium|ironwood", name, re.I) and re.search(s["match"], name, re.I)), None)
    if spec is None:
        raise NotModelled(f"accelerator {name} is no TPU that is known here")
    notes: list[str] = []
    if spec.get("transferred"):
        notes.append(f"no fitted numbers of {name}: its datasheet, and the efficiencies of other TPUs, transferred")
    if not isinstance(row.get("model_dims"), Mapping):
        raise NotModelled("not published: model_dims")
    chips, slices, shape = slices_of(row, spec, notes)
    cut = degrees(row, chips // slices * spec["cores"], slices, spec["cores"], vocabulary()["axes"], notes)
    sequence = _sequence(row, notes)
    transformer = _model(row, cut.tp, sequence, notes)
    batch, cut = _batch(row, chips, sequence, spec["cores"], cut, notes)
    precision = _precision(row, spec, notes)
    run: dict[str, Any] = {"name": str(row["id"]), "model": transformer, "cluster": _cluster(spec, _along(shape, cut.tp * cut.cp), slices)}
    run |= {"devices": chips, "stack": vocabulary()["stack"], "batch": batch, "precision": precision, **_layout(cut, slices, notes)}
    run["recompute"] = recompute(row, bool(transformer.get("experts")), vocabulary(), notes)
    measured = _measured(row, run, spec)
    _padded(row, transformer, notes)
    layout = f"{spec['name']} {transformer['name']}"
    parts = {"accelerator": name, "family": "tpu", "stack": vocabulary()["stack"], "profile": vocabulary()["profile"]}
    return {**parts, "measured": (measured,), "run": run, "assumptions": tuple(notes), "layout": layout}


def number(tree: Tree, key: str) -> float | None:
    """A positive number of at most MOST, also where it is written as text; None where the key is absent, null or no such number."""
    value = tree.get(key)
    try:
        found = float(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else 0.0
    except (ValueError, OverflowError):
        return None
    return found if isfinite(found) and 0 < found <= MOST else None


def slices_of(row: Tree, spec: Tree, notes: list[str]) -> tuple[int, int, tuple[int, ...]]:
    """(chips of all slices, slices, shape of one). Raises `NotModelled` where the chips are not published."""
    written = re.fullmatch(r"\d+(x\d+)+", str(row.get("topology") or "").strip())
    shape = tuple(map(int, written[0].split("x"))) if written else ()
    named = re.search(r"-(\d+)$", str(row.get("slice") or ""))
    one = prod(shape) if shape else int(named[1]) // (2 if spec["slice_counts"] == "cores" else 1) if named else 0
    chips, slices = int(number(row, "chips") or 0), int(number(row, "num_slices") or 0)
    if not chips and one:
        chips = one * max(slices, 1)
        notes.append(f"chips not published: {chips}, from the slice")
    if not 0 < chips <= MOST_CHIPS:
        raise NotModelled("not published: chips" if not chips else f"chips {chips} are more than {MOST_CHIPS}")
    if not slices:
        slices = chips // one if one and chips % one == 0 else 1
        notes.append(f"slices not published: {slices}")
    if chips % slices:
        raise NotModelled(f"chips {chips} are no multiple of {slices} slices")
    if prod(shape) != chips // slices or not shape:
        given, shape = shape, usual_shape(chips // slices, spec["axes"])
        why = f"{'x'.join(map(str, given))} is no slice of {chips // slices} chips" if given else "topology not published"
        notes.append(f"{why}: {'x'.join(map(str, shape))}")
    return chips, slices, shape


def usual_shape(chips: int, axes: int) -> tuple[int, ...]:
    """The most compact slice of `axes` axes: of multiples of 4 where the chips allow it in three dimensions."""
    unit = 4 if axes == 3 and chips % 64 == 0 else 1
    best: tuple[int, ...] = (1,) * (axes - 1) + (chips,)
    rest = chips // unit**axes
    for a in (n for n in range(1, int(rest**0.5) + 1) if rest % n == 0):
        tails = [(rest // a,)] if axes == 2 else [(b, rest // a // b) for b in range(a, int((rest // a) ** 0.5) + 1) if rest // a % b == 0]
        best = min([best, *((unit * a, *(unit * n for n in tail)) for tail in tails)], key=sum)
    return best


def _along(shape: tuple[int, ...], inner: int) -> tuple[int, ...]:
    """The axes in an order whose first ones hold `inner` chips, as JAX's mesh_utils lays the innermost axis; else as they are."""
    fits = [p for p in permutations(shape) if any(prod(p[:k]) == inner for k in range(1, len(p) + 1))]
    return fits[0] if inner > 1 and fits else shape


def _cluster(spec: Tree, shape: tuple[int, ...], slices: int) -> dict[str, Any]:
    return {"base": spec["cluster"], "accelerator": spec["name"], "torus": {"shapes": "x".join(map(str, shape)), "slices": slices}}


def _sequence(row: Tree, notes: list[str]) -> int:
    config = row.get("config") if isinstance(row.get("config"), Mapping) else {}
    found = number(row, "seq_len") or number(config or {}, "max_target_length")
    if found is None:
        notes.append("sequence not published: 2048, MaxText's default")
    return int(found or 2048)


def _model(row: Tree, tp: int, sequence: int, notes: list[str]) -> dict[str, Any]:
    """The model in the words of the other rows, completed as those are."""
    printed = {str(key).removeprefix("base_"): value for key, value in row["model_dims"].items()}
    sizes = {ours: next((v for n in names if (v := number(printed, n)) is not None), None) for ours, names in vocabulary()["sizes"].items()}
    if (sizes["layers"] or 0) > MOST_LAYERS:
        raise NotModelled(f"layers {sizes['layers']:g} are more than {MOST_LAYERS}")
    name, matrices = str(row.get("model") or "model"), number(printed, "mlp_matrices")
    given: dict[str, Any] = {key: sizes[key] for key in ("layers", "hidden", "heads", "kv_heads", "head_dim", "vocab")}
    given |= {"name": name, "ffn_hidden": sizes["ffn"], "attention": printed.get("attention") or printed.get("attention_type")}
    given["attention"] = "MLA" if str(given["attention"]).lower() == "mla" or "kv_lora_rank" in printed or "deepseek" in name.lower() else None
    plain = any(word in name.lower() for word in UNGATED)
    if matrices is not None or not plain:
        given["activation"] = "gelu" if matrices == 2 else "geglu" if "gemma" in name.lower() else "swiglu"
    given["tied_embeddings"] = True if "gemma" in name.lower() else None
    given["params_b"] = (number(row, "params") or 0) / 1e9
    if sizes["experts"]:
        given["moe"] = {"experts": sizes["experts"], "topk": sizes["topk"], "shared_experts": sizes["shared_experts"], "expert_ffn": sizes["expert_ffn"]}
        given["dense_layers"] = sizes["dense_layers"]
    out = model({"model": given, "sequence": sequence, "strategy": {"tp": tp}}, notes)
    apart = sizes["ffn"] and sizes["expert_ffn"] and sizes["ffn"] > sizes["expert_ffn"] and not out.get("experts", {}).get("dense_layers")
    if sizes["shared_experts"] and apart and "experts" in out:
        out["experts"]["shared_ffn"] = int(sizes["ffn"] or 0)  # what every token passes is as wide as the feed-forward (Gemma 4)
    return out


def _batch(row: Tree, chips: int, sequence: int, cores: int, cut: Degrees, notes: list[str]) -> tuple[dict[str, int], Degrees]:
    """One microbatch, unless gradients are accumulated. Fewer sequences than replicas: those share them, as context parallelism does."""
    config = row.get("config") if isinstance(row.get("config"), Mapping) else {}
    one = number(row, "per_device_batch") or number(config or {}, "per_device_batch_size")
    tokens = number(row, "global_batch_tokens") or (number(row, "tokens_per_chip") or 0) * chips
    total = number(row, "global_batch") or tokens / sequence or (one or 0) * chips * cores
    if not total:
        raise NotModelled("not published: the batch (per_device_batch, global_batch, global_batch_tokens or tokens_per_chip)")
    count = max(1, round(total))
    if count < cut.dp and cut.dp % count == 0 and cut.ep == 1:
        notes.append(f"{count} sequences on {cut.dp} shards: each is cut into {cut.dp // count} (context parallel)")
        cut = cut.shared(cut.dp // count)
    replica, rest = divmod(count, cut.dp)
    if rest:
        raise NotModelled(f"global batch {count} is no multiple of {cut.dp} replicas")
    steps = int(number(config or {}, "gradient_accumulation_steps") or (cut.pp if cut.pp > 1 else 1))
    if replica % steps or steps > MOST_LAYERS:
        notes.append(f"{steps} microbatches do not divide {replica} sequences: one")
        steps = 1
    return {"global": count, "micro": replica // steps, "sequence": sequence}, cut


def _precision(row: Tree, spec: Tree, notes: list[str]) -> str:
    config = row.get("config") if isinstance(row.get("config"), Mapping) else {}
    written = str(row.get("dtype") or (config or {}).get("quantization") or "").lower()
    if not written:
        notes.append("dtype not published: bf16")
    if written in ("", "bf16", "bfloat16"):
        return "bf16"
    if not re.match("fp8|int8|nanoo_fp8|float8", written):
        raise NotModelled(f"dtype {written} is not modelled")
    if "fp8" not in accelerators()[spec["name"]].peak_flops:
        raise NotModelled(f"dtype {written}: {spec['name']} has no rate of 8-bit products here")
    if written.startswith("int8"):
        notes.append("int8 products as fp8")
    return "fp8"


def _layout(cut: Degrees, slices: int, notes: list[str]) -> dict[str, Any]:
    """Gradients are reduced in bf16, in which the backward makes them, and cross the data-centre network after it: layers are one scanned loop, whose
    stacked gradients are there at its end. XLA overlaps the collectives of tensor parallelism. Of the choices these fit the rows of slices best."""
    out: dict[str, Any] = {"parallel": {"tp": cut.tp, "pp": cut.pp, "cp": cut.cp, "ep": cut.ep, "dp": cut.dp}, "pipeline": {"schedule": "1f1b"}}
    out["zero"] = {"stage": 3, "shard": cut.shard} if cut.shard > 1 else {"stage": 0}
    if slices > 1:
        notes.append("gradients cross the network between slices after the backward, not beside it")
        out["dp"] = {"mode": "flat"}
    out["optimizer"] = {"gradient_dtype": "bf16"}
    return out | ({"tensor": {"sequence_parallel": True, "async": True}} if cut.tp > 1 else {})


def _measured(row: Tree, run: Tree, spec: Tree) -> Quantity:
    """The step time: printed, or from tokens/s per chip, or from the MFU, which counts full attention unless the row has a step time (before July 2025)."""
    tokens, chips = run["batch"]["global"] * run["batch"]["sequence"], run["devices"]
    if step := number(row, "step_time_s") or number(row, "step_time_s_derived"):
        return Quantity("step_time_s", step)
    if rate := number(row, "tokens_per_s_per_chip"):
        return Quantity("step_time_s", tokens / (rate * chips), "from tokens/s per chip")
    flops = model_flops(read_model(run["model"], "model"), tokens, run["batch"]["sequence"])
    peak = (number(row, "peak_tflops") or 0) * 1e12 or accelerators()[spec["name"]].peak(run["precision"])
    rate = (number(row, "tflops_per_chip") or 0) * 1e12 or (number(row, "mfu_pct") or 0) / 100 * peak
    if not rate:
        raise NotModelled("nothing that is predicted here was measured (no step time, tokens/s, MFU or TFLOP/s)")
    return Quantity("step_time_s", flops / (rate * chips), "from the FLOP/s, full attention counted")


def _padded(row: Tree, transformer: dict[str, Any], notes: list[str]) -> None:
    """Experts whose buffers are padded to a capacity compute the padding too: as tokens that are sent to more experts."""
    config = row.get("config") if isinstance(row.get("config"), Mapping) else {}
    factor = number(row["model_dims"], "capacity_factor") or number(config or {}, "capacity_factor") or 1.0
    if factor > 1 and "experts" in transformer:
        experts = transformer["experts"]
        experts["topk"] = min(experts["count"], round(experts["topk"] * factor))
        notes.append(f"buffers of experts padded by a capacity of {factor:g}: as tokens sent to {experts['topk']} experts")
