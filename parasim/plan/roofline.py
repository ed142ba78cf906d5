"""When sharded training of a layer is bound by compute: closed forms over arithmetic intensity, for very many devices per axis.

Austin et al., How to Scale Your Model (jax-ml.github.io/scaling-book), training chapter. A layer of two matrices d x f on N = X Y devices, B tokens in
all, forward pass, bf16. alpha = C / W: FLOP/s over bytes/s of one network axis, both directions; with it times are in tokens. X ways of FSDP on
Mx network axes gather f / (Y Mx), Y ways of tensor parallelism on My axes move B / (X My), and compute takes B f / (N alpha); a common factor
is left out. (n - 1) / n of real rings is taken as 1: the numbers are limits, which simulated ones approach from below.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

from ..errors import Malformed
from ..units import parse


@dataclass(frozen=True)
class Cut:
    """Ways of an axis of parallelism, and the network axes that it uses at once."""

    ways: float
    axes: float


@dataclass(frozen=True)
class Roofline:
    """`alpha` in tokens, `ffn` columns, FSDP and tensor parallelism."""

    alpha: float
    ffn: float
    fsdp: Cut
    tensor: Cut

    @property
    def devices(self) -> float:
        """N = X Y."""
        return self.fsdp.ways * self.tensor.ways

    @property
    def one_after_the_other(self) -> float | None:
        """Tokens per device where compute takes as long as both transfers in turn; None where tensor parallelism alone takes longer."""
        rate = self.ffn / (self.devices * self.alpha) - (1 / (self.fsdp.ways * self.tensor.axes) if self.tensor.ways > 1 else 0.0)
        return self.ffn / (self.tensor.ways * self.fsdp.axes) / rate / self.devices if rate > 0 else None

    @property
    def at_once(self) -> float | None:
        """The same where the two overlap: alpha / (Mx Y), unless tensor parallelism is bound whatever the batch, Y alpha / My > f."""
        bound = self.tensor.ways > 1 and self.tensor.ways * self.alpha / self.tensor.axes > self.ffn
        return None if bound else self.alpha / (self.fsdp.axes * self.tensor.ways)

    def best(self) -> dict[str, float]:
        """The split (not whole numbers) bound by compute at the fewest tokens: 4 alpha^2 / (Mx My f) per device, X = sqrt(B Mx N / (f My))."""
        tokens = 4 * self.alpha**2 / (self.fsdp.axes * self.tensor.axes * self.ffn)
        ways = math.sqrt(tokens * self.devices / self.ffn * self.fsdp.axes / self.tensor.axes * self.devices)
        return {"tokens_per_device": tokens, "fsdp_ways": ways, "tensor_ways": self.devices / ways}

    def to_json(self) -> dict[str, Any]:
        """The contract `parasim.roofline/1`."""
        turn, once = self.one_after_the_other, self.at_once
        return {
            "schema": "parasim.roofline/1",
            "alpha_tokens": self.alpha,
            "devices": self.devices,
            "one_after_the_other": _tokens(turn, self.devices, self.fsdp.ways),
            "at_once": _tokens(once, self.devices, self.fsdp.ways),
            "best_split": self.best(),
            "fsdp_alone_tokens_per_device": {str(axes): self.alpha / axes for axes in (1, 2, 3)},
        }

    def __str__(self) -> str:
        turn, once, best = self.one_after_the_other, self.at_once, self.best()
        return "\n".join(
            [
                f"arithmetic intensity {self.alpha:.6g} tokens",
                f"bound by compute from {_words(turn)} tokens per device, or {_words(once)} where both transfers overlap",
                f"best split: FSDP {best['fsdp_ways']:.4g} x tensor {best['tensor_ways']:.4g}, from {best['tokens_per_device']:.6g} tokens per device",
            ]
        )


def _words(tokens: float | None) -> str:
    return "no number of" if tokens is None else f"{tokens:.6g}"


def _tokens(per_device: float | None, devices: float, fsdp: float) -> dict[str, float] | None:
    """Tokens per device, per FSDP rank and in all; and the least whole number per device with what that makes in all."""
    if per_device is None:
        return None
    whole = math.ceil(per_device)
    total = per_device * devices
    return {"per_device": per_device, "per_fsdp_rank": total / fsdp, "in_all": total, "whole_per_device": whole, "whole_in_all": whole * devices}


def roofline(peak: str, bandwidth: str, ffn: int, fsdp: str, tensor: str) -> Roofline:
    """From FLOP/s of a device, bytes/s of a network axis (both directions) and `WAYSxAXES`, such as 16x2. Raises Malformed."""
    flops, moved = parse(peak, "flops"), parse(bandwidth, "bandwidth")
    if flops <= 0 or moved <= 0:
        raise Malformed(f"--peak {peak} and --bandwidth {bandwidth} must be above 0")
    return Roofline(flops / moved, ffn, _cut("--fsdp", fsdp), _cut("--tensor", tensor))


def _cut(flag: str, text: str) -> Cut:
    found = re.fullmatch(r"(\d+)x(\d+)", text)
    if found is None or not int(found[1]) or not int(found[2]):
        raise Malformed(f"{flag} {text!r} is written WAYSxAXES, ways and the network axes they use at once, such as 16x2")
    return Cut(float(found[1]), float(found[2]))
