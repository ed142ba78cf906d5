"""Kernels that know their rank's place: parts of a sequence and of rows, ranks one after another in one process, against torch over the whole."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from parasim.executor.context import Context, Place  # noqa: E402
from parasim.executor.kernels_torch import IMPLEMENTATIONS  # noqa: E402
from parasim.program.ops import Buffer, Kernel, Ref  # noqa: E402
from parasim.program.workload import ZIGZAG  # noqa: E402

BATCH, HEADS, KV, WIDTH, VALUE = 2, 4, 2, 6, 5
COLUMNS = KV * (3 * WIDTH + VALUE)


def call(context, name, reads, writes, dims):
    kernel = Kernel(name, tuple(map(Ref, reads)), tuple(map(Ref, writes)), dims, "fp64")
    return IMPLEMENTATIONS[name](context, kernel, tuple(reads.values()))


def whole(qkv, sequence):
    """Torch's causal attention on the packed layout, values of a width of their own."""
    packed = qkv.reshape(BATCH, sequence, KV, 3 * WIDTH + VALUE).transpose(1, 2)
    q, k, v = torch.split(packed, [2 * WIDTH, WIDTH, VALUE], dim=-1)
    q = q.reshape(BATCH, KV, sequence, 2, WIDTH).transpose(2, 3).flatten(1, 2)
    k, v = (x.repeat_interleave(2, dim=1) for x in (k, v))
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(BATCH * sequence, -1)


@pytest.mark.parametrize("cp", [2, 3])
def test_a_ring_of_blocks_is_attention_over_the_whole(cp):
    sequence, part = 12, 12 // cp
    names = {"qkv": (BATCH * part, COLUMNS), "tokens": (BATCH, part)}
    buffers = {n: Buffer(n, s, "fp64", "activations", shard=((1, ZIGZAG),) if n == "tokens" else ()) for n, s in names.items()}
    ranks = [Context(buffers, {"cp": Place(r, cp), ZIGZAG: Place(r, cp)}) for r in range(cp)]
    generator = torch.Generator().manual_seed(1)
    qkv = torch.randn(BATCH * sequence, COLUMNS, generator=generator, dtype=torch.float64, requires_grad=True)
    expected = whole(qkv, sequence)
    do = torch.randn(expected.shape, generator=generator, dtype=torch.float64)
    (dqkv,) = torch.autograd.grad((expected * do).sum(), qkv)

    def cut(x):
        rows = torch.arange(BATCH * sequence).reshape(BATCH, sequence)
        return [x.detach()[c.cut("tokens", rows).flatten()] for c in ranks]

    dims = (BATCH, part, HEADS, KV, WIDTH, VALUE)
    mine, upstream = cut(qkv), cut(do)
    kv = [call(c, "kv_slice", {"qkv": x}, ("kv",), dims)[0] for c, x in zip(ranks, mine, strict=True)]
    out, grads, travelled = [], [], [torch.zeros_like(x) for x in kv]
    for r, c in enumerate(ranks):
        o, lse = call(c, "attention", {"qkv": mine[r]}, ("o", "lse"), dims)
        for t in range(1, cp):
            o, lse = call(c, "attention_block", {"qkv": mine[r], "kv": kv[r - t], "o": o, "lse": lse}, ("o", "lse"), (*dims, t))
        out.append(o)
        (d,) = call(c, "attention_grad", {"do": upstream[r], "qkv": mine[r], "o": o, "lse": lse}, ("dqkv",), dims)
        for t in range(1, cp):
            reads = {"do": upstream[r], "qkv": mine[r], "kv": kv[r - t], "o": o, "lse": lse, "dqkv": d}
            d, dkv = call(c, "attention_block_grad", reads, ("dqkv", "dkv"), (*dims, t))
            travelled[r - t] = travelled[r - t] + dkv
        grads.append(d)
    for r, c in enumerate(ranks):
        (total,) = call(c, "kv_slice_grad", {"dkv": travelled[r], "dqkv": grads[r]}, ("dqkv",), dims)
        assert float((out[r] - cut(expected)[r]).abs().max()) <= 1e-10
        assert float((total - cut(dqkv)[r]).abs().max()) <= 1e-10


def test_zig_zag_positions():
    """Four chunks of two: rank 0 has the first and the last, rank 1 those between."""
    ranks = [Context({}, {"cp": Place(r, 2), ZIGZAG: Place(r, 2)}) for r in range(2)]
    assert [c.positions(4).tolist() for c in ranks] == [[0, 1, 6, 7], [2, 3, 4, 5]]
    assert ranks[0].positions(4, 1).tolist() == [2, 3, 4, 5]
    assert Context({}, {"cp": Place(1, 2)}).positions(4).tolist() == [4, 5, 6, 7]


def test_exchanges_are_permutations():
    """Heads to blocks and sequences to parts and back; on indices, so that a derivative is the inverse."""
    x = torch.arange(2 * 3 * 8.0).reshape(6, 8)
    (blocks,) = call(None, "columns_to_blocks", {"x": x}, ("y",), (6, 8, 2))
    assert blocks.tolist() == [*x[:, :4].tolist(), *x[:, 4:].tolist()]
    assert torch.equal(call(None, "blocks_to_columns", {"x": blocks}, ("y",), (6, 8, 2))[0], x)
    top, bottom = call(None, "split_rows", {"x": x}, ("p", "q"), (6, 8, 2))
    assert torch.equal(top, x[:3]) and torch.equal(bottom, x[3:])
    assert torch.equal(call(None, "join_rows", {"p": top, "q": bottom}, ("y",), (6, 8, 2))[0], x)
    rows = torch.arange(12.0)[:, None]  # two parts of two sequences of three
    (sequence,) = call(None, "blocks_to_sequence", {"x": rows}, ("y",), (2, 3, 1, 2))
    assert sequence.flatten().tolist() == [0, 1, 2, 6, 7, 8, 3, 4, 5, 9, 10, 11]
    assert torch.equal(call(None, "sequence_to_blocks", {"x": sequence}, ("y",), (2, 3, 1, 2))[0], rows)


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_the_rows_of_the_others_around_those_of_a_rank(rank):
    """Three ranks of two rows each: what a rank multiplied by itself stands at its place, as it is."""
    generator = torch.Generator().manual_seed(1)
    x, w, b, dy = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((6, 3), (3, 4), (4,), (6, 4)))
    context, mine = Context({}, {"tp": Place(rank, 3)}), slice(2 * rank, 2 * rank + 2)
    dx = dy @ w.T  # as autograd has it of linear (test_kernels.py)
    for name, operand, product, more in (("linear", x, x @ w + b, {"w": w, "b": b}), ("linear_input_grad", dy, dx, {"w": w})):
        own = product[mine].clone()
        (marked,) = call(context, f"{name}_others", {"x": operand, "own": own + 1, **more}, ("y",), (4, 3, 4))
        marked[mine] -= 1
        assert float((marked - product).abs().max()) <= 1e-12
