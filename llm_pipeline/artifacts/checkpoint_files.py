"""A checkpoint's files beside its weights: its descriptions in JSON, and what quantization leaves as it is."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from llm_pipeline.base.json_document import read_object

COMPANIONS = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "generation_config.json",
    "chat_template.jinja",
    "chat_template.json",
)
"""What belongs to a checkpoint and is never changed by quantization: tokenizer, generation config, chat template."""

TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json")
"""The files that a tokenizer can be read from: a checkpoint has one of them at least."""


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a checkpoint's directory.

    Raises:
        IntegrityError: The file is missing or not a JSON object.
    """
    return read_object(path, finite=False)


def copy_companions(source: Path, destination: Path) -> list[str]:
    """Copy the tokenizer, generation config and chat template; returns the names of the copied files."""
    names = [name for name in COMPANIONS if (source / name).is_file()]
    for name in names:
        shutil.copyfile(source / name, destination / name)
    return names
