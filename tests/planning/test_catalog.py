from __future__ import annotations

import pytest

from llm_pipeline.catalog.tables import (
    find_container,
    find_family,
    find_gpu,
)


@pytest.mark.parametrize(
    ("name", "gigabytes"),
    [
        ("A10", 24.15), ("L4", 24.15), ("B300-SXM-288GB", 288.4), ("GB300", 298.0), ("H20-96GB", 102.6), ("L40", 48.3),
        ("L40S", 48.31), ("H200-SXM-141GB", 149.25),
        ("A100-SXM4-40GB", 42.09),  # 2 % less than the nominal size, where nothing was measured
    ],
)  # fmt: skip
def test_usable_memory_is_what_the_driver_reports_where_that_is_known(name: str, gigabytes: float):
    assert find_gpu(name).usable_bytes / 1e9 == pytest.approx(gigabytes, abs=0.05)


def test_a_container_is_found_by_its_tag_whatever_its_registry_and_digest():
    container = find_container(f"registry.example.com/m/tritonserver:26.07-trtllm-python-py3@sha256:{'0' * 64}")
    assert container is not None
    assert container.tensorrt_llm == "1.2.1"
    assert find_container("nvcr.io/nvidia/tritonserver:27.99-trtllm-python-py3") is None


@pytest.mark.parametrize(
    ("model", "family"),
    [
        ("meta-llama/Llama-3.3-70B-Instruct", "LLaMA"),
        ("deepseek-ai/DeepSeek-R1-Distill-Llama-8B", "LLaMA"),
        ("meta-llama/Llama-4-Scout-17B-16E-Instruct", "LLaMA 4"),
        ("Qwen/Qwen2.5-7B-Instruct", "Qwen-2/2.5"),
        ("Qwen/Qwen3-8B", "Qwen-3"),
        ("deepseek-ai/DeepSeek-R1", "DeepSeek-R1"),
        ("acme/support-bot", None),
    ],
)
def test_models_belong_to_the_family_of_their_name(model: str, family: str | None):
    assert find_family(model) == family
