"""How much disk a release needs, from parameter counts alone."""

from __future__ import annotations

from collections.abc import Sequence

from llm_pipeline.base.records import Frozen
from llm_pipeline.config.quantization import QuantizationRecipe
from llm_pipeline.model_facts.facts import ModelFacts
from llm_pipeline.planning.memory import weight_bytes

_COPIES = 2
"""The engine, and the model repository that holds it."""


class DiskNeed(Frozen):
    """What a release writes when nothing of it exists yet, in bytes.

    Attributes:
        download: The model as published.
        recipes: All quantized checkpoints.
        engines: Engines that hold the weights, and their model repositories, if the largest recipe is chosen.
        work: The largest of them once more, in the work directory while it is made.
    """

    download: int
    recipes: int
    engines: int
    work: int

    @property
    def store(self) -> int:
        """What the artifact store must hold."""
        return self.download + self.recipes + self.engines


def disk_need(facts: ModelFacts, recipes: Sequence[QuantizationRecipe], engines: int) -> DiskNeed:
    """The need of a release; the recipe `none` passes the download through and adds no checkpoint.

    Args:
        facts: The model.
        recipes: All that may be tried.
        engines: Targets whose engine holds the weights: TensorRT-LLM's LLM API serves the checkpoint as it is.
    """
    download = facts.stored_bytes
    sizes = [weight_bytes(facts, recipe) for recipe in recipes]
    quantized = [size for size, recipe in zip(sizes, recipes, strict=True) if recipe.weights != "none"]
    return DiskNeed(
        download=download,
        recipes=sum(quantized),
        engines=engines * _COPIES * max(sizes),
        work=max(download, *sizes),
    )
