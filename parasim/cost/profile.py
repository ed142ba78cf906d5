"""Profile: every fitted or assumed number of a machine and its software, with provenance. Numbers only: it never changes a Program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from math import isfinite
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from .. import documents
from ..errors import Malformed, Unparsable
from ..program.ops import CollectiveOp
from ..provenance import Number, Status
from ..topology.cluster import LINK_KINDS
from ..units import Dimension, parse
from ..words import closest, nearest

Backend = Literal["nccl", "gloo", "tpu"]
SPANS = ("node", "nodes", "torus", "any")


class Key(NamedTuple):
    """A number a profile may hold: its value on the datasheet, its SI unit ("1" for a ratio or count), what it means; `positive`: must be > 0."""

    default: float
    unit: Literal["1", "s", "B", "B/s"]
    meaning: str
    positive: bool = False


# Every algorithm of `collectives` by name; a test keeps the two lists equal.
COLLECTIVE_ALGORITHMS = (
    "binomial",
    "bruck",
    "chain",
    "chain-tree",
    "direct",
    "dissemination",
    "halving-doubling",
    "hierarchical",
    "hierarchical-overlapped",
    "hierarchical-pipelined",
    "hierarchical-tree",
    "nvls",
    "nvls-ring",
    "nvls-sharp",
    "nvls-tree",
    "one-shot",
    "pairwise",
    "per-node",
    "rail",
    "recursive-doubling",
    "recursive-halving",
    "ring",
    "ring-all-reduce",
    "ring-gather",
    "sharp",
    "torus",
    "tree",
    "two-shot",
    "user-buffers",
)
KEYS: dict[str, Key] = {
    "compute.matmul_efficiency": Key(1.0, "1", "fraction of the peak that matrix products reach", True),
    "compute.fp8_efficiency": Key(1.0, "1", "fraction of the fp8 peak that fp8 products reach; left out: compute.matmul_efficiency", True),
    "compute.attention_efficiency": Key(1.0, "1", "fraction of the peak that tiled attention reaches; left out: compute.matmul_efficiency", True),
    "compute.attention_grad_efficiency": Key(1.0, "1", "the same of its backward; left out: compute.attention_efficiency", True),
    "compute.attention_start": Key(0.0, "1", "tokens of a sequence of which tiled attention reaches half of its rate"),
    "compute.product_start": Key(0.0, "1", "elements of the inner width that every tile of a product takes longer"),
    "compute.tile_cost": Key(0.0, "1", "a tile of a x b elements runs 1 + x (1/a + 1/b) times slower than an unbounded one"),
    "compute.sort_passes": Key(0.0, "1", "copies of tokens read or written besides, per kernel that permutes or combines: where sorting by expert is apart"),
    "compute.memory_efficiency": Key(1.0, "1", "fraction of the memory bandwidth that kernels reach", True),
    "compute.kernel_launch": Key(0.0, "s", "added to every kernel"),
    "compute.memory_passes": Key(1.0, "1", "times the least bytes that kernels bound by memory move: kernels that are not fused move more", True),
    "compute.host_launch": Key(0.0, "s", "of the host per kernel or transfer: it launches a pass ahead of the device, which waits where it has none"),
    "compute.host_launch_between": Key(0.0, "s", "added to compute.host_launch where tensor-parallel groups span servers"),
    "compute.host_launch_shared": Key(
        0.0, "s", "added to compute.host_launch per rank of a tensor-parallel group where a pipeline of such groups spans several servers"
    ),
    "compute.op_overhead": Key(0.0, "s", "added to every Compute op"),
    "memory.fragmentation": Key(0.0, "1", "memory that was seen to be reserved over what tensors hold here at the peak, minus 1; left out: no claim"),
    "network.bandwidth_factor.<link kind>": Key(1.0, "1", "fraction of a link's bandwidth that transfers reach", True),
    "network.latency.<link kind>": Key(0.0, "s", "added per link crossed"),
    "collective.<op>.latency": Key(0.0, "s", "added per call"),
    "collective.<op>.step_latency": Key(0.0, "s", "added per step of the algorithm"),
    "collective.<op>.hidden_latency": Key(0.0, "1", "between servers, seconds of the latency of its steps that pass per second in which bytes move"),
    "collective.<op>.bandwidth_factor": Key(1.0, "1", "fraction of the bandwidth that the op reaches", True),
    "algorithm.<algorithm>.latency": Key(0.0, "s", "added per call; algorithms of one op that have it compete, the fastest runs"),
    "algorithm.<algorithm>.step_latency": Key(0.0, "s", "added per step: posting one message"),
    "algorithm.<algorithm>.bandwidth_factor": Key(1.0, "1", "fraction of the bandwidth that the algorithm reaches", True),
    "algorithm.<algorithm>.bandwidth": Key(0.0, "B/s", "bytes of the buffer per second at most, as what reduces and copies them can; 0: no limit"),
    "algorithm.<algorithm>.small_message_cost": Key(0.0, "1", "bytes of its protocol for small messages take 1 + x times as long"),
    "algorithm.<algorithm>.hop_bandwidth": Key(
        0.0,
        "B/s",
        "by its protocol for small messages a message passes whole from server to server at this rate, beside line_bandwidth up to the "
        "large_message_latency that a receiver's grant takes; 0: cut through",
    ),
    "algorithm.<algorithm>.line_bandwidth": Key(
        0.0, "B/s", "between servers, what a channel moves by its protocol for small messages, whose lines the host checks; 0: small_message_cost holds"
    ),
    "algorithm.<algorithm>.large_step_latency": Key(0.0, "s", "added per step by its protocol for large messages"),
    "algorithm.<algorithm>.large_message_latency": Key(0.0, "s", "added by that protocol per step between servers"),
    "algorithm.<algorithm>.hidden_latency": Key(0.0, "1", "seconds of that protocol's latency between servers that pass per second in which bytes move"),
    "planner.network_overhead": Key(0.0, "s", "NCCL's planner: what it reckons for posting a message; left out: not its pick runs but what is fastest"),
    "planner.network_latency": Key(0.0, "s", "NCCL's planner: latency that the network plugin states"),
    "planner.ll_share": Key(0.0, "1", "NCCL's planner: part of the bus bandwidth that rings reach by LL; 0: LL is off"),
    "planner.ll128_share": Key(0.0, "1", "NCCL's planner: part of the bus bandwidth that rings reach by LL128; 0: LL128 is off"),
    "p2p.latency": Key(0.0, "s", "added per message"),
    "p2p.bandwidth_factor": Key(1.0, "1", "fraction of the bandwidth that messages reach", True),
    "p2p.post": Key(0.0, "s", "an all_to_all posts one message after the other to the peers on other servers"),
    "p2p.short_post": Key(0.0, "s", "added to p2p.post for messages of at most p2p.short_bytes"),
    "p2p.short_bytes": Key(0.0, "B", "messages that the network copies into its command (inject)"),
    "p2p.channels": Key(0.0, "1", "channels that the messages of one device share; 0: no limit"),
    "p2p.channel_bandwidth": Key(0.0, "B/s", "rate of one channel; 0: no limit"),
    "p2p.channel_bytes": Key(0.0, "B", "a message takes twice the channels while each would carry more than this"),
    "overlap.slowdown.collective": Key(0.0, "1", "compute takes 1 + x times as long beside a collective of its rank"),
    "overlap.slowdown.p2p": Key(0.0, "1", "compute takes 1 + x times as long beside a message of its rank"),
}
PLACEHOLDERS: dict[str, tuple[str, ...]] = {
    "<link kind>": LINK_KINDS,
    "<op>": get_args(CollectiveOp),
    "<algorithm>": COLLECTIVE_ALGORITHMS,
}
DIMENSIONS: dict[str, Dimension] = {"s": "seconds", "B": "bytes", "B/s": "bandwidth"}
TOP = ("name", "backend", "description", "extends", "algorithms", "numbers")


def _expanded() -> dict[str, Key]:
    out: dict[str, Key] = {}
    for pattern, key in KEYS.items():
        placeholder = next((p for p in PLACEHOLDERS if p in pattern), None)
        names = [pattern.replace(placeholder, word) for word in PLACEHOLDERS[placeholder]] if placeholder else [pattern]
        out.update(dict.fromkeys(names, key))
    return out


LEGAL: dict[str, Key] = _expanded()


@dataclass(frozen=True)
class Profile:
    """Numbers by key (see KEYS), in SI; `backend` names the software's ways (ring order, rendezvous rule).

    `algorithms` overrides the choice of collective algorithms: op[/span][/most bytes] -> name, or names of which the fastest runs, such as
    "all_reduce/nodes/64 MiB" -> "ring, tree"; the first key that holds for a call decides. Spans: node, nodes, torus, any.
    `extends` names the profiles of the catalog that it changes, in order; `numbers` and `algorithms` hold theirs too.
    """

    name: str
    backend: Backend = "nccl"
    numbers: Mapping[str, Number] = field(default_factory=dict)
    description: str = ""
    algorithms: Mapping[str, str] = field(default_factory=dict)
    extends: tuple[str, ...] = ()

    def get(self, key: str, default: float | None = None) -> float:
        """The number called `key`, else `default`, else the datasheet's value of that key."""
        if key in self.numbers:
            return self.numbers[key].value
        return default if default is not None else LEGAL[key].default


