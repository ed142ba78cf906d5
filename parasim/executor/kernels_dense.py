"""Linear layers, activations, norms and elementwise kernels, with their derivatives written out."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from ..program.ops import Kernel
from .context import Context
from .kernels_state import drawn_mask

Tensors = tuple[Tensor, ...]
NORM_EPSILON = 1e-5
DROPOUT = 0.1  # rate, the same for every run


def weights(kernel: Kernel) -> int:
    """How many matrices lie side by side in a product."""
    return int(kernel.dims[3]) if len(kernel.dims) > 3 else 1


def apart(context: Context, kernel: Kernel, t: Tensors, whole: Tensor) -> Tensors:
    """Columns of `whole`, each written buffer's share of them, added to what is there."""
    parts = torch.split(whole, [context.local_shape(r.name)[-1] for r in kernel.writes], dim=-1)
    return tuple(context.accumulate(kernel, t, i, part) for i, part in enumerate(parts))


def linear(_: Context, kernel: Kernel, t: Tensors) -> Tensors:
    """y = x w (+ b)."""
    behind = 1 + weights(kernel)
    y = t[0] @ torch.cat(t[1:behind], 1)
    return (y + torch.cat(t[behind:]) if len(t) > behind else y,)


def linear_input_grad(_: Context, __: Kernel, t: Tensors) -> Tensors:
    """dx = dy w^T."""
    return (t[0] @ torch.cat(t[1:], 1).T,)


def linear_others(context: Context, kernel: Kernel, t: Tensors) -> Tensors:
    """y = x w (+ b) of the rows of the other ranks of tp, around those of this one."""
    return _around(context, t[1], *linear(context, kernel, _but_own(context, t)))


def linear_input_grad_others(context: Context, kernel: Kernel, t: Tensors) -> Tensors:
    """dx = dy w^T of the rows of the other ranks of tp, around those of this one."""
    return _around(context, t[1], *linear_input_grad(context, kernel, _but_own(context, t)))


def _but_own(context: Context, t: Tensors) -> Tensors:
    """The operands of a product of t[0] without the rows of this rank, whose product is t[1]."""
    x, own, *behind = t
    start = context.place("tp").index * len(own)
    return torch.cat((x[:start], x[start + len(own) :])), *behind


def _around(context: Context, own: Tensor, others: Tensor) -> Tensors:
    start = context.place("tp").index * len(own)
    return (torch.cat((others[:start], own, others[start:])),)


def linear_weight_grad(context: Context, kernel: Kernel, t: Tensors) -> Tensors:
    """gw (+)= x^T dy."""
    return apart(context, kernel, t, t[0].T @ t[1])


def bias_grad(context: Context, kernel: Kernel, t: Tensors) -> Tensors:
    """gb (+)= column sums of dy."""
    return apart(context, kernel, t, t[0].sum(0))


def head(_: Context, __: Kernel, t: Tensors) -> Tensors:
    """y = x w^T."""
    return (t[0] @ t[1].T,)


def head_input_grad(_: Context, __: Kernel, t: Tensors) -> Tensors:
    """dx = dy w."""
    return (t[0] @ t[1],)


def head_weight_grad(context: Context, kernel: Kernel, t: Tensors) -> Tensors:
    """gw (+)= dy^T x."""
    return (context.accumulate(kernel, t, 0, t[1].T @ t[0]),)


def gelu(_: Context, __: Kernel, t: Tensors) -> Tensors:
    """GELU with the tanh approximation (Hendrycks and Gimpel 2016, section 2)."""
    return (F.gelu(t[0], approximate="tanh"),)


def gelu_grad(_: Context, __: Kernel, t: Tensors) -> Tensors:
    """dy times the derivative of gelu at x."""
    return (t[0] * _gelu_derivative(t[1]),)


def swiglu(_: Context, __: Kernel, t: Tensors) -> Tensors:
    """silu(gate) up, gate in the even and up in the odd columns, so that a cut by columns keeps the pairs together."""
    gate, up = t[0][:, 0::2], t[0][:, 1::2]
    return (F.silu(gate) * up,)


