"""One target of a plan: what runs there, and what becomes of every recipe."""

from __future__ import annotations

from llm_pipeline.config.loading import LoadedRelease
from llm_pipeline.config.quantization import QuantizationRecipe
from llm_pipeline.config.release import ResolvedRelease
from llm_pipeline.config.target import Target
from llm_pipeline.errors import ConfigError
from llm_pipeline.planning.capacity import capacity
from llm_pipeline.planning.catalog import find_container, find_gpu
from llm_pipeline.planning.compatibility import Refused, judge_compatibility
from llm_pipeline.planning.model import RecipePlan, TargetPlan
from llm_pipeline.planning.model_shape import ModelShape
from llm_pipeline.planning.parallelism_advice import advise_split
from llm_pipeline.planning.target_checks import target_warnings
from llm_pipeline.planning.target_memory import judge_memory
from llm_pipeline.planning.target_speed import expected_throughput, judge_speed


def plan_target(loaded: LoadedRelease, target: Target, shape: ModelShape | None) -> TargetPlan:
    """Judge every recipe of a release on one target.

    Raises:
        ConfigError: The accelerator is not in the GPU catalog.
    """
    try:
        gpu = None if target.accelerator == "cpu" else find_gpu(target.accelerator)
    except ConfigError as error:
        where = str(loaded.configs_root / "targets" / f"{target.name}.yaml")
        raise ConfigError(f"accelerator: {error.message}", where=where, hint=error.hint) from error
    recipes = tuple(_plan_recipe(loaded.release, target, recipe, shape) for recipe in loaded.release.recipes)
    image, _, digest = (target.container or "").partition("@")
    known = find_container(image)
    return TargetPlan(
        name=target.name,
        accelerator=target.accelerator,
        accelerators=target.accelerator_count if gpu else 0,
        architecture=gpu.sm if gpu else "",
        engine=target.engine,
        runtime_version=target.runtime_version,
        container=image or None,
        digest=digest or None,
        driver=known.driver if known else None,
        warnings=target_warnings(target) if gpu and any(recipe.legal for recipe in recipes) else (),
        recipes=recipes,
    )


def _plan_recipe(
    release: ResolvedRelease, target: Target, recipe: QuantizationRecipe, shape: ModelShape | None
) -> RecipePlan:
    judged = judge_compatibility(target, recipe, release.baseline.dtype, release.model.id)
    if isinstance(judged, Refused):
        return RecipePlan(
            recipe=recipe.name, weights=recipe.weights, legal=False, reason=judged.reason, nearest=judged.nearest
        )
    plan = RecipePlan(recipe=recipe.name, weights=recipe.weights, legal=True, warnings=judged.warnings)
    return _with_figures(plan, release, target, recipe, shape) if shape else plan


def _with_figures(
    plan: RecipePlan, release: ResolvedRelease, target: Target, recipe: QuantizationRecipe, shape: ModelShape
) -> RecipePlan:
    memory, too_large = judge_memory(target, recipe, shape)
    speed = judge_speed(release, target, recipe, shape)
    split = advise_split(target, recipe, shape)
    refusal = too_large or speed.refused
    nearest = refusal.nearest if refusal else ""
    if too_large and split and split.change not in nearest:
        nearest = f"{split.change}, or {nearest}"
    figures = {
        "legal": refusal is None,
        "reason": refusal.reason if refusal else "",
        "nearest": nearest,
        "warnings": (*plan.warnings, *speed.warnings),
        "memory": memory,
        "capacity": capacity(target, recipe, shape),
        "speed": speed.figures,
        "throughput": expected_throughput(target, recipe, shape),
        "split": split,
    }
    return plan.model_copy(update=figures)
