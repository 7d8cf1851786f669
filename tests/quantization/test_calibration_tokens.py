"""Calibration sets with a real tokenizer of transformers, and from parquet files."""

from __future__ import annotations

import json

import pytest

transformers = pytest.importorskip("transformers")

import pyarrow as pa
from pyarrow import parquet
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.catalog import named_sets
from llm_pipeline.config.quantization import Calibration
from llm_pipeline.quantization.calibration import Sample, draw_calibration, read_sources

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'tool' %}{{ raise_exception('no tools') }}{% endif %}"
    "{{ m['content'] }}{{ eos_token }}{% endfor %}"
)


@pytest.fixture
def tokenizer():
    """One token a word, a start token before every text."""
    words = {word: number for number, word in enumerate(["<s>", "</s>", "a", "b", "c", "d"])}
    inner = Tokenizer(models.WordLevel(words, unk_token="d"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    inner.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<s>", eos_token="</s>")
    fast.chat_template = TEMPLATE
    return fast


def settings(**changes):
    return Calibration(**{"sources": ["d.jsonl"], "samples": 1, "maximum_tokens": 64} | changes)


def chat(*messages):
    return Sample(json.dumps([{"role": role, "content": content} for role, content in messages]), "d.jsonl:1")


def test_a_text_has_the_models_start_token_and_a_chat_has_its_templates(tokenizer):
    (text,) = draw_calibration([[Sample("a b c", "d.jsonl:1")]], settings(), tokenizer).sequences
    assert text == (0, 2, 3, 4)
    asked = settings(chat_template=True)
    (rendered,) = draw_calibration([[chat(("user", "a b"), ("assistant", "c"))]], asked, tokenizer).sequences
    assert rendered == (0, 2, 3, 1, 4, 1)


def test_packing_closes_a_text_once_where_the_template_has_closed_it_already(tokenizer):
    asked = settings(chat_template=True, packing=True, samples=2, maximum_tokens=4)
    chats = [chat(("user", "a")), chat(("user", "b"))]
    packed = draw_calibration([chats], asked, tokenizer)
    assert packed.sequences in (((0, 2, 1, 0),), ((0, 3, 1, 0),))


def test_what_the_template_refuses_is_told_with_its_line(tokenizer):
    with pytest.raises(ConfigError, match="chat template refuses the chat: no tools") as error:
        draw_calibration([[chat(("tool", "a"))]], settings(chat_template=True), tokenizer)
    assert error.value.where == "d.jsonl:1"


def test_the_texts_of_a_named_set_are_read_from_parquet(tmp_path, monkeypatch):
    news = named_sets.NamedSet(
        dataset="demo/news", revision="0" * 40, file="n.parquet", field="article", description="."
    )
    monkeypatch.setattr(named_sets, "named_sets", lambda: {"news": news})
    rows = pa.table({"article": ["one", "", None, "two"], "id": [1, 2, 3, 4]})
    parquet.write_table(rows, tmp_path / "n.parquet")
    (samples,) = read_sources(tmp_path, settings(sources=["set:news"]))
    assert [(sample.content, sample.where.rpartition("/")[2]) for sample in samples] == [
        ("one", "n.parquet row 1"), ("two", "n.parquet row 4"),
    ]  # fmt: skip
    (tmp_path / "n.parquet").write_bytes(b"no parquet")
    with pytest.raises(ConfigError, match="cannot be read as parquet"):
        read_sources(tmp_path, settings(sources=["set:news"]))
