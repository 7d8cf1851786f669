"""Writes a Llama of random weights, whose tokens are the words `w0` to `w4091`, for a server that has transformers.

python random_llama.py DIRECTORY
"""

import json
import sys
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

SPECIAL = ["<s>", "</s>", "<pad>", "<unk>"]
WORDS = 4092


def main(directory: Path) -> None:
    """Write the model and its tokenizer."""
    torch.manual_seed(20)
    config = LlamaConfig(
        vocab_size=len(SPECIAL) + WORDS, hidden_size=128, intermediate_size=256, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=2048, bos_token_id=0, eos_token_id=1,
        pad_token_id=2, torch_dtype="bfloat16",
    )  # fmt: skip
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(directory)
    vocabulary = {word: number for number, word in enumerate([*SPECIAL, *(f"w{n}" for n in range(WORDS))])}
    added = [
        {"id": number, "content": word, "special": True, "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False}
        for number, word in enumerate(SPECIAL)
    ]  # fmt: skip
    tokenizer = {
        "version": "1.0", "added_tokens": added, "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"},
    }  # fmt: skip
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>",
        "unk_token": "<unk>",
    }  # fmt: skip
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
