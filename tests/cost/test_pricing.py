"""Every kernel's FLOPs and bytes against formulas written out by hand, and the roofline on a machine of round numbers."""

from __future__ import annotations

import pytest

from parasim.cost.pricing import PRICES, bytes_moved, flops
from parasim.cost.profile import Profile, datasheet
from parasim.cost.timing import seconds
from parasim.errors import InvalidProgram
from parasim.program.kernels import KERNELS
from parasim.program.ops import DType, Kernel, Ref
from parasim.provenance import Number

R, N, C = 1000, 300, 700  # rows, inner, columns
B, S, A, K, D = 2, 512, 8, 2, 64  # batch, sequence, heads, key-value heads, head_dim
QKV, OUT = B * S * (A + 2 * K) * D, B * S * A * D
LSE = 4 * B * S * A  # fp32
NOPE, ROPE, V = 128, 64, 96  # latent attention: widths of a head's key without and with positions, and of its value
LATENT = B * S * A  # tokens and heads
PAIRS = B * A * S * S  # queries and keys of unfused attention


class Machine:
    """1 PFLOP/s and 1 TB/s."""

    memory_bandwidth = Number(1e12, "B/s", "round number", "assumed")

    host_link = Number(1e11, "B/s", "round number", "assumed")
    host_memory_bandwidth = Number(2e11, "B/s", "round number", "assumed")
    multiprocessors = Number(100.0, "1", "round number", "assumed")
    matrix_unit: Number | None = None

    def peak(self, dtype: str) -> float:
        return 1e15


def kernel(name: str, dims: tuple[int | float | str, ...], dtype: DType = "bf16", absent: tuple[str, ...] = ()) -> Kernel:
    """The kernel with all its operands but the `absent` ones."""
    spec = KERNELS[name]
    reads, writes = (tuple(Ref(w.rstrip("?*"), 0) for w in words if w.rstrip("?*") not in absent) for words in (spec.reads, spec.writes))
    return Kernel(name, reads, writes, dims, dtype)


