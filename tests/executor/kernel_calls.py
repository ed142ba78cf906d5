"""One kernel at a time on small tensors, and what autograd says of it."""

from __future__ import annotations

import torch

from parasim.executor.context import Context, Place
from parasim.executor.kernels_torch import IMPLEMENTATIONS
from parasim.program.ops import Buffer, Kernel, Ref

TOLERANCE = 1e-10


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def call(name, dims, reads, writes, *, accumulate=(), shards=None, places=None):
    """Run one kernel. `reads` name -> tensor, `writes` name -> shape; names in `accumulate` are read and written."""
    shards = shards or {}
    buffers = {n: Buffer(n, tuple(t.shape), "int64" if t.dtype == torch.int64 else "fp64", "activations", shard=shards.get(n, ())) for n, t in reads.items()}
    buffers |= {n: Buffer(n, s, "fp64", "activations", shard=shards.get(n, ())) for n, s in writes.items()}
    assert set(accumulate) <= set(reads) & set(writes)
    kernel = Kernel(name, tuple(map(Ref, reads)), tuple(map(Ref, writes)), dims, "fp64")
    out = IMPLEMENTATIONS[name](Context(buffers, places or {}), kernel, tuple(reads.values()))
    assert [tuple(t.shape) for t in out] == list(writes.values())
    return out[0] if len(out) == 1 else out


def close(actual, expected):
    assert float((actual - expected).abs().max()) <= TOLERANCE


def vjp(forward, inputs, upstream):
    """Gradients of sum(forward(*inputs) * upstream) by autograd."""
    inputs = [x.clone().requires_grad_() for x in inputs]
    return torch.autograd.grad((forward(*inputs) * upstream).sum(), inputs)


SHARD = ((0, "tp"),)


COLUMNS = ((1, "tp"),)


def places(index, size):
    return {"tp": Place(index, size)}