def swiglu_grad(_: Context, __: Kernel, t: Tensors) -> Tensors:
    """Derivative of swiglu at x, interleaved as x is."""
    dy, x = t
    gate, up = x[:, 0::2], x[:, 1::2]
    sigmoid = torch.sigmoid(gate)
    dgate = dy * up * sigmoid * (1 + gate * (1 - sigmoid))
    return (torch.stack((dgate, dy * gate * sigmoid), dim=2).reshape(x.shape),)


GELU_SLOPE, GELU_CUBE = math.sqrt(2 / math.pi), 0.044715


def _gelu_derivative(x: Tensor) -> Tensor:
    """Derivative of x (1 + tanh u) / 2 with u = sqrt(2/pi) (x + 0.044715 x^3)."""
    tanh = torch.tanh(GELU_SLOPE * (x + GELU_CUBE * x**3))
    return 0.5 * (1 + tanh) + 0.5 * x * (1 - tanh * tanh) * GELU_SLOPE * (1 + 3 * GELU_CUBE * x * x)


def geglu(_: Context, __: Kernel, t: Tensors) -> Tensors:
    """gelu(gate) up (Shazeer 2020, arXiv 2002.05202), interleaved as swiglu is."""
    return (F.gelu(t[0][:, 0::2], approximate="tanh") * t[0][:, 1::2],)


def geglu_grad(_: Context, __: Kernel, t: Tensors) -> Tensors:
    """Derivative of geglu at x."""
    dy, x = t
    gate, up = x[:, 0::2], x[:, 1::2]
    return (torch.stack((dy * up * _gelu_derivative(gate), dy * F.gelu(gate, approximate="tanh")), dim=2).reshape(x.shape),)


def gate_silu(_: Context, __: Kernel, t: Tensors) -> Tensors:
    """silu of the gate, the even columns."""
    return (F.silu(t[0][:, 0::2]),)


def gate_silu_grad(_: Context, __: Kernel, t: Tensors) -> Tensors:
    """Gradients of gate and up, interleaved as x is."""
    da, dup, x = t
    gate = x[:, 0::2]
    sigmoid = torch.sigmoid(gate)
    return (torch.stack((da * sigmoid * (1 + gate * (1 - sigmoid)), dup), dim=2).reshape(x.shape),)


def gate_gelu(_: Context, __: Kernel, t: Tensors) -> Tensors:
    """gelu of the gate, the even columns."""
    return (F.gelu(t[0][:, 0::2], approximate="tanh"),)


def gate_gelu_grad(_: Context, __: Kernel, t: Tensors) -> Tensors:
    """Gradients of gate and up, interleaved as x is."""
    da, dup, x = t
    return (torch.stack((da * _gelu_derivative(x[:, 0::2]), dup), dim=2).reshape(x.shape),)


def gate_product(_: Context, __: Kernel, t: Tensors) -> Tensors:
    """a up, up in the odd columns."""
    return (t[0] * t[1][:, 1::2],)


def gate_product_grad(_: Context, __: Kernel, t: Tensors) -> Tensors:
    """dy up and dy a."""
    dy, a, x = t
    return dy * x[:, 1::2], dy * a


def relu(_: Context, __: Kernel, t: Tensors) -> Tensors:
    """max(x, 0)."""
    return (t[0].clamp_min(0),)


def relu_grad(_: Context, __: Kernel, t: Tensors) -> Tensors:
    """dy where x > 0."""
    return (t[0] * (t[1] > 0),)


def squared_relu(_: Context, __: Kernel, t: Tensors) -> Tensors:
    """max(x, 0)^2 (So et al. 2021, arXiv 2109.08668)."""
    return (t[0].clamp_min(0).square(),)


def squared_relu_grad(_: Context, __: Kernel, t: Tensors) -> Tensors:
    """2 max(x, 0) dy."""
    return (2 * t[0] * t[1].clamp_min(0),)


