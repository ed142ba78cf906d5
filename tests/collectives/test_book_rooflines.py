"""Rooflines of jax-ml/scaling-book (Apache-2.0, 0819a7d) by the engine's own counts of FLOPs and bytes, and its collectives.

C FLOP/s, W bytes/s of a network axis both ways, B tokens, a product [B, D] x [D, F]. `uint8` stands for what the book calls int8: one byte.
"""

import json
from pathlib import Path

import pytest

from parasim.collectives.plan import plan, seconds
from parasim.cost.pricing import bytes_moved, flops
from parasim.cost.profile import Profile
from parasim.plan.roofline import Cut, Roofline
from parasim.program.ops import Kernel
from parasim.topology.builders import IDEAL, Wire, ideal
from parasim.topology.torus import torus

BOOK = {line["id"]: line for line in map(json.loads, (Path(__file__).parents[1] / "data" / "scaling_book.jsonl").read_text().splitlines())}
LARGE = 10**9  # columns beside which the tokens do not count
V5P = 2550  # C/W of one axis, tokens


def product(tokens: int, inner: int, outer: int, dtype: str = "uint8") -> Kernel:
    return Kernel("linear", (), (), (tokens, inner, outer), dtype)


def ratio(kernel: Kernel, peak: float, memory: float) -> float:
    """Seconds of arithmetic over seconds of memory."""
    return float(flops(kernel) / peak / (bytes_moved(kernel) / memory))


@pytest.mark.parametrize(("name", "peak", "dtype"), [("roof-1", "C_int8", "uint8"), ("roof-2", "C", "uint8")])
def test_weights_of_one_byte_halve_the_critical_batch(name, peak, dtype):
    """B = C / (2 HBM): as many FLOPs, half of the bytes; against the int8 peak it is as large as in bf16."""
    inputs = BOOK[name]["inputs"]
    assert ratio(product(BOOK[name]["answer"], LARGE, LARGE, dtype), inputs[peak], inputs["HBM"]) == pytest.approx(1, rel=3e-3)


def test_a_matrix_per_row_is_never_bound_by_compute():
    """2 FLOPs a byte, whatever the batch."""
    one = product(1, 10**5, 10**5)
    assert flops(one) / bytes_moved(one) == pytest.approx(BOOK["roof-4"]["answer"], rel=1e-4)


def test_loading_weights_from_memory():
    """200e9 bf16 parameters over 32 chips of 1.23 TB/s: 10 ms; a token's product with 6.25e9 of them moves just those."""
    inputs = BOOK["tpu-1"]["inputs"]
    share = product(1, 10**5, int(inputs["params"] / inputs["chips"] / 10**5), "bf16")
    assert bytes_moved(share) / inputs["HBM"] == pytest.approx(BOOK["tpu-1"]["recomputed"], rel=1e-4)
    inputs = BOOK["tpu-3"]["inputs"]
    assert ratio(product(BOOK["tpu-3"]["answer"], LARGE, LARGE, "bf16"), inputs["C"], inputs["PCIe"]) == pytest.approx(1, rel=1e-2)


@pytest.mark.parametrize(("name", "rate"), [("tpu-4a", BOOK["tpu-4a"]["inputs"]["HBM"]), ("tpu-4b", BOOK["tpu-4b"]["inputs"]["VMEM"])])
def test_a_small_product_from_memory_and_from_vmem(name, rate):
    """int8 [16384, 4096] x [B, 4096] on v5e: the first B at which arithmetic takes longer than weights and activations.

    263 and 12 where the book has 271 and 11: it rounds 1.34e8 FLOPs a token to 1.3e8.
    """
    peak = BOOK["tpu-4a"]["inputs"]["C"]
    first = next(b for b in range(1, 400) if ratio(product(b, 4096, 16384), peak, rate) >= 1)
    assert first == {"tpu-4a": 263, "tpu-4b": 12}[name]
    assert first == pytest.approx(BOOK[name]["answer"] / (1.342 / 1.3), abs=2)


def test_adding_partial_outputs_beats_multiplying_everything_everywhere():
    """D of 2 C/W: an all-reduce of 2 B F bytes, 4 B F / W, takes as long as the whole product 2 B D F / C."""
    cluster = torus("ring", IDEAL, (16,), Wire("ici", 1e9 / 2, 0.0), "all")
    profile = Profile("tpu", "tpu")
    b, f, d = 1000, 2000, BOOK["shard-4"]["answer"]
    comm = seconds(plan("all_reduce", 2 * b * f, cluster.devices, cluster, profile), cluster, profile) * 16 / 15
    assert flops(product(b, d, f, "bf16")) / (BOOK["shard-4"]["inputs"]["C_over_W"] * 1e9) == pytest.approx(comm, rel=1e-9)


def test_pods_on_a_data_centre_network_need_tokens():
    """8 B D F FLOPs of a backward pass per pod against the all-reduce of 4 D F bytes of gradients among many pods: B = C/W."""
    inputs = BOOK["tr-dcn"]["inputs"]
    pods, d, f = 64, 8192, 32768
    cluster, profile = ideal(pods, 0.0, inputs["W_dcn"]), Profile("tpu", "tpu")
    comm = seconds(plan("all_reduce", 4 * d * f, cluster.devices, cluster, profile, "ring"), cluster, profile) * pods / (pods - 1)
    assert comm / (8 * d * f / inputs["C_pod"]) == pytest.approx(BOOK["tr-dcn"]["answer"], rel=1e-9)


def test_fsdp_and_tensor_parallelism_together():
    """The least tokens per chip, 4 (C/W)^2 / (Mx My F) at the best split and C/W over three axes by FSDP alone, and the FSDP ways of the best split."""
    one_each = {"fsdp": Cut(64, 2), "tensor": Cut(1, 1)}
    assert Roofline(V5P, BOOK["tr-mixmin"]["inputs"]["F"], **one_each).best()["tokens_per_device"] == pytest.approx(BOOK["tr-mixmin"]["recomputed"], rel=1e-3)
    mixed = BOOK["tr-q3"]["answer"]
    layer = Roofline(V5P, 13824, Cut(4096, 2), Cut(1, 1))
    assert layer.best()["tokens_per_device"] == pytest.approx(mixed["mixed_min_per_chip"], rel=2e-3)
    assert replace_axes(layer, 3).at_once * 4096 == pytest.approx(mixed["fsdp_min_tokens"], rel=1e-3)
    inputs, answer = BOOK["at-8"]["inputs"], BOOK["at-8"]["answer"]
    best = Roofline(V5P, inputs["F"], Cut(inputs["N"], 2), Cut(1, 1)).best()
    assert best["tokens_per_device"] == pytest.approx(answer["min_per_chip"], rel=2e-3)
    more = inputs["B"] / inputs["N"] / best["tokens_per_device"]  # X grows as the root of the batch
    assert best["fsdp_ways"] * more**0.5 == pytest.approx(answer["X_opt"], rel=1e-3)


def replace_axes(layer: Roofline, axes: float) -> Roofline:
    return Roofline(layer.alpha, layer.ffn, Cut(layer.fsdp.ways, axes), layer.tensor)
