"""What a plan says of one target and of each recipe on it, as data."""

from __future__ import annotations

from llm_pipeline.base.records import Frozen
from llm_pipeline.config.quantization import WeightFormat
from llm_pipeline.config.target import EngineBuilderName
from llm_pipeline.planning.memory import MemoryFit
from llm_pipeline.planning.target_memory import Capacity, SplitAdvice
from llm_pipeline.planning.target_speed import SpeedFigures, Throughput


class RecipePlan(Frozen):
    """One recipe on one target.

    Attributes:
        legal: Whether it can be built and served there, as far as is known.
        reason: Why not; empty when legal.
        nearest: The nearest choice that is legal; empty when legal.
        warnings: What is not known, or not as asked for.
        memory: The memory of one rank; None where the model's sizes are not known.
        capacity: Batches and lengths that fit; None where the model's sizes are not known, or it cannot be split so.
        speed: Predicted against the unquantized model; None on a CPU, and where the model's sizes are not known.
        throughput: Tokens a second, predicted and at best; None as `speed`.
        split: A better split over GPUs, if there is one.
    """

    recipe: str
    weights: WeightFormat
    legal: bool
    reason: str = ""
    nearest: str = ""
    warnings: tuple[str, ...] = ()
    memory: MemoryFit | None = None
    capacity: Capacity | None = None
    speed: SpeedFigures | None = None
    throughput: Throughput | None = None
    split: SplitAdvice | None = None


class TargetPlan(Frozen):
    """One target with every recipe.

    Attributes:
        accelerators: GPUs of one engine instance; 0 on a CPU.
        architecture: Compute capability of the GPU; empty on a CPU.
        container: Image with its tag.
        digest: What the image is pinned to; None for nothing, so that the tag may come to mean another image.
        driver: Driver version that the container was built for, if known.
        warnings: What works there though not as written, whatever the recipe.
    """

    name: str
    accelerator: str
    accelerators: int
    architecture: str = ""
    engine: EngineBuilderName
    runtime_version: str | None = None
    container: str | None = None
    digest: str | None = None
    driver: str | None = None
    warnings: tuple[str, ...] = ()
    recipes: tuple[RecipePlan, ...]