# name, dims, FLOPs, bytes in bf16; weight gradients accumulate, optional operands are present
CASES: list[tuple[str, tuple[int | float, ...], float, float]] = [
    ("sample", (R, C), 0, 0),
    ("delay", (0.5,), 0, 0),
    ("linear", (R, N, C), 2 * R * N * C, 2 * (R * N + N * C + C + R * C)),
    ("linear_input_grad", (R, N, C), 2 * R * N * C, 2 * (R * C + N * C + R * N)),
    ("linear_weight_grad", (R, N, C), 2 * R * N * C, 2 * (R * N + R * C + 2 * N * C)),
    ("linear_others", (R, N, C), 2 * R * N * C, 2 * (R * N + N * C + C + R * C)),  # what the rank multiplied itself is not moved again
    ("linear_input_grad_others", (R, N, C), 2 * R * N * C, 2 * (R * C + N * C + R * N)),
    ("cast", (C,), 0, (2 + 1) * C),
    ("scaled_linear", (R, N, C), 2 * R * N * C, 1 * (R * N + N * C) + 2 * (R * C + C)),
    ("scaled_linear_input_grad", (R, N, C), 2 * R * N * C, 1 * (R * C + N * C) + 2 * R * N),
    ("scaled_linear_weight_grad", (R, N, C), 2 * R * N * C, 1 * (R * N + R * C) + 2 * 2 * N * C),
    ("bias_grad", (R, C), 0, 2 * (R * C + 2 * C)),
    ("head", (R, N, C), 2 * R * N * C, 2 * (R * N + N * C + R * C)),
    ("head_input_grad", (R, N, C), 2 * R * N * C, 2 * (R * C + N * C + R * N)),
    ("head_weight_grad", (R, N, C), 2 * R * N * C, 2 * (R * N + R * C + 2 * N * C)),
    ("gelu", (R, C), 0, 2 * 2 * R * C),
    ("gelu_grad", (R, C), 0, 2 * 3 * R * C),
    ("swiglu", (R, C), 0, 2 * (2 * R * C + R * C)),
    ("swiglu_grad", (R, C), 0, 2 * (R * C + 2 * R * C + 2 * R * C)),
    ("geglu", (R, C), 0, 2 * (2 * R * C + R * C)),
    ("geglu_grad", (R, C), 0, 2 * (R * C + 2 * R * C + 2 * R * C)),
    *((n, (R, C), 0, 2 * 2 * R * C) for n in ("gate_silu", "gate_gelu")),
    *((n, (R, C), 0, 2 * (3 * R * C + 2 * R * C + 2 * R * C)) for n in ("gate_silu_grad", "gate_gelu_grad")),  # two kernels: da, gate, dgate; the two in dx
    ("gate_product", (R, C), 0, 2 * 3 * R * C),
    ("gate_product_grad", (R, C), 0, 2 * 5 * R * C),
    ("relu", (R, C), 0, 2 * 2 * R * C),
    ("relu_grad", (R, C), 0, 2 * 3 * R * C),
    ("squared_relu", (R, C), 0, 2 * 2 * R * C),
    ("squared_relu_grad", (R, C), 0, 2 * 3 * R * C),
    ("qk_norm", (B, S, A, K, D), 0, 2 * (2 * QKV + 2 * D)),
    ("qk_norm_input_grad", (B, S, A, K, D), 0, 2 * (3 * QKV + 2 * D)),
    ("qk_norm_weight_grad", (B, S, A, K, D), 0, 2 * (2 * QKV + 4 * D)),
    ("latent_norm", (R, C, ROPE), 0, 2 * (2 * R * (C + ROPE) + C)),
    ("latent_norm_input_grad", (R, C, ROPE), 0, 2 * (3 * R * (C + ROPE) + C)),
    ("latent_norm_weight_grad", (R, C, ROPE), 0, 2 * (2 * R * C + 2 * C)),
    # q, kv, shared key; packed query, key, value
    *(
        (n, (B, S, A, NOPE, ROPE, V), 0, 2 * (LATENT * (NOPE + ROPE + NOPE + V) + B * S * ROPE + LATENT * (2 * (NOPE + ROPE) + V)))
        for n in ("latent_rotary", "latent_rotary_grad")
    ),
    ("layer_norm", (R, C), 0, 2 * (2 * R * C + 2 * C)),
    ("layer_norm_input_grad", (R, C), 0, 2 * (3 * R * C + C)),
    ("layer_norm_weight_grad", (R, C), 0, 2 * (2 * R * C + 4 * C)),
    ("rms_norm", (R, C), 0, 2 * (2 * R * C + C)),
    ("rms_norm_input_grad", (R, C), 0, 2 * (3 * R * C + C)),
    ("rms_norm_weight_grad", (R, C), 0, 2 * (2 * R * C + 2 * C)),
    ("rotary", (B, S, A, K, D), 0, 2 * 2 * QKV),
    ("rotary_grad", (B, S, A, K, D), 0, 2 * 2 * QKV),
    ("attention", (B, S, A, K, D), 4 * B * A * S * S * D / 2, 2 * (QKV + OUT) + LSE),
    ("attention_grad", (B, S, A, K, D), 2.5 * (4 * B * A * S * S * D / 2), 2 * (OUT + QKV + OUT + QKV) + LSE),
    ("attention_block", (B, S, A, K, D, D, 1), 4 * B * A * S * S * D / 2, 2 * (OUT + B * S * K * 2 * D + 2 * OUT) + 2 * LSE),
    ("attention_block_grad", (B, S, A, K, D, D, 3), 2.5 * (4 * B * A * S * S * D / 2), 2 * (5 * OUT + 2 * B * S * K * 2 * D) + LSE),
    ("kv_slice", (B, S, A, K, D, D), 0, 2 * 2 * B * S * K * 2 * D),
    ("kv_slice_grad", (B, S, A, K, D, D), 0, 2 * 3 * B * S * K * 2 * D),
    ("split_rows", (R, C, 4), 0, 0),  # read and written in place by the kernels beside it
    ("join_rows", (R, C, 4), 0, 0),
    ("columns_to_blocks", (R, C, 7), 0, 2 * 2 * R * C),
    ("blocks_to_columns", (R, C, 7), 0, 2 * 2 * R * C),
    ("blocks_to_sequence", (B, S, C, 4), 0, 2 * 2 * B * 4 * S * C),
    ("sequence_to_blocks", (B, S, C, 4), 0, 2 * 2 * B * 4 * S * C),
    ("attention_scores", (B, S, A, K, D), 2 * PAIRS * D, 2 * (B * S * (A + K) * D + PAIRS)),
    ("attention_scores_grad", (B, S, A, K, D), 3 * 2 * PAIRS * D, 2 * (2 * PAIRS + OUT + 2 * QKV)),
    ("attention_context", (B, S, A, K, D), 2 * PAIRS * D, 2 * (OUT + B * S * K * D + PAIRS)),
    ("attention_context_grad", (B, S, A, K, D), 2 * PAIRS * D, 2 * (OUT + B * S * K * D + PAIRS)),
    ("causal_softmax", (R, C), 0, 2 * 1.5 * R * C),
    ("causal_softmax_grad", (R, C), 0, 2 * 2 * R * C),
    ("route", (R, 8, 2, 0), 0, 2 * R * (8 + 2) + 4 * R * 2),
    ("route_grad", (R, 8, 2, 0), 0, 2 * R * (2 * 8 + 2) + 4 * R * 2),
    ("permute", (2 * R, C, R), 0, 2 * (2 * R + R) * C),  # a token read once, two copies written
    ("permute_grad", (2 * R, C, R), 0, 2 * (2 * R + R) * C),
    ("group", (R, C), 0, 2 * 2 * R * C),
    ("ungroup", (R, C), 0, 2 * 2 * R * C),
    ("grouped_linear", (R, N, C, 8), 2 * R * N * C, 2 * (R * N + 8 * N * C + R * C)),
    ("grouped_linear_input_grad", (R, N, C, 8), 2 * R * N * C, 2 * (R * N + 8 * N * C + R * C)),
    ("grouped_linear_weight_grad", (R, N, C, 8), 2 * R * N * C, 2 * (R * N + 2 * 8 * N * C + R * C)),
    ("combine", (2 * R, C, R), 0, 2 * (2 * R + R) * C),
    ("combine_grad", (2 * R, C, R), 0, 2 * (2 * 2 * R + R) * C),  # x and dx per copy, dy per token
    ("dropout", (C,), 0, (2 + 2 + 1) * C),
    ("dropout_grad", (C,), 0, (2 + 1 + 2) * C),
    ("dropout_add", (R, C), 0, 2 * (3 * R * C + C) + R * C),
    ("embedding", (R, C), 0, 4 * R + 2 * 3 * R * C),
    ("embedding_weight_grad", (R, C), 0, 4 * R + 2 * (R * C + 2 * 2 * R * C)),
    ("cross_entropy_stats", (R, C), 0, 2 * R * C + 4 * R + 12 * R),
    ("cross_entropy", (R, 8, 8.0), 0, 12 * R * 8 + 4),
    ("cross_entropy_grad", (R, C, 8.0), 0, 2 * 2 * R * C + 4 * R + 12 * R),
    ("convert", (C,), 0, (2 + 4) * C),
    ("log_softmax", (R, C), 0, 2 * 2 * R * C),
    ("likelihood_grad", (R, C, 8.0), 0, 2 * R * C),
    ("log_softmax_grad", (R, C, 8.0), 0, 2 * 3 * R * C),
    ("vocabulary_softmax", (R, C), 0, 2 * (2 + 2 + 1 + 2) * R * C),  # shift, exponential, sum, quotient
    ("vocabulary_softmax_grad", (R, C, 8.0), 0, 2 * 2 * R * C),
    ("mean_squared_error", (R, C, 8.0), 0, 2 * 3 * R * C),
    ("residual_add", (R, C), 0, 2 * (3 * R * C + C)),
    ("zero", (C,), 0, 2 * C),
    ("accumulate", (C,), 0, 3 * 2 * C),
    ("squared_norm", (C,), 0, 2 * C),
    ("column_slice", (R, C), 0, 2 * 2 * R * C),
    ("flat_slice", (C,), 0, 2 * 2 * C),
    ("list_slices", (8,), 0, 0),
    ("copy_slices", (C, 8), 0, 2 * 2 * C),
    ("adam", (C,), 0, (4 * 4 + 3 * 4 + 2) * C),
    ("host_adam", (C,), 0, (4 * 4 + 3 * 4 + 2) * C),
    ("copy_to_host", (C,), 0, 2 * C),
    ("copy_from_host", (C,), 0, 2 * C),
]


