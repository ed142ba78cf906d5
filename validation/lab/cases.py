"""The list of cases: a data file of run files in short, each with the network it runs on; what they lower to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parasim import documents
from parasim.config.loading import build
from parasim.config.run import Run
from parasim.errors import Malformed
from parasim.executor.sweep import collective_costs, collectives, message_costs, messages
from parasim.lowering import lower
from parasim.program.workload import Workload
from parasim.timeline import Timeline
from parasim.topology.cluster import Cluster
from parasim.topology.loader import load_cluster
from parasim.units import parse
from parasim.words import known

from .together import beside

DATA = Path(__file__).parent.parent / "data"
CASES = DATA / "lab_cases.yaml"
TOP = ("common", "models", "cases", "singles")
REASONS = {  # why a case may be printed and not judged
    "all_to_all_single": "gloo's own all_to_all_single is random: 1.0 to 1.7 times the bound",
    "gather beside reduce": "collectives of two kinds in flight together on one group",
    "below 16 kB": "less than 16 kB per port: processors, not the network",
    "flows on one pair": "several flows on one pair of hosts share it by chance",
    "gather or scatter on 8": "gather and scatter on 8 ranks start with eight burst credits",
}
PAUSE, CALLS = 0.02, 4  # seconds slept before each call of a single collective, and calls


@dataclass(frozen=True)
class Case:
    """A workload on one of the lab's networks: the keys of one run, or of several that run at once, each on its ranks. `reported`: why it is not judged."""

    name: str
    network: str
    subject: str
    runs: tuple[tuple[Mapping[str, Any], tuple[int, ...]], ...]
    reported: str = ""

    def workload(self) -> Workload:
        """What is run and simulated. Raises what `build` and `lower` raise."""
        lowered = [(lower(self._run(keys, ranks).plan), ranks) for keys, ranks in self.runs]
        return lowered[0][0] if len(lowered) == 1 else beside(lowered)

    def _run(self, keys: Mapping[str, Any], ranks: Sequence[int]) -> Run:
        return build({"name": self.name, "cluster": str(network_file(self.network)), "devices": len(ranks), **keys})


@dataclass(frozen=True)
class Single:
    """CALLS calls of one collective over all ranks of a network, or of messages between pairs of ranks (p2p), each after a pause.

    One call where not every rank waits for all (broadcast): the next would start before the last one has ended.
    """

    name: str
    network: str
    op: str
    nbytes: int
    subject: str = "single"
    reported: str = ""

    def workload(self) -> Workload:
        """What is run and simulated."""
        ranks = len(cluster_of(self.network).devices)
        if self.op == "p2p":
            return messages(ranks, self.nbytes, CALLS, PAUSE)
        return collectives(self.op, ranks, self.nbytes, 1 if self.op == "broadcast" else CALLS, PAUSE)  # type: ignore[arg-type]

    def costs(self, timeline: Timeline) -> list[float]:
        """Seconds of every call, from when the last rank had slept to when the last may go on."""
        return (message_costs if self.op == "p2p" else collective_costs)(timeline)


@dataclass(frozen=True)
class Cases:
    """All of a file, in its order."""

    cases: tuple[Case, ...]
    singles: tuple[Single, ...] = ()

    @property
    def all(self) -> tuple[Case | Single, ...]:
        """Cases, then singles."""
        return *self.cases, *self.singles

    def named(self, names: Sequence[str]) -> Cases:
        """Those called so; all where no name is given. Raises Malformed for an unknown name."""
        if not names:
            return self
        every = [c.name for c in self.all]
        wanted = {known(name, every, "case") for name in names}
        return Cases(tuple(c for c in self.cases if c.name in wanted), tuple(s for s in self.singles if s.name in wanted))

    @property
    def networks(self) -> tuple[str, ...]:
        """The networks that they need, each once."""
        return tuple(dict.fromkeys(c.network for c in self.all))

    def on(self, network: str) -> tuple[Case | Single, ...]:
        """Those of one network."""
        return tuple(c for c in self.all if c.network == network)


def network_file(name: str) -> Path:
    """The cluster file of a network of the lab, or a path. Raises Malformed where there is none."""
    own = DATA / "lab" / f"{name}.yaml"
    path = own if own.is_file() else Path(name)
    if not path.is_file():
        raise Malformed(f"network={name} is neither a file nor one of {', '.join(sorted(p.stem for p in (DATA / 'lab').glob('*.yaml')))}")
    return path.resolve()


def cluster_of(name: str) -> Cluster:
    """The cluster that a network of the lab is laid out from."""
    return load_cluster(str(network_file(name)), 1)


def read_cases(path: Path) -> Cases:
    """The cases of a file. Raises Malformed naming file and case, Unparsable."""
    tree = documents.read(path).mapping()
    for key in tree:
        known(str(key), TOP, f"{path}: key")
    common, models = tree.get("common") or {}, tree.get("models") or {}
    cases = tuple(_case(path, entry, common, models) for entry in tree.get("cases") or ())
    singles = tuple(_single(path, entry) for entry in tree.get("singles") or ())
    found = Cases(cases, singles)
    names = [c.name for c in found.all]
    twice = [n for i, n in enumerate(names) if n in names[:i]]
    if twice:
        raise Malformed(f"{path}: two cases are called {twice[0]}")
    return found


def _case(path: Path, entry: Mapping[str, Any], common: Mapping[str, Any], models: Mapping[str, Any]) -> Case:
    _has(path, entry, ("name", "network", "subject"))
    rest = {k: v for k, v in entry.items() if k not in ("name", "network", "subject", "reported", "jobs")}
    reported = str(entry.get("reported", ""))
    if reported:
        known(reported, REASONS, f"{path}: {entry['name']}: reported")
    jobs = entry.get("jobs") or [{"ranks": list(range(len(cluster_of(entry["network"]).devices))), **rest}]
    runs = []
    for job in jobs:
        keys = {**common, **{k: v for k, v in job.items() if k != "ranks"}}
        model = dict(keys.get("model") or {})
        if "of" in model:
            keys["model"] = {**models[known(str(model.pop("of")), models, f"{path}: {entry['name']}: model")], **model}
        runs.append((keys, tuple(int(r) for r in job["ranks"])))
    return Case(entry["name"], entry["network"], entry["subject"], tuple(runs), reported)


def _single(path: Path, entry: Mapping[str, Any]) -> Single:
    _has(path, entry, ("name", "network", "op", "bytes"))
    return Single(entry["name"], entry["network"], entry["op"], int(parse(entry["bytes"], "bytes")))


def _has(path: Path, entry: Mapping[str, Any], keys: Sequence[str]) -> None:
    missing = [k for k in keys if k not in entry]
    if missing:
        raise Malformed(f"{path}: case {entry.get('name', '?')} lacks {', '.join(missing)}")
