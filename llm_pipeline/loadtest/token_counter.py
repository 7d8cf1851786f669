"""Counting the tokens of a text as the served model does, as far as its repository tells."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from llm_pipeline.artifacts.repository_layout import TOKENIZER_FILE
from llm_pipeline.base.errors import ConfigError, IntegrityError
from llm_pipeline.base.logging import get_logger

log = get_logger(__name__)

_USUAL_BYTES = 4
"""Bytes per token of English text, for vocabularies of 100,000 tokens and more."""


def open_counter(repository: Path, links: Mapping[str, Path] | None = None) -> Callable[[str], int]:
    """A function that counts the tokens of a text, including the special ones that the tokenizer adds.

    Without a `tokenizer.json` in the repository a token is taken for 4 bytes.

    Args:
        repository: A model repository.
        links: Directories of the artifacts that it links to, as `fetch_links` gives them.

    Raises:
        ConfigError: There is a tokenizer, and the package that reads it is not installed.
        IntegrityError: The tokenizer cannot be read.
    """
    places = [repository, *(links or {}).values()]
    path = next((path for place in places for path in sorted(place.rglob(TOKENIZER_FILE))), None)
    if path is None:
        log.warning("the repository has no tokenizer.json: lengths are estimates", bytes_a_token=_USUAL_BYTES)
        return lambda text: round(len(text.encode()) / _USUAL_BYTES)
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
