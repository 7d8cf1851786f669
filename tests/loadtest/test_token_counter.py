import json

import pytest

from llm_pipeline.base.errors import ConfigError, IntegrityError
from llm_pipeline.loadtest.token_counter import open_counter

WORDS = {"model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1, "[UNK]": 2}, "unk_token": "[UNK]"}}
TOKENIZER = {
    "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
    "pre_tokenizer": {"type": "Whitespace"}, "post_processor": None, "decoder": None, **WORDS,
}  # fmt: skip


CUT = {"truncation": {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}}


@pytest.mark.parametrize(
    ("path", "content", "text", "tokens"),
    [
        ("llm/1/tokenizer/tokenizer.json", TOKENIZER, "a b  unknown a", 4),
        ("tokenizer.json", TOKENIZER | CUT, "a b  unknown a", 4),  # whatever length the training had
        ("none.json", {}, "ü" * 20, 10),  # without one a token is four bytes
    ],
)
def test_the_repositorys_tokenizer_counts(tmp_path, path, content, text, tokens):
    pytest.importorskip("tokenizers")
    (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / path).write_text(json.dumps(content))
    assert open_counter(tmp_path)(text) == tokens
    assert open_counter(tmp_path / "none", {"llm/1/checkpoint": tmp_path})(text) == tokens, "in a linked artifact"


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