def test_every_kernel_has_a_price() -> None:
    assert set(PRICES) == set(KERNELS) == {case[0] for case in CASES}


@pytest.mark.parametrize(("name", "dims", "work", "traffic"), CASES, ids=[case[0] for case in CASES])
def test_flops_and_bytes(name: str, dims: tuple[int | float, ...], work: float, traffic: float) -> None:
    k = kernel(name, dims, "fp8" if name.startswith("scaled") else "bf16")
    assert flops(k) == work
    assert bytes_moved(k) == traffic


def test_values_of_their_own_width() -> None:
    """d wide queries and keys, e wide values: q k^T is d, p v is e; backward q k^T again, ds k, ds^T q are d, do v^T and p^T do are e."""
    d, e = NOPE + ROPE, V
    qkv, out = B * S * A * (2 * d + e), B * S * A * e
    forward, backward = (kernel(n, (B, S, A, A, d, e)) for n in ("attention", "attention_grad"))
    assert (flops(forward), flops(backward)) == (PAIRS * (d + e), PAIRS * (3 * d + 2 * e))
    assert (bytes_moved(forward), bytes_moved(backward)) == (2 * (qkv + out) + LSE, 2 * 2 * (qkv + out) + LSE)
    assert flops(kernel("attention_context", (B, S, A, A, d, e))) == 2 * PAIRS * e


