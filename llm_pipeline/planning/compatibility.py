"""Which recipe is legal on which target: GPU generation, backend and version, container, CPU engine. Pure.

The tables say yes, no, partial or unknown. Only `no` refuses; `partial` and `unknown` are legal with a warning that
says so, since a missing entry in a vendor's table proves nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Literal

from llm_pipeline.base.adapters import is_ours
from llm_pipeline.base.records import Frozen
from llm_pipeline.catalog.runtime_versions import (
    container_problem,
    container_warning,
    engine_problem,
    release_numbers,
    version_problem,
    version_warning,
)
from llm_pipeline.catalog.tables import Column, containers, find_family, find_gpu, first_reader_version
from llm_pipeline.config.quantization import KvCacheFormat, QuantizationRecipe, WeightFormat
from llm_pipeline.config.target import EngineModel, Target
from llm_pipeline.planning.formats import (
    CPU_FORMATS,
    CPU_KV_FORMATS,
    VLLM_FORMATS,
    VLLM_KV_FORMATS,
    BaselinePrecision,
    FormatRequest,
    Platform,
    Support,
    asked_by,
    kv_support,
    legal_kv_caches,
    legal_weights,
    nearest_kv_cache,
    nearest_weights,
    weights_support,
    worse,
)
from llm_pipeline.planning.target_checks import (
    compiled_formats,
    compiled_kv_cache,
    compiled_kv_caches,
    compiled_weights,
    export_changes,
    export_problems,
    target_problem,
)
from llm_pipeline.planning.weight_storage import bits_per_weight

_OLDEST_TRANSFORMERS, _NEWEST_TRANSFORMERS = (5, 5), (5, 17)
"""Continuous batching has changed its interface with many versions; these are the ends of what it was run with."""

_OLDEST_VLLM, _NEWEST_VLLM = (0, 20), (0, 33)
"""The engine's asynchronous interface is not stable: from the oldest that it was run with, to before the first that it
was not."""
_SM_WITH_FP8, _SM_WITH_FP4 = 89, 100


Fits = Callable[[WeightFormat], bool]


_OTHER_ENGINE = "engine: tensorrt_llm_llmapi"


class Legal(Frozen):
    """The recipe can be built and served on the target, as far as is known.

    Attributes:
        known: `yes`; `partial` and `unknown` where a table says so, or what is asked for is in none.
        warnings: What is partial or unknown, or not as asked for.
    """

    legal: Literal[True] = True
    known: Literal["yes", "partial", "unknown"] = "yes"
    warnings: tuple[str, ...] = ()


class Refused(Frozen):
    """The recipe cannot be built or served on the target.

    Attributes:
        reason: Why, with the evidence.
        nearest: The nearest choice that is legal there.
    """

    legal: Literal[False] = False
    reason: str
    nearest: str


def judge_compatibility(
    target: Target,
    recipe: QuantizationRecipe,
    dtype: BaselinePrecision,
    model_id: str | None = None,
    fits: Fits | None = None,
) -> Legal | Refused:
    """Whether a recipe is legal on a target.

    Args:
        target: Where it is to be served.
        recipe: How the model is quantized.
        dtype: Precision of what is not quantized.
        model_id: The model, for NVIDIA's tables of models; None for what holds of any.
        fits: Whether the target holds the model in a format; None where the model is not known. Advice must fit.

    Raises:
        ConfigError: The target's accelerator is not in the GPU catalog, or modelopt has no such recipe.
    """
    if not is_ours("engines", target.engine):
        return _judge_installed(target, recipe)
    if target.accelerator == "cpu":
        return _judge_on_cpu(target, recipe, fits)
    platform = platform_of(target, model_id)
    if refused := _judge_runtime(target):
        return refused
    if target.engine == "transformers_torch":
        return _judge_transformers(target, recipe, fits)
    if target.engine == "vllm":
        return _judge_vllm(platform, target, recipe, fits)
    return _judge_on_gpu(platform, target, recipe, dtype, fits)


def _judge_installed(target: Target, recipe: QuantizationRecipe) -> Legal | Refused:
    """As the package that brings the engine says."""
    options = target.engine_options or EngineModel()
    if problems := list(options.problems(target, recipe)):
        return Refused(reason="; ".join(problems), nearest="what that engine takes, or another engine")
    return Legal(warnings=tuple(options.warnings(target, recipe)))


def platform_of(target: Target, model_id: str | None = None) -> Platform:
    """The GPU generation and the backend of a target with TensorRT-LLM, and the model's family.

    Raises:
        ConfigError: The target's accelerator is not in the GPU catalog.
    """
    return Platform(find_gpu(target.accelerator).sm, _column(target), find_family(model_id) if model_id else None)


def _judge_on_cpu(target: Target, recipe: QuantizationRecipe, fits: Fits | None) -> Legal | Refused:
    if target.engine == "vllm":
        return _judge_vllm_on_cpu(recipe)
    if target.engine != "openvino_cpu":
        return Refused(reason=f"engine {target.engine} does not run on a CPU", nearest="engine: openvino_cpu")
    asked = asked_by(recipe)
    kv_cache = nearest_kv_cache(asked.kv_cache, CPU_KV_FORMATS)
    unserved = [name for name in asked.weights if name not in CPU_FORMATS]
    if unserved:
        cuda = "; modelopt needs CUDA to quantize it, too" if asked.needs_cuda else ""
        changes = _changes(recipe, asked, unserved, _fitting(CPU_FORMATS, fits), CPU_KV_FORMATS)
        reason = f"the CPU engine cannot serve {', '.join(unserved)}{cuda}"
        return Refused(reason=reason, nearest=", ".join(changes))
    if asked.kv_cache != kv_cache:
        reason = f"the CPU engine cannot round its KV cache to {asked.kv_cache}"
        return Refused(reason=reason, nearest=f"kv_cache: {kv_cache}")
    warnings = []
    if asked.kv_cache != "none":
        warnings.append(f"the CPU engine keeps its KV cache in 32 bit: kv_cache {asked.kv_cache} is not served there")
    if target.weight_format in ("int8", "int4"):
        warnings.append(f"the engine compiler quantizes again ({target.weight_format}); only served accuracy sees it")
    return Legal(warnings=tuple(warnings))


def _judge_runtime(target: Target) -> Refused | None:
    """What is wrong with a GPU target whatever the recipe."""
    gpus = target.parallelism.world_size
    if target.engine == "openvino_cpu":
        return Refused(reason="engine openvino_cpu does not run on a GPU", nearest=_OTHER_ENGINE)
    if gpus != target.accelerator_count:
        return Refused(
            reason=f"tensor x pipeline parallelism is {gpus}, accelerator_count is {target.accelerator_count}",
            nearest=f"accelerator_count: {gpus}",
        )
    if target.weight_format != "native":
        return Refused(
            reason=f"weight_format {target.weight_format} is for CPU targets", nearest="weight_format: native"
        )
    if not target.runtime_version or not target.container:
        missing = "runtime_version" if not target.runtime_version else "container"
        newest = containers()[0]
        nearest = f"runtime_version: {newest.tensorrt_llm}, container: {newest.image}"
        if target.engine == "transformers_torch":
            nearest = "the version of Transformers, and an image that has it beside Triton"
        if target.engine == "vllm":
            nearest = "the version of vLLM, and an image that has it beside Triton, such as tritonserver's -vllm-python"
        return Refused(reason=f"a GPU target needs {missing}", nearest=nearest)
    if target.engine in ("transformers_torch", "vllm"):
        return None
    return _judge_version(target, target.runtime_version, target.container)


def _judge_version(target: Target, version: str, container: str) -> Refused | None:
    problem = version_problem(version)
    if target.engine == "tensorrt_llm_engine":
        problem = problem or engine_problem(version)
    problem = problem or container_problem(container, version) or target_problem(target)
    return Refused(reason=problem.reason, nearest=problem.nearest) if problem else None


def _judge_transformers(target: Target, recipe: QuantizationRecipe, fits: Fits | None) -> Legal | Refused:
    if target.accelerator_count > 1:
        return Refused(
            reason="engine transformers_torch serves on one GPU",
            nearest=f"accelerator_count: 1, or {_OTHER_ENGINE}",
        )
    if not _OLDEST_TRANSFORMERS <= release_numbers(target.runtime_version or "") <= _NEWEST_TRANSFORMERS:
        oldest, newest = (".".join(map(str, numbers)) for numbers in (_OLDEST_TRANSFORMERS, _NEWEST_TRANSFORMERS))
        return Refused(
            reason=f"continuous batching is known in Transformers {oldest} to {newest}, not {target.runtime_version}",
            nearest=f"runtime_version: {newest}",
        )
    if recipe.weights != "none":
        return Refused(
            reason=f"Transformers does not read modelopt's {recipe.weights} checkpoints (it drops their scales)",
            nearest=_OTHER_ENGINE if fits and not fits("none") else f"weights: none, or {_OTHER_ENGINE}",
        )
    return Legal()


def _judge_vllm(platform: Platform, target: Target, recipe: QuantizationRecipe, fits: Fits | None) -> Legal | Refused:
    """By what vLLM's reader of modelopt's checkpoints takes, and the GPU's own arithmetic."""
    if target.parallelism.pipeline > 1:
        return Refused(reason="engine vllm is served with tensor parallelism only", nearest="parallelism.pipeline: 1")
    if not _OLDEST_VLLM <= release_numbers(target.runtime_version or "") < _NEWEST_VLLM:
        oldest, newest = (".".join(map(str, numbers)) for numbers in (_OLDEST_VLLM, _NEWEST_VLLM))
        return Refused(
            reason=f"engine vllm was run with vLLM from {oldest} on, before {newest}, not {target.runtime_version}",
            nearest=f"runtime_version: {oldest}",
        )
    asked = asked_by(recipe)
    unread = [name for name in asked.weights if name not in VLLM_FORMATS]
    if unread or asked.kv_cache not in VLLM_KV_FORMATS:
        what = [*unread, *([f"kv_cache {asked.kv_cache}"] if asked.kv_cache not in VLLM_KV_FORMATS else ())]
        return Refused(
            reason=f"vLLM does not read modelopt's {', '.join(what)}",
            nearest=", ".join(_changes(recipe, asked, unread, _fitting(VLLM_FORMATS, fits), VLLM_KV_FORMATS)),
        )
    return _legal([support for name in asked.weights for support in _vllm_kernels(platform, name)])


