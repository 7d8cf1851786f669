"""What `plan` says of TensorRT-LLM's engines, by NVIDIA's tables and the checks of their builders. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from llm_pipeline.adapters.tensorrt_llm.target_checks import (
    compiled_formats,
    compiled_kv_cache,
    compiled_kv_caches,
    compiled_weights,
    export_changes,
    export_problems,
    target_problem,
)
from llm_pipeline.catalog.runtime_versions import (
    container_problem,
    container_warning,
    engine_problem,
    release_numbers,
    version_problem,
    version_warning,
)
from llm_pipeline.catalog.tables import containers, first_reader_version, read_table
from llm_pipeline.config.quantization import QuantizationRecipe
from llm_pipeline.config.target import Target
from llm_pipeline.model_facts.facts import ModelFacts
from llm_pipeline.planning.compatibility import (
    Asked,
    Fits,
    Legal,
    Refused,
    changes,
    fitting,
    gpu_target_refusal,
    legal,
    platform_of,
    refused_on_cpu,
)
from llm_pipeline.planning.formats import (
    BaselinePrecision,
    Platform,
    Support,
    asked_by,
    kv_support,
    legal_kv_caches,
    legal_weights,
    nearest_weights,
    weights_support,
    worse,
)
from llm_pipeline.planning.weight_storage import bits_per_weight


def judge(question: Asked) -> Legal | Refused:
    """Whether TensorRT-LLM builds and serves a recipe on a target."""
    target = question.target
    if target.accelerator == "cpu":
        return refused_on_cpu(target)
    platform = platform_of(target, question.model_id)
    newest = containers()[0]
    if refused := gpu_target_refusal(target, f"runtime_version: {newest.tensorrt_llm}, container: {newest.image}"):
        return refused
    if refused := _judge_version(target, target.runtime_version or "", target.container or ""):
        return refused
    return _judge_formats(platform, target, question.recipe, question.dtype, question.fits)


def _judge_version(target: Target, version: str, container: str) -> Refused | None:
    problem = version_problem(version)
    if target.engine == "tensorrt_llm_engine":
        problem = problem or engine_problem(version)
    problem = problem or container_problem(container, version) or target_problem(target)
    return Refused(reason=problem.reason, nearest=problem.nearest) if problem else None


def _judge_formats(
    platform: Platform, target: Target, recipe: QuantizationRecipe, dtype: BaselinePrecision, fits: Fits | None
) -> Legal | Refused:
    asked, compiled = asked_by(recipe), target.engine == "tensorrt_llm_engine"
    weights = {
        name: weights_support(platform, name, dtype, weight_only=asked.weight_only, mixed=asked.mixed)
        for name in asked.weights
    }
    kv_cache = kv_support(platform, asked.kv_cache)
    if compiled:
        weights = {name: worse(support, compiled_weights(target, recipe)) for name, support in weights.items()}
        kv_cache = worse(kv_cache, compiled_kv_cache(target, recipe))
    supports = (*weights.values(), kv_cache)
    refusals = [support.text for support in supports if support.value == "no"]
    reasons = [*dict.fromkeys((*refusals, *(export_problems(target, recipe) if compiled else ())))]
    if not reasons:
        return legal((*supports, *_runtime_supports(target, recipe)))
    refused = [name for name, support in weights.items() if support.value == "no"]
    formats, kv_caches = legal_weights(platform, dtype), legal_kv_caches(platform)
    if kv_cache.value != "no":
        kv_caches = (asked.kv_cache, *kv_caches)
    if compiled:
        formats = compiled_formats(target, recipe, formats)
    formats = fitting(formats or ("none",), fits)  # unquantized, where no format is known to run
    if compiled:
        chosen = nearest_weights(bits_per_weight(recipe), formats) if refused else recipe.weights
        kv_caches = compiled_kv_caches(target, chosen, kv_caches)
    advice = (
        *changes(recipe, asked, refused, formats, kv_caches),
        *(export_changes(target, recipe) if compiled else ()),
    )
    return Refused(reason="; ".join(reasons), nearest=", ".join(advice))


def _runtime_supports(target: Target, recipe: QuantizationRecipe) -> Iterator[Support]:
    """What is not known of the target's version and container."""
    version, first = target.runtime_version or "", first_reader_version()
    for warning in (version_warning(version), container_warning(target.container or "", version)):
        if warning:
            yield Support("unknown", warning)
    unified = target.engine == "tensorrt_llm_llmapi" and recipe.weights != "none"
    if unified and release_numbers(version) < release_numbers(first):
        text = f"modelopt names TensorRT-LLM {first} as the first to read its checkpoints, this is {version}"
        yield Support("unknown", text)


def judge_model(facts: ModelFacts, _transformers: str | None) -> Legal:
    """TensorRT-LLM's list of models is no limit, so a model that is not on it is a warning."""
    if not facts.architecture or facts.architecture in read_table("tensorrt_llm_architectures")["architectures"]:
        return Legal()
    return Legal(warnings=(f"{facts.architecture} is not in TensorRT-LLM's list of models: it may run all the same",))
