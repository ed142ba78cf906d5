"""What stands behind buffer names while a Program runs: real values, or storage of the right size beside slept or timed compute."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from math import prod
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from ..errors import Failed, InvalidProgram
from ..program.edges import Resolved
from ..program.ops import Collective, Compute, Kernel, Ref
from .context import TORCH_DTYPES, Context
from .initial import initial_buffers
from .kernels_torch import IMPLEMENTATIONS
from .transfers import output_elements, pack, unpack

Durations = Callable[[int, Compute], float] | Sequence[float]  # (rank, op) -> seconds, or seconds by instance number
Move = Callable[[Tensor, Tensor | None, tuple[list[int], list[int]] | None], Tensor]


class Payload(Protocol):
    """One rank's buffers. `i` is an op's instance number; all calls may come from several stream threads."""

    def begin(self, i: int) -> None: ...
    def end(self, i: int) -> None: ...
    def compute(self, i: int, op: Compute, context: Context) -> None: ...
    def collective(self, i: int, op: Collective, size: int, move: Move) -> None: ...
    def outgoing(self, i: int, ref: Ref) -> Tensor: ...
    def incoming(self, i: int, ref: Ref) -> Tensor: ...
    def deliver(self, i: int, ref: Ref, tensor: Tensor) -> None: ...
    def reset(self) -> None: ...


class Numeric:
    """Real tensors. A generation's tensor is dropped when its last user ends, so that a read too late finds nothing."""

    def __init__(self, resolved: Resolved, context: Context, device: torch.device) -> None:
        self.resolved, self.context, self.device = resolved, context, device
        self.tensors: dict[tuple[str, int], Tensor] = {(name, -1): t.to(self._home(name)) for name, t in initial_buffers(resolved.program, context).items()}
        self._lock = threading.Lock()
        self._births: dict[int, list[int]] = {}
        self._deaths: dict[int, list[int]] = {}
        self._users = np.diff(resolved.last_start)
        for g in np.nonzero(resolved.birth >= 0)[0]:
            self._births.setdefault(int(resolved.birth[g]), []).append(int(g))
            for user in resolved.last_users[resolved.last_start[g] : resolved.last_start[g + 1]]:
                self._deaths.setdefault(int(user), []).append(int(g))
        self.reset()

    def reset(self) -> None:
        """Before every repetition: nobody has used anything yet."""
        self._left = self._users.copy()
        self._owner: dict[tuple[str, int], int] = {}

    def _key(self, i: int, ref: Ref) -> tuple[str, int]:
        persistent = ref.slot < 0 or self.resolved.program.buffers[ref.name].persistent
        return ref.name, -1 if persistent else self.resolved.microbatches(i)[ref.slot]

    def _generation_key(self, g: int) -> tuple[str, int]:
        return self.resolved.buffers[int(self.resolved.generation_buffer[g])], int(self.resolved.generation_microbatch[g])

    def begin(self, i: int) -> None:
        """The generations that op i starts now own their names."""
        with self._lock:
            self._owner.update((self._generation_key(g), g) for g in self._births.get(i, ()))

    def end(self, i: int) -> None:
        """Drop the generations whose last user this was."""
        with self._lock:
            for g in self._deaths.get(i, ()):
                self._left[g] -= 1
                key = self._generation_key(g)
                if self._left[g] == 0 and self._owner.get(key) == g:
                    self.tensors.pop(key, None)

    def _get(self, i: int, ref: Ref) -> Tensor:
        try:
            return self.tensors[self._key(i, ref)]
        except KeyError:
            raise Failed(f"{ref.name} is read, but nothing is there: never written, or already dropped after its last user") from None

    def _home(self, name: str) -> torch.device:
        """Where a buffer's tensor is kept: offloaded ones in the memory of the host."""
        return torch.device("cpu") if self.resolved.program.buffers[name].category == "host" else self.device

    def _put(self, i: int, ref: Ref, tensor: Tensor) -> None:
        buffer = self.resolved.program.buffers[ref.name]
        if not self.context.fits(ref.name, tuple(tensor.shape)):
            raise Failed(f"{ref.name} is written with shape {tuple(tensor.shape)}, declared {buffer.shape}")
        self.tensors[self._key(i, ref)] = tensor.to(device=self._home(ref.name), dtype=TORCH_DTYPES[buffer.dtype])

    def compute(self, i: int, op: Compute, context: Context) -> None:
        """Run the op's kernels on tensors by name."""
        for kernel in op.kernels:
            read = tuple(self._get(i, r) for r in kernel.reads)
            for ref, tensor in zip(kernel.writes, IMPLEMENTATIONS[kernel.name](context, kernel, read), strict=True):
                self._put(i, ref, tensor)

    def collective(self, i: int, op: Collective, size: int, move: Move) -> None:
        """Pack, move, unpack. Accumulates in the dtype of the written buffer."""
        tensors = [self._get(i, r) for r in op.reads]
        if op.writes:
            dtype = TORCH_DTYPES[self.resolved.program.buffers[op.writes[0].name].dtype]
            tensors = [t.to(dtype) for t in tensors]
        splits = None
        if op.splits:
            if op.copies == "per_node":
                raise Failed(f"{op.reads[0].name} is sent once per server, which has a price and no implementation; leave out experts.max_nodes")
            sent, received = (self._rows(i, r, size) for r in op.splits)
            splits = (sent, received)
        if op.op == "broadcast" and not tensors:  # another member has it
            tensors = [torch.empty(self.context.local_shape(r.name), dtype=dtype, device=self.device) for r in op.writes]
        y = move(tensors[0] if splits else pack(op, tensors, size), None, splits)
        if splits:
            self._put(i, op.writes[0], y)
            return
        shapes = [self.context.local_shape(r.name) for r in op.writes]
        for ref, tensor in zip(op.writes, unpack(op, y, [tuple(t.shape) for t in tensors], shapes, size), strict=True):
            self._put(i, ref, tensor)

    def _rows(self, i: int, ref: Ref, size: int) -> list[int]:
        """Rows per member from a buffer of counts, of which a member may have several."""
        counts = self._get(i, ref).reshape(-1)
        return [int(n) for n in counts.reshape(size, -1).sum(1)]

    def outgoing(self, i: int, ref: Ref) -> Tensor:
        """The tensor to send."""
        return self._get(i, ref)

    def incoming(self, i: int, ref: Ref) -> Tensor:
        """A fresh tensor to receive into."""
        dtype = TORCH_DTYPES[self.resolved.program.buffers[ref.name].dtype]
        return torch.empty(self.context.local_shape(ref.name), dtype=dtype, device=self.device)

    def deliver(self, i: int, ref: Ref, tensor: Tensor) -> None:
        """What was received is the buffer now."""
        self._put(i, ref, tensor)