def datasheet() -> Profile:
    """The profile without numbers: every kernel and link reaches its datasheet value and latencies are the links' own."""
    return Profile("datasheet", description="datasheet numbers: nothing fitted, no overheads")


def catalog() -> dict[str, Profile]:
    """Every profile that ships with parasim, by name, in order of name."""
    return dict(_catalog())


@cache
def _catalog() -> dict[str, Profile]:
    return {profile.name: profile for profile in (datasheet(), *(_shipped(stem) for stem in sorted(_stems())))}


@cache
def _stems() -> frozenset[str]:
    return frozenset(e.name.removesuffix(".yaml") for e in files(__package__).joinpath("profiles").iterdir() if e.name.endswith(".yaml"))


@cache
def _shipped(stem: str) -> Profile:
    file = f"{stem}.yaml"
    return read_profile(documents.parse(files(__package__).joinpath("profiles", file).read_bytes(), file).mapping(), file)


def load_profile(spec: str | Path | None, where: Path = Path()) -> Profile:
    """The profile called or stored at `spec` (a path relative to the folder `where`); None is the datasheet.

    Raises `Malformed` for an unknown name, a missing file, unknown keys or wrong values (all at once), `Unparsable` for a broken or empty
    file or one without its numbers' value, unit, source or status.
    """
    if spec is None:
        return datasheet()
    if str(spec) in _catalog():
        return _catalog()[str(spec)]
    path = where / Path(spec).expanduser()
    if path.is_file():
        return read_profile(documents.read(path).mapping(), str(path))
    if isinstance(spec, Path) or path.suffix in (".yaml", ".yml") or "/" in spec:
        raise Malformed(f"profile={spec}: no such file: {path}; {nearest(str(spec), _catalog())}")
    raise Malformed(f"profile={spec} is not in the catalog; {nearest(spec, _catalog())}")


