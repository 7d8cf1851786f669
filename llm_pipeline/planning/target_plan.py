"""One target of a plan: what runs there, and whether every recipe is legal, loads and fits.

An engine loads a model by its architecture, and by how a published checkpoint is quantized already. What the CPU engine
traces is what its exporter takes with the Transformers that is installed in the model environment. TensorRT-LLM's list
of models is no limit, so a model that is not on it is a warning.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.catalog.openvino_exporter import newest_transformers
from llm_pipeline.catalog.runtime_versions import release_numbers
from llm_pipeline.catalog.tables import find_container, find_gpu, read_table
from llm_pipeline.config.deployment import Deployment
from llm_pipeline.config.quantization import QuantizationRecipe
from llm_pipeline.config.release import ResolvedRelease
from llm_pipeline.config.target import Target
from llm_pipeline.model_facts.facts import ModelFacts
from llm_pipeline.planning.aiconfigurator import Prediction, installed_command, predict
from llm_pipeline.planning.compatibility import Refused, judge_compatibility
from llm_pipeline.planning.model import RecipePlan, TargetPlan
from llm_pipeline.planning.target_checks import target_warnings
from llm_pipeline.planning.target_memory import advise_split, capacity, fits_with, judge_memory
from llm_pipeline.planning.target_speed import expected_throughput, judge_speed
from llm_pipeline.release.loading import LoadedRelease

_MODEL_ENVIRONMENT = "model"
_OF_SEVERAL_PARTS = "ForConditionalGeneration"
"""End of the names of classes that read images or sounds beside text."""

_NO_GROUPS = frozenset({"phi"})
"""The exporter's sample of a KV cache has a head for each query head, which these fail on where heads share one."""


def engine_refusal(target: Target, facts: ModelFacts, transformers: str | None) -> Refused | None:
    """Why a target's engine cannot load a model.

    Args:
        target: Where it is to be served.
        facts: The model.
        transformers: Version in the environment that builds; None where it is not known: then nothing of it is judged.
    """
    if target.engine != "openvino_cpu":
        return None
    if facts.stored_format:
        return Refused(
            reason=f"the CPU engine reads plain weights and modelopt's formats, not {facts.stored_format}",
            nearest="the unquantized model, or a target with engine: tensorrt_llm_llmapi",
        )
    if facts.architecture.endswith(_OF_SEVERAL_PARTS):
        return Refused(
            reason=f"the CPU engine serves text, and its exporter traces {facts.architecture} with its encoders only",
            nearest="a checkpoint of the text model alone, or a target on a GPU",
        )
    return _export_refusal(facts, transformers)


def _export_refusal(facts: ModelFacts, transformers: str | None) -> Refused | None:
    """Why the CPU engine's exporter cannot trace a model."""
    table = read_table("openvino_exporter")
    exporter, nearest = f"{table['exporter']} {table['version']}", "a target on a GPU"
    if facts.model_type not in table["architectures"]:
        reason = f"the CPU engine's exporter ({exporter}) does not know architecture {facts.model_type}"
        return Refused(reason=reason, nearest=nearest)
    if facts.model_type in _NO_GROUPS and facts.key_value_heads != facts.attention_heads:
        shared = f"{facts.key_value_heads} key and value heads, for {facts.attention_heads} query heads"
        return Refused(reason=f"{exporter} does not trace {facts.model_type} with {shared}", nearest=nearest)
    oldest, stated = table["architectures"][facts.model_type]
    newest = newest_transformers(facts.model_type, stated)
    if transformers is None or _within(transformers, oldest, newest):
        return None
    span = f"from {oldest} on" if newest is None else f"{oldest or 'old ones'} to {newest}"
    return Refused(
        reason=f"{exporter} traces {facts.model_type} with Transformers {span}, and {transformers} is installed",
        nearest=f"{nearest}, or a model environment with such a Transformers",
    )


def engine_doubts(target: Target, recipe: QuantizationRecipe, facts: ModelFacts) -> tuple[str, ...]:
    """What is not known of a model on a target's engine."""
    found = []
    if target.engine == "tensorrt_llm_llmapi" and facts.architecture:
        table = read_table("tensorrt_llm_architectures")
        if facts.architecture not in table["architectures"]:
            found.append(f"{facts.architecture} is not in TensorRT-LLM's list of models: it may run all the same")
    if facts.stored_format and recipe.weights == "none" and target.engine != "openvino_cpu":
        found.append(
            f"the checkpoint is quantized already ({facts.stored_format}) and is served as it is: {target.engine} must "
            "read that format, and it is also what the baseline's scores are of"
        )
    return tuple(found)


def installed_transformers(deployment: Deployment) -> str | None:
    """Version of Transformers beside the interpreter of the model environment; None where it is not on this host."""
    environment = deployment.environments.get(_MODEL_ENVIRONMENT)
    python = environment.interpreter_here() if environment is not None else None
    if python is None:
        return None
    packages = Path(python).parent.parent.glob("lib/python*/site-packages/transformers-*.dist-info")
    return next((path.name.removesuffix(".dist-info").partition("-")[2] for path in packages), None)


def _within(version: str, oldest: str | None, newest: str | None) -> bool:
    """Whether a version is in a range; `5.0` as its end takes no 5.1, as the exporter counts."""
    numbers = release_numbers(version)
    return (oldest is None or release_numbers(oldest) <= numbers) and (
        newest is None or numbers <= release_numbers(newest)
    )


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
    if unloadable := engine_refusal(target, facts, installed_transformers(loaded.deployment)):
        return plan.model_copy(update={"legal": False, "reason": unloadable.reason, "nearest": unloadable.nearest})
    doubts = engine_doubts(target, recipe, facts)
    plan = plan.model_copy(update={"warnings": (*plan.warnings, *doubts)})
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


_AT_ONCE = 4


def with_predictions(release: ResolvedRelease, targets: Sequence[TargetPlan]) -> tuple[TargetPlan, ...]:
    """The targets with a prediction for every recipe that is legal there; CPU targets as they are."""
    command = installed_command()

    def ask(target: TargetPlan, recipe: RecipePlan) -> Prediction:
        return predict(command, release.model.id, release.target(target.name), release.recipe(recipe.recipe))

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        asked = {
            (target.name, recipe.recipe): pool.submit(ask, target, recipe)
            for target in targets
            for recipe in target.recipes
            if recipe.legal and target.accelerators
        }
    found = {cell: future.result() for cell, future in asked.items()}

    def with_prediction(target: TargetPlan, recipe: RecipePlan) -> RecipePlan:
        return recipe.model_copy(update={"prediction": found.get((target.name, recipe.recipe))})

    return tuple(
        target.model_copy(update={"recipes": tuple(with_prediction(target, recipe) for recipe in target.recipes)})
        for target in targets
    )
