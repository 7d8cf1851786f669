"""What `plan` says of the engine `transformers_torch`. Pure."""

from __future__ import annotations

from llm_pipeline.catalog.runtime_versions import release_numbers
from llm_pipeline.catalog.tables import find_gpu
from llm_pipeline.planning.compatibility import (
    OTHER_ENGINE,
    Asked,
    Legal,
    Refused,
    gpu_target_refusal,
    refused_on_cpu,
)

_OLDEST, _NEWEST = (5, 5), (5, 17)
"""Continuous batching has changed its interface with many versions; these are the ends of what it was run with."""

_RUNTIME = "the version of Transformers, and an image that has it beside Triton"


def judge(question: Asked) -> Legal | Refused:
    """Whether Transformers serves a recipe on a target."""
    target, recipe, fits = question.target, question.recipe, question.fits
    if target.accelerator == "cpu":
        return refused_on_cpu(target)
    find_gpu(target.accelerator)
    if refused := gpu_target_refusal(target, _RUNTIME):
        return refused
    if target.accelerator_count > 1:
        return Refused(
            reason="engine transformers_torch serves on one GPU",
            nearest=f"accelerator_count: 1, or {OTHER_ENGINE}",
        )
    if not _OLDEST <= release_numbers(target.runtime_version or "") <= _NEWEST:
        oldest, newest = (".".join(map(str, numbers)) for numbers in (_OLDEST, _NEWEST))
        return Refused(
            reason=f"continuous batching is known in Transformers {oldest} to {newest}, not {target.runtime_version}",
            nearest=f"runtime_version: {newest}",
        )
    if recipe.weights != "none":
        return Refused(
            reason=f"Transformers does not read modelopt's {recipe.weights} checkpoints (it drops their scales)",
            nearest=OTHER_ENGINE if fits and not fits("none") else f"weights: none, or {OTHER_ENGINE}",
        )
    return Legal()