def save_profile(profile: Profile, path: Path) -> None:
    """Write `profile` as YAML that `load_profile` reads back equal; where that is in the catalog, the next one saved finds it there. Raises `Malformed`
    when the file cannot be written."""
    below, chosen_below = _under(profile.extends)
    numbers = {key: _entry(number) for key, number in sorted(profile.numbers.items()) if below.get(key) != number}
    head: dict[str, object] = {"name": profile.name, "backend": profile.backend, "description": profile.description}
    head |= {"extends": list(profile.extends)} if profile.extends else {}
    algorithms = {key: name for key, name in profile.algorithms.items() if chosen_below.get(key) != name}
    chosen = {"algorithms": algorithms} if algorithms else {}
    documents.write({**head, **chosen, "numbers": numbers}, path)
    for known in (_stems, _shipped, _catalog):
        known.cache_clear()


def _entry(number: Number) -> dict[str, object]:
    entry: dict[str, object] = {"value": number.value, "unit": number.unit, "source": number.source, "status": number.status}
    return entry | ({"interval": list(number.interval)} if number.interval else {})


def read_profile(tree: Mapping[str, Any], at: str) -> Profile:
    """The profile that a mapping describes; `at` (a file) opens every message. Raises as `load_profile` does."""
    if not tree.get("name"):
        raise Unparsable(f"{at}: lacks name")
    numbers = tree.get("numbers") or {}
    if not isinstance(numbers, Mapping):
        raise Malformed(f"{at}: numbers must map keys to values, not {type(numbers).__name__}")
    wrong = [f"{at}: unknown key '{key}'; {nearest(str(key), TOP)}" for key in tree if key not in TOP]
    backend = tree.get("backend", "nccl")
    if backend not in get_args(Backend):
        wrong.append(f"{at}: backend={backend} must be one of {', '.join(get_args(Backend))}")
    algorithms = tree.get("algorithms") or {}
    wrong += _algorithm_faults(algorithms, at)
    extends, unknown = _extended(tree.get("extends"), at)
    wrong += unknown
    missing, read = [], {}
    for key, entry in numbers.items():
        try:
            read[str(key)] = _number(str(key), entry)
        except Malformed as error:
            wrong.append(f"{at}: numbers.{key}: {error}")
        except Unparsable as error:
            missing.append(f"{at}: numbers.{key}: {error}")
    if wrong:
        raise Malformed("\n".join(wrong + missing))
    if missing:
        raise Unparsable("\n".join(missing))
    below, chosen = _under(extends)
    return Profile(str(tree["name"]), backend, below | read, str(tree.get("description") or ""), chosen | dict(algorithms), extends)


