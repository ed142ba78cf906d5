"""Mesh: ranks, their coordinates along the axes, and the groups of ranks that differ along one axis."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from .layout import Degrees

IntArray = NDArray[np.int64]
REPLICAS = "dp.cp"  # the ranks that hold the same dense parameters, where cp is more than 1; dp itself elsewhere
SHARD, REPLICA = "dp.shard", "dp.replica"  # the two halves of dp under HSDP
EXPERT_REPLICAS = "edp"  # the ranks that hold the same experts


@dataclass(frozen=True)
class Mesh:
    """Arrays over ranks. The factor axes of the world are tp, cp, dp, pp in the order given, fastest first; ep re-tiles dp cp."""

    degrees: Degrees

    @cached_property
    def factors(self) -> tuple[tuple[str, int], ...]:
        """(axis, size) of the factor axes, fastest first."""
        return tuple((a, getattr(self.degrees, a)) for a in self.degrees.order if a != "ep")

    @cached_property
    def coordinates(self) -> dict[str, IntArray]:
        """Coordinate of every rank along each axis, int[world]."""
        rank = np.arange(self.degrees.world)
        out: dict[str, IntArray] = {}
        for axis, size in self.factors:
            out[axis] = rank % size
            rank = rank // size
        return out

    @cached_property
    def replicas(self) -> IntArray:
        """The groups of ranks that hold the same dense parameters, along dp and cp (the faster axis first), int[k, dp cp], by their first rank."""
        order = [a for a, _ in self.factors if a in ("cp", "dp")]
        combined, stride = np.zeros(self.degrees.world, dtype=np.int64), 1
        for axis in order:
            combined += self.coordinates[axis] * stride
            stride *= getattr(self.degrees, axis)
        rest = np.zeros(self.degrees.world, dtype=np.int64)
        for axis, size in self.factors:
            if axis not in order:
                rest = rest * size + self.coordinates[axis]
        table = np.lexsort((combined, rest)).reshape(-1, stride)
        return np.asarray(table[np.argsort(table[:, 0])])

    @cached_property
    def experts(self) -> dict[str, IntArray]:
        """The groups of `ep` neighbours among the dp x cp replicas (cp fastest), and of those at the same place in theirs; named, int[k, size]."""
        table = self.replicas.reshape(-1, self.degrees.replicas // self.degrees.ep, self.degrees.ep)
        groups = {"ep": table.reshape(-1, self.degrees.ep), EXPERT_REPLICAS: np.swapaxes(table, 1, 2).reshape(-1, table.shape[1])}
        return {name: np.asarray(t[np.argsort(t[:, 0])]) for name, t in groups.items()}

    @property
    def expert_coordinate(self) -> IntArray:
        """Place of every rank in its ep group, int[world]."""
        out = np.empty(self.degrees.world, dtype=np.int64)
        out[self.experts["ep"]] = np.arange(self.degrees.ep)
        return out

    def groups(self, axis: str) -> IntArray:
        """All groups along `axis`, int[k, size], members in axis order, groups by their first rank."""
        shape = [size for _, size in reversed(self.factors)]
        position = len(self.factors) - 1 - [a for a, _ in self.factors].index(axis)
        grid = np.arange(self.degrees.world).reshape(shape)
        table = np.moveaxis(grid, position, -1).reshape(-1, shape[position])
        return np.asarray(table[np.argsort(table[:, 0])])

    def halves(self, shard: int) -> dict[str, IntArray]:
        """Replicas cut in two: groups of `shard` neighbours that share out, and groups of those at the same place of their shard group."""
        table = self.replicas.reshape(-1, self.degrees.replicas // shard, shard)
        groups = {SHARD: table.reshape(-1, shard), REPLICA: np.swapaxes(table, 1, 2).reshape(-1, table.shape[1])}
        return {name: np.asarray(t[np.argsort(t[:, 0])]) for name, t in groups.items()}

    def peer(self, axis: str, offset: int) -> IntArray:
        """For every rank the rank `offset` further along `axis`, with wrap, int[world]."""
        table = self.groups(axis)
        out = np.empty(self.degrees.world, dtype=np.int64)
        out[table] = np.roll(table, -offset, axis=1)
        return out

    def rank(self, **coordinates: int) -> int:
        """The rank at the given coordinates (missing ones are 0)."""
        out, stride = 0, 1
        for axis, size in self.factors:
            out += coordinates.get(axis, 0) * stride
            stride *= size
        return out