class Shadow:
    """Storage of the right size for what is moved, shared by all microbatches; compute is given from outside."""

    def __init__(self, resolved: Resolved, context: Context, device: torch.device, work: Callable[[int, Compute], None]) -> None:
        self.resolved, self.context, self.device, self._work = resolved, context, device, work
        self._storage: dict[tuple[str, ...], Tensor] = {}

    def _elements(self, refs: tuple[Ref, ...]) -> int:
        return sum(prod(self.context.local_shape(r.name)) for r in refs)

    def _tensor(self, key: tuple[str, ...], elements: int, buffer: str) -> Tensor:
        found = self._storage.get(key)
        if found is None or found.numel() != elements:
            dtype = TORCH_DTYPES[self.resolved.program.buffers[buffer].dtype]
            found = self._storage[key] = torch.zeros(elements, dtype=dtype, device=self.device)
        return found

    def reset(self) -> None:
        """Storage is kept."""

    def begin(self, i: int) -> None:
        """Nothing is tracked."""

    def end(self, i: int) -> None:
        """Nothing is tracked."""

    def compute(self, i: int, op: Compute, context: Context) -> None:
        """The given work instead of the kernels."""
        self._work(i, op)

    def collective(self, i: int, op: Collective, size: int, move: Move) -> None:
        """Move as many bytes as the real op would."""
        refs = op.reads or op.writes
        if not refs:
            move(torch.zeros(1, device=self.device), None, None)
            return
        if op.load:
            self._uneven(op, move)
            return
        elements = self._elements(refs)
        if op.op in ("reduce_scatter", "all_to_all"):
            elements += -elements % size
        place = (op.op, op.group, op.stream)
        x = self._tensor((*place, "in", str(elements)), elements, refs[0].name)
        out = None
        if op.op in ("all_gather", "reduce_scatter", "all_to_all"):
            n = output_elements(op, elements, size)
            out = self._tensor((*place, "out", str(n)), n, refs[0].name)
        move(x, out, None)

    def _uneven(self, op: Collective, move: Move) -> None:
        """An exchange as its load table has it."""
        program, table, me = self.resolved.program, self.context.loads[op.load], self.context.place(op.group).index
        dtype = TORCH_DTYPES[program.buffers[op.reads[0].name].dtype]
        whole = max(program.largest_nbytes(op.reads), program.largest_nbytes(op.writes)) // dtype.itemsize
        sent, received = ([round(part * whole) for part in parts] for parts in (table[me], table[:, me]))
        place = (op.op, op.group, op.stream, op.load)
        x, out = (self._tensor((*place, way), sum(n), op.reads[0].name) for way, n in (("in", sent), ("out", received)))
        move(x, out, (sent, received))

    def outgoing(self, i: int, ref: Ref) -> Tensor:
        """Bytes to send."""
        return self._tensor(("send", ref.name), self._elements((ref,)), ref.name)

    def incoming(self, i: int, ref: Ref) -> Tensor:
        """Bytes to receive into."""
        return self._tensor(("recv", ref.name), self._elements((ref,)), ref.name)

    def deliver(self, i: int, ref: Ref, tensor: Tensor) -> None:
        """Values carry no meaning."""


