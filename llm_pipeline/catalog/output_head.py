"""The output head, which recipes keep at the baseline's precision: by the model's own word, whatever its name."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

from llm_pipeline.config.quantization import QuantizationRecipe

HEAD = "lm_head"
"""What most architectures call it, and recipes mean by this name."""


def keeps_head(recipe: QuantizationRecipe, head: str = HEAD) -> bool:
    """Whether a recipe leaves the output head as it is: searches always do.

    Args:
        recipe: The recipe.
        head: What the model calls it.
    """
    return recipe.search is not None or is_named(HEAD, recipe.exclude) or is_named(head, recipe.exclude)


def with_head_kept(recipe: QuantizationRecipe, model: Any) -> QuantizationRecipe:
    """The recipe with the model's head among what it excludes, where it keeps the head.

    Args:
        recipe: The recipe.
        model: A causal language model of Transformers.
    """
    head = model.get_output_embeddings()
    name = next((name for name, module in model.named_modules() if module is head), HEAD)
    if name == HEAD or not keeps_head(recipe, name) or is_named(name, recipe.exclude):
        return recipe
    return recipe.model_copy(update={"exclude": (*recipe.exclude, name)})


def is_named(name: str, patterns: Sequence[str]) -> bool:
    """Whether one of the patterns means a module."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)
