"""Texts of known length in the vocabulary of `llama_8b`: a word is a token."""

from __future__ import annotations

import json
import random
from pathlib import Path

WORDS = tuple(f"w{number}" for number in range(4000))


def random_words(draw: random.Random, count: int) -> str:
    """A text of so many tokens."""
    return " ".join(draw.choices(WORDS, k=count))


def write_calibration(file: Path, samples: int, tokens: int) -> None:
    """Write texts that have exactly so many tokens, the begin token included."""
    draw = random.Random(1)  # noqa: S311 - a draw, no secret
    lines = [json.dumps({"text": random_words(draw, tokens - 1)}) + "\n" for _ in range(samples)]
    file.write_text("".join(lines), encoding="utf-8")
