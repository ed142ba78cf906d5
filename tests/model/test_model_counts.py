"""Parameters of the catalog against the counts published with the weights, and the sizes that their papers name."""

from __future__ import annotations

import pytest

from parasim.model.catalog import catalog
from parasim.model.layers import active_parameters, layer_parameters, parameters
from parasim.model.spec import Transformer

# the sum over the tensors of the published weights (model.safetensors.index.json or the metadata of the file), huggingface.co
EXACT = {
    "llama2-7b": 6_738_415_616,
    "llama2-13b": 13_015_864_320,
    "llama2-70b": 68_976_648_192,
    "llama3.1-8b": 8_030_261_248,
    "llama3.1-70b": 70_553_706_496,
    "llama3.1-405b": 405_853_388_800,
    "llama3.2-1b": 1_235_814_400,
    "llama3.2-3b": 3_212_749_824,
    "mistral-7b": 7_241_732_096,
    "mixtral-8x7b": 46_702_792_704,
    "mixtral-8x22b": 140_620_634_112,
    "deepseek-llm-7b": 6_910_365_696,
    "deepseek-moe-16b": 16_375_728_128,
    "deepseek-v2-lite": 15_706_484_224,
    "deepseek-v2": 235_741_434_880,
    "deepseek-v3": 671_026_404_352,  # main model; with 58 x 256 correction biases of the router it is 671,026,419,200
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-14b": 14_770_033_664,
    "qwen2.5-32b": 32_763_876_352,
    "qwen2.5-72b": 72_706_203_648,
    "qwen3-8b": 8_190_735_360,
    "qwen3-14b": 14_768_307_200,
    "qwen3-32b": 32_762_123_264,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-235b-a22b": 235_093_634_560,
    "gemma-2b": 2_506_172_416,
    "gemma-7b": 8_537_680_896,
    "gemma2-2b": 2_614_341_888,
    "gemma2-9b": 9_241_705_984,
    "gemma2-27b": 27_227_128_320,
    "olmo-7b": 6_888_095_744,
    "olmo2-13b": 13_716_198_400,
    "yi-34b": 34_388_917_248,
    "phi3-mini": 3_821_079_552,
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "mpt-7b": 6_649_286_656,
    "opt-125m": 125_239_296,
    "dbrx": 131_596_523_520,
}
# (total, active) in billions as the papers print them; tolerance: their rounding
PRINTED = {
    "mixtral-8x7b": (46.7, 12.9),  # arXiv 2401.04088: 47B, 13B; mistral.ai: 46.7B, 12.9B
    "mixtral-8x22b": (141, 39),  # mistral.ai, 17 April 2024
    "deepseek-v2": (236, 21),  # arXiv 2405.04434, abstract
    "deepseek-v3": (671, 37),  # arXiv 2412.19437, abstract
    "deepseek-moe-16b": (16.4, 2.8),  # arXiv 2401.06066, table 3
    "deepseek-v2-lite": (15.7, 2.4),  # arXiv 2405.04434, appendix B; 2.4 leaves out the embedding
    "qwen3-235b-a22b": (235, 22),  # arXiv 2505.09388, table 2
    "qwen3-30b-a3b": (30.5, 3.3),
    "dbrx": (132, 36),
    "deepseek-llm-67b": (67, 67),
    "nemotron4-340b": (340, 340),
    "nemotron4-15b": (15, 15),
    "grok-1": (314, 86),  # xAI prints 86B active
    "gemma3-27b": (27, 27),
    "yi-6b": (6, 6),
    "opt-66b": (66, 66),
    "opt-175b": (175, 175),
    "gpt3-13b": (13, 13),
    "gpt3-6.7b": (6.7, 6.7),
    "megatron-1t": (1008, 1008),  # Narayanan et al. 2021, table 1
    "megatron-530b": (529.6, 529.6),
    "megatron-310b": (310.1, 310.1),
    "megatron-145b": (145.6, 145.6),
    "megatron-76b": (76.1, 76.1),
    "megatron-39b": (39.1, 39.1),
    "megatron-18b": (18.4, 18.4),
    "megatron-7.5b": (7.5, 7.5),
    "megatron-3.6b": (3.6, 3.6),
    "megatron-1.7b": (1.7, 1.7),
}


@pytest.mark.parametrize("name", sorted(EXACT))
def test_exact_counts(name: str) -> None:
    assert parameters(catalog()[name]) == EXACT[name]


@pytest.mark.parametrize("name", sorted(PRINTED))
def test_printed_sizes(name: str) -> None:
    total, active = PRINTED[name]
    model = catalog()[name]
    assert parameters(model) / 1e9 == pytest.approx(total, rel=0.045)
    left_out = 0.205 if name == "deepseek-v2-lite" else 0.0  # 102400 x 2048 of the embedding
    assert active_parameters(model) / 1e9 - left_out == pytest.approx(active, rel=0.045)


def test_layers_with_and_without_experts() -> None:
    m = catalog()["deepseek-v3"]
    assert isinstance(m, Transformer)
    assert [m.sparse(n) for n in range(5)] == [False, False, False, True, True]
    # arXiv 2412.19437, section 4.2, and its equations 1 to 11: q 7168 -> 1536 -> 128 (128 + 64); kv 7168 -> 512 + 64, 512 -> 128 (128 + 128)
    mixing = 7168 * 1536 + 1536 * 128 * 192 + 7168 * 576 + 512 * 128 * 256 + 128 * 128 * 7168 + 1536 + 512 + 2 * 7168
    assert layer_parameters(m, 0) == mixing + 3 * 7168 * 18432
    assert layer_parameters(m, 3) == mixing + 7168 * 256 + 257 * 3 * 7168 * 2048
    assert active_parameters(m) == parameters(m) - 58 * 248 * 3 * 7168 * 2048
