"""The closed list of kernels: name -> dims, reads, writes, meaning.

`cost` prices every name here, `executor` implements every name here in torch; a test keeps the three lists equal. Every kernel is a pure
function of named buffers: no autograd graph outlives an op. Rows are tokens (sequence x micro-batch) of the rank, matrices are (rows, columns).
A kernel whose written buffer is also read accumulates into it.
"""

from __future__ import annotations

from typing import NamedTuple


class KernelSpec(NamedTuple):
    """`dims`, `reads` and `writes` name the positional entries of a Kernel; a trailing `?` marks an optional one, `*` any number."""

    dims: tuple[str, ...]
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    meaning: str


def _spec(dims: str, reads: str, writes: str, meaning: str) -> KernelSpec:
    return KernelSpec(tuple(dims.split()), tuple(reads.split()), tuple(writes.split()), meaning)


CORE = "batch sequence heads kv_heads head_dim value_dim?"
KERNELS: dict[str, KernelSpec] = {
    # data and studies
    "sample": _spec("rows width", "", "x", "draw one microbatch; role input or target; width is the vocabulary when x holds integers"),
    "delay": _spec("seconds", "any*", "any*", "takes the given seconds; written values carry no meaning"),
    # linear algebra; linear has y = x w (+ b), x (rows, inner), w (inner, columns); `weights` of them side by side (1 unless said) are one product
    "linear": _spec("rows inner columns weights?", "x w* b*", "y", "y = x w (+ b)"),
    "linear_input_grad": _spec("rows inner columns weights?", "dy w*", "dx", "dx = dy w^T"),
    "linear_weight_grad": _spec("rows inner columns weights?", "x dy gw*", "gw*", "gw (+)= x^T dy"),
    # the rows of the other ranks of tp, `rows` of them, beside those that this one has multiplied already; x, dy, y and dx hold those of all
    "linear_others": _spec("rows inner columns weights?", "x y_own w* b*", "y", "y = x w (+ b), this rank's rows from y_own"),
    "linear_input_grad_others": _spec("rows inner columns weights?", "dy dx_own w*", "dx", "dx = dy w^T, this rank's rows from dx_own"),
    "bias_grad": _spec("rows columns", "dy gb*", "gb*", "gb (+)= column sums of dy"),
    # the same on scaled copies: what is multiplied is operand x scale
    "cast": _spec(
        "elements",
        "x",
        "y scale",
        "y = x / scale in the dtype of y; scale (1,) = max |x| / the largest fp8 number, 1 if wider; n of them: one per 1/n of the rows",
    ),
    "scaled_linear": _spec(
        "rows inner columns weights?", "x x_scale w w_scale b*", "y", "as linear; further weights, each with its scale, stand before the biases"
    ),
    "scaled_linear_input_grad": _spec(
        "rows inner columns weights?", "dy dy_scale w w_scale more*", "dx", "as linear_input_grad; further weights with their scales"
    ),
    "scaled_linear_weight_grad": _spec("rows inner columns weights?", "x x_scale dy dy_scale gw*", "gw*", "as linear_weight_grad"),
    # a language-model head whose weight is stored (columns, inner), like the embedding it may be tied to
    "head": _spec("rows inner columns", "x w", "y", "y = x w^T"),
    "head_input_grad": _spec("rows inner columns", "dy w", "dx", "dx = dy w"),
    "head_weight_grad": _spec("rows inner columns", "x dy gw?", "gw", "gw (+)= dy^T x"),
    # activations
    "gelu": _spec("rows columns", "x", "y", "tanh-approximated GELU"),
    "gelu_grad": _spec("rows columns", "dy x", "dx", "derivative of gelu at x"),
    "swiglu": _spec("rows columns", "x", "y", "x (rows, 2 columns) interleaves (gate, up); y = silu(gate) up"),
    "swiglu_grad": _spec("rows columns", "dy x", "dx", "derivative of swiglu at x"),
    "geglu": _spec("rows columns", "x", "y", "as swiglu, with the tanh-approximated GELU: y = gelu(gate) up"),
    "geglu_grad": _spec("rows columns", "dy x", "dx", "derivative of geglu at x"),
    "relu": _spec("rows columns", "x", "y", "max(x, 0)"),
    "relu_grad": _spec("rows columns", "dy x", "dx", "derivative of relu at x"),
    "squared_relu": _spec("rows columns", "x", "y", "max(x, 0)^2"),
    "squared_relu_grad": _spec("rows columns", "dy x", "dx", "derivative of squared_relu at x"),
    # the same in two kernels: the gate's activation, then the product; x, as above, holds gate and up
    "gate_silu": _spec("rows columns", "x", "a", "a = silu(gate)"),
    "gate_silu_grad": _spec("rows columns", "da dup x", "dx", "derivative of gate_silu at x, beside the gradient of up"),
    "gate_gelu": _spec("rows columns", "x", "a", "a = gelu(gate), tanh-approximated"),
    "gate_gelu_grad": _spec("rows columns", "da dup x", "dx", "derivative of gate_gelu at x, beside the gradient of up"),
    "gate_product": _spec("rows columns", "a x", "y", "y = a up"),
    "gate_product_grad": _spec("rows columns", "dy a x", "da dup", "da = dy up, dup = dy a"),
    # normalisation over the columns
    "layer_norm": _spec("rows columns", "x w? b?", "y", "layer norm, eps 1e-5"),
    "layer_norm_input_grad": _spec("rows columns", "dy x w?", "dx", "statistics are recomputed from x"),
    "layer_norm_weight_grad": _spec("rows columns", "dy x gw? gb?", "gw gb?", "gw (+)= sum dy xhat, gb (+)= sum dy"),
    "rms_norm": _spec("rows columns", "x w", "y", "RMS norm, eps 1e-5"),
    "rms_norm_input_grad": _spec("rows columns", "dy x w", "dx", "statistics are recomputed from x"),
    "rms_norm_weight_grad": _spec("rows columns", "dy x gw?", "gw", "gw (+)= sum dy xhat"),
    # attention; qkv packs, per key-value head, its query heads, its key and its value: (rows, (heads + 2 kv_heads) head_dim), or, where values
    # have a width of their own, (rows, (heads + kv_heads) head_dim + kv_heads value_dim). Role alibi: scores have ALiBi's linear biases
    "qk_norm": _spec(
        "batch sequence heads kv_heads head_dim", "qkv wq wk", "qkv_normed", "RMS norms on queries and keys, each over a head or over all, as wide as wq"
    ),
    "qk_norm_input_grad": _spec("batch sequence heads kv_heads head_dim", "dqkv_normed qkv wq wk", "dqkv", "statistics are recomputed from qkv"),
    "qk_norm_weight_grad": _spec("batch sequence heads kv_heads head_dim", "dqkv_normed qkv gwq? gwk?", "gwq gwk", "gw (+)= sum dy xhat"),
    "rotary": _spec("batch sequence heads kv_heads head_dim", "qkv", "qkv_rotated", "rotary embedding of queries and keys, base 10000"),
    "rotary_grad": _spec("batch sequence heads kv_heads head_dim", "dqkv_rotated", "dqkv", "the inverse rotation"),
    "attention": _spec(CORE, "qkv", "o lse", "causal softmax attention, tiled; lse (heads, rows) fp32"),
    "attention_grad": _spec(CORE, "do qkv o lse", "dqkv", "tiled backward; scores are recomputed"),
    # attention over a part of the keys: kv (rows, kv_heads (head_dim + value_dim)) are those of the rank `shift` places before along cp
    "kv_slice": _spec(CORE, "qkv", "kv", "the keys and values of qkv, a copy"),
    "kv_slice_grad": _spec(CORE, "dkv dqkv", "dqkv", "dkv added to the keys' and values' columns of dqkv"),
    "attention_block": _spec(f"{CORE} shift", "qkv kv o lse", "o lse", "o and lse with these keys and values too, those not later than a query"),
    "attention_block_grad": _spec(f"{CORE} shift", "do qkv kv o lse dqkv", "dqkv dkv", "dqkv with the queries' part added; lse and o are of all keys"),
    # heads against tokens: blocks lie below each other, one for each of `parts` ranks
    "columns_to_blocks": _spec("rows columns parts", "x", "y", "(rows, columns) -> (parts rows, columns / parts)"),
    "blocks_to_columns": _spec("rows columns parts", "x", "y", "the inverse"),
    "blocks_to_sequence": _spec("batch sequence columns parts", "x", "y", "rows (parts, batch, sequence) -> (batch, parts, sequence)"),
    "sequence_to_blocks": _spec("batch sequence columns parts", "x", "y", "the inverse"),
    # rows in parts, as a kernel finds them that reads and writes the parts in place
    "split_rows": _spec("rows columns parts", "x", "y*", "the parts of x, one after the other"),
    "join_rows": _spec("rows columns parts", "x*", "y", "the parts below each other"),
    # latent attention (DeepSeek-V2): x holds compressed keys and values and, in its last columns, the rotary key that all heads share
    "latent_norm": _spec("rows columns rope_dim", "x w", "y r", "y = RMS norm of the first columns of x, r the others as they are"),
    "latent_norm_input_grad": _spec("rows columns rope_dim", "dy dr x w", "dx", "statistics are recomputed from x"),
    "latent_norm_weight_grad": _spec("rows columns rope_dim", "dy x gw?", "gw", "gw (+)= sum dy xhat"),
    "latent_rotary": _spec(
        "batch sequence heads nope_dim rope_dim value_dim", "q kv r", "qkv", "q (heads (nope + rope)), kv (heads (nope + value)) and r, rotated and packed"
    ),
    "latent_rotary_grad": _spec("batch sequence heads nope_dim rope_dim value_dim", "dqkv", "dr dq dkv", "the inverse; dr is a sum over heads"),
    # the same unfused; scores are (heads, rows, sequence), of every query against every key of its sequence
    "attention_scores": _spec(CORE, "qkv", "scores", "q k^T / sqrt(head_dim)"),
    "attention_scores_grad": _spec(CORE, "dscores do p qkv", "dqkv", "p as the values were weighed with"),
    "attention_context": _spec(CORE, "p qkv", "o", "p v"),
    "attention_context_grad": _spec(CORE, "do qkv", "dp", "dp = do v^T"),
    "causal_softmax": _spec("rows columns", "scores", "p", "softmax over the keys up to the query's position, zero after"),
    "causal_softmax_grad": _spec("rows columns", "dp p", "dscores", "p (dp - sum p dp)"),
    # mixture of experts; chosen (rows, topk) names experts, their number where an assignment is dropped; counts are rows per expert, the last
    # dimension the experts of this rank. The rows of all experts lie in one buffer: by expert, or where they have just arrived by source first
    "route": _spec("rows experts topk capacity", "logits", "weights chosen counts", "the topk best scores (role softmax or sigmoid), divided by their sum"),
    "route_grad": _spec("rows experts topk capacity", "dweights logits chosen", "dlogits", "derivative of the weights; what is chosen is constant"),
    "permute": _spec("rows columns tokens", "x chosen counts", "y", "a copy of each token's row for every expert it is sent to, by expert"),
    "permute_grad": _spec("rows columns tokens", "dy chosen counts", "dx", "dx = sum of a token's copies"),
    "group": _spec("rows columns", "x counts", "y", "rows by source and expert -> by expert and source; counts (sources, experts)"),
    "ungroup": _spec("rows columns", "x counts", "y", "the inverse of group"),
    "grouped_linear": _spec("rows inner columns experts", "x w counts", "y", "linear with a weight (experts, inner, columns) per expert"),
    "grouped_linear_input_grad": _spec("rows inner columns experts", "dy w counts", "dx", "as linear_input_grad"),
    "grouped_linear_weight_grad": _spec("rows inner columns experts", "x dy counts gw?", "gw", "as linear_weight_grad"),
    "combine": _spec("rows columns tokens", "x weights chosen", "y", "y = weighted sum of what a token's experts made; x as permute wrote it"),
    "combine_grad": _spec("rows columns tokens", "dy x weights chosen", "dx dweights", "dx = weight dy, dweights = <dy, x>"),
    # dropout; the mask, a byte per element, is drawn from the buffer's name, the step and the microbatch: drawn again it is the same
    "dropout": _spec("elements", "x", "y mask", "y = x mask / (1 - rate)"),
    "dropout_grad": _spec("elements", "dy mask", "dx", "dx = dy mask / (1 - rate)"),
    "dropout_add": _spec("rows columns", "a b bias?", "c mask", "c = a + dropout(b (+ bias))"),
    # embedding and loss; the vocabulary may be cut along the rank's tp coordinate
    "embedding": _spec("rows columns", "tokens w p?", "x", "rows of w, zero for tokens of other ranks' shards, plus positions p on shard 0"),
    "embedding_weight_grad": _spec("rows columns", "tokens dx gw? gp?", "gw gp?", "scatter-add of dx"),
    "cross_entropy_stats": _spec(
        "rows columns vocabulary?",
        "logits labels",
        "stats",
        "per row: max, sum exp, logit of the label, fp32 (1, rows, 3); columns from `vocabulary` on are padding",
    ),
    "cross_entropy": _spec("rows columns scale", "stats", "loss", "loss (1,) = sum over rows / scale, from the stats of all shards (n, rows, 3)"),
    "cross_entropy_grad": _spec("rows columns scale vocabulary?", "logits labels stats", "dlogits", "(softmax - one-hot) / scale, 0 in padding"),
    # the same in fp32 with a result as large as the logits kept; stats are those of all shards
    "convert": _spec("elements", "x", "y", "y = x in the dtype of y; the run's precision and fp32"),
    "log_softmax": _spec("rows columns vocabulary?", "logits stats", "l", "l = log of the softmax, the lowest number there is in padding"),
    "likelihood_grad": _spec("rows columns scale", "labels", "dl", "- one-hot / scale"),
    "log_softmax_grad": _spec("rows columns scale", "dl l", "dlogits", "dl + exp(l) / scale: a row of dl sums to - 1 / scale"),
    "vocabulary_softmax": _spec(
        "rows columns vocabulary?", "logits stats", "p", "p = softmax, 0 in padding; the shift, the exponential, its sum and the quotient one by one"
    ),
    "vocabulary_softmax_grad": _spec("rows columns scale", "labels p", "dlogits", "(p - one-hot) / scale, in the place of p"),
    "mean_squared_error": _spec("rows columns scale", "y target", "loss dy", "loss (1,) = sum (y - target)^2 / scale, and its derivative"),
    # elementwise
    "residual_add": _spec("rows columns", "a b bias?", "c", "c = a + b (+ bias)"),
    "column_slice": _spec("rows columns", "x", "y", "this rank's columns of an x that every rank holds whole, a copy"),
    # optimizer
    "zero": _spec("elements", "", "g*", "fill with zeros"),
    "accumulate": _spec("elements", "total part", "total", "total += part"),
    "squared_norm": _spec("elements", "n? g*", "n", "n (1,) (+)= sum of squares of all g"),
    "list_slices": _spec("slices", "", "", "the host makes a list of so many slices of a buffer, one after the other, and launches nothing else"),
    "copy_slices": _spec("elements slices", "x", "y", "y = x, each of `slices` equal parts by a copy of its own, as torch moves the lists of its collectives"),
    "flat_slice": _spec("elements", "p*", "shard", "this rank's flat shard of the padded concatenation of p"),
    "adam": _spec(
        "elements", "p g m v", "p m v low?", "Adam with bias correction on fp32 (or the run's) state; low is the rounded copy of p; role: see pricing"
    ),
    # the host: its memory, and its link to the device
    "copy_to_host": _spec("elements", "x", "y", "y, in the memory of the host, = x"),
    "copy_from_host": _spec("elements", "x", "y", "y = x, in the memory of the host"),
    "host_adam": _spec("elements", "p g m v", "p m v low?", "adam on the CPU of the host, all of it in the host's memory"),
}
