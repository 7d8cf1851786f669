"""What `plan` says of the engine `openvino_cpu`. Pure."""

from __future__ import annotations

from llm_pipeline.catalog.runtime_versions import release_numbers
from llm_pipeline.catalog.tables import find_gpu, newest_transformers, read_table
from llm_pipeline.config.quantization import NEEDS_CUDA, KvCacheFormat
from llm_pipeline.model_facts.facts import ModelFacts
from llm_pipeline.planning.compatibility import (
    OFFERED,
    OTHER_CHECKPOINT,
    OTHER_ENGINE,
    FormatQuestion,
    Legal,
    Refused,
    changes,
    experts_left_out,
    nearest_kv_cache,
)

_FORMATS = tuple(name for name in OFFERED if name not in NEEDS_CUDA)
"""Formats whose packed weights the CPU engine builder can put into its graph: all but those of FP4."""

_KV_FORMATS: tuple[KvCacheFormat, ...] = ("fp8", "none")
"""KV cache formats whose rounding the CPU engine's graph can reproduce."""

_OF_SEVERAL_PARTS = "ForConditionalGeneration"
"""End of the names of classes that read images or sounds beside text."""

_NO_GROUPS = frozenset({"phi"})
"""The exporter's sample of a KV cache has a head for each query head, which these fail on where heads share one."""


def judge(question: FormatQuestion) -> Legal | Refused:
    """Whether the CPU engine serves a recipe on a target."""
    target, recipe = question.target, question.recipe
    if target.accelerator != "cpu":
        find_gpu(target.accelerator)
        return Refused(reason="engine openvino_cpu does not run on a GPU", nearest=OTHER_ENGINE)
    if question.foreign_format:
        return Refused(
            reason=f"the CPU engine reads plain weights and modelopt's formats, not {question.foreign_format}",
            nearest=OTHER_CHECKPOINT,
        )
    if question.quantized_experts:
        reason = "the CPU engine's graph holds experts at the baseline's precision only"
        return Refused(reason=reason, nearest=f"{experts_left_out(recipe)}, or a target with engine: vllm")
    asked = question.asked
    kv_cache = nearest_kv_cache(asked.kv_cache, _KV_FORMATS)
    unserved = [name for name in asked.weights if name not in _FORMATS]
    if unserved:
        cuda = "; modelopt needs CUDA to quantize it, too" if recipe.needs_cuda else ""
        advice = changes(recipe, asked, unserved, _FORMATS, _KV_FORMATS)
        reason = f"the CPU engine cannot serve {', '.join(unserved)}{cuda}"
        return Refused(reason=reason, nearest=", ".join(advice))
    if asked.kv_cache != kv_cache:
        reason = f"the CPU engine cannot round its KV cache to {asked.kv_cache}"
        return Refused(reason=reason, nearest=f"kv_cache: {kv_cache}")
    warnings = []
    if asked.kv_cache != "none":
        warnings.append(f"the CPU engine keeps its KV cache in 32 bit: kv_cache {asked.kv_cache} is not served there")
    if target.weight_format in ("int8", "int4"):
        warnings.append(f"the engine compiler quantizes again ({target.weight_format}); only served accuracy sees it")
    return Legal(warnings=tuple(warnings))


def judge_model(facts: ModelFacts, transformers: str | None) -> Legal | Refused:
    """Whether the CPU engine's exporter traces a model with that version of Transformers; None is not judged."""
    if facts.architecture.endswith(_OF_SEVERAL_PARTS):
        return Refused(
            reason=f"the CPU engine serves text, and its exporter traces {facts.architecture} with its encoders only",
            nearest="a checkpoint of the text model alone, or a target on a GPU",
        )
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
        return Legal()
    span = f"from {oldest} on" if newest is None else f"{oldest or 'old ones'} to {newest}"
    return Refused(
        reason=f"{exporter} traces {facts.model_type} with Transformers {span}, and {transformers} is installed",
        nearest=f"{nearest}, or a model environment with such a Transformers",
    )


def _within(version: str, oldest: str | None, newest: str | None) -> bool:
    """Whether a version is in a range; `5.0` as its end takes no 5.1, as the exporter counts."""
    numbers = release_numbers(version)
    return (oldest is None or release_numbers(oldest) <= numbers) and (
        newest is None or numbers <= release_numbers(newest)
    )
