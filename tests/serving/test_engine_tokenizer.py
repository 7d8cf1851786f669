"""The tokenizer of a TensorRT-LLM engine, as its served models read it."""

from __future__ import annotations

import pytest

pytest.importorskip("tokenizers")

from tokenizers import Tokenizer, models, pre_tokenizers

from llm_pipeline.serving.models.engine_tokenizer import Codec


def test_truncation_and_padding_of_the_training_do_not_reach_a_prompt(tmp_path):
    tokenizer = Tokenizer(models.WordLevel({"</s>": 0, "a": 1}, unk_token="</s>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.enable_truncation(6)
    tokenizer.enable_padding(length=10, pad_id=0, pad_token="</s>")
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert len(tokenizer.encode("a " * 10).ids) == 10, "six, and four of padding"
    assert Codec(tmp_path).encode("a " * 10, special=True) == [1] * 10
