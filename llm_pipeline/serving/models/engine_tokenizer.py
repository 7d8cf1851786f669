"""The tokenizer of a TensorRT-LLM engine, for the python models around it.

This file is copied into a model repository beside every `model.py` that needs it and stands alone there: standard
library, numpy, and tokenizers or transformers. Only local files are read, and no code from them is run.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt


class Codec(Protocol):
    """From text to tokens and back."""

    def encode(self, text: str, *, special: bool) -> list[int]:
        """Tokens of a text; `special` adds the model's own, such as a begin-of-text token."""

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens, without the model's own."""

    def token_id(self, token: str) -> int | None:
        """The number of a token; None if there is none."""

    def size(self) -> int:
        """Number of tokens in the vocabulary."""


class FastCodec:
    """`tokenizer.json`, read without transformers, which takes seconds to import."""

    def __init__(self, directory: Path) -> None:
        from tokenizers import Tokenizer

        self._tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        self._tokenizer.no_truncation()  # both as they were in training, where a file has kept them
        self._tokenizer.no_padding()

    def encode(self, text: str, *, special: bool) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=special).ids)

    def decode(self, tokens: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=True))

    def token_id(self, token: str) -> int | None:
        number: int | None = self._tokenizer.token_to_id(token)
        return number

    def size(self) -> int:
        return int(self._tokenizer.get_vocab_size())


class SlowCodec:
    """Any other tokenizer that transformers knows."""

    def __init__(self, directory: Path) -> None:
        from transformers import AutoTokenizer

        self._tokenizer: Any = AutoTokenizer.from_pretrained(
            str(directory), local_files_only=True, trust_remote_code=False
        )

    def encode(self, text: str, *, special: bool) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=special))

    def decode(self, tokens: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=True))

    def token_id(self, token: str) -> int | None:
        number: int | None = self._tokenizer.convert_tokens_to_ids(token)
        return number

    def size(self) -> int:
        return len(self._tokenizer)


def open_codec(directory: Path) -> Codec:
    """The tokenizer in a directory: its `tokenizer.json`, else what transformers makes of its files."""
    return FastCodec(directory) if (directory / "tokenizer.json").is_file() else SlowCodec(directory)


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
