"""Bounds of speed by hand arithmetic, and against what was measured."""

from __future__ import annotations

from math import prod
from typing import Any

import pytest
from judging import gpu_target, recipe
from published import config_of, facts_of, tensors_of

from llm_pipeline.catalog.tables import find_gpu
from llm_pipeline.config.target import Parallelism
from llm_pipeline.config.workload import SharedPrefixes, Workload
from llm_pipeline.loadtest.physics import PhysicalLimits
from llm_pipeline.model_facts.facts import ModelFacts
from llm_pipeline.model_facts.grouping import HeldTensor
from llm_pipeline.model_facts.reader import ModelDocuments, read_facts
from llm_pipeline.planning.speed import (
    RooflineEngine,
    Tokens,
    decode_step_seconds,
    engine_of,
    most_tokens_per_second,
    physical_limits,
    prompt_seconds,
)

H100, H200, B200 = "H100-SXM5-80GB", "H200-SXM-141GB", "B200-SXM-180GB"
SHAPES = {"8B": facts_of("Llama-3.1-8B"), "70B": facts_of("Llama-3.1-70B")}
WORKLOAD = Workload(prompts="p.jsonl", rate_per_second=1, duration_seconds=60)


def engine(size: str, weights: str, gpu: str, tensor: int = 1, pipeline: int = 1) -> RooflineEngine:
    parallelism = Parallelism(tensor=tensor, pipeline=pipeline)
    return RooflineEngine(SHAPES[size], recipe(weights), find_gpu(gpu), parallelism)


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
    mean_cache = (tokens.prompt + tokens.output / 2) * SHAPES[size].layers * 2 * 8 * 128
    requests = int(tensor * found.gpu.usable_bytes / mean_cache)
    bound = most_tokens_per_second(found, requests, tokens)
    assert measured < bound
    assert bound < 10 * measured  # and the bound says something


def test_a_format_without_tensor_cores_is_multiplied_at_16_bit():
    fp8, plain = engine("8B", "fp8", "A100-SXM4-80GB"), engine("8B", "none", "A100-SXM4-80GB")
    assert decode_step_seconds(fp8, 4096, 0) == pytest.approx(decode_step_seconds(plain, 4096, 0))
    assert decode_step_seconds(fp8, 1, 0) < decode_step_seconds(plain, 1, 0)


def test_four_draft_tokens_allow_five_tokens_a_step():
    speculative = {"engine_args": {"speculative_config": {"decoding_type": "NGram", "max_draft_len": 4}}}
    plain, drafted = (
        engine_of(SHAPES["8B"], gpu_target(H200, runtime=runtime), recipe("none")) for runtime in ({}, speculative)
    )
    tokens = Tokens(prompt=0, output=100)
    assert most_tokens_per_second(drafted, 1, tokens) == pytest.approx(5 * most_tokens_per_second(plain, 1, tokens))


def test_one_token_reads_its_own_experts_only():
    mixtral = facts_of("Mixtral-8x7B")
    read = 2 * (mixtral.active_parameters - mixtral.embedding_parameters - mixtral.other_parameters)
    seconds = decode_step_seconds(RooflineEngine(mixtral, recipe("none"), find_gpu(H200)), 1, 0)
    assert seconds == pytest.approx(read / (find_gpu(H200).mem_bw_gb_s * 1e9), rel=0.001)


def test_bounds_of_a_checkpoint_that_is_quantized_already_are_no_slower_than_its_bytes_and_the_fastest_cores():
    gpu = find_gpu(H200)
    config = {key: value for key, value in config_of("DeepSeek-V3").items() if key != "quantization_config"}
    weights = [tensor for tensor in tensors_of("DeepSeek-V3") or () if not tensor.name.endswith("_scale_inv")]
    plain = [HeldTensor(tensor.name, "BF16", tensor.shape, 2 * prod(tensor.shape)) for tensor in weights]
    stored = RooflineEngine(facts_of("DeepSeek-V3"), recipe("none"), gpu)
    unquantized = RooflineEngine(read_facts(ModelDocuments(config, plain)), recipe("none"), gpu)
    assert decode_step_seconds(stored, 1, 0) < 0.6 * decode_step_seconds(unquantized, 1, 0)
    assert prompt_seconds(stored, 1_000_000) == pytest.approx(prompt_seconds(unquantized, 1_000_000) / 2, rel=0.02)
    assert decode_step_seconds(stored, 1, 0) > 30e9 / (gpu.mem_bw_gb_s * 1e9)


def limits_of(workload: Workload = WORKLOAD, **changes: Any) -> PhysicalLimits:
    target = gpu_target(limits={"maximum_sequences": 64}, **changes)
    limits = physical_limits(SHAPES["8B"], target, recipe("none"), workload)
    assert limits is not None
    return limits


def test_the_load_gate_gets_the_least_times_of_a_token_and_of_a_prompt():
    limits = limits_of()
    assert limits.token_seconds == pytest.approx(15.0e9 / 3.35e12, rel=0.02)
    assert limits.first_token_seconds == limits.token_seconds
    assert limits.tokens_per_second == pytest.approx(64 / limits.token_seconds, rel=0.01)
    assert 8000 * limits.prompt_token_seconds == pytest.approx(prompt_seconds(engine("8B", "none", H100), 8000))


def test_prompts_that_a_cache_may_hold_cost_nothing():
    shared = WORKLOAD.model_copy(update={"shared_prefixes": SharedPrefixes(share=0.5)})
    assert limits_of(shared).prompt_token_seconds == 0.0


@pytest.mark.parametrize(("facts", "accelerator"), [(SHAPES["8B"], "cpu"), (None, H100)])
def test_nothing_is_known_of_a_cpu_or_of_an_unknown_model(facts: ModelFacts | None, accelerator: str):
    assert physical_limits(facts, gpu_target(accelerator), recipe("none"), WORKLOAD) is None
