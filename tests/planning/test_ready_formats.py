"""Which engines and GPUs take a checkpoint that another tool than modelopt quantized."""

from __future__ import annotations

from typing import Any

import pytest
from judging import cpu_target, gpu_target

from llm_pipeline.config.quantization import QuantizationRecipe
from llm_pipeline.config.target import Target
from llm_pipeline.planning.compatibility import Legal, Refused, judge_compatibility

READY = QuantizationRecipe.model_validate({"name": "r", "source": "else/model"})
ON_CPU = cpu_target(engine="vllm", runtime={"kv_cache": {"free_memory_fraction": 0.1}})
VLLM = {"engine": "vllm", "runtime_version": "0.20.2", "container": "acme/vllm:1"}


def judged(target: Target, stored_format: str) -> Legal | Refused:
    return judge_compatibility(target, READY, "bfloat16", stored_format=stored_format)


@pytest.mark.parametrize(
    ("accelerator", "stored_format", "legal", "warns"),
    [
        ("H100-SXM5-80GB", "compressed-tensors W8A8", True, False),
        ("B200-SXM-180GB", "compressed-tensors W8A8", False, False),
        ("H100-SXM5-80GB", "compressed-tensors FP8_DYNAMIC", True, False),
        ("A10", "compressed-tensors FP8_DYNAMIC", True, True),
        ("H100-SXM5-80GB", "gptq 4 bit", True, False),
        ("H100-SXM5-80GB", "torchao", True, True),
        ("H100-SXM5-80GB", "exl2 4 bit", False, False),
        ("H100-SXM5-80GB", "modelopt FP8", True, False),
        ("H100-SXM5-80GB", "modelopt W4A16_AWQ", False, False),
    ],
)
def test_vllm_takes_what_its_readers_and_the_gpu_take(accelerator: str, stored_format: str, legal: bool, warns: bool):
    found = judged(gpu_target(accelerator, **VLLM), stored_format)
    assert (found.legal, bool(getattr(found, "warnings", ()))) == (legal, warns), found


@pytest.mark.parametrize(
    ("stored_format", "warnings"),  # that it is slow is the first
    [("compressed-tensors W8A8", 1), ("gptq 4 bit", 1), ("awq 4 bit", 2)],
)
def test_on_a_cpu_vllm_takes_what_was_run_there_and_others_with_a_warning(
    stored_format: str, warnings: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("llm_pipeline.adapters.vllm.plan.cpu_flags", lambda: {"avx2", "avx512f"})
    found = judged(ON_CPU, stored_format)
    assert isinstance(found, Legal)
    assert len(found.warnings) == warnings


def test_four_bits_are_refused_on_a_cpu_without_the_instructions_of_their_kernel(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("llm_pipeline.adapters.vllm.plan.cpu_flags", lambda: {"avx2"})
    refused = judged(ON_CPU, "gptq 4 bit")
    assert isinstance(refused, Refused)
    assert refused.reason == "vLLM's kernel for gptq 4 bit needs avx512f, which this machine's processor has not"
    assert judged(ON_CPU, "compressed-tensors W8A8").legal


@pytest.mark.parametrize(
    ("stored_format", "changes", "said"),
    [
        ("compressed-tensors W8A8", {"runtime_version": "1.3.0rc22"}, "its reader takes 8 bits in channels for FP8"),
        ("gptq 4 bit", {"runtime_version": "1.3.0rc22"}, "its reader of config.json knows no gptq"),
        ("compressed-tensors FP8_DYNAMIC", {"engine": "tensorrt_llm_engine"}, "TensorRT-LLM checkpoints"),
    ],
)
def test_tensorrt_llm_refuses_with_the_reason(stored_format: str, changes: dict[str, Any], said: str):
    container = {} if "engine" in changes else {"container": "nvcr.io/nvidia/tensorrt-llm/release:1.3.0rc22"}
    found = judged(gpu_target(**{**changes, **container}), stored_format)
    assert isinstance(found, Refused)
    assert said in found.reason


def test_the_cpu_engine_reads_modelopts_formats_and_no_others():
    assert judged(cpu_target(), "modelopt FP8").legal
    refused = judged(cpu_target(), "awq 4 bit")
    assert isinstance(refused, Refused)
    assert refused.nearest == "engine: vllm, or a recipe of another checkpoint"
