"""The arithmetic against published facts (decimal GB, as vendors and the hub give them)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from judging import cpu_target, gpu_target, recipe
from published import facts_of

from llm_pipeline.catalog.tables import find_gpu
from llm_pipeline.config.quantization import QuantizationRecipe
from llm_pipeline.config.release import ResolvedRelease
from llm_pipeline.config.target import EngineLimits, Parallelism
from llm_pipeline.model_facts.facts import ModelFacts
from llm_pipeline.planning.memory import (
    Engine,
    MemoryFit,
    climbing_order,
    fit_memory,
    rank_kv_bytes_per_request,
    rank_weight_bytes,
    weight_bytes,
)
from llm_pipeline.planning.plan import _plan_disk
from llm_pipeline.planning.target_plan import judge_memory
from llm_pipeline.release.loading import load_release

ROOT = Path(__file__).parents[2]


LLAMA_8B, LLAMA_70B, LLAMA_405B = map(facts_of, ("Llama-3.1-8B", "Llama-3.1-70B", "Llama-3.1-405B"))
LLAMA_1B, TINY = facts_of("Llama-3.2-1B"), facts_of("tiny-llama")


@pytest.mark.parametrize(
    ("name", "gigabytes"),
    [
        ("A10", 24.15), ("B300-SXM-288GB", 288.4), ("GB300", 298.0), ("H20-96GB", 102.6), ("H200-SXM-141GB", 149.25),
        ("A100-SXM4-40GB", 42.09),  # 2 % less than the nominal size, where nothing was measured
    ],
)  # fmt: skip
def test_usable_memory_is_what_the_driver_reports_where_that_is_known(name: str, gigabytes: float):
    assert find_gpu(name).usable_bytes / 1e9 == pytest.approx(gigabytes, abs=0.05)


@pytest.mark.parametrize(
    ("weights", "gigabytes"),
    [("none", 16.06), ("fp8", 9.08), ("int8_smoothquant", 9.09), ("int4_awq", 5.81), ("nvfp4", 6.03)],
)
def test_llama_8b_takes_what_an_h200_was_seen_to_export(weights: str, gigabytes: float):
    assert weight_bytes(LLAMA_8B, recipe(weights)) / 1e9 == pytest.approx(gigabytes, abs=0.01)


@pytest.mark.parametrize(
    ("shape", "weights", "gigabytes"),
    [
        (LLAMA_1B, "none", 2.5),  # its head is the embedding table
        (LLAMA_70B, "none", 141.1),
        (LLAMA_70B, "fp8", 72.7),
        (LLAMA_70B, "nvfp4", 42.7),
        (LLAMA_70B, "int4_awq", 40.6),  # the published 39.5, and two bytes more for each scale of modelopt's export
        (LLAMA_405B, "none", 811.7),
        (LLAMA_405B, "fp8", 410.1),
        (LLAMA_405B, "nvfp4", 234.3),
    ],
)
def test_other_models_take(shape: ModelFacts, weights: str, gigabytes: float):
    """Two bytes a parameter; one, or half and a sixteenth, inside the layers and two outside of them."""
    assert weight_bytes(shape, recipe(weights)) / 1e9 == pytest.approx(gigabytes, abs=0.1)


@pytest.mark.parametrize(
    ("shape", "weights", "parallelism", "gigabytes"),
    [
        (LLAMA_70B, "none", {"tensor": 8}, 17.64),
        (LLAMA_70B, "fp8", {"tensor": 8}, 9.08),  # 8.82, and embeddings and head at two bytes
        (LLAMA_8B, "none", {"pipeline": 2}, 8.03),  # the embeddings or the head, not both
        (LLAMA_1B, "none", {}, 2.47),  # one table for both
    ],
)
def test_the_fullest_rank_holds(shape: ModelFacts, weights: str, parallelism: dict[str, int], gigabytes: float):
    found = rank_weight_bytes(shape, recipe(weights), Parallelism(**parallelism))
    assert found / 1e9 == pytest.approx(gigabytes, abs=0.01)


@pytest.mark.parametrize(("weights", "measured"), [("none", 1_049_856), ("fp8", 656_640)])
def test_the_demo_model_takes_what_modelopt_was_measured_to_make_of_it(weights: str, measured: int):
    assert weight_bytes(TINY, recipe(weights)) == measured


def test_excluded_modules_stay_at_16_bit():
    without_first = recipe("fp8", exclude=["*lm_head*", "model.layers.0.*"])
    layer = sum(group.parameters for name, group in LLAMA_8B.linears() if name.startswith("model.layers.0."))
    assert weight_bytes(LLAMA_8B, without_first) - weight_bytes(LLAMA_8B, recipe("fp8")) == layer


def test_the_head_is_quantized_where_the_recipe_does_not_exclude_it():
    saved = weight_bytes(LLAMA_8B, recipe("fp8")) - weight_bytes(LLAMA_8B, recipe("fp8", exclude=[]))
    assert saved == LLAMA_8B.embedding_parameters


def test_kv_heads_are_split_over_ranks_and_copied_where_there_are_too_few():
    assert rank_kv_bytes_per_request(LLAMA_70B, Parallelism(tensor=8), 2, 32) == 32 * 327_680 // 8
    assert rank_kv_bytes_per_request(LLAMA_70B, Parallelism(tensor=16), 2, 32) == 32 * 327_680 // 8
    assert rank_kv_bytes_per_request(LLAMA_70B, Parallelism(pipeline=2), 2, 32) == 32 * 327_680 // 2


def test_requests_take_whole_blocks():
    assert rank_kv_bytes_per_request(LLAMA_8B, Parallelism(), 2, 65) == 96 * 131_072


def fit(shape: ModelFacts, weights: str, sequences: int, capacity: int, **changes: Any) -> MemoryFit:
    limits = EngineLimits(maximum_sequences=sequences, maximum_tokens_per_request=8192, maximum_batched_tokens=8192)
    engine = Engine(capacity=capacity, runtime=2 * 2**30)
    return fit_memory(shape, recipe(weights, **changes), engine, limits, Parallelism())


H100 = find_gpu("H100-SXM5-80GB").usable_bytes


def test_the_largest_batch_fits_and_one_more_does_not():
    batch = fit(LLAMA_8B, "fp8", 1, H100).largest_batch
    assert batch > 50
    # The logits of more sequences take a little of the room themselves.
    assert fit(LLAMA_8B, "fp8", batch - 1, H100).fits
    assert not fit(LLAMA_8B, "fp8", batch + 1, H100).fits


def test_an_fp8_kv_cache_holds_twice_the_requests():
    plain, quantized = fit(LLAMA_8B, "fp8", 8, H100), fit(LLAMA_8B, "fp8", 8, H100, kv_cache="fp8")
    assert quantized.kv_wanted * 2 == plain.kv_wanted
    assert quantized.largest_batch in (2 * plain.largest_batch, 2 * plain.largest_batch + 1)


@pytest.mark.parametrize(("weights", "measured"), [("none", 134_624), ("fp8", 193_200)])
def test_vllm_shares_the_whole_memory_as_measured_on_an_h200(weights: str, measured: int):
    limits = {"maximum_sequences": 128, "maximum_tokens_per_request": 1024, "maximum_batched_tokens": 4096}
    runtime = {"kv_cache": {"free_memory_fraction": 0.24}}
    target = gpu_target("H200-SXM-141GB", engine="vllm", limits=limits, runtime=runtime)
    fit, refused = judge_memory(target, recipe(weights), LLAMA_8B)
    assert refused is None
    assert fit is not None
    assert 128 * 1024 * fit.kv_available / fit.kv_wanted == pytest.approx(measured, rel=0.05)


@pytest.mark.parametrize(
    ("engine", "fraction", "words"),
    [("vllm", 0.2, "(20% of the whole for all three)"), ("tensorrt_llm_llmapi", 0.1, "(10% of the rest)")],
)
def test_the_refusal_says_what_the_engines_fraction_is_of(engine: str, fraction: float, words: str):
    limits = {"maximum_tokens_per_request": 8192}
    target = gpu_target(engine=engine, limits=limits, runtime={"kv_cache": {"free_memory_fraction": fraction}})
    _, refused = judge_memory(target, recipe("fp8"), LLAMA_8B)
    assert refused is not None
    assert words in refused.reason


def test_weights_that_do_not_fit_at_all_need_fewer_bits_or_more_memory():
    limits = {"maximum_sequences": 16, "maximum_tokens_per_request": 8192}
    _, refused = judge_memory(gpu_target("L40S", limits=limits), recipe("none"), LLAMA_70B)
    assert refused is not None
    assert refused.nearest.startswith("weights of fewer bits, more tensor parallelism")


def test_experts_are_not_spread_where_there_are_none():
    target = gpu_target(accelerator_count=2, parallelism={"tensor": 2, "expert": 2})
    fit, refused = judge_memory(target, recipe("fp8"), LLAMA_8B)
    assert fit is None
    assert refused is not None
    assert refused.nearest == "no parallelism.expert"


@pytest.mark.parametrize(("name", "engines"), [("demo", 1), ("llama-3.1-8b-instruct-vllm", 0)])
def test_disk_counts_download_recipes_and_two_copies_of_each_engine_that_holds_weights(name: str, engines: int):
    loaded = load_release(ROOT / "configs" / "releases" / f"{name}.yaml")
    recipes = (recipe("fp8"), recipe("int4_awq"), recipe("none"))
    loaded = replace(loaded, release=loaded.release.model_copy(update={"recipes": recipes}))
    need = _plan_disk(loaded, LLAMA_8B)
    assert need.download / 1e9 == pytest.approx(16.06, abs=0.01)
    assert need.recipes / 1e9 == pytest.approx(9.08 + 5.81, abs=0.01)
    assert need.engines == engines * 2 * need.download
    assert need.work == need.download
    assert need.store == need.download + need.recipes + need.engines


def test_vllm_on_a_cpu_takes_its_share_of_the_machines_memory(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("llm_pipeline.planning.target_plan.total_memory_bytes", lambda: 80 * 10**9)
    target = cpu_target(engine="vllm", runtime={"kv_cache": {"free_memory_fraction": 0.4}})
    fit, refused = judge_memory(target, recipe("none"), LLAMA_8B)
    assert fit is not None
    assert fit.weights == pytest.approx(16.06e9, rel=0.01)  # in the baseline's 16 bits
    assert refused is None
    assert fit.kv_available < 0.4 * 80e9 - fit.weights


LLAMA = load_release(ROOT / "configs/releases/llama-3.1-8b-instruct.yaml").release


def rung(name: str, weights: str = "", **changes: object) -> QuantizationRecipe:
    return recipe(weights or name, name=name, **changes)


def release(*recipes: QuantizationRecipe, model: str = "", **changes: object) -> ResolvedRelease:
    source = LLAMA.model.model_copy(update={"id": model or LLAMA.model.id})
    return LLAMA.model_copy(update={"recipes": recipes, "model": source, **changes})


def test_the_smallest_checkpoint_comes_first_scales_and_exclusions_counted():
    with_head = rung("fp8_with_head", "fp8", exclude=())
    given = release(rung("fp8"), rung("none"), with_head, rung("nvfp4"), rung("int4_awq"))
    assert climbing_order(given) == ("int4_awq", "nvfp4", "fp8_with_head", "fp8", "none")


def test_bits_decide_where_the_shape_is_not_known_and_the_config_where_those_are_equal():
    given = release(rung("none"), rung("int8_smoothquant"), rung("nvfp4"), rung("fp8"), model="other/model")
    assert climbing_order(given) == ("nvfp4", "int8_smoothquant", "fp8", "none")


def test_rungs_of_a_search_stand_by_their_bits():
    search = {"formats": ["int4_awq", "fp8"], "effective_bits": [5.5, 7.0]}
    rungs = rung("auto", search=search).rungs()
    given = release(rung("none"), rung("fp8"), *reversed(rungs), rung("int4_awq"))
    assert climbing_order(given) == ("int4_awq", "auto-5.5", "auto-7", "fp8", "none")
