"""The texts of a load test: prompts from a file, new ones composed of its words, and how many tokens they have."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from llm_pipeline.artifacts.repository_layout import TOKENIZER_FILE
from llm_pipeline.base.errors import ConfigError, IntegrityError
from llm_pipeline.base.json_document import read_lines, require_whole
from llm_pipeline.base.logging import get_logger

log = get_logger(__name__)

CountTokens = Callable[[str], int]
Integers = NDArray[np.int64]

_WORD = re.compile(r"\s*\S{1,16}")
_RUN_WORDS = 6
_SAMPLE_WORDS = 4000
_REPEATS = 8  # an estimating counter rounds, less so for several words
_ATTEMPTS = 50
_USUAL_BYTES = 4
"""Bytes per token of English text, for vocabularies of 100,000 tokens and more."""


def open_counter(repository: Path, links: Mapping[str, Path] | None = None) -> CountTokens:
    """A function that counts the tokens of a text, including the special ones that the tokenizer adds.

    Without a `tokenizer.json` in the repository a token is taken for 4 bytes.

    Args:
        repository: A model repository.
        links: Directories of the artifacts that it links to, as `fetch_links` gives them.

    Raises:
        IntegrityError: The tokenizer cannot be read.
    """
    places = [repository, *(links or {}).values()]
    path = next((path for place in places for path in sorted(place.rglob(TOKENIZER_FILE))), None)
    if path is None:
        log.warning("the repository has no tokenizer.json: lengths are estimates", bytes_a_token=_USUAL_BYTES)
        return lambda text: round(len(text.encode()) / _USUAL_BYTES)
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the bindings raise nothing more special
        raise IntegrityError(f"not a tokenizer: {error}", where=str(path)) from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return lambda text: len(tokenizer.encode(text).ids)


@dataclass(frozen=True)
class RecordedPrompt:
    """A line of a file of prompts.

    Attributes:
        text: The prompt.
        output_tokens: Length of the answer that it had; 0 when the line does not say.
    """

    text: str
    output_tokens: int = 0


def read_prompts(path: Path, *, with_output_tokens: bool = False) -> tuple[RecordedPrompt, ...]:
    """Read a jsonl file of prompts; one that occurs twice is taken once.

    Args:
        path: The file.
        with_output_tokens: Each line must say how long its answer was.

    Raises:
        ConfigError: The file cannot be read or is empty, or a line is not a prompt.
    """
    found: dict[str, RecordedPrompt] = {}
    for row, where in read_lines(path):
        prompt, tokens = row.get("prompt"), row.get("output_tokens", 0)
        if not isinstance(prompt, str) or not prompt.strip():
            raise ConfigError("the line has no text in 'prompt'", where=where, hint='write {"prompt": "..."}')
        require_whole(prompt, where=where)
        if type(tokens) is not int or tokens < int(with_output_tokens):
            hint = "the workload's output_tokens are `recorded`: state how long the answer was"
            raise ConfigError("the line has no number of tokens in 'output_tokens'", where=where, hint=hint)
        found.setdefault(prompt, RecordedPrompt(prompt, tokens))
    if not found:
        raise ConfigError("the file holds no prompts", where=str(path), hint='write lines {"prompt": "..."}')
    return tuple(found.values())


class Composer:
    """Makes up texts of a wanted length from the words of others.

    Each distinct word is counted once, and the sum is corrected by one longer sample, since words together may need
    fewer tokens than each alone. A made-up text consists of runs of a few words that follow one another in a file:
    two of them begin alike for about one run at most, which is less than a block of a prefix cache.

    Args:
        texts: Where the words are from.
        count_tokens: Tokens of a text.
    """

    def __init__(self, texts: Sequence[str], count_tokens: CountTokens) -> None:
        self._words = [word for text in texts for word in _WORD.findall(" " + text.strip())]
        none = count_tokens("")
        counted = {word: (count_tokens(word * _REPEATS) - none) / _REPEATS for word in sorted(set(self._words))}
        sample = self._words[:_SAMPLE_WORDS]
        by_word = sum(counted[word] for word in sample)
        correction = (count_tokens("".join(sample)) - none) / max(1.0, by_word)
        self._costs = np.array([counted[word] for word in self._words], dtype=np.float64) * correction
        self._mean_cost = max(float(np.cumsum(self._costs)[-1]) / len(self._words), 1e-3)

    def compose(self, tokens: Integers, random: np.random.Generator) -> list[str]:
        """Texts of so many tokens each, to within about half a word."""
        if not len(tokens):
            return []
        ends = np.cumsum(tokens)
        words = self._stream(float(ends[-1]), len(tokens), random)
        place = np.arange(len(tokens))
        cuts = np.searchsorted(np.cumsum(self._costs[words]), ends - 0.5 * self._mean_cost) + 1
        cuts = np.maximum.accumulate(cuts - place) + place  # each text has a word at least
        chosen = [self._words[number] for number in words[: cuts[-1]].tolist()]
        starts = [0, *cuts[:-1].tolist()]
        return ["".join(chosen[start:end]).strip() for start, end in zip(starts, cuts.tolist(), strict=True)]

    def compose_fresh(self, tokens: Integers, random: np.random.Generator, known: set[str]) -> list[str]:
        """Texts of which none is known or occurs twice; they are known afterwards.

        Raises:
            ConfigError: There are too few different words for so many texts that are so short.
        """
        texts = self.compose(tokens, random)
        again = _repeated(texts, known)
        for _ in range(_ATTEMPTS):
            if not again:
                return texts
            for number, text in zip(again, self.compose(tokens[again], random), strict=True):
                texts[number] = text
            again = [again[place] for place in _repeated([texts[number] for number in again], known)]
        problem = f"{len(again)} of {len(texts)} prompts would be repeated: the file has too few different words"
        raise ConfigError(problem, hint="add prompts, or set longer ones in prompt_tokens")

    def _stream(self, tokens: float, spare_words: int, random: np.random.Generator) -> Integers:
        """Indices of words, in runs, with this many tokens; the last words are spare."""
        runs = (int(1.05 * tokens / self._mean_cost) + spare_words) // _RUN_WORDS + 64
        words = np.empty(0, dtype=np.int64)
        while len(words) <= spare_words or float(np.sum(self._costs[words[:-spare_words]])) < tokens:
            begins = random.integers(0, len(self._words), runs)
            new = (begins[:, None] + np.arange(_RUN_WORDS)) % len(self._words)
            words = np.concatenate([words, new.reshape(-1)])
        return words


def _repeated(texts: Sequence[str], known: set[str]) -> list[int]:
    """Indices of texts that are known already; the others become known."""
    repeated = []
    for number, text in enumerate(texts):
        if text in known:
            repeated.append(number)
        known.add(text)
    return repeated
