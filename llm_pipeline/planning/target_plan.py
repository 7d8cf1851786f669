"""One target of a plan: whether every recipe is legal there, loads and fits.

An engine loads a model by its architecture, and by how a published checkpoint is quantized already: its adapter judges
that (`judge_model`), with the Transformers that is installed in the model environment.
"""

from __future__ import annotations

from collections.abc import Iterator

from llm_pipeline.base.errors import located
from llm_pipeline.base.records import Frozen
from llm_pipeline.catalog.tables import find_gpu
from llm_pipeline.config.model import ConfigModel
from llm_pipeline.config.quantization import QuantizationRecipe, WeightFormat
from llm_pipeline.config.target import EngineBuilderName, EngineLimits, Parallelism, Target
from llm_pipeline.engines.builder import engine_adapter
from llm_pipeline.model_facts.facts import ModelFacts
from llm_pipeline.planning import host
from llm_pipeline.planning.compatibility import Legal, Refused, judge_compatibility
from llm_pipeline.planning.host import total_memory_bytes
from llm_pipeline.planning.memory import Engine, MemoryFit, fit_memory, quantizes_experts, stored_as_it_is
from llm_pipeline.release.loading import LoadedRelease


def target_warnings(target: Target) -> Iterator[str]:
    """What works on a GPU target without a problem, though perhaps not as meant."""
    engine = engine_adapter(target.engine)
    unread = [
        f"{section}.{name}"
        for section, read in engine.reads.items()
        for name in _changed(getattr(target, section))
        if name not in read and f"{name.partition('.')[0]}.*" not in read
    ]
    if unread:
        yield f"{engine.words or target.engine} does not read {', '.join(unread)}"
    if engine.warnings:
        yield from engine.warnings(target)


def _changed(options: ConfigModel) -> Iterator[str]:
    """Names of the options that are not at their defaults, with a point for each level."""
    defaults = type(options)()
    for name in type(options).model_fields:
        mine, theirs = getattr(options, name), getattr(defaults, name)
        if isinstance(mine, ConfigModel) and isinstance(theirs, ConfigModel):
            yield from (f"{name}.{below}" for below in _changed(mine))
        elif mine != theirs:
            yield name


_CPU_RUNTIME_BYTES = 2**29
"""The server, its Python process and OpenVINO; an estimate."""


def judge_memory(
    target: Target, recipe: QuantizationRecipe, facts: ModelFacts
) -> tuple[MemoryFit | None, Refused | None]:
    """The memory of one rank, and the refusal when it does not hold what the target's limits ask for.

    Raises:
        ConfigError: The target's accelerator is not in the GPU catalog.
    """
    if split := _cannot_split(facts, target.parallelism):
        return None, split
    tokens = min(target.limits.maximum_tokens_per_request, facts.context_length)  # no longer than the model's context
    limits = target.limits.model_copy(update={"maximum_tokens_per_request": tokens})
    fit = fit_memory(facts, recipe, engine_memory(target), limits, target.parallelism)
    if fit.fits:
        return fit, None
    nearest = "weights of fewer bits, more tensor parallelism, or an accelerator with more memory"
    if fit.largest_batch:
        nearest = f"limits.maximum_sequences: {fit.largest_batch}"
    return fit, Refused(reason=_shortage(fit, target, limits), nearest=nearest)


def engine_memory(target: Target) -> Engine:
    """The memory model of a target's engine."""
    engine, on_cpu = engine_adapter(target.engine), target.accelerator == "cpu"
    if on_cpu and not engine.shares_whole_memory:
        # The engine computes in float32 and keeps its KV cache so, for results that repeat exactly.
        return Engine(capacity=total_memory_bytes(), runtime=_CPU_RUNTIME_BYTES, element_bytes=4, quantizes_kv=False)
    return Engine(
        capacity=total_memory_bytes() if on_cpu else find_gpu(target.accelerator).usable_bytes,
        runtime=engine.runtime_bytes,
        kv_cache=target.runtime.kv_cache,
        shares_whole_memory=engine.shares_whole_memory,
    )


def _cannot_split(facts: ModelFacts, parallelism: Parallelism) -> Refused | None:
    heads, tensor, pipeline = facts.attention_heads, parallelism.tensor, parallelism.pipeline
    if heads % tensor:
        nearest = max(number for number in range(1, tensor) if heads % number == 0)
        reason = f"{heads} attention heads cannot be split over tensor parallelism {tensor}"
        return Refused(reason=reason, nearest=f"parallelism.tensor: {nearest}")
    if pipeline > facts.layers:
        reason = f"{facts.layers} layers cannot be split over pipeline parallelism {pipeline}"
        return Refused(reason=reason, nearest=f"parallelism.pipeline: {facts.layers}")
    expert = parallelism.expert or 1
    if expert > 1 and not facts.is_mixture:
        return Refused(reason="the model has no experts to be spread", nearest="no parallelism.expert")
    if facts.is_mixture and facts.experts % expert:
        nearest = max(number for number in range(1, expert) if facts.experts % number == 0)
        reason = f"{facts.experts} experts cannot be spread over expert parallelism {expert}"
        return Refused(reason=reason, nearest=f"parallelism.expert: {nearest}")
    return None


