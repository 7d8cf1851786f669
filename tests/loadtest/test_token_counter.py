import json

import pytest

from llm_pipeline.base.errors import ConfigError, IntegrityError
from llm_pipeline.loadtest.token_counter import open_counter

WORDS = {"model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1, "[UNK]": 2}, "unk_token": "[UNK]"}}
TOKENIZER = {
    "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
    "pre_tokenizer": {"type": "Whitespace"}, "post_processor": None, "decoder": None, **WORDS,
}  # fmt: skip


def test_the_repositorys_tokenizer_counts(tmp_path):
    pytest.importorskip("tokenizers")
    (tmp_path / "llm/1/tokenizer").mkdir(parents=True)
    (tmp_path / "llm/1/tokenizer/tokenizer.json").write_text(json.dumps(TOKENIZER))
    assert open_counter(tmp_path)("a b  unknown a") == 4


def test_every_token_is_counted_whatever_length_the_training_had(tmp_path):
    pytest.importorskip("tokenizers")
    cut = {"truncation": {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}}
    (tmp_path / "tokenizer.json").write_text(json.dumps(TOKENIZER | cut))
    assert open_counter(tmp_path)("a b  unknown a") == 4


def test_a_tokenizer_in_a_linked_artifact_counts(tmp_path):
    pytest.importorskip("tokenizers")
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint/tokenizer.json").write_text(json.dumps(TOKENIZER))
    assert open_counter(tmp_path / "none", {"llm/1/checkpoint": tmp_path / "checkpoint"})("a b") == 2


def test_a_damaged_tokenizer_is_refused(tmp_path):
    pytest.importorskip("tokenizers")
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(IntegrityError, match="not a tokenizer"):
        open_counter(tmp_path)


def test_a_tokenizer_that_nothing_here_reads_is_refused(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "tokenizers", None)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"pip install 'llm-pipeline\[control\]'"):
        open_counter(tmp_path)


def test_without_a_tokenizer_a_token_is_four_bytes(tmp_path):
    assert open_counter(tmp_path)("ü" * 20) == 10
