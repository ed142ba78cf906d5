"""Where the parts of a cluster are drawn: servers in a row, NICs and switches above them, what is inside below; tori as grids. No matplotlib here.

Lengths are in the width of a device. What is alike is folded: one server of each sort, switches of a level in one box.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from ..topology.cluster import Cluster, Link
from ..topology.torus import TorusRoutes

ALL_DEVICES, ALL_SERVERS = 32, 4  # up to here every server is drawn
WIDE, DRAWN = 16, 8  # of a server with more devices than WIDE only DRAWN are
MOST_SWITCHES = 12  # of one level, each in a box of its own
ABOVE, BELOW = 1.5, 1.2
_UPWARDS = ("nic", "leaf", "spine", "dcn")


@dataclass
class Box:
    """One node, or several that are alike: centre, size, words, kind and how many."""

    x: float
    y: float
    width: float
    text: str
    kind: str
    count: int = 1


@dataclass(frozen=True)
class Wire:
    """What joins two boxes: `count` cables of `bandwidth` bytes/s each; drawn as an arc where they are in one row."""

    a: str
    b: str
    kind: str
    bandwidth: float
    count: int


@dataclass
class Sketch:
    """Boxes by key, wires, frames (x0, x1, y0, y1, words), and lines of text for what is left out."""

    boxes: dict[str, Box] = field(default_factory=dict)
    wires: list[Wire] = field(default_factory=list)
    frames: list[tuple[float, float, float, float, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    key_of: dict[str, str] = field(default_factory=dict)

    def put(self, key: str, box: Box, nodes: Iterable[str]) -> None:
        """A box for some nodes of the cluster."""
        self.boxes[key] = box
        self.key_of.update(dict.fromkeys(nodes, key))

    def join(self, links: Sequence[Link]) -> None:
        """Wires for the links between boxes, those between the same two boxes together; one direction of each."""
        found: dict[tuple[str, str, str, float], int] = Counter()
        for link in links:
            a, b = self.key_of.get(link.a), self.key_of.get(link.b)
            if a is not None and b is not None and a != b and (link.a < link.b):
                found[min(a, b), max(a, b), link.kind, link.bandwidth] += 1
        self.wires = [Wire(*key, count) for key, count in found.items()]


def sketch(cluster: Cluster) -> Sketch:
    """The drawing of a cluster."""
    return grid(cluster, cluster.router) if isinstance(cluster.router, TorusRoutes) else tree(cluster)


def tree(cluster: Cluster) -> Sketch:
    """Servers in a row, networks above."""
    out, adjacent = Sketch(), _adjacent(cluster)
    servers: dict[str, list[str]] = {}
    for device in cluster.devices:
        servers.setdefault(cluster.node_of[device], []).append(device)
    levels = _levels(cluster, adjacent)
    sorts = _sorts(cluster, servers, adjacent)
    every = len(cluster.devices) <= ALL_DEVICES and len(servers) <= ALL_SERVERS
    shown = list(servers) if every else [members[0] for members in sorts.values()][:3]
    alike = {members[0]: len(members) for members in sorts.values()}
    x = 0.0
    for server in shown:
        x = _server(out, cluster, adjacent, server, servers[server], 1 if every else alike[server], x) + 1.0
    if not every and len(sorts) > len(shown):
        out.notes.append(f"{len(sorts) - len(shown)} more sorts of servers are not drawn")
    _switches(out, cluster, adjacent, levels, max(x - 1.0, 4.0))
    out.join(cluster.links)
    _deepen(out)
    return out


def arc(length: float) -> float:
    """How far below its row an arc between boxes of one row reaches; 0: a straight line between neighbours."""
    return 0.25 + 0.12 * length if length >= 1.5 else 0.0


def _deepen(out: Sketch) -> None:
    """Frames reach below the arcs in them."""
    ends = [(out.boxes[w.a], out.boxes[w.b]) for w in out.wires]
    lows = [(a.x, a.y - 0.5 - arc(abs(a.x - b.x))) for a, b in ends if a.y == b.y]
    out.frames = [(x0, x1, min([y0, *(y for x, y in lows if x0 < x < x1)]), y1, words) for x0, x1, y0, y1, words in out.frames]


def _adjacent(cluster: Cluster) -> dict[str, dict[str, Link]]:
    out: dict[str, dict[str, Link]] = {node: {} for node in cluster.nodes}
    for link in cluster.links:
        out[link.a][link.b] = link
    return out


def _levels(cluster: Cluster, adjacent: Mapping[str, Mapping[str, Link]]) -> dict[str, int]:
    """1 for NICs, more for the switches above them: hops from the nearest NIC, or from a device where that has none."""
    upper = {n for n, kind in cluster.nodes.items() if kind == "switch" and any(link.kind in _UPWARDS for link in adjacent[n].values())}
    level = {n: 1 for n, kind in cluster.nodes.items() if kind == "nic"}
    front = [*level, *(cluster.devices if not level else ())]
    height = 1
    while front:
        height += 1
        front = list(dict.fromkeys(v for u in front for v in adjacent[u] if v in upper and v not in level))
        level.update(dict.fromkeys(front, height))
    return level


def _sorts(cluster: Cluster, servers: Mapping[str, Sequence[str]], adjacent: Mapping[str, Mapping[str, Link]]) -> dict[tuple[object, ...], list[str]]:
    """Servers by what they are made of."""
    out: dict[tuple[object, ...], list[str]] = {}
    for server, devices in servers.items():
        facts = Counter((link.kind, link.bandwidth, cluster.nodes[link.b]) for d in devices for link in adjacent[d].values())
        out.setdefault((len(devices), frozenset(facts.items())), []).append(server)
    return out


def _server(out: Sketch, cluster: Cluster, adjacent: Mapping[str, Mapping[str, Link]], server: str, devices: list[str], alike: int, x: float) -> float:
    """One server from `x`; the x of its right edge."""
    drawn = devices if len(devices) <= WIDE else devices[:DRAWN]
    for i, device in enumerate(drawn):
        out.put(device, Box(x + i + 0.5, 0.0, 0.8, _short(device, server), cluster.nodes[device]), [device])
    inner, nics = _parts(cluster, adjacent, drawn)
    depth = 0.0
    for nic in nics:
        below = [out.boxes[n].x for n in adjacent[nic] if n in out.boxes and cluster.nodes[n] not in ("switch",)] or [x + len(drawn) / 2]
        out.put(nic, Box(sum(below) / len(below), ABOVE, 0.8, _short(nic, server), "nic"), [nic])
    _spread(out, nics, x, x + len(drawn))
    rows = [names for kind in ("switch", "pcie", "cpu") if (names := [n for n in inner if cluster.nodes[n] == kind])]
    for row, names in enumerate(rows, 1):
        depth = -BELOW * row
        for n in names:
            near = [out.boxes[m].x for m in adjacent[n] if m in out.boxes and depth < out.boxes[m].y <= 0] or [x + len(drawn) / 2]
            width = max(0.8, len(drawn) / len(names) - 0.2)
            out.put(n, Box(sum(near) / len(near), depth, width, _short(n, server), cluster.nodes[n]), [n])
        _spread(out, names, x, x + len(drawn))
    words = server if alike == 1 else f"{alike} servers like {server}"
    words += f", {len(drawn)} of {len(devices)} devices drawn" if len(drawn) < len(devices) else ""
    out.frames.append((x, x + len(drawn), depth - 0.6, 0.6, words))
    return x + len(drawn)


def _spread(out: Sketch, names: Sequence[str], left: float, right: float) -> None:
    """Boxes of a row that would cover each other, or stick out, stand evenly."""
    row = sorted((out.boxes[n] for n in names), key=lambda box: box.x)
    covered = any(a.x + a.width / 2 > b.x - b.width / 2 for a, b in pairwise(row))
    if covered or (row and (row[0].x - row[0].width / 2 < left or row[-1].x + row[-1].width / 2 > right)):
        for i, box in enumerate(row):
            box.x = left + (i + 0.5) * (right - left) / len(row)


def _parts(cluster: Cluster, adjacent: Mapping[str, Mapping[str, Link]], devices: Sequence[str]) -> tuple[list[str], list[str]]:
    """What is inside the server of some devices, and its NICs."""
    inner: dict[str, None] = {}
    nics: dict[str, None] = {}
    front = list(devices)
    while front:
        found = [(v, link.kind) for u in front for v, link in adjacent[u].items() if v not in cluster.node_of]
        nics.update((v, None) for v, _ in found if cluster.nodes[v] == "nic")
        inside = ("scale_up", "host", "pcie")
        front = [v for v, kind in dict(found).items() if kind in inside and cluster.nodes[v] != "nic" and v not in inner and not _upper(v, adjacent)]
        inner.update(dict.fromkeys(front))
    return list(inner), list(nics)


def _upper(node: str, adjacent: Mapping[str, Mapping[str, Link]]) -> bool:
    return any(link.kind in ("leaf", "spine", "dcn") for link in adjacent[node].values())


def _switches(out: Sketch, cluster: Cluster, adjacent: Mapping[str, Mapping[str, Link]], levels: Mapping[str, int], width: float) -> None:
    """Rows of switches; of a level of many those that the drawn ones below reach, the rest in one box; all in one box where it is higher up."""
    for level in sorted(set(levels.values()) - {1}):
        y = ABOVE * level
        names = [n for n, at in levels.items() if at == level]
        near = [n for n in names if any(v in out.key_of and levels.get(v, 0) < level for v in adjacent[n])]
        single = names if len(names) <= MOST_SWITCHES else near if len(near) <= MOST_SWITCHES and level == 2 else []
        rest = [n for n in names if n not in set(single)]
        slots = len(single) + 2 * bool(single and rest)
        for i, n in enumerate(single):
            out.put(n, Box((i + 0.5) * width / slots, y, min(1.6, 0.85 * width / slots), n, "switch"), [n])
        if rest:
            x, size = ((len(single) + 1) * width / slots, 1.8 * width / slots) if single else (width / 2, width * 0.6)
            out.put(f"rest of {level}", Box(x, y, size, f"{len(rest)} {'more ' if single else ''}{_role(rest[0])}", "switch", len(rest)), rest)


def _role(name: str) -> str:
    """zone0.spine3 -> spines."""
    word = "".join(c for c in name.rpartition(".")[2] if not c.isdigit()).rstrip("-_") or "switch"
    return {"leaf": "leaves", "switch": "switches"}.get(word, f"{word}s")


def _short(name: str, server: str) -> str:
    return name.removeprefix(f"{server}.")


def grid(cluster: Cluster, routes: TorusRoutes) -> Sketch:
    """Chips by their coordinates; planes of a third axis beside each other, of many planes and slices the first ones."""
    out = Sketch()
    size = (*routes.shape, 1, 1)[:3] if len(routes.shape) <= 3 else routes.shape[:3]
    planes = min(size[2], max(1, 48 // (size[0] + 1)))
    for at, chip in routes.chips[0].items():
        x, y, z = (*at, 0, 0)[:3]
        if z < planes and not any(at[3:]):
            out.put(chip, Box(z * (size[0] + 1.0) + x + 0.5, float(y), 0.7, ".".join(map(str, at)), "chip"), [chip])
    for z in range(planes):
        words = f"plane {z} of {size[2]}" if size[2] > 1 else ""
        out.frames.append((z * (size[0] + 1.0), z * (size[0] + 1.0) + size[0], -0.5, size[1] - 0.5, words))
    rings = [f"axis {i} of {n}: {'closed' if closed else 'open'}" for i, (n, closed) in enumerate(zip(routes.shape, routes.wrap, strict=True))]
    out.notes.append(", ".join(rings))
    if planes < size[2]:
        out.notes.append(f"{planes} of {size[2]} planes are drawn")
    if len(routes.chips) > 1:
        out.notes.append(f"one of {len(routes.chips)} slices is drawn; they are joined by the data-centre network")
    near = [link for link in cluster.links if link.kind == "ici" and _beside(out, link)]
    out.join(near)
    return out


def _beside(out: Sketch, link: Link) -> bool:
    """Cables between neighbours of one plane; those that close an axis or lead to the next plane are left to the notes."""
    a, b = out.boxes.get(link.a), out.boxes.get(link.b)
    return a is not None and b is not None and abs(a.x - b.x) + abs(a.y - b.y) < 1.5