def _extended(names: object, at: str) -> tuple[tuple[str, ...], list[str]]:
    """The profiles that `extends` names, and what is wrong with them."""
    listed = [] if names is None else names if isinstance(names, list) else [names]
    wrong = [f"{at}: extends: {name} is not in the catalog; {nearest(str(name), _stems())}" for name in listed if name not in _stems()]
    wrong += [f"{at}: extends: a profile cannot extend itself" for name in listed if at == f"{name}.yaml"]
    return tuple(map(str, listed)) if not wrong else (), wrong


def _under(names: tuple[str, ...]) -> tuple[dict[str, Number], dict[str, str]]:
    """Numbers and algorithms of the profiles called `names`, later ones over earlier ones."""
    numbers: dict[str, Number] = {}
    algorithms: dict[str, str] = {}
    for name in names:
        profile = _shipped(name)
        numbers |= profile.numbers
        algorithms |= profile.algorithms
    return numbers, algorithms


def _algorithm_faults(algorithms: object, at: str) -> list[str]:
    """What is wrong with the keys op[/span][/most bytes] of a profile's `algorithms`; the names are judged where algorithms are known."""
    if not isinstance(algorithms, Mapping):
        return [f"{at}: algorithms must map op[/span][/most bytes] to names, not {type(algorithms).__name__}"]
    faults = []
    for key, name in algorithms.items():
        op, *rest = str(key).split("/")
        if op not in (*get_args(CollectiveOp), "scatter", "gather"):
            faults.append(f"{at}: algorithms.{key}: {op!r} is no collective; {nearest(op, get_args(CollectiveOp))}")
        for word in rest:
            try:
                _ = word in SPANS or parse(word, "bytes")
            except Malformed as error:
                faults.append(f"{at}: algorithms.{key}: {word!r} is none of {', '.join(SPANS)} and no size: {error}")
        if not isinstance(name, str) or not name:
            faults.append(f"{at}: algorithms.{key}={name!r} must be the name of an algorithm, or names with commas between")
    return faults


def _number(key: str, entry: object) -> Number:
    """One number: {value, unit, source, status, interval?}; the value may carry its unit ("5 us") and a time's unit may be any."""
    if key not in LEGAL:
        near = closest(key, [*LEGAL, *KEYS])
        raise Malformed(f"unknown; nearest: {', '.join(near)}" if near else f"unknown; known: {', '.join(KEYS)}")
    legal = ("value", "unit", "source", "status", "interval")
    if not isinstance(entry, Mapping):
        raise Malformed(f"{entry!r} must be a mapping of {', '.join(legal[:4])} (and interval)")
    unknown = [str(k) for k in entry if k not in legal]
    if unknown:
        raise Malformed("; ".join(f"unknown key '{k}'; {nearest(k, legal)}" for k in unknown))
    carries_unit = isinstance(entry.get("value"), str) and not _plain(entry["value"])
    missing = [k for k in legal[:4] if entry.get(k) is None and not (k == "unit" and carries_unit)]
    if missing:
        raise Unparsable(f"lacks {', '.join(missing)}")
    if entry["status"] not in get_args(Status):
        raise Malformed(f"status={entry['status']} must be one of {', '.join(get_args(Status))}")
    unit = LEGAL[key].unit
    value = _value(entry["value"], entry.get("unit"), key)
    return Number(value, unit, str(entry["source"]), entry["status"], _interval(entry.get("interval"), entry.get("unit"), key))


def _plain(value: object) -> bool:
    try:
        float(str(value))
    except ValueError:
        return False
    return not isinstance(value, bool)


def _value(value: object, unit: object, key: str) -> float:
    due = LEGAL[key]
    if due.unit != "1":
        number = parse(f"{value} {unit}" if _plain(value) else value, DIMENSIONS[due.unit])
    elif not _plain(value) or str(unit) != "1":
        raise Malformed(f"value={value}, unit={unit}: a ratio is due, a number with unit 1")
    else:
        number = float(str(value))
    if not isfinite(number) or number < 0 or (due.positive and number == 0):
        raise Malformed(f"value={value} must be {'more than 0' if due.positive else '0 or more'} ({due.meaning})")
    return number


def _interval(interval: object, unit: object, key: str) -> tuple[float, float] | None:
    if interval is None:
        return None
    if not isinstance(interval, list | tuple) or len(interval) != 2:
        raise Malformed(f"interval={interval} must be [low, high]")
    low, high = (_value(bound, unit, key) for bound in interval)
    return low, high
