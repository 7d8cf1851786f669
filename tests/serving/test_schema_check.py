"""Which JSON schemas OpenVINO's batch is given, by what the model's tokenizer can write."""

from __future__ import annotations

import queue
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

ov = pytest.importorskip("openvino")
genai = pytest.importorskip("openvino_genai")
openvino_tokenizers = pytest.importorskip("openvino_tokenizers")

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

MODELS = Path(__file__).parents[2] / "llm_pipeline/serving/models"
ENDS = "<s>", "</s>"


def of_words() -> Tokenizer:
    """Whole words, none of which is in JSON."""
    words = {word: number for number, word in enumerate((*ENDS, *(f"w{number}" for number in range(60))))}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<s>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tokenizer


def of_bytes() -> Tokenizer:
    """A token a byte."""
    symbols = {symbol: number for number, symbol in enumerate((*ENDS, *sorted(pre_tokenizers.ByteLevel.alphabet())))}
    tokenizer = Tokenizer(models.BPE(symbols, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


@pytest.fixture
def served(monkeypatch):
    """The model's file as it stands in a repository; other tests import its modules with other doubles of Triton."""
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", MagicMock())
    monkeypatch.syspath_prepend(str(MODELS))
    modules = ("openvino_model", "llm_model_base", "served_model")
    for name in modules:
        monkeypatch.delitem(sys.modules, name, raising=False)
    import openvino_model

    yield openvino_model
    for name in modules:
        sys.modules.pop(name, None)


def check(served, tokenizer, directory, schema):
    directory.mkdir()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")
    made = openvino_tokenizers.convert_tokenizer(fast, with_detokenizer=True)
    for model, name in zip(made, ("tokenizer", "detokenizer"), strict=True):
        ov.save_model(model, directory / f"openvino_{name}.xml")
    generation = genai.GenerationConfig()
    generation.structured_output_config = genai.StructuredOutputConfig(json_schema=schema)
    served.SchemaCheck(genai.Tokenizer(str(directory)), tokenizer.get_vocab_size()).require(generation)


@pytest.mark.parametrize("schema", ['{"type": "object", "additionalProperties": true}', '{"type": "integer"}'])
def test_a_schema_that_no_token_begins_to_follow_is_refused(served, tmp_path, schema):
    check(served, of_bytes(), tmp_path / "bytes", schema)
    with pytest.raises(served.base.RefusedError, match="json_schema: no token of this model's tokenizer"):
        check(served, of_words(), tmp_path / "words", schema)


def test_only_requests_with_a_schema_wait_for_one_that_compiles(served, monkeypatch):
    """Some compile for minutes: a pattern of 50 bytes kept all users of a server waiting."""
    model, queued, ended = served.TritonPythonModel(), queue.Queue(), queue.Queue()
    model._compiling, model._schemas = threading.Lock(), MagicMock()
    monkeypatch.setattr(model, "_queue", queued.put)
    monkeypatch.setattr(model, "end", lambda live, refusal: ended.put((live, refusal.outcome)))
    monkeypatch.setattr(served, "SCHEMA_SECONDS", 0.1)
    plain, with_schema = (SimpleNamespace(asked=SimpleNamespace(json_schema=one), generation=0) for one in ("", "{}"))
    with model._compiling:
        model._begin(with_schema)
        model._begin(plain)
        assert queued.get(timeout=20) is plain
        assert ended.get(timeout=20) == (with_schema, "rejected")
    model._begin(with_schema)
    assert queued.get(timeout=20) is with_schema