def test_norms_without_weights() -> None:
    assert bytes_moved(kernel("layer_norm", (R, C), absent=("w", "b"))) == 2 * 2 * R * C
    assert bytes_moved(kernel("layer_norm_weight_grad", (R, C), absent=("gb",))) == 2 * (2 * R * C + 2 * C)


@pytest.mark.parametrize(("name", "dims", "work", "traffic"), CASES, ids=[case[0] for case in CASES])
def test_nothing_to_do_takes_no_time(name: str, dims: tuple[int | float, ...], work: float, traffic: float) -> None:
    for empty in (0, -3):
        assert 0 <= seconds(kernel(name, tuple(empty for _ in dims)), Machine(), datasheet()) < 1e-11


@pytest.mark.parametrize(
    ("name", "dims", "absent", "traffic"),
    [
        ("linear", (R, N, C), ("b",), 2 * (R * N + N * C + R * C)),
        ("embedding", (R, C), ("p",), 4 * R + 2 * 2 * R * C),
        ("embedding_weight_grad", (R, C), ("gp",), 4 * R + 2 * 3 * R * C),
        ("residual_add", (R, C), ("bias",), 2 * 3 * R * C),
        ("adam", (C,), ("low",), 7 * 4 * C),
    ],
)
def test_absent_operands_move_nothing(name: str, dims: tuple[int, ...], absent: tuple[str, ...], traffic: float) -> None:
    assert bytes_moved(kernel(name, dims, absent=absent)) == traffic


def test_a_fresh_weight_gradient_is_not_read() -> None:
    fresh = Kernel("linear_weight_grad", (Ref("x", 0), Ref("dy", 0)), (Ref("gw", 0),), (R, N, C), "bf16")
    assert bytes_moved(fresh) == 2 * (R * N + R * C + N * C)


def test_width_follows_the_dtype() -> None:
    assert bytes_moved(kernel("gelu", (R, C), "fp32")) == 2 * bytes_moved(kernel("gelu", (R, C), "bf16"))
    assert bytes_moved(kernel("adam", (C,), "fp64", absent=("low",))) == 7 * 8 * C


NUMBERS = {
    "compute.matmul_efficiency": 0.5,
    "compute.attention_efficiency": 0.25,
    "compute.memory_efficiency": 0.8,
    "compute.kernel_launch": 5e-6,
}
FITTED = Profile("fitted", numbers={k: Number(v, "1", "test", "assumed") for k, v in NUMBERS.items()})


