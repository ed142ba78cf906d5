"""Kernels of a mixture of experts: derivatives equal autograd in fp64; permutations have inverses; capacity drops the later tokens."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from parasim.executor.context import Context  # noqa: E402
from parasim.executor.kernels_torch import IMPLEMENTATIONS  # noqa: E402
from parasim.program.ops import Buffer, Kernel, Ref  # noqa: E402

TOKENS, HIDDEN, EXPERTS, TOPK = 7, 5, 4, 2


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def run(name, reads, writes, dims=(), role=""):
    buffers = {n: Buffer(n, tuple(t.shape), "fp64", "activations") for n, t in reads.items()} | {n: Buffer(n, s, "fp64", "buffers") for n, s in writes.items()}
    kernel = Kernel(name, tuple(map(Ref, reads)), tuple(map(Ref, writes)), dims, "fp64", role)
    return IMPLEMENTATIONS[name](Context(buffers, {}), kernel, tuple(reads.values()))


def routed(role="softmax", capacity=0):
    logits = normal(TOKENS, EXPERTS)
    dims = (TOKENS, EXPERTS, TOPK, capacity)
    writes = {"weights": (TOKENS, TOPK), "chosen": (TOKENS, TOPK), "counts": (1, EXPERTS)}
    return logits, dims, *run("route", {"logits": logits}, writes, dims, role)


def weights_of(logits, chosen, role):
    scores = logits.softmax(1) if role == "softmax" else logits.sigmoid()
    best = scores.gather(1, chosen.long())
    return best / best.sum(1, keepdim=True)


@pytest.mark.parametrize("role", ["softmax", "sigmoid"])
def test_router_weights_sum_to_one_and_their_derivative(role):
    logits, dims, weights, chosen, counts = routed(role)
    assert torch.allclose(weights, weights_of(logits, chosen, role)) and torch.allclose(weights.sum(1), torch.ones(TOKENS, dtype=torch.float64))
    assert counts.tolist() == [torch.bincount(chosen.reshape(-1), minlength=EXPERTS).tolist()] and int(counts.sum()) == TOKENS * TOPK
    x, upstream = logits.clone().requires_grad_(), normal(TOKENS, TOPK, seed=1)
    (expected,) = torch.autograd.grad((weights_of(x, chosen, role) * upstream).sum(), x)
    (found,) = run("route_grad", {"dweights": upstream, "logits": logits, "chosen": chosen}, {"dlogits": logits.shape}, dims, role)
    assert float((found - expected).abs().max()) < 1e-12


def test_capacity_drops_later_tokens_and_their_weight():
    logits, dims, weights, chosen, counts = routed(capacity=2)
    _, _, whole, wanted, all_counts = routed()
    assert counts.tolist() == [[min(n, 2) for n in all_counts[0].tolist()]]  # at most 2 rows per expert
    for expert in range(EXPERTS):
        mine = (wanted == expert).nonzero()[:, 0].tolist()
        assert (chosen == expert).nonzero()[:, 0].tolist() == mine[:2]  # the first two tokens keep their place
    assert torch.equal(weights, torch.where(chosen < EXPERTS, whole, torch.zeros_like(whole)))
    x, upstream = logits.clone().requires_grad_(), normal(TOKENS, TOPK, seed=1)
    kept = weights_of(x, wanted, "softmax") * (chosen < EXPERTS)
    (expected,) = torch.autograd.grad((kept * upstream).sum(), x)
    (found,) = run("route_grad", {"dweights": upstream, "logits": logits, "chosen": chosen}, {"dlogits": logits.shape}, dims, "softmax")
    assert float((found - expected).abs().max()) < 1e-12


@pytest.mark.parametrize("capacity", [0, 2])
def test_experts_equal_a_loop_over_tokens_and_autograd(capacity):
    _, _, weights, chosen, counts = routed(capacity=capacity)
    rows = int(counts.sum())
    x, w, upstream = normal(TOKENS, HIDDEN, seed=2), normal(EXPERTS, HIDDEN, 3, seed=3), normal(TOKENS, 3, seed=4)

    def loop(x, w, weights):
        out = torch.zeros(TOKENS, 3, dtype=torch.float64)
        for t in range(TOKENS):
            for k in range(TOPK):
                if int(chosen[t, k]) < EXPERTS:
                    out = out.index_add(0, torch.tensor([t]), (weights[t, k] * (x[t] @ w[int(chosen[t, k])]))[None])
        return out

    (copies,) = run("permute", {"x": x, "chosen": chosen, "counts": counts}, {"y": (rows, HIDDEN)})
    (made,) = run("grouped_linear", {"x": copies, "w": w, "counts": counts}, {"y": (rows, 3)})
    (y,) = run("combine", {"x": made, "weights": weights, "chosen": chosen}, {"y": (TOKENS, 3)})
    assert float((y - loop(x, w, weights)).abs().max()) < 1e-12
    leaves = [v.clone().requires_grad_() for v in (x, w, weights)]
    gx, gw, gweights = torch.autograd.grad((loop(*leaves) * upstream).sum(), leaves)
    dmade, dweights = run("combine_grad", {"dy": upstream, "x": made, "weights": weights, "chosen": chosen}, {"dx": (rows, 3), "dweights": weights.shape})
    (dcopies,) = run("grouped_linear_input_grad", {"dy": dmade, "w": w, "counts": counts}, {"dx": (rows, HIDDEN)})
    (dw,) = run("grouped_linear_weight_grad", {"x": copies, "dy": dmade, "counts": counts}, {"gw": w.shape})
    (dx,) = run("permute_grad", {"dy": dcopies, "chosen": chosen, "counts": counts}, {"dx": x.shape})
    for found, expected in ((dx, gx), (dw, gw), (dweights, gweights)):
        assert float((found - expected).abs().max()) < 1e-12


def test_group_sorts_by_expert_and_ungroup_undoes_it():
    counts = torch.tensor([[2, 0, 1], [1, 3, 0]], dtype=torch.int32)  # two sources, three experts
    x = torch.tensor([[0.0], [0.1], [2.0], [10.0], [11.0], [11.1], [11.2]])  # tens: source, ones: expert, tenths: which
    (y,) = run("group", {"x": x, "counts": counts}, {"y": x.shape})
    assert y[:, 0].tolist() == pytest.approx([0.0, 0.1, 10.0, 11.0, 11.1, 11.2, 2.0])
    assert torch.equal(run("ungroup", {"x": y, "counts": counts}, {"y": x.shape})[0], x)
