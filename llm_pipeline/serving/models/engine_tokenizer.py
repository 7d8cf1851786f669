"""The tokenizer of a TensorRT-LLM engine, for the python models around it.

This file is copied into a model repository beside every `model.py` that needs it and stands alone there: standard
library, numpy and tokenizers.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt


class Codec:
    """From text to tokens and back, by the `tokenizer.json` in a directory.

    Transformers takes seconds to import, and adds nothing to what this file says.
    """

    def __init__(self, directory: Path) -> None:
        from tokenizers import Tokenizer

        self._tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        self._tokenizer.no_truncation()  # a file may have kept both from training
        self._tokenizer.no_padding()

    def encode(self, text: str, *, special: bool) -> list[int]:
        """Tokens of a text; `special` adds the model's own, such as a begin-of-text token."""
        return list(self._tokenizer.encode(text, add_special_tokens=special).ids)

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens, without the model's own."""
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=True))

    def size(self) -> int:
        """Number of tokens in the vocabulary."""
        return int(self._tokenizer.get_vocab_size())


def end_tokens(engine: Path) -> list[int]:
    """Tokens that end an answer, from the `engine.json` in a directory; raises without any."""
    description = json.loads((engine / "engine.json").read_text(encoding="utf-8"))
    tokens: list[int] = description["rules"]["end_tokens"]
    if not tokens:
        raise ValueError(f"no end token is named in {engine}")
    return tokens


def word_list(words: Sequence[Sequence[int]], width: int = 0) -> npt.NDArray[np.int32]:
    """Words in the layout that TensorRT-LLM reads, shape [2, n]: all tokens one after the other, and where each ends.

    Padded with 0 and -1, to `width` columns or as many as there are tokens; at least one.
    """
    tokens = [token for word in words for token in word]
    columns = max(width, len(tokens), 1)
    table = np.array([[0] * columns, [-1] * columns], np.int32)
    table[0, : len(tokens)] = tokens
    table[1, : len(words)] = np.cumsum([len(word) for word in words])
    return table
