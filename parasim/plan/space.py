"""The layouts of a run that search looks at: values per key of the run file, all combinations of them, and which are legal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from itertools import product
from typing import Any, NamedTuple

from ..config import Run, load
from ..config.hints import stage_times
from ..config.not_yet import NOT_YET
from ..documents import fragment
from ..errors import Malformed
from ..model.spec import Model, Transformer
from ..parallel.check import batch_violation, check, divisors
from ..parallel.layout import FULL, Batch, Degrees, Layout
from ..parallel.placement import split_layers
from ..schedules import SCHEDULES
from ..words import known

Settings = Mapping[str, Any]
NEUTRAL = (
    "devices=1", "parallel.tp=1", "parallel.pp=1", "parallel.cp=1", "parallel.ep=1", "parallel.dp=auto", "pipeline.schedule=1f1b", "pipeline.chunks=1",
    "pipeline.layers=auto", "zero.stage=0", "zero.shard=auto", "recompute=none", "tensor.sequence_parallel=false",
)  # fmt: skip
PLAIN = ("tensor.async=false", "tensor.user_buffers=false", "tensor.pieces=1")  # ways to overlap that a search leaves out
AXES = (
    "parallel.tp", "parallel.pp", "parallel.cp", "parallel.ep", "batch.micro", "pipeline.schedule", "pipeline.chunks", "zero.stage", "recompute",
    "recompute.layers", "tensor.sequence_parallel",
)  # fmt: skip
ALIKE = AXES[8:]
SHAPE = AXES[:5]
OVERLAPPED = ("dualpipe", "dualpipe-v")  # pairs of passes: what one sends, the other hides
RECOMPUTE = {"none": (), "selective": ("core_attn",), "full": (FULL,)}
WIDEST, MOST_MICRO, MOST_CHUNKS = 64, 16, 8  # of the values that are tried unless others are named
MOST_TOKENS, LEAST_ROWS = 2**16, 2**13  # of a microbatch, and of a part of a sequence (context parallelism is for long ones), likewise
MOST_LAYOUTS = 1_000_000


@dataclass(frozen=True)
class Candidate:
    """Settings by path, and the Layout that the configuration makes of them."""

    settings: Settings
    layout: Layout

    @property
    def overrides(self) -> list[str]:
        """As `--set` takes them."""
        d, rest = self.layout.degrees, {k: v for k, v in self.settings.items() if not k.startswith("parallel.")}
        if layers := rest.pop("recompute.layers"):
            rest["recompute"] = f"{{modules: full, layers: {layers}, method: block}}"
        same = [f"devices={d.world}", "parallel.dp=auto", "pipeline.layers=auto", "zero.shard=auto", *PLAIN]
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
        some = f" of {s['recompute.layers']} layers" if s["recompute.layers"] else ""
        words += [f"recompute={s['recompute']}{some}"] if s["recompute"] != "none" else []
        words += ["sp"] if self.layout.tensor.sequence_parallel else []
        return " ".join(words)


class Way(NamedTuple):
    """What the layouts of a group differ in."""

    schedule: str
    chunks: int
    zero: int


@dataclass(frozen=True)
class Group:
    """Legal layouts of one shape, all of whose schedules are of OVERLAPPED, or none. `settings` are what they share."""

    settings: Settings
    ways: tuple[Way, ...]


@dataclass
class Space:
    """The legal groups, how many combinations there were, and why how many were refused (by the rule's field)."""

    run: Run
    devices: int
    groups: list[Group] = field(default_factory=list)
    enumerated: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    example: dict[str, str] = field(default_factory=dict)

    def refuse(self, number: int, why: str, example: str) -> None:
        """Count refusals."""
        self.refused[why] += number
        self.example.setdefault(why, example)

    def candidate(self, group: Group, way: Way) -> Candidate:
        """One layout of a group."""
        settings = {**group.settings, "pipeline.schedule": way.schedule, "pipeline.chunks": way.chunks, "zero.stage": way.zero}
        return Candidate(settings, layout_of(self.run.plan.layout, self.run.plan.model, self.devices, settings))

    @cached_property
    def candidates(self) -> list[Candidate]:
        """All legal layouts."""
        return [self.candidate(group, way) for group in self.groups for way in group.ways]


def template(path: Any, overrides: Sequence[str]) -> Run:
    """The run with one rank and the whole batch at once: legal whenever model and keys are. Raises as `load` does."""
    written = load(path, [*overrides, *NEUTRAL, *PLAIN, "batch.micro=1"])
    return load(path, [*overrides, *NEUTRAL, *PLAIN, f"batch.micro={written.plan.layout.batch.global_}"])


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
        known(str(name), tuple(SCHEDULES), "schedule")
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
    open_ = {row.field: row for row in NOT_YET}

    def able(path: str, values: Sequence[Any]) -> list[Any]:
        return [v for v in values if path not in open_ or not open_[path].asked(v, devices)]

    small = [n for n in divisors(devices) if n <= WIDEST]
    experts = model.experts.count if isinstance(model, Transformer) and model.experts else 1
    unfused = run.plan.layout.kernels.attention == "unfused"
    schedules = [name for name in SCHEDULES if name != "naive"]
    return {
        "parallel.tp": small if hasattr(model, "hidden") else [1],
        "parallel.pp": [n for n in divisors(devices) if n <= model.layers],
        "parallel.cp": able("parallel.cp", [n for n in small if n * LEAST_ROWS <= batch.sequence and isinstance(model, Transformer)]) or [1],
        "parallel.ep": [n for n in divisors(experts) if devices % n == 0],
        "batch.micro": [n for n in divisors(batch.global_) if n == 1 or (n <= MOST_MICRO and n * batch.sequence <= MOST_TOKENS)],
        "pipeline.schedule": able("pipeline.schedule", schedules),
        "pipeline.chunks": [n for n in range(1, MOST_CHUNKS + 1) if n <= model.layers],
        "zero.stage": [0, 1, 2, 3],
        "recompute": (["none", "selective", "full"] if unfused else ["none", "full"]) if hasattr(model, "hidden") else ["none"],
        "recompute.layers": [0],
        "tensor.sequence_parallel": [True, False],
    }


def space(run: Run, devices: int, values: Mapping[str, Sequence[Any]]) -> Space:
    """All combinations, without those that mean the same (chunks of a schedule that has its own number, ZeRO without replicas, and so on)."""
    out, rules = Space(run, devices), _Rules(run)
    for tp, pp, cp, ep, micro in product(*(values[a] for a in SHAPE)):
        model_parallel = tp * pp * cp
        if model_parallel > devices:
            continue
        dp, batch = devices // model_parallel, run.plan.layout.batch.global_
        ways, alike = _ways(tp, pp, devices // (tp * pp), -(-run.plan.model.layers // pp), values)
        out.enumerated += len(ways) * len(alike)
        if out.enumerated > MOST_LAYOUTS:
            raise Malformed(f"--vary makes more than {MOST_LAYOUTS} layouts; name fewer values")
        if devices % model_parallel:
            out.refuse(len(ways) * len(alike), "devices", f"devices={devices} must be a multiple of tp x cp x pp = {model_parallel}")
        elif batch % (micro * dp):
            broken = batch_violation(batch, micro, dp)
            out.refuse(len(ways) * len(alike), broken.field, str(broken))
        else:
            for same in alike:
                shape = dict(zip((*SHAPE, *ALIKE), (tp, pp, cp, ep, micro, *same), strict=True))
                _legal(out, rules, shape, ways)
    return out


def _legal(out: Space, rules: _Rules, shape: Settings, ways: Sequence[Way]) -> None:
    """Add the groups of one shape."""
    legal: tuple[list[Way], list[Way]] = [], []
    for way in ways:
        broken = rules.of_shape(out.devices, shape, way.zero) or rules.of_stages(shape["parallel.pp"], way)
        if broken is None:
            legal[way.schedule in OVERLAPPED].append(way)
        else:
            out.refuse(1, *broken)
    out.groups += [Group(shape, tuple(some)) for some in legal if some]


class Broken(NamedTuple):
    """A broken rule: its field, and its words."""

    field: str
    text: str


class _Rules:
    """The rules that a layout keeps, asked for once for all layouts that look alike to them: those about stages know nothing of other degrees, and
    the others nothing of stages. Rules of a schedule, which cost its orders, are left out: they are asked for when these are made."""

    def __init__(self, run: Run) -> None:
        self.model, self.base = run.plan.model, run.plan.layout
        self._kept: dict[object, Broken | None] = {}

    def of_shape(self, devices: int, shape: Settings, zero: int) -> Broken | None:
        """The first rule that the layout would break in one stage; its batch splits evenly."""
        replicas = devices // (shape["parallel.tp"] * shape["parallel.pp"])
        key = (replicas > 1, replicas % shape["parallel.ep"], zero, *(v for k, v in shape.items() if k != "parallel.pp"))
        if key not in self._kept:
            one = {**shape, "parallel.pp": 1, "pipeline.schedule": "1f1b", "pipeline.chunks": 1, "zero.stage": zero}
            layout = layout_of(self.base, self.model, replicas * shape["parallel.tp"], one)
            batch = replace(layout.batch, global_=layout.batch.micro * layout.degrees.dp, microbatches=1)
            self._kept[key] = _first_broken(self.model, replace(layout, batch=batch))
        return self._kept[key]

    def of_stages(self, pp: int, way: Way) -> Broken | None:
        """The first rule that so many stages break; asked of looped-bfs, which allows any number of microbatches."""
        stages = SCHEDULES[way.schedule].placement.stages(pp, way.chunks)
        if (pp, stages) not in self._kept:
            pipe = replace(self.base.pipeline, schedule="looped-bfs", chunks=stages // pp, layers=_split(self.model.layers, stages))
            layout = replace(self.base, degrees=Degrees(pp=pp), pipeline=pipe)
            batch = replace(layout.batch, global_=layout.batch.micro, microbatches=1)
            self._kept[pp, stages] = _first_broken(self.model, replace(layout, batch=batch))
        return self._kept[pp, stages]


def _first_broken(model: Model, layout: Layout) -> Broken | None:
    found = next(iter(check(model, layout)), None)
    return None if found is None else Broken(found.field, str(found))


def _ways(tp: int, pp: int, replicas: int, layers: int, values: Mapping[str, Sequence[Any]]) -> tuple[list[Way], list[tuple[Any, int, bool]]]:
    """Ways, and values of ALIKE, that differ from each other at these degrees; a rank has at most so many `layers`."""
    schedules = [("1f1b", 1)] if pp == 1 else list(dict.fromkeys(_chunked(values["pipeline.schedule"], values["pipeline.chunks"])))
    zeros = values["zero.stage"] if replicas > 1 else values["zero.stage"][:1]
    parallel = values["tensor.sequence_parallel"] if tp > 1 else [False]
    some = list(dict.fromkeys(n if n < layers else 0 for n in values["recompute.layers"]))  # 0: all
    again = [(what, n) for what in values["recompute"] for n in (some if what == "full" else [0])]
    return [Way(*s, zero) for s, zero in product(schedules, zeros)], [(*some, sp) for some, sp in product(again, parallel)]


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
    batch, row = base.batch, SCHEDULES[settings["pipeline.schedule"]]
    cut = Batch(batch.global_, micro, batch.sequence, max(1, batch.global_ // (micro * dp)))
    some = settings["recompute.layers"]
    again = replace(base.recompute, modules=RECOMPUTE[settings["recompute"]], layers=some or None, method="block" if some else base.recompute.method)
    layers = _split(model.layers, row.placement.stages(pp, chunks))
    times = _times(model, layers, replace(cut, global_=micro, microbatches=1), again) if "times" in row.knobs else None
    return replace(
        base,
        degrees=Degrees(tp, cp, ep, dp, pp, base.degrees.order),
        batch=cut,
        zero=replace(base.zero, stage=settings["zero.stage"], shard=dp * cp),
        pipeline=replace(base.pipeline, schedule=settings["pipeline.schedule"], chunks=chunks, layers=layers, times=times),
        tensor=replace(base.tensor, sequence_parallel=settings["tensor.sequence_parallel"]),
        recompute=again,
    )


_split = cache(split_layers)
_times = cache(stage_times)  # of one microbatch, whatever their number


def _degrees(d: Degrees) -> dict[str, int]:
    return {f"parallel.{a}": getattr(d, a) for a in ("tp", "pp", "cp", "ep")}


def _yaml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
