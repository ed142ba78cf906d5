"""Files about real machines as clusters: the matrix of `nvidia-smi topo -m`, NCCL's topology XML, Slurm's topology.conf."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from ...errors import Malformed
from ...units import format_bandwidth
from ...words import nearest
from ..cluster import Cluster
from ..loader import accelerators, load_cluster
from . import nccl_xml, slurm_conf, smi_matrix
from .common import text_of

Format = Literal["auto", "nvidia-smi", "nccl-xml", "slurm"]
__all__ = ["Format", "Imported", "import_cluster"]


class Imported(NamedTuple):
    """`mapping` as one would write it in cluster.yaml, the cluster it makes, and what the file did not say (`notes`)."""

    mapping: Mapping[str, Any]
    cluster: Cluster
    notes: tuple[str, ...]


def import_cluster(
    path: str | Path,
    form: Format = "auto",
    *,
    accelerator: str | None = None,
    server: str = "h100-hgx-ib400",
    devices_per_node: int | None = None,
    oversubscription: float = 1.0,
) -> Imported:
    """The cluster of a file. `form` auto goes by its content.

    `accelerator`: of a matrix or XML, where it shall not be guessed. For Slurm: `server` is the cluster of the catalog whose servers the nodes
    are (`devices_per_node` of its devices), `oversubscription` of every switch.
    Raises `Malformed` (missing file, unknown name), `Unparsable` as file:line: message.
    """
    if form not in get_args(Format):
        raise Malformed(f"format={form!r} is unknown; {nearest(form, get_args(Format))}")
    if accelerator is not None and accelerator not in accelerators():
        raise Malformed(f"accelerator={accelerator!r} is not in the catalog; {nearest(accelerator, accelerators())}")
    if not oversubscription > 0:
        raise Malformed(f"oversubscription={oversubscription:g} must be above 0; 1 is as much up as down")
    text, name = text_of(Path(path)), str(path)
    kind = _form(text) if form == "auto" else form
    if kind == "slurm":
        found = slurm_conf.graph(text, name, _server(server, devices_per_node), oversubscription)
    else:
        found = (nccl_xml if kind == "nccl-xml" else smi_matrix).graph(text, name, accelerator)
    found.name = Path(path).stem
    mapping = found.mapping()
    return Imported(mapping, load_cluster(mapping, 1), tuple(found.notes))


def _form(text: str) -> Format:
    if "<system" in text:
        return "nccl-xml"
    lowered = text.casefold()
    return "slurm" if "switchname=" in lowered or "blockname=" in lowered else "nvidia-smi"


def _server(name: str, devices_per_node: int | None) -> slurm_conf.Server:
    """The server of a cluster of the catalog, measured on two of them."""
    one = load_cluster(name, 1)
    per_node = sum(server == one.node_of[one.devices[0]] for server in one.node_of.values())
    cluster = load_cluster(name, 2 * per_node)
    first, second = cluster.devices[0], cluster.devices[per_node]
    away = [cluster.links[i] for i in cluster.route(first, second)]
    near = [cluster.links[i] for i in cluster.route(first, cluster.devices[1])] if per_node > 1 else away
    return slurm_conf.Server(
        accelerator=cluster.accelerator.name,
        devices=devices_per_node or per_node,
        scale_up=format_bandwidth(min(link.bandwidth for link in near)),
        scale_up_latency=f"{sum(link.latency for link in near) / 2 * 1e6:g} us",
        nic=format_bandwidth(min(link.bandwidth for link in away)),
        latency=f"{sum(link.latency for link in away) / 2 * 1e6:g} us",
    )
