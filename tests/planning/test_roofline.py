from __future__ import annotations

from typing import Any

import pytest
from published import known_facts

from llm_pipeline.catalog.tables import find_gpu
from llm_pipeline.config.quantization import Calibration, QuantizationRecipe, WeightFormat
from llm_pipeline.config.target import EngineLimits, Parallelism, RuntimeOptions, Target
from llm_pipeline.model_facts.facts import ModelFacts
from llm_pipeline.planning.speed import (
    RooflineEngine,
    Tokens,
    decode_step_seconds,
    engine_of,
    most_tokens_per_second,
    prompt_seconds,
)

H100, H200, B200 = "H100-SXM5-80GB", "H200-SXM-141GB", "B200-SXM-180GB"


def shape(size: str) -> ModelFacts:
    found = known_facts({"8B": "meta-llama/Llama-3.1-8B", "70B": "meta-llama/Llama-3.1-70B"}[size])
    assert found
    return found


def recipe(weights: WeightFormat, kv_cache: str = "none") -> QuantizationRecipe:
    calibration = None if weights == "none" else Calibration(sources=("x.jsonl",), samples=8, maximum_tokens=64)
    return QuantizationRecipe.model_validate(
        {"name": "r", "weights": weights, "kv_cache": kv_cache, "calibration": calibration}
    )


def engine(size: str, weights: WeightFormat, gpu: str, tensor: int = 1, pipeline: int = 1) -> RooflineEngine:
    parallelism = Parallelism(tensor=tensor, pipeline=pipeline)
    return RooflineEngine(shape(size), recipe(weights), find_gpu(gpu), parallelism)


def gpu_target(gpu: str = H200, **llm_args: Any) -> Target:
    return Target(
        name="t",
        accelerator=gpu,
        engine="tensorrt_llm_llmapi",
        limits=EngineLimits(maximum_sequences=64),
        runtime=RuntimeOptions(engine_args=llm_args),
    )


def test_a_70b_model_in_fp8_on_eight_h100s_takes_at_least_2_63_ms_a_token():
    step = decode_step_seconds(engine("70B", "fp8", H100, tensor=8), 1, 0)
    assert step == pytest.approx(70.6e9 / (8 * 3.35e12), rel=0.01)
    assert step == pytest.approx(2.63e-3, rel=0.01)


def test_512_tokens_in_120_ms_from_a_70b_model_are_impossible():
    """A published claim: 1024 requests a second of 512 tokens each, half of them done within 120 ms."""
    eight = engine("70B", "fp8", H100, tensor=8)
    assert 512 * decode_step_seconds(eight, 1, 0) > 10 * 0.120
    assert most_tokens_per_second(eight, 1024, Tokens(prompt=0, output=512)) < 1024 * 512


def test_an_8b_model_in_bf16_on_one_h100_by_hand():
    """7.505 bn weights are read: all of them but the embeddings and the norms."""
    weights = 8_030_261_248 - 128_256 * 4096 - 65 * 4096
    plain = engine("8B", "none", H100)
    assert decode_step_seconds(plain, 1, 0) == pytest.approx(2 * weights / 3.35e12)
    cache = 16 * 8192 * 131_072
    assert decode_step_seconds(plain, 16, 8192) == pytest.approx((2 * weights + cache) / 3.35e12)
    assert decode_step_seconds(plain, 4096, 0) == pytest.approx(4096 * 2 * weights / 989e12)
    assert prompt_seconds(plain, 8192) == pytest.approx(8192 * 2 * (weights - 128_256 * 4096) / 989e12)


def test_stages_of_a_pipeline_read_no_faster_for_one_request_but_share_caches_and_multiplications():
    one, two = engine("8B", "none", H100), engine("8B", "none", H100, pipeline=2)
    assert decode_step_seconds(two, 1, 0) == decode_step_seconds(one, 1, 0)
    assert decode_step_seconds(engine("8B", "none", H100, tensor=2), 1, 0) == decode_step_seconds(one, 1, 0) / 2
    alone = decode_step_seconds(one, 1, 0)
    assert decode_step_seconds(two, 64, 8192) - alone == pytest.approx((decode_step_seconds(one, 64, 8192) - alone) / 2)
    assert prompt_seconds(two, 8192) == pytest.approx(prompt_seconds(one, 8192) / 2)


MEASURED = [
    ("8B", "fp8", H200, 1, (128, 128), 27_911),
    ("8B", "fp8", H100, 1, (128, 128), 28_312),
    ("8B", "fp8", H200, 1, (1000, 1000), 17_744),
    ("8B", "fp8", H100, 1, (1000, 1000), 15_220),
    ("8B", "fp8", H200, 1, (2048, 128), 3_538),
    ("8B", "fp8", H100, 1, (2048, 128), 3_450),
    ("8B", "fp8", H200, 1, (2048, 2048), 12_194),
    ("8B", "fp8", H200, 1, (20000, 2000), 1_804),
    ("70B", "fp8", H200, 1, (128, 128), 3_803),
    ("70B", "fp8", H100, 2, (1000, 1000), 4_205),
    ("70B", "fp8", H100, 2, (2048, 2048), 3_082),
    ("70B", "nvfp4", B200, 1, (128, 128), 11_147),
    ("70B", "nvfp4", B200, 1, (2048, 2048), 4_783),
]
"""Output tokens a second at full load, published by NVIDIA with TensorRT-LLM 1.0 (docs/source/performance)."""


@pytest.mark.parametrize("row", MEASURED)
def test_what_nvidia_measured_is_below_the_bound(row):
    """At any batch: no more requests than fill the memory of all GPUs with FP8 caches can be decoded at once."""
    size, weights, gpu, tensor, lengths, measured = row
    tokens, found = Tokens(*lengths), engine(size, weights, gpu, tensor)
    found = found._replace(recipe=found.recipe.model_copy(update={"kv_cache": "fp8"}))
    mean_cache = (tokens.prompt + tokens.output / 2) * shape(size).layers * 2 * 8 * 128
    requests = int(tensor * found.gpu.usable_bytes / mean_cache)
    bound = most_tokens_per_second(found, requests, tokens)
    assert measured < bound
    assert bound < 10 * measured  # and the bound says something


def test_a_format_without_tensor_cores_is_multiplied_at_16_bit():
    fp8, plain = engine("8B", "fp8", "A100-SXM4-80GB"), engine("8B", "none", "A100-SXM4-80GB")
    assert decode_step_seconds(fp8, 4096, 0) == pytest.approx(decode_step_seconds(plain, 4096, 0))
    assert decode_step_seconds(fp8, 1, 0) < decode_step_seconds(plain, 1, 0)


def test_four_draft_tokens_allow_five_tokens_a_step():
    speculative = {"speculative_config": {"decoding_type": "NGram", "max_draft_len": 4}}
    plain = engine_of(shape("8B"), gpu_target(), recipe("none"))
    drafted = engine_of(shape("8B"), gpu_target(**speculative), recipe("none"))
    tokens = Tokens(prompt=0, output=100)
    assert most_tokens_per_second(drafted, 1, tokens) == pytest.approx(5 * most_tokens_per_second(plain, 1, tokens))
