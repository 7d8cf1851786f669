"""Mixtures of experts, windows, latents and states, in memory and in speed."""

from __future__ import annotations

from typing import Any

from judging import gpu_target, recipe
from published import config_of, facts_of

from llm_pipeline.config.target import Parallelism
from llm_pipeline.model_facts.layout import caches
from llm_pipeline.model_facts.words import ConfigWords
from llm_pipeline.planning.memory import (
    rank_kv_bytes_per_token,
    rank_weight_bytes,
)
from llm_pipeline.planning.target_plan import judge_memory

PLAIN = recipe("none")


def test_a_latent_is_held_whole_by_every_rank():
    deepseek, llama = facts_of("DeepSeek-V3"), facts_of("Llama-3.1-70B")
    assert rank_kv_bytes_per_token(deepseek, Parallelism(tensor=8), 2) == 70_272
    assert rank_kv_bytes_per_token(llama, Parallelism(tensor=8), 2) == 327_680 // 8


def test_the_fullest_stage_of_a_pipeline_is_one_without_the_dense_layers():
    deepseek = facts_of("DeepSeek-V3").model_copy(update={"stored_format": ""})
    halves = rank_weight_bytes(deepseek, PLAIN, Parallelism(pipeline=2))
    assert halves > 2 * deepseek.parameters / 2


def test_experts_that_cannot_be_spread_are_refused():
    spread = gpu_target("H200-SXM-141GB", parallelism={"tensor": 8, "expert": 3}, accelerator_count=8)
    _, refused = judge_memory(spread, PLAIN, facts_of("Mixtral-8x7B"))
    assert refused is not None
    assert refused.reason == "8 experts cannot be spread over expert parallelism 3"
    assert refused.nearest == "parallelism.expert: 2"


NEMOTRON: dict[str, Any] = {
    "model_type": "nemotron_h", "num_hidden_layers": 6, "hybrid_override_pattern": "M-M*M-", "hidden_size": 8192,
    "num_attention_heads": 64, "num_key_value_heads": 8, "attention_head_dim": 128, "mamba_num_heads": 256,
    "mamba_head_dim": 64, "ssm_state_size": 256, "n_groups": 8, "conv_kernel": 4,
}  # fmt: skip
"""The numbers of nvidia/Nemotron-H-56B-Base-8K, of six layers."""

QWEN_NEXT: dict[str, Any] = {
    "model_type": "qwen3_next", "num_hidden_layers": 8, "full_attention_interval": 4, "hidden_size": 2048,
    "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256, "linear_num_key_heads": 16,
    "linear_key_head_dim": 128, "linear_num_value_heads": 32, "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
}  # fmt: skip
"""The numbers of Qwen/Qwen3-Next-80B-A3B-Instruct, of eight layers."""


def test_state_space_layers_keep_a_state_and_attention_layers_a_cache():
    found = caches(ConfigWords(NEMOTRON))
    assert {group.layers: group.elements * group.heads for group in found} == {
        (0, 2, 4): 0, (1, 5): 0, (3,): 2 * 8 * 128,
    }  # fmt: skip
    state = 256 * 64 * 256 + (256 * 64 + 2 * 8 * 256) * 4
    assert [group.state_bytes for group in found] == [4 * state, 0, 0]


def test_linear_attention_keeps_a_matrix_a_head():
    linear, attention = caches(ConfigWords(QWEN_NEXT))
    assert (linear.layers, attention.layers) == ((0, 1, 2, 4, 5, 6), (3, 7))
    assert attention.heads * attention.elements == 2 * 2 * 256
    assert linear.state_bytes == 4 * (32 * 128 * 128 + (2 * 16 * 128 + 32 * 128) * 4)


def test_what_a_sequence_keeps_may_be_stated_by_hand():
    sizes = {"kv_bytes_per_token": 4_000, "state_bytes_per_sequence": 9_000}
    (group,) = caches(ConfigWords({"model_type": "of_its_own", "num_hidden_layers": 4}, sizes))
    assert (group.elements * group.heads, group.state_bytes) == (500, 2_250)


def test_qwen_with_windows_slides_from_the_layer_that_its_config_names():
    config = config_of("Qwen2.5-7B") | {"use_sliding_window": True, "sliding_window": 4096, "max_window_layers": 20}
    assert {group.window: len(group.layers) for group in caches(ConfigWords(config))} == {None: 20, 4096: 8}
