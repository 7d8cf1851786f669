"""What `plan` says of the engine `openvino_cpu`. Pure."""

from __future__ import annotations

from llm_pipeline.catalog.tables import find_gpu
from llm_pipeline.planning.compatibility import OTHER_ENGINE, Asked, Legal, Refused, changes, fitting
from llm_pipeline.planning.formats import CPU_FORMATS, CPU_KV_FORMATS, asked_by, nearest_kv_cache


def judge(question: Asked) -> Legal | Refused:
    """Whether the CPU engine serves a recipe on a target."""
    target, recipe, fits = question.target, question.recipe, question.fits
    if target.accelerator != "cpu":
        find_gpu(target.accelerator)
        return Refused(reason="engine openvino_cpu does not run on a GPU", nearest=OTHER_ENGINE)
    asked = asked_by(recipe)
    kv_cache = nearest_kv_cache(asked.kv_cache, CPU_KV_FORMATS)
    unserved = [name for name in asked.weights if name not in CPU_FORMATS]
    if unserved:
        cuda = "; modelopt needs CUDA to quantize it, too" if asked.needs_cuda else ""
        advice = changes(recipe, asked, unserved, fitting(CPU_FORMATS, fits), CPU_KV_FORMATS)
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
