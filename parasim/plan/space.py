"""The layouts of a run that search looks at: values per key of the run file, all combinations of them, and which are legal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import product
from typing import Any, NamedTuple

from ..config import Run, load
from ..config.not_yet import NOT_YET, NotYet
from ..documents import fragment
from ..errors import Malformed
from ..model.spec import Model, Transformer
from ..parallel.check import batch_violation, check, divisors
from ..parallel.layout import FULL, Batch, Degrees, Layout
from ..parallel.placement import split_layers
from ..schedules import SCHEDULES
from ..schedules.placement import BIDIRECTIONAL
from ..words import known

Settings = Mapping[str, Any]
NEUTRAL = (
    "devices=1", "parallel.tp=1", "parallel.pp=1", "parallel.cp=1", "parallel.ep=1", "parallel.dp=auto", "pipeline.schedule=1f1b", "pipeline.chunks=1",
    "pipeline.layers=auto", "zero.stage=0", "zero.shard=auto", "recompute=none", "tensor.sequence_parallel=false", "tensor.async=false",
)  # fmt: skip
AXES = (
    "parallel.tp", "parallel.pp", "parallel.cp", "parallel.ep", "batch.micro", "pipeline.schedule", "pipeline.chunks", "zero.stage", "recompute",
    "tensor.sequence_parallel",
)  # fmt: skip
RECOMPUTE = {"none": (), "selective": ("core_attn",), "full": (FULL,)}
# schedules that are themselves searches, or whose stages sit on two ranks, are left out
SEARCHED = tuple(
    n for n, row in SCHEDULES.items() if row.placement is not BIDIRECTIONAL and not n.startswith(("zb-auto", "zb-1p", "zb-2p"))
)  # others are searches
WIDEST, MOST_MICRO, MOST_CHUNKS, MOST_CONTEXT = 64, 16, 8, 16  # of the values that are tried unless others are named
MOST_LAYOUTS = 1_000_000
# the bounds reduce gradients over dp alone, which is no bound where they are reduced over dp x cp
NOT_SEARCHED = (*NOT_YET, NotYet("parallel.cp", lambda value, dp: value > 1, "a search over context parallelism", "supported: 1"))


@dataclass(frozen=True)
class Candidate:
    """Settings by path, and the Layout that the configuration makes of them."""

    settings: Settings
    layout: Layout

    @property
    def overrides(self) -> list[str]:
        """As `--set` takes them."""
        d, rest = self.layout.degrees, {k: v for k, v in self.settings.items() if not k.startswith("parallel.")}
        same = [f"devices={d.world}", "parallel.dp=auto", "pipeline.layers=auto", "zero.shard=auto"]
        return [*same, *(f"{k}={_yaml(v)}" for k, v in {**_degrees(d), **rest}.items())]

    @property
    def name(self) -> str:
        """In few words: degrees above 1 and what is not usual."""
        d, s = self.layout.degrees, self.settings
        words = [f"{a}={getattr(d, a)}" for a in ("tp", "cp", "ep", "pp", "dp") if getattr(d, a) > 1] or ["one rank"]
        words += [f"micro={self.layout.batch.micro}"] if self.layout.batch.micro > 1 else []
        if d.pp > 1:
            chunks = f"x{self.layout.pipeline.chunks}" if self.layout.pipeline.chunks > 1 else ""
            words.append(f"{self.layout.pipeline.schedule}{chunks}")
        words += [f"zero={self.layout.zero.stage}"] if self.layout.zero.stage else []
        words += [f"recompute={s['recompute']}"] if s["recompute"] != "none" else []
        words += ["sp"] if self.layout.tensor.sequence_parallel else []
        return " ".join(words)


@dataclass
class Space:
    """The legal candidates, how many combinations there were, and why how many were refused (by the rule's field)."""

    candidates: list[Candidate] = field(default_factory=list)
    enumerated: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    example: dict[str, str] = field(default_factory=dict)

    def refuse(self, why: str, example: str) -> None:
        """Count one refusal."""
        self.refused[why] += 1
        self.example.setdefault(why, example)


def template(path: Any, overrides: Sequence[str]) -> Run:
    """The run with one rank and the whole batch at once: legal whenever model and keys are. Raises as `load` does."""
    written = load(path, [*overrides, *NEUTRAL, "batch.micro=1"])
    return load(path, [*overrides, *NEUTRAL, f"batch.micro={written.plan.layout.batch.global_}"])


def axes(run: Run, devices: int, asked: Mapping[str, Sequence[str]], pinned: Mapping[str, str]) -> dict[str, list[Any]]:
    """The values of every axis: those asked for, the one that is pinned, else what makes sense for the model. Raises Malformed for other keys."""
    usual = _usual(run, devices)
    for path in asked:
        known(path, AXES, "key to vary")
    out: dict[str, list[Any]] = {}
    for path in AXES:
        texts = asked.get(path) or ([pinned[path]] if path in pinned else None)
        out[path] = usual[path] if texts is None else [_value(path, text) for text in texts]
    for name in out["pipeline.schedule"]:
        known(str(name), SEARCHED, "schedule to search over")
    return out


def _value(path: str, text: str) -> Any:
    value = fragment(text, f"--vary {path}={text}").data
    rules = {"recompute": tuple(RECOMPUTE), "tensor.sequence_parallel": (True, False), "zero.stage": (0, 1, 2, 3)}
    if path in rules and value not in rules[path]:
        raise Malformed(f"--vary {path}={text} is not a value to search over; legal: {', '.join(map(_yaml, rules[path]))}")
    if path not in rules and path != "pipeline.schedule" and not (isinstance(value, int) and not isinstance(value, bool) and value >= 1):
        raise Malformed(f"--vary {path}={text} must be a whole number of 1 or more")
    return value


def _usual(run: Run, devices: int) -> dict[str, list[Any]]:
    model, batch = run.plan.model, run.plan.layout.batch
    open_ = {row.field: row for row in NOT_SEARCHED}

    def able(path: str, values: Sequence[Any]) -> list[Any]:
        return [v for v in values if path not in open_ or not open_[path].asked(v, devices)]

    small = [n for n in divisors(devices) if n <= WIDEST]
    experts = model.experts.count if isinstance(model, Transformer) and model.experts else 1
    unfused = run.plan.layout.kernels.attention == "unfused"
    schedules = [name for name in SEARCHED if name != "naive"]
    return {
        "parallel.tp": small if hasattr(model, "hidden") else [1],
        "parallel.pp": [n for n in divisors(devices) if n <= model.layers],
        "parallel.cp": able("parallel.cp", [n for n in small if n <= MOST_CONTEXT and isinstance(model, Transformer)]) or [1],
        "parallel.ep": [n for n in divisors(experts) if devices % n == 0],
        "batch.micro": [n for n in divisors(batch.global_) if n <= MOST_MICRO],
        "pipeline.schedule": able("pipeline.schedule", schedules),
        "pipeline.chunks": [n for n in range(1, MOST_CHUNKS + 1) if n <= model.layers],
        "zero.stage": [0, 1, 2, 3],
        "recompute": (["none", "selective", "full"] if unfused else ["none", "full"]) if hasattr(model, "hidden") else ["none"],
        "tensor.sequence_parallel": [True, False],
    }


def space(run: Run, devices: int, values: Mapping[str, Sequence[Any]]) -> Space:
    """All combinations, without those that mean the same (chunks of a schedule that has its own number, ZeRO without replicas, and so on)."""
    out = Space()
    model, base = run.plan.model, run.plan.layout
    seen: dict[object, Broken | None] = {}
    blocked = [row for row in NOT_SEARCHED if row.field in values]
    for settings in _combinations(devices, values):
        out.enumerated += 1
        if out.enumerated > MOST_LAYOUTS:
            raise Malformed(f"--vary makes more than {MOST_LAYOUTS} layouts; name fewer values")
        broken = next((row for row in blocked if row.asked(settings[row.field], devices)), None)
        if broken is not None:
            out.refuse(broken.field, f"{broken.field}={settings[broken.field]} asks for {broken.feature}, which is not supported yet")
            continue
        degrees = settings["parallel.tp"] * settings["parallel.pp"] * settings["parallel.cp"]
        if devices % degrees:
            out.refuse("devices", f"devices={devices} must be a multiple of tp x cp x pp = {degrees}")
            continue
        dp, micro = devices // degrees, settings["batch.micro"]
        if base.batch.global_ % (micro * dp):
            if "batch.global" not in out.refused:
                out.refuse("batch.global", str(batch_violation(base.batch.global_, micro, dp)))
            else:
                out.refused["batch.global"] += 1
            continue
        key = (dp > 1, dp * settings["parallel.cp"] % settings["parallel.ep"], *(settings[a] for a in AXES if a != "pipeline.schedule"))
        key = (*key, SCHEDULES[settings["pipeline.schedule"]].placement.name)
        if key not in seen:
            seen[key] = broken_rule(model, layout_of(base, model, devices, settings))
        violation = seen[key]
        if violation is not None:
            out.refuse(violation.field, violation.text)
        else:
            out.candidates.append(Candidate(settings, layout_of(base, model, devices, settings)))
    return out


class Broken(NamedTuple):
    """A broken rule: its field, and its words."""

    field: str
    text: str


def broken_rule(model: Model, layout: Layout) -> Broken | None:
    """The first rule that `layout` breaks, whose batch splits evenly, but for those of its schedule.

    Layouts that differ only in their schedule and in how many replicas and microbatches there are ask once. The rules of a schedule cost its
    orders; they are asked for when these are made, of layouts that may win.
    """
    batch = replace(layout.batch, global_=layout.batch.micro * layout.degrees.dp, microbatches=1)
    stand_in = replace(layout.pipeline, schedule="looped-bfs", chunks=len(layout.pipeline.layers) // layout.degrees.pp)
    found = next(iter(check(model, replace(layout, batch=batch, pipeline=stand_in))), None)
    return None if found is None else Broken(found.field, str(found))


def _combinations(devices: int, values: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    shape, rest = AXES[:5], AXES[5:]
    for degrees in product(*(values[a] for a in shape)):
        tp, pp, cp, _, _ = degrees
        if tp * pp * cp > devices:
            continue
        for ways in product(*_ways(tp, pp, devices // (tp * pp * cp), values)):
            settings = dict(zip(shape, degrees, strict=True)) | dict(zip(rest, (*ways[0], *ways[1:]), strict=True))
            yield settings


def _ways(tp: int, pp: int, replicas: int, values: Mapping[str, Sequence[Any]]) -> Iterator[Sequence[Any]]:
    """Values of (schedule, chunks), ZeRO stage, recomputation, sequence parallelism that differ from each other at these degrees."""
    schedules = [("1f1b", 1)] if pp == 1 else list(dict.fromkeys(_chunked(values["pipeline.schedule"], values["pipeline.chunks"])))
    yield schedules
    yield values["zero.stage"] if replicas > 1 else values["zero.stage"][:1]
    yield values["recompute"]
    yield values["tensor.sequence_parallel"] if tp > 1 else [False]


def _chunked(schedules: Sequence[str], chunks: Sequence[int]) -> Iterator[tuple[str, int]]:
    for name in schedules:
        row = SCHEDULES[name]
        if row.fixed:
            yield name, row.chunks
        else:
            yield from ((name, n) for n in chunks if n > 1 or len(chunks) == 1)


def layout_of(base: Layout, model: Model, devices: int, settings: Settings) -> Layout:
    """What the configuration resolves the settings to (a test compares the two)."""
    tp, pp, cp, ep = (settings[f"parallel.{a}"] for a in ("tp", "pp", "cp", "ep"))
    dp, micro, chunks = devices // (tp * pp * cp), settings["batch.micro"], settings["pipeline.chunks"]
    batch, stages = base.batch, SCHEDULES[settings["pipeline.schedule"]].placement.stages(pp, chunks)
    return replace(
        base,
        degrees=Degrees(tp, cp, ep, dp, pp, base.degrees.order),
        batch=Batch(batch.global_, micro, batch.sequence, max(1, batch.global_ // (micro * dp))),
        zero=replace(base.zero, stage=settings["zero.stage"], shard=dp),
        pipeline=replace(base.pipeline, schedule=settings["pipeline.schedule"], chunks=chunks, layers=_split(model.layers, stages)),
        tensor=replace(base.tensor, sequence_parallel=settings["tensor.sequence_parallel"]),
        recompute=replace(base.recompute, modules=RECOMPUTE[settings["recompute"]]),
    )


_split = cache(split_layers)


def _degrees(d: Degrees) -> dict[str, int]:
    return {f"parallel.{a}": getattr(d, a) for a in ("tp", "pp", "cp", "ep")}


def _yaml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