def _layer_normalised(x: Tensor) -> tuple[Tensor, Tensor]:
    centred = x - x.mean(1, keepdim=True)
    inverse = torch.rsqrt((centred * centred).mean(1, keepdim=True) + NORM_EPSILON)
    return centred * inverse, inverse


def rms_normalised(x: Tensor) -> tuple[Tensor, Tensor]:
    """x over the root of the mean square of its last dimension, and one over that root."""
    inverse = torch.rsqrt((x * x).mean(-1, keepdim=True) + NORM_EPSILON)
    return x * inverse, inverse


def rms_input_grad(g: Tensor, x: Tensor) -> Tensor:
    """dx = (g - xhat mean(g xhat)) / rms over the last dimension, g the gradient of xhat."""
    xhat, inverse = rms_normalised(x)
    return inverse * (g - xhat * (g * xhat).mean(-1, keepdim=True))


def layer_norm(_: Context, __: Kernel, t: Tensors) -> Tensors:
    """Layer norm over the columns, with weight and bias as far as they are read."""
    y = _layer_normalised(t[0])[0]
    y = y * t[1] if len(t) > 1 else y
    return (y + t[2] if len(t) > 2 else y,)


def layer_norm_input_grad(_: Context, __: Kernel, t: Tensors) -> Tensors:
    """dx = (g - mean g - xhat mean(g xhat)) / sigma with g = dy w."""
    dy, x = t[:2]
    xhat, inverse = _layer_normalised(x)
    g = dy * t[2] if len(t) > 2 else dy
    return (inverse * (g - g.mean(1, keepdim=True) - xhat * (g * xhat).mean(1, keepdim=True)),)


def layer_norm_weight_grad(context: Context, kernel: Kernel, t: Tensors) -> Tensors:
    """gw (+)= sum dy xhat, gb (+)= sum dy."""
    dy, x = t[:2]
    xhat, _ = _layer_normalised(x)
    sums = [(dy * xhat).sum(0), dy.sum(0)][: len(kernel.writes)]
    return tuple(context.accumulate(kernel, t, i, value) for i, value in enumerate(sums))


def rms_norm(_: Context, __: Kernel, t: Tensors) -> Tensors:
    """RMS norm over the columns."""
    return (rms_normalised(t[0])[0] * t[1],)


def rms_norm_input_grad(_: Context, __: Kernel, t: Tensors) -> Tensors:
    """dx = (g - xhat mean(g xhat)) / rms with g = dy w."""
    return (rms_input_grad(t[0] * t[2], t[1]),)


def rms_norm_weight_grad(context: Context, kernel: Kernel, t: Tensors) -> Tensors:
    """gw (+)= sum dy xhat."""
    dy, x = t[:2]
    xhat, _ = rms_normalised(x)
    return (context.accumulate(kernel, t, 0, (dy * xhat).sum(0)),)


def column_slice(context: Context, kernel: Kernel, t: Tensors) -> Tensors:
    """The columns of this rank."""
    return (context.cut(kernel.writes[0].name, t[0]),)


def residual_add(_: Context, __: Kernel, t: Tensors) -> Tensors:
    """c = a + b (+ bias)."""
    c = t[0] + t[1]
    return (c + t[2] if len(t) > 2 else c,)


def dropout(context: Context, kernel: Kernel, t: Tensors) -> Tensors:
    """y = x mask / (1 - rate) and the mask (Srivastava et al. 2014, inverted form)."""
    mask = drawn_mask(context, kernel.writes[1], DROPOUT)
    return t[0] * mask.to(t[0]) / (1 - DROPOUT), mask


def dropout_grad(_: Context, __: Kernel, t: Tensors) -> Tensors:
    """dx = dy mask / (1 - rate)."""
    return (t[0] * t[1].to(t[0]) / (1 - DROPOUT),)


def dropout_add(context: Context, kernel: Kernel, t: Tensors) -> Tensors:
    """c = a + dropout(b (+ bias)), and the mask."""
    mask = drawn_mask(context, kernel.writes[1], DROPOUT)
    b = t[1] + t[2] if len(t) > 2 else t[1]
    return t[0] + b * mask.to(b) / (1 - DROPOUT), mask