def test_roofline() -> None:
    big = kernel("linear", (8192, 8192, 8192), absent=("b",))  # 1.1e12 FLOPs against 4e8 bytes: bound by compute
    assert seconds(big, Machine(), datasheet()) == pytest.approx(2 * 8192**3 / 1e15, rel=1e-12)
    assert seconds(big, Machine(), FITTED) == pytest.approx(2 * 8192**3 / 0.5e15 + 5e-6, rel=1e-12)
    thin = kernel("linear", (1, 8192, 8192), absent=("b",))  # a vector: bound by the weight's bytes
    assert seconds(thin, Machine(), FITTED) == pytest.approx(2 * (8192 + 8192**2 + 8192) / 0.8e12 + 5e-6, rel=1e-12)
    core = kernel("attention", (1, 8192, 32, 32, 128))
    assert seconds(core, Machine(), FITTED) == pytest.approx(2 * 32 * 8192**2 * 128 / 0.25e15 + 5e-6, rel=1e-12)
    assert seconds(kernel("gelu", (R, C)), Machine(), FITTED) == pytest.approx(4 * R * C / 0.8e12 + 5e-6, rel=1e-12)


def test_slices_are_launched_one_by_one() -> None:
    """FITTED launches in 5 us: 8 slices take 40 us on the host, and as much besides their bytes on the device."""
    assert seconds(kernel("list_slices", (8,)), Machine(), FITTED) == pytest.approx(8 * 5e-6, rel=1e-12)
    assert seconds(kernel("copy_slices", (10**6, 8)), Machine(), FITTED) == pytest.approx(4e6 / 0.8e12 + 8 * 5e-6, rel=1e-12)


def test_attention_without_a_number_of_its_own_runs_at_the_efficiency_of_products() -> None:
    """b a s^2 (d + e) FLOPs at half of 1 PFLOP/s."""
    half = Profile("half", numbers={"compute.matmul_efficiency": Number(0.5, "1", "test", "assumed")})
    assert seconds(kernel("attention", (1, 8192, 32, 32, 128)), Machine(), half) == pytest.approx(2 * 32 * 8192**2 * 128 / 0.5e15, rel=1e-12)


@pytest.mark.parametrize(
    ("name", "copies"),
    [("permute", 1), ("permute_grad", 1), ("combine", 1), ("combine_grad", 2)],  # of 8 t rows, beside the t tokens
)
def test_copies_that_are_sorted_apart_move_more_often(name: str, copies: int) -> None:
    """3 passes over w c ((copies + 4) r + t): 4 more copies of every row, as each of permute, unpermute and their gradients in MaxText's moe.py."""
    numbers = {"compute.sort_passes": 4.0, "compute.memory_passes": 3.0}
    sorting = Profile("sorting", numbers={k: Number(v, "1", "test", "assumed") for k, v in numbers.items()})
    tokens, rows = R, 8 * R
    expected = 3 * 2 * C * ((copies + 4) * rows + tokens) / 1e12
    assert seconds(kernel(name, (rows, C, tokens)), Machine(), sorting) == pytest.approx(expected, rel=1e-12)


def test_delay_takes_its_seconds() -> None:
    assert seconds(kernel("delay", (0.125,)), Machine(), FITTED) == 0.125


def test_a_load_table_name_cannot_be_priced() -> None:
    with pytest.raises(InvalidProgram, match="resolve it from the load table"):
        seconds(kernel("gelu", ("expert_rows", C)), Machine(), datasheet())


class Systolic(Machine):
    """1 PFLOP/s on arrays of 256 x 256; neither tiles nor memory count."""

    memory_bandwidth = Number(1e18, "B/s", "so much that it does not count", "assumed")
    multiprocessors = None  # type: ignore[assignment]
    matrix_unit = Number(256.0, "1", "round number", "assumed")


@pytest.mark.parametrize(
    ("name", "dims", "part"),
    [
        ("linear", (4096, 512, 1024), 1.0),
        ("linear", (4096, 2880, 2880), (2880 / 3072) ** 2),  # 2880 = 11.25 x 256: twelve passes, both ways
        ("linear_weight_grad", (4096, 512, 64), 64 / 256),  # the result is 512 x 64
        ("attention", (1, 4096, 8, 8, 64), 64 / 256),
        ("attention", (1, 4096, 8, 8, 256), 1.0),
    ],
)
def test_narrow_products_fill_a_part_of_a_systolic_array(name: str, dims: tuple[int, ...], part: float) -> None:
    """Seconds at the peak over seconds on the arrays = the part of their sides that is filled."""
    one = kernel(name, dims)
    assert flops(one) / 1e15 / seconds(one, Systolic(), datasheet()) == pytest.approx(part, rel=1e-12)
