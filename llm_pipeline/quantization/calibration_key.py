"""The name of a calibration: everything that its outcome depends on, and nothing else."""

from __future__ import annotations

from importlib import metadata
from typing import Any

from llm_pipeline.base.digest import sha256_json
from llm_pipeline.config.quantization import QuantizationRecipe

_FORMAT = 1
_TOOLS = ("nvidia-modelopt", "torch", "transformers")


def calibration_key(
    recipe: QuantizationRecipe, checkpoint_digest: str, token_digest: str, dtype: str, settings: Any
) -> str:
    """SHA-256 in hex: same key, same calibration.

    The bits that a rung of a search asks for are no part of it, so all rungs share one calibration.

    Args:
        recipe: Its formats, search and batch size.
        checkpoint_digest: Digest of the checkpoint's artifact.
        token_digest: Digest of the exact token sequences.
        dtype: Precision that the checkpoint is loaded in.
        settings: What modelopt is told, as JSON.
    """
    search = recipe.search.model_dump(mode="json", exclude={"effective_bits"}) if recipe.search else None
    return sha256_json(
        {
            "format": _FORMAT,
            "checkpoint": checkpoint_digest,
            "tokens": token_digest,
            "batch_size": recipe.calibration.batch_size if recipe.calibration else None,
            "dtype": dtype,
            "settings": settings,
            "search": search,
            "tools": {tool: metadata.version(tool) for tool in _TOOLS},
        }
    )
