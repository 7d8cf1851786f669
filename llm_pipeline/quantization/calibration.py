"""Calibration sets: which texts modelopt sees, as exactly reproducible batches of tokens."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from llm_pipeline.config.quantization import Calibration
from llm_pipeline.digest import sha256_json
from llm_pipeline.errors import ConfigError

Tokens = list[int]


@dataclass(frozen=True)
class CalibrationSet:
    """Batches for the calibration forward passes.

    Attributes:
        batches: Token ids; all texts of a batch have the same length, so no scale ever sees a padding token.
        samples: Texts in all batches together.
        digest: SHA-256 over the exact batches, in order.
    """

    batches: tuple[tuple[Tokens, ...], ...]
    samples: int
    digest: str


def dataset_file(directory: Path) -> Path:
    """The one jsonl file of a dataset directory.

    Raises:
        ConfigError: There is none, or more than one.
    """
    files = sorted(directory.glob("*.jsonl"))
    if len(files) != 1:
        raise ConfigError(f"{len(files)} jsonl files, expected one", where=str(directory))
    return files[0]


def read_texts(path: Path) -> list[str]:
    """The `text` field of every line.

    Raises:
        ConfigError: The file is unreadable, or a line has no text.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ConfigError(f"unreadable calibration data: {error}", where=str(path)) from error
    return [_text(line, f"{path}:{number}") for number, line in enumerate(lines, start=1)]


def _text(line: str, where: str) -> str:
    try:
        text = json.loads(line)["text"]
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError("not a JSON object with a `text` field", where=where) from error
    if not isinstance(text, str) or not text.strip():
        raise ConfigError("an empty `text`", where=where)
    return text


def draw_calibration(
    texts: Sequence[str], calibration: Calibration, encode: Callable[[list[str]], list[Tokens]]
) -> CalibrationSet:
    """Draw, tokenize, cut and batch.

    Args:
        texts: All texts of the data set.
        calibration: How many to draw, by which seed, cut at which length.
        encode: The tokenizer: texts to token ids.

    Raises:
        ConfigError: The data set has fewer texts than the recipe wants.
    """
    if len(texts) < calibration.samples:
        raise ConfigError(
            f"{calibration.samples} calibration samples wanted, the data set has {len(texts)}",
            where=", ".join(source.dataset for source in calibration.sources),
            hint="lower `samples` or give more data",
        )
    chosen = random.Random(calibration.seed).sample(list(texts), calibration.samples)  # noqa: S311 - a draw, no secret
    cut = sorted((tokens[: calibration.maximum_tokens] for tokens in encode(chosen)), key=len)
    size = 32 if calibration.batch_size == "auto" else calibration.batch_size
    batches = [
        tuple(same_length[start : start + calibration.batch_size])
        for same_length in (list(group) for _, group in groupby(cut, key=len))
        for start in range(0, len(same_length), size)
    ]
    return CalibrationSet(tuple(batches), len(cut), sha256_json([list(batch) for batch in batches]))
