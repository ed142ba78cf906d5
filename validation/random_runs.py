"""Runs drawn at random by hypothesis: mixed strategies on 8 to 64 devices, on networks of all sorts, with stragglers, degraded links and hot experts."""

from __future__ import annotations

from typing import Any

from hypothesis import assume
from hypothesis import strategies as st

from parasim.config import Run, build
from parasim.errors import InvalidLayout, Refused

GPT = {"kind": "transformer", "layers": 4, "hidden": 64, "heads": 4, "vocab": 128, "activation": "gelu", "norm": "layer_norm", "bias": True, "tied": True}
LLAMA = {"kind": "transformer", "layers": 4, "hidden": 64, "heads": 4, "kv_heads": 4, "ffn": 128, "vocab": 128}
MIXTURE = LLAMA | {"experts": {"count": 16, "topk": 2, "ffn": 64, "dense_layers": 1}}
UP = {"kind": "switch", "bandwidth": "50 GB/s", "latency": "1 us"}
SCHEDULES = ("1f1b", "gpipe", "naive", "interleaved-1f1b", "looped-bfs", "zb-h1", "dualpipe")


def rails(devices: int, **more: Any) -> dict[str, Any]:
    """A cluster of servers of `devices` under a small rail-optimised fat tree."""
    net = {"kind": "rail-fat-tree", "nic_per_device": 1, "bandwidth": "100 Gb/s", "latency": "2 us", "pod_nodes": 2, "oversubscription": 2}
    return {"accelerator": "h100-sxm", "node": {"devices": devices, "scale_up": UP}, "scale_out": net | more}


CLUSTERS: dict[str, Any] = {
    "H100 servers": "h100-hgx-ib400",
    "rails under two spines": rails(4),
    "one NIC for two": rails(4, nic_per_device=0.5),
    "one NIC for a node": rails(8, nic_per_device=0.125, pod_nodes=32),
    "ethernet": {"accelerator": "h100-sxm", "node": {"devices": 8, "scale_up": UP}, "scale_out": {"kind": "ethernet", "bandwidth": "10 Gb/s"}},
}


@st.composite
def keys(draw: Any, worlds: tuple[int, ...]) -> dict[str, Any]:
    """The keys of a run file; not every draw is legal."""
    world = draw(st.sampled_from(worlds))
    tp, pp = draw(st.sampled_from([(t, p) for t in (1, 2, 4) for p in (1, 2, 4) if t * p <= world]))
    cp = draw(st.sampled_from([c for c in (1, 1, 2) if world % (tp * pp * c) == 0]))
    dp = world // (tp * pp * cp)
    model = draw(st.sampled_from((GPT, LLAMA, MIXTURE)))
    out: dict[str, Any] = {
        "model": model,
        "cluster": CLUSTERS[draw(st.sampled_from(sorted(CLUSTERS)))],
        "devices": world,
        "batch": {"global": dp * draw(st.sampled_from((1, 2, 4, 8))), "micro": 1, "sequence": 32},
        "parallel": {"tp": tp, "pp": pp, "cp": cp, "dp": dp, "order": draw(st.sampled_from((["tp", "cp", "ep", "dp", "pp"], ["tp", "cp", "pp", "ep", "dp"])))},
        "tensor": {"sequence_parallel": tp > 1 and (model is MIXTURE or draw(st.booleans()))},
        "zero": {"stage": draw(st.integers(0, 3))},
        "dp": {"mode": "bucketed", "bucket": draw(st.sampled_from(("8 KiB", "64 KiB")))},
        "recompute": draw(st.sampled_from(("none", "selective", "full"))),
        "profile": draw(st.sampled_from(("datasheet", "h100-megatron", "nccl-h100"))),
        "perturb": draw(changes(world)),
    }
    if pp > 1:
        out["pipeline"] = {"schedule": draw(st.sampled_from(SCHEDULES)), "comm": draw(st.sampled_from(("async", "stream", "blocking")))}
    if model is MIXTURE:
        out["parallel"]["ep"] = draw(st.sampled_from([e for e in (1, 2, 4, 8) if (dp * cp) % e == 0]))
        out["experts"] = {"load": draw(st.sampled_from(("balanced", {"zipf": 1.2})))}
    return out


@st.composite
def changes(draw: Any, world: int) -> list[dict[str, Any]]:
    """Rows of `perturb`: slow ranks, weak NICs."""
    slow = [{"rank": draw(st.integers(0, world - 1)), "slowdown": draw(st.sampled_from((1.2, 2.0)))} for _ in range(draw(st.integers(0, 2)))]
    weak = [{"link": "node0.nic0", "bandwidth": draw(st.sampled_from((0.1, 0.5)))}] if draw(st.booleans()) else []
    return [*slow, *weak]


def runs(worlds: tuple[int, ...]) -> st.SearchStrategy[Run]:
    """Legal runs on so many devices."""
    return keys(worlds).map(_built)


def _built(drawn: dict[str, Any]) -> Run:
    try:
        return build(drawn)
    except (InvalidLayout, Refused):
        assume(False)
        raise