def given(_: int, op: Compute) -> float:
    """Durations of delays: the seconds that its kernels name."""
    return sum(float(k.dims[0]) for k in op.kernels)


def sleeping(rank: int, durations: Durations) -> Callable[[int, Compute], None]:
    """Compute that sleeps for the priced seconds."""

    def work(i: int, op: Compute) -> None:
        time.sleep(durations(rank, op) if callable(durations) else float(durations[i]))

    return work


MATMULS: dict[str, int] = {  # kernel -> how many products of the shape its dims give
    "linear": 1,
    "linear_input_grad": 1,
    "linear_weight_grad": 1,
    "linear_others": 1,
    "linear_input_grad_others": 1,
    "scaled_linear": 1,
    "scaled_linear_input_grad": 1,
    "scaled_linear_weight_grad": 1,
    "grouped_linear": 1,
    "grouped_linear_input_grad": 1,
    "grouped_linear_weight_grad": 1,
    "head": 1,
    "head_input_grad": 1,
    "head_weight_grad": 1,
    "attention": 2,  # scores and values
    "attention_grad": 5,  # scores again, and two products for each of the two
    "attention_scores": 1,
    "attention_scores_grad": 3,
    "attention_context": 1,
    "attention_context_grad": 1,
}


def multiplying(device: torch.device) -> Callable[[int, Compute], None]:
    """Compute that multiplies matrices of the kernels' dims, and touches as many elements for kernels that are bound by memory."""
    operands: dict[tuple[int, ...], Tensor] = {}

    def operand(*shape: int) -> Tensor:
        if shape not in operands:
            operands[shape] = torch.zeros(shape, device=device)
        return operands[shape]

    def run(kernel: Kernel) -> None:
        if any(isinstance(d, str) for d in kernel.dims):
            raise InvalidProgram(f"kernel {kernel.name} has dims {kernel.dims}; the executor runs integer dims only")
        dims = [int(d) for d in kernel.dims]
        if kernel.name == "delay":
            time.sleep(float(kernel.dims[0]))
        elif kernel.name.startswith("attention"):
            batch, sequence, heads, _, width = dims
            for _ in range(MATMULS[kernel.name]):
                torch.bmm(operand(batch * heads, sequence, width), operand(batch * heads, width, sequence))
        elif kernel.name in MATMULS:
            torch.mm(operand(dims[0], dims[1]), operand(dims[1], dims[2]))
        else:
            operand(prod(dims[:2])).add_(1.0)

    def work(i: int, op: Compute) -> None:
        for kernel in op.kernels:
            run(kernel)

    return work
