"""Batches, lengths and splits over GPUs, by the memory model and by hand."""

from __future__ import annotations

from typing import Any

import pytest
from published import known_facts

from llm_pipeline.config.quantization import QuantizationRecipe
from llm_pipeline.config.target import EngineLimits, Parallelism, Target
from llm_pipeline.model_facts.facts import ModelFacts
from llm_pipeline.planning.target_plan import advise_split, capacity, judge_memory

PLAIN = QuantizationRecipe(name="none", weights="none")
FP8 = QuantizationRecipe.model_validate(
    {"name": "fp8", "weights": "fp8", "calibration": {"sources": ["c"], "samples": 1, "maximum_tokens": 8}}
)


def shape(model: str) -> ModelFacts:
    found = known_facts(f"meta-llama/{model}")
    assert found
    return found


def target(accelerator: str, tensor: int = 1, pipeline: int = 1, **limits: Any) -> Target:
    wanted = {"maximum_sequences": 16, "maximum_tokens_per_request": 8192} | limits
    return Target(
        name="t",
        accelerator=accelerator,
        accelerator_count=tensor * pipeline,
        engine="tensorrt_llm_llmapi",
        parallelism=Parallelism(tensor=tensor, pipeline=pipeline),
        limits=EngineLimits.model_validate(wanted),
    )


def test_the_longest_request_fits_as_often_as_wanted_and_one_block_more_does_not():
    model, block = shape("Llama-3.1-8B"), 32
    held = capacity(target("L40S"), PLAIN, model)
    assert held is not None
    longest = held.longest_request
    assert longest % block == 0
    for tokens, fits in ((longest, True), (longest + block, False)):
        long = target("L40S", maximum_tokens_per_request=tokens)
        fit, _ = judge_memory(long, PLAIN, model)
        assert fit is not None
        assert fit.fits is fits


@pytest.mark.parametrize(
    ("gpus_per_node", "nearest"),
    [
        (8, "parallelism.tensor: 8 with accelerator_count: 8"),
        (4, "an accelerator with more memory: no format that runs on this one makes the model fit"),
    ],
)
def test_tensor_parallel_ranks_beyond_one_host_are_no_advice(gpus_per_node: int, nearest: str):
    one = target("L40S").model_copy(update={"gpus_per_node": gpus_per_node})
    _, refused = judge_memory(one, PLAIN, shape("Llama-3.1-70B"))
    assert refused is not None
    assert refused.nearest == nearest


def test_a_model_that_does_not_fit_gets_the_fewest_gpus_that_hold_it():
    """141.1 GB of weights: two 80 GB GPUs hold them and nothing else, four hold 16 requests of 8192 tokens, too."""
    advice = advise_split(target("H100-SXM5-80GB"), PLAIN, shape("Llama-3.1-70B"))
    assert advice is not None
    assert (advice.tensor, advice.pipeline, advice.gpus) == (4, 1, 4)
    assert advice.why == "it fits on 4 GPUs"
    assert advice.change == "parallelism: { tensor: 4, pipeline: 1 }, accelerator_count: 4"


def test_405b_in_bf16_needs_two_nodes_with_tensor_parallelism_inside_each():
    advice = advise_split(target("H100-SXM5-80GB", tensor=8), PLAIN, shape("Llama-3.1-405B"))
    assert advice is not None
    assert (advice.tensor, advice.pipeline) == (8, 2)
    beyond = advise_split(target("H100-SXM5-80GB", tensor=16), PLAIN, shape("Llama-3.1-405B"))
    assert beyond is not None
    assert (beyond.tensor, beyond.pipeline) == (8, 2)
    assert "leaves the NVLink of one node" in beyond.why
    assert advise_split(target("H100-SXM5-80GB", tensor=8, pipeline=2), PLAIN, shape("Llama-3.1-405B")) is None


def test_gpus_that_are_not_needed_are_named_and_a_split_that_is_right_is_left_alone():
    wasted = advise_split(target("H100-SXM5-80GB", tensor=4), FP8, shape("Llama-3.1-8B"))
    assert wasted is not None
    assert wasted.why == "what the limits ask for fits on 1 GPU of the 4: more only make it faster"
    assert advise_split(target("H100-SXM5-80GB"), FP8, shape("Llama-3.1-8B")) is None
    cpu = Target(name="cpu", accelerator="cpu", accelerator_count=0, engine="openvino_cpu")
    assert advise_split(cpu, FP8, shape("Llama-3.1-8B")) is None


def test_a_pipeline_where_tensor_parallelism_would_do_is_named():
    advice = advise_split(target("H100-SXM5-80GB", pipeline=4), PLAIN, shape("Llama-3.1-70B"))
    assert advice is not None
    assert (advice.tensor, advice.pipeline) == (4, 1)
    assert "answer sooner" in advice.why
