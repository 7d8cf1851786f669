"""What quantization and scoring will take of the GPUs that a deployment names for them: memory and time."""

from __future__ import annotations

from collections.abc import Sequence

from llm_pipeline.base.records import Frozen
from llm_pipeline.catalog.batch_limits import LARGEST_BATCH_TOKENS
from llm_pipeline.catalog.tables import Gpu, find_gpu
from llm_pipeline.config.deployment import QuantizationHost
from llm_pipeline.config.quantization import QuantizationRecipe
from llm_pipeline.config.release import Evaluation, ResolvedRelease
from llm_pipeline.model_facts.facts import ModelFacts
from llm_pipeline.planning.formats import BaselinePrecision
from llm_pipeline.planning.gate_power import FLIPS, GatePower
from llm_pipeline.planning.gpu_time import quantization_seconds, scoring_seconds
from llm_pipeline.planning.quantization_memory import PeakMemory, devices_needed, fitting_batch, predict_peak
from llm_pipeline.planning.task_pool import TaskItems

_ASSUMED_BATCH = 32
_EXPECTED_FLIPS = FLIPS[1]


class RecipeCost(Frozen):
    """Making one recipe.

    Attributes:
        samples: Calibration texts; 0 without calibration.
        tokens: Longest of them.
        batch: Texts a forward pass; 0 without calibration.
        peak: Peak of the fullest GPU.
        largest_batch: Texts a forward pass that fit.
        gpus_needed: The fewest GPUs that hold the model and one text; None when no number does.
        minutes: GPU time; None where nothing was measured that it could follow from.
        warnings: What does not fit.
    """

    recipe: str
    samples: int
    tokens: int
    batch: int
    peak: PeakMemory
    largest_batch: int
    gpus_needed: int | None
    minutes: float | None
    warnings: tuple[str, ...] = ()


class GpuCost(Frozen):
    """What a release takes of the GPUs that quantize and score.

    Attributes:
        accelerator: The GPU.
        count: How many of them one quantization may use.
        capacity: Memory of each, in bytes.
        recipes: Each recipe that is legal somewhere.
        scoring_minutes: GPU time of scoring all items once; None where too little is known of a task.
        expected_minutes: The same until the gate will probably have decided.
    """

    accelerator: str
    count: int
    capacity: int
    recipes: tuple[RecipeCost, ...]
    scoring_minutes: float | None
    expected_minutes: float | None


def gpu_cost(
    release: ResolvedRelease,
    recipes: Sequence[QuantizationRecipe],
    host: QuantizationHost,
    facts: ModelFacts,
    evidence: tuple[Sequence[TaskItems], GatePower],
) -> GpuCost:
    """Predict what the given recipes of a release take.

    Args:
        release: The release.
        recipes: Those of its recipes that will be made.
        host: Where.
        facts: The model.
        evidence: The tasks that are scored on the checkpoint, and their gate.

    Raises:
        ConfigError: The host's accelerator is not in the GPU catalog.
    """
    gpu, (tasks, gate) = find_gpu(host.accelerator), evidence
    scoring = _scoring_minutes(release.evaluation, facts, tasks, gpu)
    return GpuCost(
        accelerator=gpu.name,
        count=host.count,
        capacity=gpu.usable_bytes,
        recipes=tuple(_recipe_cost(recipe, facts, release.baseline.dtype, gpu, host.count) for recipe in recipes),
        scoring_minutes=scoring,
        expected_minutes=None if scoring is None else scoring * _expected_share(tasks, gate),
    )


def _recipe_cost(
    recipe: QuantizationRecipe, facts: ModelFacts, dtype: BaselinePrecision, gpu: Gpu, count: int
) -> RecipeCost:
    asked = recipe.calibration
    samples, tokens = (asked.samples, asked.maximum_tokens) if asked else (0, 0)
    fits = fitting_batch(facts, recipe, dtype, max(1, tokens), gpu.usable_bytes, devices=count)
    batch = 0
    if asked:
        automatic = max(1, min(fits, LARGEST_BATCH_TOKENS // tokens, samples))
        batch = automatic if asked.batch_size == "auto" else min(asked.batch_size, samples)
    needed = devices_needed(facts, recipe, dtype, max(1, tokens), gpu.usable_bytes)
    seconds = quantization_seconds(facts, recipe, gpu)
    return RecipeCost(
        recipe=recipe.name,
        samples=samples,
        tokens=tokens,
        batch=batch,
        peak=predict_peak(facts, recipe, dtype, batch, tokens, devices=count),
        largest_batch=fits if asked else 0,
        gpus_needed=needed,
        minutes=None if seconds is None else seconds / 60,
        warnings=tuple(_shortage(recipe, gpu, (count, needed), (batch, fits))),
    )


def _shortage(
    recipe: QuantizationRecipe, gpu: Gpu, gpus: tuple[int, int | None], batches: tuple[int, int]
) -> list[str]:
    (count, needed), (batch, fits) = gpus, batches
    if not fits:
        more = f"{needed} hold it" if needed else "no number of them can hold one layer"
        what = f"{recipe.name} does not fit {count} x {gpu.name}"
        return [f"{what}: layers will wait in the host's memory, which is slow; {more}"]
    if batch > fits:
        asked = f"calibration.batch_size of {recipe.name} is {batch}"
        return [f"{asked}, predicted to fit {count} x {gpu.name} is {fits}"]
    return []


def _scoring_minutes(evaluation: Evaluation, facts: ModelFacts, tasks: Sequence[TaskItems], gpu: Gpu) -> float | None:
    batch = _ASSUMED_BATCH if evaluation.batch_size == "auto" else evaluation.batch_size
    seconds = [scoring_seconds(facts, task, gpu, batch) for task in tasks]
    known = [value for value in seconds if value is not None]
    return sum(known) / 60 if len(known) == len(seconds) else None


def _expected_share(tasks: Sequence[TaskItems], gate: GatePower) -> float:
    """The expected share of items that are scored until the gate decides, if 5 % flip."""
    items = sum(task.items or 0 for task in tasks)
    expected = next(needed.expected for needed in gate.needed if needed.flips == _EXPECTED_FLIPS)
    return expected / items if expected and items else 1.0
