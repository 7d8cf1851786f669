"""Which recipe is legal on which target. Pure.

Each engine's adapter judges by its own rules (`judge` of its `EngineAdapter`, in `plan.py` of its folder); here is what
these judgements have in common.

The tables say yes, no, partial or unknown. Only `no` refuses; `partial` and `unknown` are legal with a warning that
says so, since a missing entry in a vendor's table proves nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Literal

from llm_pipeline.base.records import Frozen
from llm_pipeline.catalog.runtime_versions import (
    release_numbers,
)
from llm_pipeline.catalog.tables import Column, find_family, find_gpu
from llm_pipeline.config.quantization import KvCacheFormat, QuantizationRecipe, WeightFormat
from llm_pipeline.config.target import EngineModel, Target
from llm_pipeline.engines.builder import engine_adapter
from llm_pipeline.planning.formats import (
    BaselinePrecision,
    FormatRequest,
    Platform,
    Support,
    nearest_kv_cache,
    nearest_weights,
)
from llm_pipeline.planning.weight_storage import bits_per_weight

Fits = Callable[[WeightFormat], bool]

OTHER_ENGINE = "engine: tensorrt_llm_llmapi"
"""What is advised where an engine cannot do what is asked of it on a GPU."""


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


@dataclass(frozen=True)
class Asked:
    """What an engine's `judge` is asked.

    Attributes:
        target: Where the model is to be served.
        recipe: How it is quantized.
        dtype: Precision of what is not quantized.
        model_id: The model, for NVIDIA's tables of models; None for what holds of any.
        fits: Whether the target holds the model in a format; None where the model is not known. Advice must fit.
    """

    target: Target
    recipe: QuantizationRecipe
    dtype: BaselinePrecision
    model_id: str | None = None
    fits: Fits | None = None


def judge_compatibility(
    target: Target,
    recipe: QuantizationRecipe,
    dtype: BaselinePrecision,
    model_id: str | None = None,
    fits: Fits | None = None,
) -> Legal | Refused:
    """Whether a recipe is legal on a target; see `Asked` for the arguments.

    Raises:
        ConfigError: The target's accelerator is not in the GPU catalog, or modelopt has no such recipe.
    """
    engine = engine_adapter(target.engine)
    if engine.judge is not None:
        judged: Legal | Refused = engine.judge(Asked(target, recipe, dtype, model_id, fits))
        return judged
    options = target.engine_options or EngineModel()
    if problems := list(options.problems(target, recipe)):
        return Refused(reason="; ".join(problems), nearest="what that engine takes, or another engine")
    return Legal(warnings=tuple(options.warnings(target, recipe)))


def in_format(recipe: QuantizationRecipe, weights: WeightFormat) -> QuantizationRecipe:
    """A recipe with the weights in another format."""
    return recipe.model_copy(update={"weights": weights, "search": None, "modelopt_recipe": None})


def is_known_to_run(target: Target, recipe: QuantizationRecipe, dtype: BaselinePrecision = "bfloat16") -> bool:
    """Whether the target's engine surely serves a recipe: what may be advised.

    Raises:
        ConfigError: As `judge_compatibility`.
    """
    judged = judge_compatibility(target, recipe, dtype)
    return isinstance(judged, Legal) and judged.known == "yes"


def refused_on_cpu(target: Target) -> Refused:
    """What an engine for GPUs says of a CPU target."""
    return Refused(reason=f"engine {target.engine} does not run on a CPU", nearest="engine: openvino_cpu")


def gpu_target_refusal(target: Target, runtime: str) -> Refused | None:
    """What is wrong with a GPU target whatever the engine and the recipe.

    Args:
        target: The target.
        runtime: What its `runtime_version` and `container` must name, in the engine's words.
    """
    gpus = target.parallelism.world_size
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
        return Refused(reason=f"a GPU target needs {missing}", nearest=runtime)
    return None


def platform_of(target: Target, model_id: str | None = None) -> Platform:
    """The GPU generation and the backend of a target with TensorRT-LLM, and the model's family.

    Raises:
        ConfigError: The target's accelerator is not in the GPU catalog.
    """
    return Platform(find_gpu(target.accelerator).sm, _column(target), find_family(model_id) if model_id else None)


def legal(supports: Collection[Support]) -> Legal:
    """The recipe is legal; what tables do not say yes to is a warning."""
    uncertain = [support for support in supports if support.value != "yes"]
    unknown = any(support.value == "unknown" for support in uncertain)
    return Legal(
        known="unknown" if unknown else "partial" if uncertain else "yes",
        warnings=tuple(support.text for support in uncertain),
    )


def changes(
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


def fitting(formats: Collection[WeightFormat], fits: Fits | None) -> tuple[WeightFormat, ...]:
    """The formats in which the target holds the model."""
    return tuple(name for name in formats if fits is None or fits(name))


def _column(target: Target) -> Column:
    if engine_adapter(target.engine).compiles_export:
        return "engine_1_2"
    return "pytorch_1_2" if release_numbers(target.runtime_version or "") < (1, 3) else "pytorch_main"
