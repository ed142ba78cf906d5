"""Products of several weights side by side, and of scaled copies, against the plain ones in fp64."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from kernel_calls import call, close, normal  # noqa: E402

from parasim.executor.context import Context  # noqa: E402
from parasim.executor.kernels_torch import IMPLEMENTATIONS  # noqa: E402
from parasim.program.ops import Buffer, Kernel, Ref  # noqa: E402


def test_weights_side_by_side_are_one_product():
    x, w, v, dy = normal(5, 3), normal(3, 4, seed=1), normal(3, 2, seed=2), normal(5, 6, seed=3)
    b, c = normal(4, seed=4), normal(2, seed=5)
    whole = torch.cat((w, v), 1)
    close(call("linear", (5, 3, 6, 2), {"x": x, "w": w, "v": v}, {"y": (5, 6)}), x @ whole)
    close(call("linear", (5, 3, 6, 2), {"x": x, "w": w, "v": v, "b": b, "c": c}, {"y": (5, 6)}), x @ whole + torch.cat((b, c)))
    close(call("linear_input_grad", (5, 3, 6, 2), {"dy": dy, "w": w, "v": v}, {"dx": (5, 3)}), dy @ whole.T)
    gw, gv = call("linear_weight_grad", (5, 3, 6, 2), {"x": x, "dy": dy, "gw": w}, {"gw": (3, 4), "gv": (3, 2)}, accumulate=["gw"])
    close(gw, w + x.T @ dy[:, :4])
    close(gv, x.T @ dy[:, 4:])
    gb, gc = call("bias_grad", (5, 6), {"dy": dy}, {"gb": (4,), "gc": (2,)})
    close(torch.cat((gb, gc)), dy.sum(0))


def scaled(name, dims, operands, writes, dtype="fp8", more=None):
    """Cast the operands, then run a kernel on the copies."""
    buffers = {n: Buffer(n, tuple(t.shape), "fp64", "activations") for n, t in {**operands, **(more or {})}.items()}
    buffers |= {n: Buffer(n, s, "fp64", "gradients") for n, s in writes.items()}
    copies = {}
    for n, t in operands.items():
        buffers |= {f"{n}.scaled": Buffer(f"{n}.scaled", tuple(t.shape), dtype, "activations"), f"{n}.scale": Buffer(f"{n}.scale", (1,), "fp64", "activations")}
        kernel = Kernel("cast", (Ref(n),), (Ref(f"{n}.scaled"), Ref(f"{n}.scale")), (t.numel(),), "fp64")
        copies[f"{n}.scaled"], copies[f"{n}.scale"] = IMPLEMENTATIONS["cast"](Context(buffers, {}), kernel, (t,))
    copies |= more or {}
    kernel = Kernel(name, tuple(map(Ref, copies)), tuple(map(Ref, writes)), dims, dtype)
    return IMPLEMENTATIONS[name](Context(buffers, {}), kernel, tuple(copies.values()))[0], copies


def test_fp8_copies_have_one_scale_and_four_digits():
    """e4m3 has 3 bits of mantissa: a normal number is at most 2^-4 of itself off; the largest |x| lands on 448."""
    x = 100 * normal(8, 8)
    _, copies = scaled("scaled_linear", (8, 8, 8), {"x": x, "w": normal(8, 8, seed=1)}, {"y": (8, 8)})
    assert copies["x.scaled"].dtype == torch.float8_e4m3fn and float(copies["x.scaled"].double().abs().max()) == 448
    off = (copies["x.scaled"].double() * copies["x.scale"] - x).abs()
    assert float((off / x.abs()).max()) <= 2**-4 and float(off.max()) > 0


@pytest.mark.parametrize("dtype", ["fp64", "fp8"])
def test_products_of_scaled_copies(dtype):
    x, w, b, dy, before = normal(5, 3), normal(3, 4, seed=1), normal(4, seed=2), normal(5, 4, seed=3), normal(3, 4, seed=4)
    y, c = scaled("scaled_linear", (5, 3, 4), {"x": x, "w": w}, {"y": (5, 4)}, dtype, {"b": b})
    wide = {n: c[f"{n}.scaled"].double() * c[f"{n}.scale"] for n in "xw"}
    close(y, wide["x"] @ wide["w"] + b)
    dx, c = scaled("scaled_linear_input_grad", (5, 3, 4), {"dy": dy, "w": w}, {"dx": (5, 3)}, dtype)
    close(dx, (c["dy.scaled"].double() * c["dy.scale"]) @ (wide["w"]).T)
    gw, c = scaled("scaled_linear_weight_grad", (5, 3, 4), {"x": x, "dy": dy}, {"gw": (3, 4)}, dtype, {"gw": before})
    close(gw, before + wide["x"].T @ (c["dy.scaled"].double() * c["dy.scale"]))
    if dtype == "fp64":
        close(y, x @ w + b)