def _judge_vllm_on_cpu(recipe: QuantizationRecipe) -> Legal | Refused:
    asked = asked_by(recipe)
    if set(asked.weights) != {"none"} or asked.kv_cache != "none":
        return Refused(
            reason=f"vLLM reads none of modelopt's checkpoints on a CPU, and {recipe.name} is one",
            nearest="weights: none and kv_cache: none, or engine: openvino_cpu",
        )
    return Legal(warnings=("vLLM on a CPU is slow: it shows that a release for a GPU works, not how fast",))


def _vllm_kernels(platform: Platform, weights: WeightFormat) -> Iterator[Support]:
    generation = int(platform.sm.removeprefix("sm"))
    if weights.startswith("fp8") and generation < _SM_WITH_FP8:
        yield Support("partial", f"{platform.sm} computes no FP8: vLLM keeps {weights} weights and computes in 16 bit")
    if weights.startswith("nvfp4") and generation < _SM_WITH_FP4:
        yield Support("partial", f"{platform.sm} computes no FP4: vLLM keeps {weights} weights and computes in 16 bit")


def _judge_on_gpu(
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
        return _legal((*supports, *_runtime_supports(target, recipe)))
    refused = [name for name, support in weights.items() if support.value == "no"]
    legal, kv_caches = legal_weights(platform, dtype), legal_kv_caches(platform)
    if kv_cache.value != "no":
        kv_caches = (asked.kv_cache, *kv_caches)
    if compiled:
        legal = compiled_formats(target, recipe, legal)
    legal = _fitting(legal or ("none",), fits)  # unquantized, where no format is known to run
    if compiled:
        chosen = nearest_weights(bits_per_weight(recipe), legal) if refused else recipe.weights
        kv_caches = compiled_kv_caches(target, chosen, kv_caches)
    changes = (
        *_changes(recipe, asked, refused, legal, kv_caches),
        *(export_changes(target, recipe) if compiled else ()),
    )
    return Refused(reason="; ".join(reasons), nearest=", ".join(changes))


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


def _legal(supports: Collection[Support]) -> Legal:
    uncertain = [support for support in supports if support.value != "yes"]
    unknown = any(support.value == "unknown" for support in uncertain)
    return Legal(
        known="unknown" if unknown else "partial" if uncertain else "yes",
        warnings=tuple(support.text for support in uncertain),
    )


def _changes(
    recipe: QuantizationRecipe,
    asked: FormatRequest,
    refused: Collection[WeightFormat],
    legal: Collection[WeightFormat],
    kv_caches: Collection[KvCacheFormat],
) -> Iterator[str]:
    """The fewest lines of the recipe that make it legal."""
    kept = [name for name in asked.weights if name not in refused]
    if refused and kept and recipe.search:
        yield f"search.formats: [{', '.join(kept)}]"
    elif refused and legal:
        yield f"weights: {nearest_weights(bits_per_weight(recipe), legal)}"
    elif refused:
        yield "an accelerator with more memory: no format that runs on this one makes the model fit"
    if asked.kv_cache not in kv_caches:
        yield f"kv_cache: {nearest_kv_cache(asked.kv_cache, kv_caches)}"


def _fitting(formats: Collection[WeightFormat], fits: Fits | None) -> tuple[WeightFormat, ...]:
    return tuple(name for name in formats if fits is None or fits(name))


def _column(target: Target) -> Column:
    if target.engine == "tensorrt_llm_engine":
        return "engine_1_2"
    return "pytorch_1_2" if release_numbers(target.runtime_version or "") < (1, 3) else "pytorch_main"
