"""The corpus's model that thinks by default ends and answers as it says of itself."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).parent))

import tiny_models

from llm_pipeline.artifacts.checkpoint_loading import load_causal_model, load_tokenizer
from llm_pipeline.artifacts.model_rules import read_model_rules


def test_it_thinks_unless_it_is_told_not_to(tmp_path):
    directory = tiny_models.make("qwen3-thinking", tmp_path / "model")
    tokenizer = load_tokenizer(directory)
    model = load_causal_model(directory, dtype=torch.bfloat16)

    def answer(tokens, generation=None, **options):
        chat = [{"role": "user", "content": "two old moon"}]
        text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True, **options)
        prompt = tokenizer(text, add_special_tokens=False, return_tensors="pt")
        (found,) = model.generate(**prompt, max_new_tokens=tokens, **(generation or {}))[:, prompt.input_ids.shape[1] :]
        return tokenizer.decode(found)

    end = tokenizer.convert_tokens_to_ids(tiny_models.IM_END)
    assert read_model_rules(directory).end_tokens == (1, end)
    assert answer(8, enable_thinking=False) == " moon<|im_end|>"
    assert answer(8, {"repetition_penalty": 2.35}, enable_thinking=False).startswith(" cat")
    assert answer(tiny_models.THOUGHT_TOKENS + 8).endswith("</think> moon<|im_end|>")
    assert tiny_models.THOUGHT not in answer(256)
