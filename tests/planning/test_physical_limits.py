from __future__ import annotations

import pytest
from published import known_facts

from llm_pipeline.config.quantization import QuantizationRecipe
from llm_pipeline.config.target import EngineLimits, Target
from llm_pipeline.config.workload import SharedPrefixes, Workload
from llm_pipeline.planning.speed import engine_of, physical_limits, prompt_seconds

MODEL = "meta-llama/Llama-3.1-8B-Instruct"
BF16 = QuantizationRecipe(name="none", weights="none")
WORKLOAD = Workload(prompts="p.jsonl", rate_per_second=1, duration_seconds=60)


def target(accelerator: str = "H100-SXM5-80GB") -> Target:
    return Target(
        name="t", accelerator=accelerator, engine="tensorrt_llm_llmapi", limits=EngineLimits(maximum_sequences=64)
    )


def test_an_8b_model_reads_15_gigabytes_for_each_token():
    limits = physical_limits(known_facts(MODEL), target(), BF16, WORKLOAD)
    assert limits
    assert limits.token_seconds == pytest.approx(15.0e9 / 3.35e12, rel=0.02)
    assert limits.first_token_seconds == limits.token_seconds
    assert limits.tokens_per_second == pytest.approx(64 / limits.token_seconds, rel=0.01)


def test_a_prompt_takes_no_less_than_the_roofline_says():
    limits, shape = physical_limits(known_facts(MODEL), target(), BF16, WORKLOAD), known_facts(MODEL)
    assert limits
    assert 8000 * limits.prompt_token_seconds == pytest.approx(prompt_seconds(engine_of(shape, target(), BF16), 8000))


def test_prompts_that_a_cache_may_hold_cost_nothing():
    shared = WORKLOAD.model_copy(update={"shared_prefixes": SharedPrefixes(share=0.5)})
    limits = physical_limits(known_facts(MODEL), target(), BF16, shared)
    assert limits
    assert limits.prompt_token_seconds == 0.0


def test_nothing_is_known_of_a_cpu_or_of_an_unknown_model():
    assert physical_limits(known_facts(MODEL), target("cpu"), BF16, WORKLOAD) is None
    assert physical_limits(None, target(), BF16, WORKLOAD) is None
