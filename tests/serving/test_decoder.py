"""Tokens become the text that Transformers makes of them, by the library below it where that is the same."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("transformers")

from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from llm_pipeline.serving.models import vllm_batcher

MODELS = Path(vllm_batcher.__file__).parent
ENDING = 3


class Truncating(PreTrainedTokenizerFast):
    """Has a `decode` of its own, as CodeGen's tokenizer has."""

    def decode(self, *arguments, **options):
        return super().decode(*arguments, **options).partition("b")[0]


@pytest.fixture
def decoder_of(monkeypatch):
    triton = ModuleType("triton_python_backend_utils")
    triton.TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1  # all that is needed to import the model
    monkeypatch.setitem(sys.modules, triton.__name__, triton)
    monkeypatch.setitem(sys.modules, "vllm_batcher", vllm_batcher)
    for name in ("vllm_model", "llm_model_base", "served_model"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(MODELS)
    import vllm_model

    return vllm_model.decoder_of


def tokenizer(kind):
    words = Tokenizer(models.WordLevel({"a": 0, "b": 1, "c .": 2, "</s>": ENDING}, unk_token="a"))
    words.decoder = decoders.Fuse()
    return kind(tokenizer_object=words, eos_token="</s>", clean_up_tokenization_spaces=True)


@pytest.mark.parametrize("kind", [PreTrainedTokenizerFast, Truncating])
def test_a_decoder_gives_the_tokenizers_own_text(decoder_of, kind):
    own = tokenizer(kind)
    decode = decoder_of(own)
    for tokens in ([], [0], [2, 0], [0, 1, 2, ENDING], [ENDING, 1]):
        whole = own.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        assert decode(tokens) == whole
