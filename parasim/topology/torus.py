"""Tori of chips: every chip has one cable to each neighbour along 2 or 3 axes; an axis may close to a ring.

TPU v4, v5p and v7 close their axes through optical switches where the slice is made of full cubes of 4 x 4 x 4; v5e and v6e close an axis of 16
only (jax-ml/scaling-book, "How to think about TPUs"). Slices are joined by the data-centre network: a host of several chips has one port to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod
from typing import Literal

from ..errors import Malformed
from ..provenance import Number
from .builders import Wire, assemble
from .cluster import Accelerator, Cluster, Exchange, Link

Coordinates = tuple[int, ...]
WrapRule = Literal["cubes", "sixteen", "all", "none"]


def wraps(shape: Sequence[int], rule: WrapRule | Sequence[bool]) -> tuple[bool, ...]:
    """Which axes close to a ring.

    `cubes`: all, if every axis is a multiple of 4 (v4, v5p, v7). `sixteen`: axes of 16 (v5e, v6e). Or one flag per axis. An axis of 1 or 2 chips
    never closes: its two chips have one cable. Raises `Malformed` for another rule or number of flags.
    """
    if rule == "cubes":
        wanted = [all(n % 4 == 0 for n in shape)] * len(shape)
    elif rule == "sixteen":
        wanted = [n == 16 for n in shape]
    elif rule in ("all", "none"):
        wanted = [rule == "all"] * len(shape)
    elif isinstance(rule, str) or len(rule) != len(shape):
        raise Malformed(f"wrap={rule!r} is legal as cubes, sixteen, all, none or {len(shape)} flags, one per axis of {'x'.join(map(str, shape))}")
    else:
        wanted = [bool(flag) for flag in rule]
    return tuple(flag and n > 2 for flag, n in zip(wanted, shape, strict=True))


@dataclass(frozen=True)
class TorusRoutes:
    """Dimension-ordered routes: along the first axis, then the second, ..., the short way around; over `dcn` between slices.

    `shape` and `wrap` per axis, `chips[coordinates]` the device names of each slice, `uplinks[device]` the nodes from a chip up to the
    data-centre network (none: slices are apart). At a tie (half of an even ring away) chips of even coordinates go up, odd ones down.
    """

    shape: tuple[int, ...]
    wrap: tuple[bool, ...]
    chips: tuple[Mapping[Coordinates, str], ...]
    uplinks: Mapping[str, tuple[str, ...]]

    @cached_property
    def address(self) -> Mapping[str, tuple[int, Coordinates]]:
        """Slice and coordinates of every chip."""
        return {name: (s, at) for s, slice_ in enumerate(self.chips) for at, name in slice_.items()}

    def path(self, a: str, b: str) -> tuple[str, ...] | None:
        """Names of the chips from `a` to `b`, both included; None for a name that is no chip, or another slice without a network."""
        if a not in self.address or b not in self.address:
            return None
        return self._along(a, b, range(len(self.shape))) if self._same(a, b) else self._over(a, b)

    def ways(self, a: str, b: str) -> Iterator[tuple[str, ...]]:
        """Paths that share no link: the offset axes in each of their rotations. A large message uses all of them at once."""
        if not self._same(a, b):
            path = self._over(a, b)
            yield from [path] if path else []
            return
        (_, start), (_, end) = self.address[a], self.address[b]
        offset = [i for i in range(len(self.shape)) if start[i] != end[i]]
        for k in range(len(offset)):
            yield self._along(a, b, offset[k:] + offset[:k])

    def exchange(self, members: Sequence[str]) -> Exchange | None:
        """No short cut: pairs are walked one by one."""
        return None

    def columns(self, devices: Sequence[str], index: Callable[[], Mapping[tuple[str, str], int]]) -> None:
        """No short cut: routes are found one by one."""
        return

    def steps(self, axis: int, start: int, end: int) -> list[int]:
        """Coordinates after `start` on the short way to `end` along an axis."""
        n = self.shape[axis]
        up = (end - start) % n
        if not self.wrap[axis]:
            sign = 1 if end > start else -1
            return list(range(start + sign, end + sign, sign)) if end != start else []
        forward = up < n - up or (2 * up == n and start % 2 == 0)
        return [(start + i) % n for i in range(1, up + 1)] if forward else [(start - i) % n for i in range(1, n - up + 1)]

    def _same(self, a: str, b: str) -> bool:
        return self.address[a][0] == self.address[b][0]

    def _along(self, a: str, b: str, axes: Sequence[int]) -> tuple[str, ...]:
        (s, at), (_, end) = self.address[a], self.address[b]
        names, here = [a], list(at)
        for axis in axes:
            for value in self.steps(axis, here[axis], end[axis]):
                here[axis] = value
                names.append(self.chips[s][tuple(here)])
        return tuple(names)

    def _over(self, a: str, b: str) -> tuple[str, ...] | None:
        up, down = self.uplinks.get(a), self.uplinks.get(b)
        return (a, *up, *down[:-1][::-1], b) if up and down else None


def torus(
    name: str,
    accelerator: Accelerator,
    shape: Sequence[int],
    wire: Wire,
    wrap: WrapRule | Sequence[bool] = "cubes",
    *,
    slices: int = 1,
    dcn: Wire | None = None,
    chips_per_host: int = 4,
    price: float | None = None,
    description: Mapping[str, Number | str] | None = None,
) -> Cluster:
    """`slices` tori of `shape`, first axis fastest in the device order.

    `wire` is one cable: its bytes/s per direction, and the seconds of one hop. `dcn` is the port of one host to the data-centre network (bytes/s
    per direction, seconds from host to host). One slice is one server. Raises `Malformed` for a bad shape, or slices without `dcn`.
    """
    if not shape or any(n < 1 for n in shape) or slices < 1 or chips_per_host < 1:
        raise Malformed(f"shape={'x'.join(map(str, shape))}, slices={slices}, chips_per_host={chips_per_host}: all must be 1 or more")
    if slices > 1 and dcn is None:
        raise Malformed(f"slices={slices} need a network between them: give dcn")
    closed = wraps(shape, wrap)
    chips = tuple(_slice(s, shape) for s in range(slices))
    links = [cable for slice_ in chips for cable in _cables(slice_, shape, closed, wire)]
    kinds = {chip: "chip" for slice_ in chips for chip in slice_.values()}
    uplinks: dict[str, tuple[str, ...]] = {}
    if dcn is not None:
        kinds["dcn"] = "switch"
        for s, slice_ in enumerate(chips):
            for i, chip in enumerate(slice_.values()):
                host = f"slice{s}.host{i // chips_per_host}"
                uplinks[chip] = (host, "dcn")
                if host not in kinds:
                    kinds[host] = "nic"
                    links += _both(host, "dcn", dcn._replace(latency=dcn.latency / 2))
                links += _both(chip, host, Wire("pcie", dcn.bandwidth, 0.0))
    node_of = {chip: f"slice{s}" for s, slice_ in enumerate(chips) for chip in slice_.values()}
    router = TorusRoutes(tuple(shape), closed, chips, uplinks)
    sizes: dict[str, Number | str] = {"torus": f"{slices} x {'x'.join(map(str, shape))}, closed: {', '.join('yes' if ring else 'no' for ring in closed)}"}
    return assemble(name, accelerator, kinds, links, node_of, router, price, sizes | dict(description or {}))


def _slice(s: int, shape: Sequence[int]) -> dict[Coordinates, str]:
    """Chips by coordinates, the first axis fastest."""
    places = (at[::-1] for at in product(*(range(n) for n in reversed(shape))))
    found = {at: f"slice{s}.chip{'.'.join(map(str, at))}" for at in places}
    assert len(found) == prod(shape)
    return found


def _cables(slice_: Mapping[Coordinates, str], shape: Sequence[int], closed: Sequence[bool], wire: Wire) -> Iterator[Link]:
    for at, chip in slice_.items():
        for axis, n in enumerate(shape):
            if at[axis] + 1 < n or closed[axis]:
                beside = (*at[:axis], (at[axis] + 1) % n, *at[axis + 1 :])
                yield from _both(chip, slice_[beside], wire)


def _both(a: str, b: str, wire: Wire) -> tuple[Link, Link]:
    return Link(a, b, wire.kind, wire.bandwidth, wire.latency), Link(b, a, wire.kind, wire.bandwidth, wire.latency)
