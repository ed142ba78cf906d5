"""Kernels of attention: cores, positions, norms of queries and keys, latent attention; every derivative equals autograd of the forward in fp64."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from kernel_calls import call, close, normal, vjp  # noqa: E402

from parasim.executor.context import Context  # noqa: E402
from parasim.executor.kernels_torch import IMPLEMENTATIONS  # noqa: E402
from parasim.program.ops import Buffer, Kernel, Ref  # noqa: E402

ATTENTION = (2, 5, 4, 2, 6)  # batch, sequence, heads, kv heads, head dim


PACKED = (2 * 5, (4 + 2 * 2) * 6)


def attended(qkv):
    """Torch's own attention on the packed layout: per key-value head its two query heads, key, value."""
    packed = qkv.reshape(2, 5, 2, 4, 6)
    q = packed[:, :, :, :2].reshape(2, 5, 4, 6).transpose(1, 2)
    k = packed[:, :, :, 2].repeat_interleave(2, dim=2).transpose(1, 2)
    v = packed[:, :, :, 3].repeat_interleave(2, dim=2).transpose(1, 2)
    o = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    return o.transpose(1, 2).reshape(10, 24)


def test_grouped_query_attention_and_derivative():
    qkv, do = normal(*PACKED), normal(10, 24, seed=1)
    o, lse = call("attention", ATTENTION, {"qkv": qkv}, {"o": (10, 24), "lse": (4, 10)})
    close(o, attended(qkv))
    (expected,) = vjp(attended, [qkv], do)
    close(call("attention_grad", ATTENTION, {"do": do, "qkv": qkv, "o": o, "lse": lse}, {"dqkv": PACKED}), expected)


def unfused(qkv, do=None):
    """The unfused kernels one after another: the output, or with `do` the gradient at qkv."""
    scores = call("attention_scores", ATTENTION, {"qkv": qkv}, {"s": (4, 10, 5)})
    p = call("causal_softmax", (40, 5), {"s": scores}, {"p": (4, 10, 5)})
    if do is None:
        return call("attention_context", ATTENTION, {"p": p, "qkv": qkv}, {"o": (10, 24)})
    dp = call("attention_context_grad", ATTENTION, {"do": do, "qkv": qkv}, {"dp": (4, 10, 5)})
    ds = call("causal_softmax_grad", (40, 5), {"dp": dp, "p": p}, {"ds": (4, 10, 5)})
    return call("attention_scores_grad", ATTENTION, {"ds": ds, "do": do, "p": p, "qkv": qkv}, {"dqkv": PACKED})


def test_unfused_attention_and_derivative():
    qkv, do = normal(*PACKED), normal(10, 24, seed=1)
    close(unfused(qkv), attended(qkv))
    (expected,) = vjp(attended, [qkv], do)
    close(unfused(qkv, do), expected)


def test_rotary_turns_query_and_key_pairs_and_leaves_values():
    qkv = normal(*PACKED)
    turned = call("rotary", ATTENTION, {"qkv": qkv}, {"r": PACKED}).reshape(2, 5, 2, 4, 6)
    before = qkv.reshape(2, 5, 2, 4, 6)
    close(turned[:, :, :, 3], before[:, :, :, 3])
    close(turned[:, 0], before[:, 0])  # position 0 is not turned
    angle = torch.tensor(3 * 10000.0 ** (-2 * 1 / 6), dtype=torch.float64)  # position 3, pair 1 of 3: elements 1 and 4
    a, b = before[1, 3, 0, 2, 1], before[1, 3, 0, 2, 4]
    close(turned[1, 3, 0, 2, 1], a * angle.cos() - b * angle.sin())
    close(turned[1, 3, 0, 2, 4], b * angle.cos() + a * angle.sin())


def test_rotary_grad():
    qkv, dr = normal(*PACKED), normal(*PACKED, seed=1)

    def forward(x):
        return call("rotary", ATTENTION, {"qkv": x}, {"r": PACKED})

    (expected,) = vjp(forward, [qkv], dr)
    close(call("rotary_grad", ATTENTION, {"dr": dr}, {"dqkv": PACKED}), expected)


@pytest.mark.parametrize("full", [False, True])
def test_qk_norm_and_derivatives(full):
    wq, wk = normal(24 if full else 6, seed=4), normal(12 if full else 6, seed=5)
    qkv, dy = normal(*PACKED), normal(*PACKED, seed=1)

    def forward(qkv, wq, wk):
        packed = qkv.reshape(10, 2, 4, 6)
        norm = torch.nn.functional.rms_norm
        q, k = packed[:, :, :2], packed[:, :, 2:3]
        q = norm(q.reshape(10, 24), (24,), wq, 1e-5).reshape(q.shape) if full else norm(q, (6,), wq, 1e-5)
        k = norm(k.reshape(10, 12), (12,), wk, 1e-5).reshape(k.shape) if full else norm(k, (6,), wk, 1e-5)
        return torch.cat([q, k, packed[:, :, 3:]], dim=2).reshape(PACKED)

    close(call("qk_norm", ATTENTION, {"qkv": qkv, "wq": wq, "wk": wk}, {"y": PACKED}), forward(qkv, wq, wk))
    dx, gq, gk = vjp(forward, [qkv, wq, wk], dy)
    close(call("qk_norm_input_grad", ATTENTION, {"dy": dy, "qkv": qkv, "wq": wq, "wk": wk}, {"dqkv": PACKED}), dx)
    mine = call("qk_norm_weight_grad", ATTENTION, {"dy": dy, "qkv": qkv}, {"gwq": tuple(wq.shape), "gwk": tuple(wk.shape)})
    close(mine[0], gq)
    close(mine[1], gk)


