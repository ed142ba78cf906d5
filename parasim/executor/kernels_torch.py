"""The table of kernels: every name of `program.kernels.KERNELS` as a torch function (context, kernel, tensors read) -> tensors written."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from ..program.ops import Kernel
from . import kernels_attention as attention
from . import kernels_context as parts
from . import kernels_dense as dense
from . import kernels_experts as experts
from . import kernels_language as language
from . import kernels_latent as latent
from . import kernels_scaled as scaled
from . import kernels_state as state
from .context import Context

Implementation = Callable[[Context, Kernel, tuple[Tensor, ...]], tuple[Tensor, ...]]

IMPLEMENTATIONS: dict[str, Implementation] = {
    "sample": state.sample,
    "delay": state.delay,
    "linear": dense.linear,
    "linear_input_grad": dense.linear_input_grad,
    "linear_weight_grad": dense.linear_weight_grad,
    "cast": scaled.cast,
    "scaled_linear": scaled.scaled_linear,
    "scaled_linear_input_grad": scaled.scaled_linear_input_grad,
    "scaled_linear_weight_grad": scaled.scaled_linear_weight_grad,
    "bias_grad": dense.bias_grad,
    "head": dense.head,
    "head_input_grad": dense.head_input_grad,
    "head_weight_grad": dense.head_weight_grad,
    "gelu": dense.gelu,
    "gelu_grad": dense.gelu_grad,
    "swiglu": dense.swiglu,
    "swiglu_grad": dense.swiglu_grad,
    "geglu": dense.geglu,
    "geglu_grad": dense.geglu_grad,
    "relu": dense.relu,
    "relu_grad": dense.relu_grad,
    "squared_relu": dense.squared_relu,
    "squared_relu_grad": dense.squared_relu_grad,
    "layer_norm": dense.layer_norm,
    "layer_norm_input_grad": dense.layer_norm_input_grad,
    "layer_norm_weight_grad": dense.layer_norm_weight_grad,
    "rms_norm": dense.rms_norm,
    "rms_norm_input_grad": dense.rms_norm_input_grad,
    "rms_norm_weight_grad": dense.rms_norm_weight_grad,
    "rotary": attention.rotary,
    "rotary_grad": attention.rotary_grad,
    "qk_norm": attention.qk_norm,
    "qk_norm_input_grad": attention.qk_norm_input_grad,
    "qk_norm_weight_grad": attention.qk_norm_weight_grad,
    "latent_norm": latent.latent_norm,
    "latent_norm_input_grad": latent.latent_norm_input_grad,
    "latent_norm_weight_grad": latent.latent_norm_weight_grad,
    "latent_rotary": latent.latent_rotary,
    "latent_rotary_grad": latent.latent_rotary_grad,
    "attention": attention.attention,
    "attention_grad": attention.attention_grad,
    "attention_block": parts.attention_block,
    "attention_block_grad": parts.attention_block_grad,
    "kv_slice": parts.kv_slice,
    "kv_slice_grad": parts.kv_slice_grad,
    "columns_to_blocks": parts.columns_to_blocks,
    "blocks_to_columns": parts.blocks_to_columns,
    "blocks_to_sequence": parts.blocks_to_sequence,
    "sequence_to_blocks": parts.sequence_to_blocks,
    "attention_scores": attention.attention_scores,
    "attention_scores_grad": attention.attention_scores_grad,
    "attention_context": attention.attention_context,
    "attention_context_grad": attention.attention_context_grad,
    "causal_softmax": attention.causal_softmax,
    "causal_softmax_grad": attention.causal_softmax_grad,
    "route": experts.route,
    "route_grad": experts.route_grad,
    "permute": experts.permute,
    "permute_grad": experts.permute_grad,
    "group": experts.group,
    "ungroup": experts.ungroup,
    "grouped_linear": experts.grouped_linear,
    "grouped_linear_input_grad": experts.grouped_linear_input_grad,
    "grouped_linear_weight_grad": experts.grouped_linear_weight_grad,
    "combine": experts.combine,
    "combine_grad": experts.combine_grad,
    "dropout": dense.dropout,
    "dropout_grad": dense.dropout_grad,
    "dropout_add": dense.dropout_add,
    "embedding": language.embedding,
    "embedding_weight_grad": language.embedding_weight_grad,
    "cross_entropy_stats": language.cross_entropy_stats,
    "cross_entropy": language.cross_entropy,
    "cross_entropy_grad": language.cross_entropy_grad,
    "mean_squared_error": language.mean_squared_error,
    "residual_add": dense.residual_add,
    "column_slice": dense.column_slice,
    "zero": state.zero,
    "accumulate": state.accumulate,
    "squared_norm": state.squared_norm,
    "flat_slice": state.flat_slice,
    "adam": state.adam,
    "copy_to_host": state.copy,
    "copy_from_host": state.copy,
    "host_adam": state.adam,
}
