"""Run: everything one simulation needs, resolved; what `load`, `build` and `vary` return."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from ..cost.profile import Profile
from ..documents import Document
from ..topology.cluster import Cluster
from .plan import Plan


class Loaded(NamedTuple):
    """A cluster before placement and perturbations, and for how many devices it was asked."""

    cluster: Cluster
    devices: int


@dataclass(frozen=True)
class Run:
    """A Plan with the Cluster and the Profile it is timed on.

    `source` is the run file with every default written out and every `auto` resolved (plain data; `build(run.source)` gives the same run).
    `echo` maps the path of every quantity to how it was read ("25 MiB = 26214400 bytes"). `provenance` holds versions and hashes of the inputs.
    `critical_batch` (tokens) is that of the run file, None: not given.
    `document` is what was written and `loaded` the cluster it names, kept for `vary`; `cluster` has the placement and the perturbations in it.
    """

    name: str
    plan: Plan
    cluster: Cluster
    profile: Profile
    devices: int
    source: Mapping[str, object] = field(default_factory=dict)
    echo: Mapping[str, str] = field(default_factory=dict)
    provenance: Mapping[str, object] = field(default_factory=dict)
    critical_batch: int | None = None
    document: Document | None = field(default=None, repr=False, compare=False)
    loaded: Loaded | None = field(default=None, repr=False, compare=False)
