"""A mixture of experts with the layers of Qwen3-30B-A3B, 12 of its 48, and random weights, whose tokens are words."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import GenerationConfig, Qwen3MoeConfig, Qwen3MoeForCausalLM

from benchmarks.gpu.llama_8b import LITTLE, SPECIAL, word_tokenizer

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
    """Write config, bfloat16 weights in shards and a tokenizer; returns the number of parameters.

    As in `llama_8b`, the likeliest next token is the last one, by a wide margin.
    """
    torch.manual_seed(seed)
    config = Qwen3MoeConfig(
        **shape,
        norm_topk_prob=True,
        max_position_embeddings=4096,
        bos_token_id=SPECIAL.index("<s>"),
        eos_token_id=SPECIAL.index("</s>"),
        pad_token_id=SPECIAL.index("<pad>"),
        tie_word_embeddings=False,
        dtype=torch.bfloat16,
    )
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
            model = Qwen3MoeForCausalLM(config)
    finally:
        torch.set_default_dtype(torch.float32)
    with torch.no_grad():
        model.lm_head.weight.copy_(model.model.embed_tokens.weight)
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.mul_(LITTLE)
            layer.mlp.experts.down_proj.mul_(LITTLE)
    model.generation_config = GenerationConfig(bos_token_id=0, eos_token_id=1, pad_token_id=2)
    model.save_pretrained(directory, max_shard_size="4GB")
    word_tokenizer(shape["vocab_size"]).save_pretrained(directory)
    return sum(parameter.numel() for parameter in model.parameters())
