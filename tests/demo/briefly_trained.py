"""Models after a few steps of the demo's training, each made once a session for every test that needs a real one."""

from __future__ import annotations

import functools
from pathlib import Path

import torch

from llm_pipeline.demo.train import BOS, EOS, PAD, fit, train_demo_model, train_tokenizer

STEPS = 60


@functools.cache
def checkpoint(directory: Path) -> Path:
    """The demo's model."""
    train_demo_model(directory / "checkpoint", STEPS)
    return directory / "checkpoint"


@functools.cache
def mixture(directory: Path) -> Path:
    """A mixture of experts, which the demo has not."""
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    torch.manual_seed(0)
    tokenizer = train_tokenizer()
    model = Qwen3MoeForCausalLM(
        Qwen3MoeConfig(
            vocab_size=len(tokenizer), hidden_size=128, moe_intermediate_size=128, num_hidden_layers=2, num_experts=4,
            num_experts_per_tok=2, num_attention_heads=4, num_key_value_heads=2, head_dim=32,
            max_position_embeddings=128, bos_token_id=BOS, eos_token_id=EOS, pad_token_id=PAD,
            tie_word_embeddings=False,
        )
    )  # fmt: skip
    fit(model, tokenizer, STEPS)
    model.to(torch.float16).save_pretrained(directory / "mixture")
    tokenizer.save_pretrained(directory / "mixture")
    return directory / "mixture"
