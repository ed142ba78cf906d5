"""The model with one mechanism taken away, and with no fitted number: changes of a run file, of a profile or of what replays the step.

They say what each mechanism is worth on rows that are scored anyway; nothing is fitted again to make up for it, and nothing is chosen by them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from parasim.cost.profile import Profile
from parasim.plan.sensitivity import later
from parasim.program.workload import Workload
from parasim.provenance import Number
from parasim.sim import simulate
from parasim.sim.engine import Engine
from parasim.sim.network import Fluid, Network
from parasim.sim.record import record
from parasim.timeline import Timeline
from parasim.topology.cluster import Cluster

AS_IT_IS, NOTHING_FITTED = "as it is", "nothing fitted"
Tree = Mapping[str, Any]


def _same(tree: Tree) -> Tree:
    return tree


def _kept(profile: Profile) -> Profile:
    return profile


@dataclass(frozen=True)
class Variant:
    """`meaning`: what is not there, in words; `run` changes the tree of the run file, `profile` the numbers, `simulate` replays the step."""

    meaning: str
    run: Callable[[Tree], Tree] = _same
    profile: Callable[[Profile], Profile] = _kept
    simulate: Callable[[Workload, Cluster, Profile], Timeline] = simulate


def _without(*words: str) -> Callable[[Profile], Profile]:
    """A profile without the numbers whose keys have one of `words` in them: they are what KEYS of parasim.cost.profile says of a datasheet."""
    return lambda p: replace(p, numbers={key: n for key, n in p.numbers.items() if not any(word in key for word in words)})


def nothing_fitted(profile: Profile) -> Profile:
    """The numbers of datasheets alone. All others are neutral: kernels, links and algorithms reach their full rate, a product whatever its shape,
    kernels bound by memory move their bytes once, latencies beyond the cluster's, overheads and slow-downs are 0, memory is what tensors hold.
    Which algorithms may run is no number and stays."""
    return replace(profile, numbers={key: n for key, n in profile.numbers.items() if n.status == "datasheet"})


def _as_products(profile: Profile) -> Profile:
    rate = profile.get("compute.matmul_efficiency")
    same = Number(rate, "1", "as products", "assumed")
    numbers = {**profile.numbers, "compute.attention_efficiency": same, "compute.attention_grad_efficiency": same}
    return replace(profile, numbers={key: n for key, n in numbers.items() if key != "compute.attention_start"})


class Alone(Network):
    """Transfers that never share a link: each has all of every link that it crosses."""

    def _touch(self, fluids: Mapping[int, Fluid]) -> None:
        for fluid in fluids.values():
            if fluid.rate == 0.0:  # it has just come
                self._set(fluid, self.path(fluid.loads).solo)


def _alone(workload: Workload, cluster: Cluster, profile: Profile) -> Timeline:
    engine = Engine(workload, cluster, profile, folding=True, network=Alone)
    engine.run()
    return record(engine)


def _at_once(workload: Workload, cluster: Cluster, profile: Profile) -> Timeline:
    return simulate(workload, *later(cluster, profile, 0.0))


def _changed(*path: str, value: Any) -> Callable[[Tree], Tree]:
    """The tree with `value` at `path` of mappings."""

    def change(tree: Tree) -> Tree:
        inner: Any = value if len(path) == 1 else _changed(*path[1:], value=value)(tree.get(path[0]) or {})
        return {**tree, path[0]: inner}

    return change


VARIANTS: Mapping[str, Variant] = {
    AS_IT_IS: Variant("-"),
    NOTHING_FITTED: Variant("every number that is no datasheet's", profile=nothing_fitted),
    "tiles": Variant("products run in whole tiles and waves, small tiles slower", profile=_without("compute.tile_cost")),
    "starts": Variant("every tile of a product and short attention start slowly", profile=_without("compute.product_start", "compute.attention_start")),
    "attention": Variant("attention has a rate of its own, not that of products", profile=_as_products),
    "passes": Variant("kernels that are not fused move their bytes more than once", profile=_without("compute.memory_passes")),
    "launch": Variant("every kernel takes time to start", profile=_without("compute.kernel_launch")),
    "host": Variant("the host launches one kernel after the other", profile=_without("compute.host_launch")),
    "slow-down": Variant("compute is slower beside communication", profile=_without("overlap.slowdown")),
    "latencies": Variant("messages take time however short they are", simulate=_at_once),
    "links": Variant("links and algorithms do not reach their datasheet rate", profile=_without("bandwidth", "p2p.channel")),
    "contention": Variant("transfers share links", simulate=_alone),
    "sends": Variant("stages wait for their messages", run=_changed("pipeline", "comm", value="async")),
    "reduction": Variant("gradients are reduced beside the backward, not after it", run=_changed("dp", value={"mode": "flat"})),
    "vocabulary": Variant("head, loss and embedding of a whole vocabulary on their stages", run=_changed("model", "vocab", value=128)),
    "fragmentation": Variant("the allocator reserves more than tensors hold", profile=_without("memory.fragmentation")),
}
ABLATIONS = tuple(name for name in VARIANTS if name not in (AS_IT_IS, NOTHING_FITTED))
