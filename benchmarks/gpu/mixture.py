"""A mixture of experts with the layers of Qwen3-30B-A3B, 12 of its 48, and random weights, whose tokens are words."""

from __future__ import annotations

from pathlib import Path

from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from benchmarks.gpu.llama_8b import COMMON, write_random

QWEN3_MIXTURE = {
    "hidden_size": 2048, "moe_intermediate_size": 768, "num_hidden_layers": 12, "num_attention_heads": 32,
    "num_key_value_heads": 4, "head_dim": 128, "num_experts": 128, "num_experts_per_tok": 8, "vocab_size": 128_256,
}  # fmt: skip
"""8.0 billion parameters."""
SMOKE = {
    "hidden_size": 128, "moe_intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 32, "num_experts": 8, "num_experts_per_tok": 2, "vocab_size": 4096,
}  # fmt: skip
"""Small enough for a CPU: to try a benchmark, not to measure anything."""


def write_mixture(directory: Path, shape: dict[str, int], seed: int = 0) -> int:
    """Write config, bfloat16 weights in shards and a tokenizer; returns the number of parameters."""
    config = Qwen3MoeConfig(**shape, **COMMON, norm_topk_prob=True, max_position_embeddings=4096)
    return write_random(Qwen3MoeForCausalLM, config, directory, seed)