def _shortage(fit: MemoryFit, target: Target, limits: EngineLimits) -> str:
    kv_cache = target.runtime.kv_cache
    whole = engine_adapter(target.engine).shares_whole_memory
    share = f"{kv_cache.free_memory_fraction:.0%} of the {'whole for all three' if whole else 'rest'}"
    return (
        f"{fit.weights / 1e9:.1f} GB weights + {fit.runtime / 1e9:.1f} GB runtime of {fit.capacity / 1e9:.1f} GB "
        f"leave {fit.kv_available / 1e9:.1f} GB for the KV cache ({share}), but "
        f"maximum_sequences {limits.maximum_sequences} x {limits.maximum_tokens_per_request} tokens a request "
        f"need {fit.kv_wanted / 1e9:.1f} GB"
    )


class RecipePlan(Frozen):
    """One recipe on one target.

    Attributes:
        stored_format: Of a quantized checkpoint that it passes on as it is, its format.
        legal: Whether it can be built and served there, as far as is known.
        reason: Why not; empty when legal.
        nearest: The nearest choice that is legal; empty when legal.
        warnings: What is not known, or not as asked for.
        memory: The memory of one rank; None where the model's sizes are not known.
    """

    recipe: str
    weights: WeightFormat
    stored_format: str = ""
    legal: bool
    reason: str = ""
    nearest: str = ""
    warnings: tuple[str, ...] = ()
    memory: MemoryFit | None = None


class TargetPlan(Frozen):
    """One target with every recipe.

    Attributes:
        accelerators: GPUs of one engine instance; 0 on a CPU.
        container: Image with its tag.
        digest: What the image is pinned to; None for nothing, so that the tag may come to mean another image.
        warnings: What works there though not as written, whatever the recipe.
    """

    name: str
    accelerator: str
    accelerators: int
    engine: EngineBuilderName
    runtime_version: str | None = None
    container: str | None = None
    digest: str | None = None
    warnings: tuple[str, ...] = ()
    recipes: tuple[RecipePlan, ...]


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
    told = (
        f"the model is quantized already ({facts.stored_format}) and is served as it is: what it lost by that shows "
        "nowhere, as the baseline's scores are of it, too"
    )
    return judged.model_copy(update={"warnings": (*judged.warnings, told)})


def plan_target(loaded: LoadedRelease, target: Target, facts: ModelFacts | None) -> TargetPlan:
    """Judge every recipe of a release on one target.

    Args:
        loaded: The release.
        target: One of its targets.
        facts: The model; None while it was not read: then memory is not judged.

    Raises:
        ConfigError: The accelerator is not in the GPU catalog.
    """
    with located("accelerator", str(loaded.file_of("targets", target.name))):
        gpu = None if target.accelerator == "cpu" else find_gpu(target.accelerator)
    recipes = tuple(_plan_recipe(loaded, target, recipe, facts) for recipe in loaded.release.recipes)
    image, _, digest = (target.container or "").partition("@")
    return TargetPlan(
        name=target.name,
        accelerator=target.accelerator,
        accelerators=target.accelerator_count if gpu else 0,
        engine=target.engine,
        runtime_version=target.runtime_version,
        container=image or None,
        digest=digest or None,
        warnings=tuple(target_warnings(target)) if gpu and any(recipe.legal for recipe in recipes) else (),
        recipes=recipes,
    )


def _plan_recipe(
    loaded: LoadedRelease, target: Target, recipe: QuantizationRecipe, facts: ModelFacts | None
) -> RecipePlan:
    release = loaded.release
    stored = stored_as_it_is(facts, recipe) if facts else None
    stored_format = stored.stored_format if stored else ""
    judged = judge_compatibility(
        target,
        recipe,
        release.baseline.dtype,
        release.model.id,
        stored_format=stored_format,
        quantized_experts=bool(facts and quantizes_experts(facts, recipe)),
    )
    refused, memory = judged if isinstance(judged, Refused) else None, None
    warnings = judged.warnings if isinstance(judged, Legal) else ()
    if refused is None and facts is not None:
        loads = judge_model(target, recipe, facts, host.installed_transformers(loaded.deployment))
        if isinstance(loads, Refused):
            refused = loads
        else:
            warnings += loads.warnings
            memory, refused = judge_memory(target, recipe, facts)
    return RecipePlan(
        recipe=recipe.name,
        weights=recipe.weights,
        stored_format=stored_format,
        legal=refused is None,
        reason=refused.reason if refused else "",
        nearest=refused.nearest if refused else "",
        warnings=warnings,
        memory=memory,
    )
