"""What a kernel may know besides its tensors: the rank's place, the step, the microbatch, and how local buffers are cut from full ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray

from ..errors import InvalidProgram
from ..program.ops import Buffer, Kernel
from ..program.workload import ZIGZAG, Workload

TORCH_DTYPES: dict[str, torch.dtype] = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp32": torch.float32,
    "fp64": torch.float64,
    "fp8": torch.float8_e4m3fn,
    "int32": torch.int32,
    "int64": torch.int64,
    "uint8": torch.uint8,
}


@dataclass(frozen=True)
class Adam:
    """Hyperparameters of the optimizer, the same for every run: the executor proves schedules, it does not tune models."""

    learning_rate: float = 1e-2
    beta1: float = 0.9
    beta2: float = 0.99
    epsilon: float = 1e-8


@dataclass(frozen=True)
class Place:
    """A coordinate along one axis and the size of that axis."""

    index: int
    size: int


@dataclass(frozen=True)
class Context:
    """Handed to every kernel. `places` maps an axis (or a group's name) to this rank's place on it; `step` counts from 0.
    `loads` are the load tables of the Workload."""

    buffers: Mapping[str, Buffer]
    places: Mapping[str, Place]
    step: int = 0
    microbatches: tuple[int, ...] = ()
    adam: Adam = Adam()
    loads: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)

    def at(self, step: int, microbatches: tuple[int, ...]) -> Context:
        """The same rank at another step and call."""
        return replace(self, step=step, microbatches=microbatches)

    def place(self, axis: str) -> Place:
        """This rank's place on `axis`; an axis the Workload does not have is not cut."""
        return self.places.get(axis, Place(0, 1))

    def shard_of(self, name: str, dim: int) -> Place:
        """The place along the axes that cut dimension `dim` of the buffer `name`, the outer cut first (0 of 1 if none does)."""
        buffer, out = self.buffers[name], Place(0, 1)
        for place in (self.place(a) for d, a in buffer.shard if d % len(buffer.shape) == dim % len(buffer.shape)):
            out = Place(out.index * place.size + place.index, out.size * place.size)
        return out

    def positions(self, sequence: int, shift: int = 0) -> torch.Tensor:
        """Positions in the whole sequence of the `sequence` rows per sequence of the rank `shift` places before along cp, int64."""
        place = self.place("cp")
        index = (place.index - shift) % place.size
        if ZIGZAG not in self.places:
            return torch.arange(sequence) + index * sequence
        return torch.cat([torch.arange(sequence // 2) + chunk * (sequence // 2) for chunk in (index, 2 * place.size - 1 - index)])

    def local_shape(self, name: str) -> tuple[int, ...]:
        """Shape on this rank. Raises InvalidProgram where an entry is a load table's name."""
        shape = self.buffers[name].shape
        if any(isinstance(n, str) for n in shape):
            raise InvalidProgram(f"buffer {name} has shape {shape}; the executor runs buffers with integer dimensions only")
        return tuple(int(n) for n in shape)

    def fits(self, name: str, shape: tuple[int, ...]) -> bool:
        """Is this a shape of the buffer on this rank? Rows that routing decides may be any number."""
        declared = self.buffers[name].shape
        return len(declared) == len(shape) and all(isinstance(d, str) or d == n for d, n in zip(declared, shape, strict=True))

    def full_shape(self, name: str) -> tuple[int, ...]:
        """Shape before `Buffer.shard` cut it, without padding."""
        shape = list(self.local_shape(name))
        for dim, axis in self.buffers[name].shard:
            shape[dim] *= self.place(axis).size
        return (shape[0] - self.buffers[name].padding, *shape[1:])

    def cut(self, name: str, full: torch.Tensor) -> torch.Tensor:
        """This rank's part of a full tensor, a copy; padding is zero."""
        padding = self.buffers[name].padding
        full = torch.cat((full, full.new_zeros(padding, *full.shape[1:]))) if padding else full
        for dim, axis in self.buffers[name].shard:
            place = self.place(axis)
            if axis == ZIGZAG:
                chunks = full.chunk(2 * place.size, dim)
                full = torch.cat((chunks[place.index], chunks[-1 - place.index]), dim)
            else:
                full = full.chunk(place.size, dim)[place.index]
        return full.clone()

    def flat_shard(self, name: str, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """This rank's slice of the concatenation of `parts`, padded with zeros to a multiple of the group; a copy."""
        length = prod(self.local_shape(name))
        place = self.shard_of(name, 0)
        flat = torch.cat([p.reshape(-1) for p in parts])
        padded = torch.cat([flat, flat.new_zeros(length * place.size - flat.numel())])
        return padded[place.index * length : (place.index + 1) * length].reshape(self.local_shape(name)).clone()

    def accumulate(self, kernel: Kernel, tensors: Sequence[torch.Tensor], position: int, value: torch.Tensor) -> torch.Tensor:
        """`value`, in the dtype of the buffer the kernel writes at `position`, added to what is there if the kernel also reads it."""
        ref = kernel.writes[position]
        value = value.to(TORCH_DTYPES[self.buffers[ref.name].dtype])
        return tensors[kernel.reads.index(ref)] + value if ref in kernel.reads else value


def places_of(workload: Workload, rank: int) -> dict[str, Place]:
    """The rank's place on every axis that has coordinates, and in every group by its name."""
    places = {}
    for group, table in workload.groups.items():
        row = np.argwhere(np.asarray(table) == rank)
        if len(row):
            places[group] = Place(int(row[0][1]), int(np.asarray(table).shape[1]))
    for axis, coordinate in workload.coordinates.items():
        places[axis] = Place(int(coordinate[rank]), int(np.max(coordinate)) + 1)
    return places


def context_of(workload: Workload, rank: int) -> Context:
    """The context of a rank before its first step."""
    return Context(workload.program_of(rank).buffers, places_of(workload, rank), loads=workload.loads)
