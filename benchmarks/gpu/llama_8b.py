"""A checkpoint with the shapes of Llama-3-8B and random weights, whose tokens are words.

Speed does not depend on what the weights say; nothing is downloaded.
"""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

LITTLE = 1e-4
SPECIAL = ("<s>", "</s>", "<pad>", "<unk>")
COMMON = {
    "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2, "tie_word_embeddings": False, "dtype": torch.bfloat16,
}  # fmt: skip
"""Of every config here; token ids are places in `SPECIAL`."""

LLAMA_3_8B = {
    "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "vocab_size": 128_256,
}  # fmt: skip
"""config.json of meta-llama/Meta-Llama-3-8B: 8.03 billion parameters."""
LLAMA_3_1B = LLAMA_3_8B | {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16}
"""The layers of meta-llama/Llama-3.2-1B, with heads of 64, and a head of its own: 1.5 billion parameters."""
SMOKE = {
    "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 4096,
}  # fmt: skip
"""Small enough for a CPU: to try a benchmark, not to measure anything."""


def write_checkpoint(directory: Path, shape: dict[str, int], seed: int = 0) -> int:
    """Write config, bfloat16 weights in shards and a tokenizer; returns the number of parameters."""
    config = LlamaConfig(
        **shape,
        **COMMON,
        max_position_embeddings=8192,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 500_000.0},
    )
    return write_random(LlamaForCausalLM, config, directory, seed)


def write_random(kind: type[PreTrainedModel], config: PreTrainedConfig, directory: Path, seed: int) -> int:
    """Write a model of random weights whose likeliest next token is the last one, by a wide margin.

    The next token of random weights is a near tie that each kernel and each rounding breaks otherwise, so nothing that
    compares answers could pass. Here the layers add little to the last token's embedding, which is also its row of the
    head.
    """
    torch.manual_seed(seed)
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
            model = kind(config)
    finally:
        torch.set_default_dtype(torch.float32)
    with torch.no_grad():
        model.lm_head.weight.copy_(model.model.embed_tokens.weight)
        for name, weight in model.named_parameters():
            if "o_proj" in name or "down_proj" in name:
                weight.mul_(LITTLE)
    model.generation_config = GenerationConfig(bos_token_id=0, eos_token_id=1, pad_token_id=2)
    model.save_pretrained(directory, max_shard_size="4GB")
    word_tokenizer(config.vocab_size).save_pretrained(directory)
    return sum(parameter.numel() for parameter in model.parameters())


def word_tokenizer(vocabulary_size: int) -> PreTrainedTokenizerFast:
    """A tokenizer of whole words, with the begin token before every text.

    Random weights write any token, and an answer must have text: a checkpoint has a word for each.
    """
    words = (f"w{number}" for number in range(vocabulary_size - len(SPECIAL)))
    vocabulary = {token: number for number, token in enumerate((*SPECIAL, *words))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))  # noqa: S106 - a word, not a secret
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 0)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",  # noqa: S106
        eos_token="</s>",  # noqa: S106
        pad_token="<pad>",  # noqa: S106
        unk_token="<unk>",  # noqa: S106
        model_max_length=8192,
    )