def test_values_of_their_own_width():
    dims, packed = (2, 5, 3, 3, 6, 4), (10, 3 * (6 + 6 + 4))
    qkv, do = normal(*packed), normal(10, 12, seed=1)

    def forward(qkv):
        q, k, v = (x.transpose(1, 2) for x in torch.split(qkv.reshape(2, 5, 3, 16), [6, 6, 4], dim=-1))
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(10, 12)

    o, lse = call("attention", dims, {"qkv": qkv}, {"o": (10, 12), "lse": (3, 10)})
    close(o, forward(qkv))
    (expected,) = vjp(forward, [qkv], do)
    close(call("attention_grad", dims, {"do": do, "qkv": qkv, "o": o, "lse": lse}, {"dqkv": packed}), expected)


def test_alibi_adds_a_slope_per_head():
    """Press et al. 2021: slopes 2^-2, 2^-4, 2^-6, 2^-8 of four heads; twelve heads take those of eight and every second of sixteen."""
    from parasim.executor.kernels_attention import alibi_slopes

    assert alibi_slopes(4) == [2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8]
    assert alibi_slopes(12) == [2.0**-i for i in range(1, 9)] + [2.0**-0.5, 2.0**-1.5, 2.0**-2.5, 2.0**-3.5]
    qkv = normal(*PACKED)
    buffers = {n: Buffer(n, s, "fp64", "activations") for n, s in (("qkv", PACKED), ("o", (10, 24)), ("lse", (4, 10)))}
    kernel = Kernel("attention", (Ref("qkv"),), (Ref("o"), Ref("lse")), ATTENTION, "fp64", "alibi")
    o, _ = IMPLEMENTATIONS["attention"](Context(buffers, {}), kernel, (qkv,))
    packed = qkv.reshape(2, 5, 2, 4, 6)
    q = packed[:, :, :, :2].reshape(2, 5, 4, 6).transpose(1, 2)
    k, v = (packed[:, :, :, i].repeat_interleave(2, dim=2).transpose(1, 2) for i in (2, 3))
    at = torch.arange(5, dtype=torch.float64)
    bias = torch.tensor(alibi_slopes(4), dtype=torch.float64)[:, None, None] * (at[None, :] - at[:, None])
    bias = bias.masked_fill(torch.ones(5, 5, dtype=torch.bool).triu(1), -torch.inf)
    close(o, torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias).transpose(1, 2).reshape(10, 24))


def test_latent_norm_and_derivatives():
    x, w, dy, dr = normal(6, 8 + 2), normal(8, seed=1), normal(6, 8, seed=3), normal(6, 2, seed=4)

    def forward(x, w):
        return torch.cat([torch.nn.functional.rms_norm(x[:, :8], (8,), w, 1e-5), x[:, 8:]], dim=1)

    y, r = call("latent_norm", (6, 8, 2), {"x": x, "w": w}, {"y": (6, 8), "r": (6, 2)})
    close(torch.cat([y, r], dim=1), forward(x, w))
    dx, gw = vjp(forward, [x, w], torch.cat([dy, dr], dim=1))
    close(call("latent_norm_input_grad", (6, 8, 2), {"dy": dy, "dr": dr, "x": x, "w": w}, {"dx": (6, 10)}), dx)
    close(call("latent_norm_weight_grad", (6, 8, 2), {"dy": dy, "x": x}, {"gw": (8,)}), gw)


def test_latent_rotary_packs_and_turns():
    dims = (2, 5, 3, 6, 4, 5)  # batch, sequence, heads, nope, rope, value
    q, kv, r = normal(10, 3 * 10), normal(10, 3 * 11, seed=1), normal(10, 4, seed=2)
    dqkv = normal(10, 3 * 25, seed=3)

    def turn(x):  # (2, 5, heads, 4): halves are pairs
        angle = torch.arange(5, dtype=torch.float64)[:, None] * 10000.0 ** -(torch.arange(2, dtype=torch.float64) / 2)
        cos, sin = angle.cos()[None, :, None], angle.sin()[None, :, None]
        a, b = x[..., :2], x[..., 2:]
        return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)

    def forward(q, kv, r):
        q, kv = q.reshape(2, 5, 3, 10), kv.reshape(2, 5, 3, 11)
        shared = turn(r.reshape(2, 5, 1, 4)).expand(-1, -1, 3, -1)
        return torch.cat([q[..., :6], turn(q[..., 6:]), kv[..., :6], shared, kv[..., 6:]], dim=-1).reshape(10, 75)

    close(call("latent_rotary", dims, {"q": q, "kv": kv, "r": r}, {"qkv": (10, 75)}), forward(q, kv, r))
    expected = vjp(forward, [q, kv, r], dqkv)
    dr, dq, dkv = call("latent_rotary_grad", dims, {"dqkv": dqkv}, {"dr": (10, 4), "dq": (10, 30), "dkv": (10, 33)})
    for mine, theirs in zip((dq, dkv, dr), expected, strict=True):
        close(mine, theirs)
