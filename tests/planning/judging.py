"""Bare targets and recipes, and what is said of them together."""

from __future__ import annotations

from typing import Any

from llm_pipeline.config.quantization import CALIBRATED, QuantizationRecipe
from llm_pipeline.config.target import Target
from llm_pipeline.planning.compatibility import Legal, Refused, judge_compatibility

TRITON_1_2_1 = "nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3"
WITHOUT_PAGED_CONTEXT = {"chunked_context": False, "kv_cache": {"reuse_blocks": False}}


def gpu_target(accelerator: str = "H100-SXM5-80GB", **changes: Any) -> Target:
    fields = {
        "name": "t",
        "accelerator": accelerator,
        "engine": "tensorrt_llm_llmapi",
        "runtime_version": "1.2.1",
        "container": TRITON_1_2_1,
    }
    return Target.model_validate(fields | changes)


def cpu_target(**changes: Any) -> Target:
    fields = {"name": "cpu", "accelerator": "cpu", "accelerator_count": 0, "engine": "openvino_cpu"}
    return Target.model_validate(fields | changes)


def recipe(weights: str, kv_cache: str = "none", **changes: Any) -> QuantizationRecipe:
    fields: dict[str, Any] = {"name": "r", "weights": weights, "kv_cache": kv_cache}
    if weights in (*CALIBRATED, "auto") or kv_cache != "none":
        fields["calibration"] = {"sources": ["c.jsonl"], "samples": 1, "maximum_tokens": 8}
    return QuantizationRecipe.model_validate(fields | changes)


def judge(
    target: Target, weights: str, kv_cache: str = "none", dtype: Any = "bfloat16", **changes: Any
) -> Legal | Refused:
    return judge_compatibility(target, recipe(weights, kv_cache, **changes), dtype)


def refusal(target: Target, weights: str = "fp8", kv_cache: str = "none", **changes: Any) -> Refused:
    judged = judge(target, weights, kv_cache, **changes)
    assert isinstance(judged, Refused), judged
    return judged
