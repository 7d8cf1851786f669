"""Counting the tokens of a text as the served model does, as far as its repository tells."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from llm_pipeline.artifacts.golden import GoldenPrompt, read_golden
from llm_pipeline.artifacts.repository_layout import TOKENIZER_FILE
from llm_pipeline.base.errors import ConfigError, IntegrityError
from llm_pipeline.base.logging import get_logger

log = get_logger(__name__)

_USUAL_BYTES = 4.0
"""Bytes per token of English text, for vocabularies of 100,000 tokens and more."""
_FEWEST_BYTES = 1.5
_NEAR_LONGEST = 0.75


def open_counter(repository: Path, links: Mapping[str, Path] | None = None) -> Callable[[str], int]:
    """A function that counts the tokens of a text, including the special ones that the tokenizer adds.

    Without a `tokenizer.json` in the repository it divides bytes by those that a token has: in golden completions that
    used all their `max_tokens` (a completion that ended by itself is shorter), or else the usual 4.

    Args:
        repository: A model repository.
        links: Directories of the artifacts that it links to, as `fetch_links` gives them.

    Raises:
        ConfigError: There is a tokenizer, and the package that reads it is not installed.
        IntegrityError: The tokenizer or the golden prompts cannot be read.
    """
    found = find_tokenizer(repository, links)
    if found is not None:
        return _tokenizer(found)
    bytes_a_token = _bytes_a_token(read_golden(repository))
    log.warning("the repository has no tokenizer.json: lengths are estimates", bytes_a_token=round(bytes_a_token, 2))
    return lambda text: round(len(text.encode()) / bytes_a_token)


def find_tokenizer(repository: Path, links: Mapping[str, Path] | None = None) -> Path | None:
    """The `tokenizer.json` of a repository, or of what it links to; None when there is none."""
    places = [repository, *(links or {}).values()]
    return next((path for place in places for path in sorted(place.rglob(TOKENIZER_FILE))), None)


def _tokenizer(path: Path) -> Callable[[str], int]:
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise ConfigError(
            "the served model's tokens cannot be counted: tokenizers is not installed",
            where=str(path),
            hint="pip install 'llm-pipeline[control]'",
        ) from error
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the bindings raise nothing more special
        raise IntegrityError(f"not a tokenizer: {error}", where=str(path)) from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return lambda text: len(tokenizer.encode(text).ids)


def _bytes_a_token(golden: list[GoldenPrompt]) -> float:
    measured = [len(prompt.completion.encode()) / prompt.maximum_tokens for prompt in golden]
    longest = max(measured, default=0.0)
    if longest < _FEWEST_BYTES:
        return _USUAL_BYTES  # all of them ended by themselves
    near = [value for value in measured if value >= _NEAR_LONGEST * longest]
    return sum(near) / len(near)
