"""A small Qwen3 that has learnt the demo's tasks, for `make own-model`: a checkpoint as a user would bring one.

python tests/corpus/own_model.py DIRECTORY    # in the model environment; about a minute on one core
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from llm_pipeline.base.logging import write_readable_lines
from llm_pipeline.demo import train
from llm_pipeline.demo.train import BOS, EOS, PAD, train_tokenizer


def main(directory: Path) -> None:
    """Train, unless the directory is there."""
    if directory.exists():
        return
    write_readable_lines()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    tokenizer = train_tokenizer()
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=len(tokenizer), hidden_size=128, intermediate_size=384, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, head_dim=32, max_position_embeddings=128, bos_token_id=BOS,
            eos_token_id=EOS, pad_token_id=PAD, tie_word_embeddings=False,
        )
    )  # fmt: skip
    train.fit(model, tokenizer)
    model.to(torch.float16)
    partial = directory.with_name(f"{directory.name}.partial")
    model.save_pretrained(partial)
    tokenizer.save_pretrained(partial)
    partial.rename(directory)


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
