"""One target of a plan: what runs there, and whether every recipe is legal, loads and fits.

An engine loads a model by its architecture, and by how a published checkpoint is quantized already: its adapter judges
that (`judge_model`), with the Transformers that is installed in the model environment.
"""

from __future__ import annotations

from functools import partial

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.catalog.tables import find_container, find_gpu
from llm_pipeline.config.quantization import QuantizationRecipe
from llm_pipeline.config.release import ResolvedRelease
from llm_pipeline.config.target import Target
from llm_pipeline.engines.builder import engine_adapter
from llm_pipeline.model_facts.facts import ModelFacts
from llm_pipeline.planning import host
from llm_pipeline.planning.compatibility import Legal, Refused, judge_compatibility
from llm_pipeline.planning.planned_target import RecipePlan, TargetPlan
from llm_pipeline.planning.target_checks import target_warnings
from llm_pipeline.planning.target_memory import advise_split, capacity, fits_with, judge_memory
from llm_pipeline.planning.target_speed import expected_throughput, judge_speed
from llm_pipeline.release.loading import LoadedRelease


def judge_model(
    target: Target, recipe: QuantizationRecipe, facts: ModelFacts, transformers: str | None
) -> Legal | Refused:
    """Whether a target's engine loads a model, and what is not known of that.

    Args:
        target: Where it is to be served.
        recipe: How it is quantized here.
        facts: The model.
        transformers: Version in the environment that builds; None where it is not known: then nothing of it is judged.
    """
    judge = engine_adapter(target.engine).judge_model
    judged: Legal | Refused = judge(facts, transformers) if judge else Legal()
    if isinstance(judged, Refused) or not facts.stored_format or recipe.weights != "none":
        return judged
    doubt = (
        f"the checkpoint is quantized already ({facts.stored_format}) and is served as it is: {target.engine} must "
        "read that format, and it is also what the baseline's scores are of"
    )
    return judged.model_copy(update={"warnings": (*judged.warnings, doubt)})


def plan_target(
    loaded: LoadedRelease, target: Target, facts: ModelFacts | None, *, stated: ModelFacts | None = None
) -> TargetPlan:
    """Judge every recipe of a release on one target.

    Args:
        loaded: The release.
        target: One of its targets.
        facts: The model; None while it was not read: then memory and speed are not judged.
        stated: The model by what the release config says, for advice that fits while it was not read.

    Raises:
        ConfigError: The accelerator is not in the GPU catalog.
    """
    try:
        gpu = None if target.accelerator == "cpu" else find_gpu(target.accelerator)
    except ConfigError as error:
        where = str(loaded.file_of("targets", target.name))
        raise ConfigError(f"accelerator: {error.message}", where=where, hint=error.hint) from error
    recipes = tuple(_plan_recipe(loaded, target, recipe, facts, stated) for recipe in loaded.release.recipes)
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
    loaded: LoadedRelease,
    target: Target,
    recipe: QuantizationRecipe,
    facts: ModelFacts | None,
    stated: ModelFacts | None,
) -> RecipePlan:
    release, known = loaded.release, facts or stated
    fits = partial(fits_with, target, recipe, known) if known else None
    judged = judge_compatibility(target, recipe, release.baseline.dtype, release.model.id, fits)
    if isinstance(judged, Refused):
        return RecipePlan(
            recipe=recipe.name, weights=recipe.weights, legal=False, reason=judged.reason, nearest=judged.nearest
        )
    plan = RecipePlan(recipe=recipe.name, weights=recipe.weights, legal=True, warnings=judged.warnings)
    if facts is None:
        return plan
    loads = judge_model(target, recipe, facts, host.installed_transformers(loaded.deployment))
    if isinstance(loads, Refused):
        return plan.model_copy(update={"legal": False, "reason": loads.reason, "nearest": loads.nearest})
    plan = plan.model_copy(update={"warnings": (*plan.warnings, *loads.warnings)})
    return _with_figures(plan, release, target, recipe, facts)


def _with_figures(
    plan: RecipePlan, release: ResolvedRelease, target: Target, recipe: QuantizationRecipe, facts: ModelFacts
) -> RecipePlan:
    memory, too_large = judge_memory(target, recipe, facts)
    speed = judge_speed(release, target, recipe, facts)
    split = advise_split(target, recipe, facts)
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
        "capacity": capacity(target, recipe, facts),
        "speed": speed.figures,
        "throughput": expected_throughput(target, recipe, facts),
        "split": split,
    }
    return plan.model_copy(update=figures)
