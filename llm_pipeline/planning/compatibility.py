"""Which recipe is legal on which target: what engines are asked, and what their judgements share. Pure.

Each engine's adapter judges by its own rules (`judge` of its `EngineAdapter`, in `plan.py` of its folder). Tables say
yes, no, partial or unknown. Only `no` refuses; `partial` and `unknown` are legal with a warning that says so, since a
missing entry in a vendor's table, or a model's family that is in none, proves nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from llm_pipeline.base.records import Frozen
from llm_pipeline.config.quantization import WEIGHT_FORMATS, KvCacheFormat, Precision, QuantizationRecipe, WeightFormat
from llm_pipeline.config.target import EngineModel, Target
from llm_pipeline.engines.builder import engine_adapter
from llm_pipeline.planning.memory import KV_BYTES, bits_per_weight, format_bits

OFFERED: tuple[WeightFormat, ...] = (*WEIGHT_FORMATS, "none")
"""All formats; those of the same size in the order in which we would offer them."""


class FormatRequest(NamedTuple):
    """What a recipe asks for.

    Attributes:
        weights: Formats that layers may get.
        kv_cache: Format of the KV cache.
        mixed: Layers may differ.
    """

    weights: tuple[WeightFormat, ...]
    kv_cache: KvCacheFormat
    mixed: bool = False


class Support(NamedTuple):
    """Whether something runs on a platform, in words that say what and why."""

    value: Literal["yes", "no", "partial", "unknown"]
    text: str


def nearest_kv_cache(wanted: KvCacheFormat, legal: Collection[KvCacheFormat]) -> KvCacheFormat:
    """The legal KV cache format that is nearest in size."""
    return min(legal, key=lambda name: abs(KV_BYTES[name] - KV_BYTES[wanted]))


OTHER_ENGINE = "engine: tensorrt_llm_llmapi"
"""What is advised where an engine cannot do what is asked of it on a GPU."""

OTHER_CHECKPOINT = "engine: vllm, or a recipe of another checkpoint"
"""What is advised where an engine does not read what somebody else quantized."""


def experts_left_out(recipe: QuantizationRecipe) -> str:
    """The line of a recipe that keeps experts at the baseline's precision."""
    excluded = ", ".join(f'"{pattern}"' for pattern in (*recipe.exclude, "*experts*"))
    return f"exclude: [{excluded}]"


class Legal(Frozen):
    """The recipe can be built and served on the target, as far as is known.

    Attributes:
        warnings: What is partial or unknown, or not as asked for.
    """

    legal: Literal[True] = True
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
class FormatQuestion:
    """What an engine's `judge` is asked.

    Attributes:
        target: Where the model is to be served.
        recipe: How it is quantized.
        dtype: Precision of what is not quantized.
        model_id: The model, for NVIDIA's tables of models; None for what holds of any.
        stored_format: Of a checkpoint that the recipe passes on as it is, its format as `ModelFacts` names it; empty
            for plain weights and modelopt's work here, and where it was not read.
        quantized_experts: The recipe quantizes the experts of a mixture.
    """

    target: Target
    recipe: QuantizationRecipe
    dtype: Precision
    model_id: str | None = None
    stored_format: str = ""
    quantized_experts: bool = False

    @property
    def asked(self) -> FormatRequest:
        """The formats that the engine gets; a checkpoint that modelopt exported elsewhere is as one of ours."""
        method, _, algorithm = self.stored_format.partition(" ")
        known = [name for name, one in WEIGHT_FORMATS.items() if method == "modelopt" and one.algorithm == algorithm]
        if known or self.recipe.weights == "ready":
            return FormatRequest((*known, "none")[:1], "none")
        return FormatRequest(self.recipe.formats, self.recipe.kv_cache, mixed=self.recipe.search is not None)

    @property
    def foreign_format(self) -> str:
        """The format of a checkpoint that neither is plain nor has one of modelopt's formats; empty for others."""
        return "" if self.stored_format.partition(" ")[0] == "modelopt" else self.stored_format


def judge_compatibility(
    target: Target, recipe: QuantizationRecipe, dtype: Precision, model_id: str | None = None, **seen: Any
) -> Legal | Refused:
    """Whether a recipe is legal on a target; see `FormatQuestion` for the arguments.

    Raises:
        ConfigError: The target's accelerator is not in the GPU catalog.
    """
    engine = engine_adapter(target.engine)
    if engine.judge is not None:
        judged: Legal | Refused = engine.judge(FormatQuestion(target, recipe, dtype, model_id, **seen))
        return judged
    options = target.engine_options or EngineModel()
    if problems := list(options.problems(target, recipe)):
        return Refused(reason="; ".join(problems), nearest="what that engine takes, or another engine")
    return Legal(warnings=tuple(options.warnings(target, recipe)))


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


def legal(supports: Collection[Support]) -> Legal:
    """The recipe is legal; what tables do not say yes to is a warning."""
    return Legal(warnings=tuple(support.text for support in supports if support.value != "yes"))


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
    elif refused:
        bits = bits_per_weight(recipe)  # the nearest in size; unquantized where no format is known to run
        nearest = min(legal or ("none",), key=lambda name: (abs(format_bits(name) - bits), OFFERED.index(name)))
        yield f"weights: {nearest}"
    if asked.kv_cache not in kv_caches:
        yield f"kv_cache: {nearest_kv_cache(asked.kv_cache, kv_caches)}"
