"""What collectives do to values on real processes: lists of numbers through torch.distributed, one call after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from .transfers import ALL_GATHER, REDUCE_SCATTER

Values = list[float]
REDUCTIONS: dict[str, Any] = {"sum": dist.ReduceOp.SUM, "avg": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}


def values_after(ops: Sequence[str], inputs: Sequence[Sequence[float]], reduce: str, root: int, splits: Sequence[Sequence[int]] | None) -> list[Values | None]:
    """This rank's values after each of `ops`, which go through each other's results; None where the op leaves them undefined.

    `inputs[r]` is what rank r puts in. gloo has no mean: it is the sum over the size. Call it on every rank of the default group.
    """
    rank, out = dist.get_rank(), []
    x: Tensor | None = torch.tensor(inputs[rank], dtype=torch.float64)
    for op in ops:
        assert x is not None
        x = _call(op, x, reduce, root, splits)
        out.append(None if x is None else [float(v) for v in x])
        if x is None:
            x = torch.zeros(0, dtype=torch.float64)
    return out


def _call(op: str, x: Tensor, reduce: str, root: int, splits: Sequence[Sequence[int]] | None) -> Tensor | None:
    rank, size = dist.get_rank(), dist.get_world_size()
    x, share = x.clone(), size if reduce == "avg" else 1
    match op:
        case "broadcast":
            count = _agreed(x, root)
            x = x if rank == root else torch.zeros(count, dtype=x.dtype)
            dist.broadcast(x, root)
            return x
        case "scatter":
            part = torch.zeros(_agreed(x, root) // size, dtype=x.dtype)
            dist.scatter(part, list(x.chunk(size)) if rank == root else None, root)
            return part
        case "gather":
            parts = [torch.zeros_like(x) for _ in range(size)] if rank == root else None
            dist.gather(x, parts, root)
            return None if parts is None else torch.cat(parts)
        case "reduce":
            dist.reduce(x, root, REDUCTIONS[reduce])
            return x / share if rank == root else None
        case "all_reduce":
            dist.all_reduce(x, REDUCTIONS[reduce])
            return x / share
        case "all_gather":
            whole = x.new_zeros(x.numel() * size)
            ALL_GATHER(whole, x)
            return whole
        case "reduce_scatter":
            part = x.new_zeros(x.numel() // size)
            REDUCE_SCATTER(part, x, REDUCTIONS[reduce])
            return part / share
    return _all_to_all(x, rank, size, splits)


def _agreed(x: Tensor, root: int) -> int:
    """The number of elements that the root holds."""
    count = torch.tensor([x.numel()])
    dist.broadcast(count, root)
    return int(count)


def _all_to_all(x: Tensor, rank: int, size: int, splits: Sequence[Sequence[int]] | None) -> Tensor:
    sent = [x.numel() // size] * size if splits is None else list(splits[rank])
    received = sent if splits is None else [row[rank] for row in splits]
    out = x.new_zeros(sum(received))
    dist.all_to_all_single(out, x, received, sent)
    return out
