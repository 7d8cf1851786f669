"""The arithmetic against published facts (decimal GB, as vendors and the hub give them)."""

from __future__ import annotations

from typing import Any

import pytest

from llm_pipeline.config.quantization import CALIBRATED, QuantizationRecipe
from llm_pipeline.config.target import EngineLimits, Parallelism
from llm_pipeline.planning.catalog import find_gpu
from llm_pipeline.planning.disk import disk_need
from llm_pipeline.planning.memory import (
    Engine,
    fit_memory,
    kv_bytes_per_token,
    rank_kv_bytes_per_token,
    rank_weight_bytes,
    weight_bytes,
)
from llm_pipeline.planning.model_shape import ModelShape, known_shape


def shape_of(model: str) -> ModelShape:
    shape = known_shape(model)
    assert shape is not None
    return shape


LLAMA_8B = shape_of("meta-llama/Llama-3.1-8B-Instruct")
LLAMA_70B = shape_of("meta-llama/Llama-3.1-70B-Instruct")
LLAMA_405B = shape_of("meta-llama/Llama-3.1-405B-Instruct")
TINY = shape_of("demo/tiny-llama")


def recipe(weights: str, **changes: Any) -> QuantizationRecipe:
    fields: dict[str, Any] = {"name": "r", "weights": weights} | changes
    if weights in CALIBRATED or fields.get("kv_cache", "none") != "none":
        fields["calibration"] = {"sources": ["c.jsonl"], "samples": 1, "maximum_tokens": 8}
    return QuantizationRecipe.model_validate(fields)


@pytest.mark.parametrize(
    ("shape", "parameters"),
    [(LLAMA_8B, 8_030_261_248), (LLAMA_70B, 70_553_706_496), (LLAMA_405B, 405_853_388_800)],
)
def test_parameters_are_those_of_the_hub(shape: ModelShape, parameters: int):
    assert shape.parameters == parameters


def test_an_unknown_model_has_no_shape():
    assert known_shape("meta-llama/Llama-9-1B") is None


def test_tied_embeddings_are_counted_once():
    tied = LLAMA_8B.model_copy(update={"tied_embeddings": True})
    assert LLAMA_8B.parameters - tied.parameters == 128_256 * 4096
    assert weight_bytes(LLAMA_8B, recipe("none")) - weight_bytes(tied, recipe("none")) == 128_256 * 4096 * 2


@pytest.mark.parametrize(
    ("weights", "gigabytes"),
    [("none", 16.06), ("fp8", 9.08), ("int8_smoothquant", 9.08), ("int4_awq", 5.70), ("nvfp4", 6.03)],
)
def test_llama_8b_takes(weights: str, gigabytes: float):
    assert weight_bytes(LLAMA_8B, recipe(weights)) / 1e9 == pytest.approx(gigabytes, abs=0.006)


def test_llama_70b_in_16_bit_takes_17_6_gb_a_gpu_at_tensor_parallel_8():
    assert rank_weight_bytes(LLAMA_70B, recipe("none"), Parallelism(tensor=8)) / 1e9 == pytest.approx(17.64, abs=0.01)


def test_llama_70b_in_fp8_takes_8_8_gb_a_gpu_and_what_stays_at_16_bit():
    """The published 8.82 GB count every parameter at one byte; embeddings and head are exported at two."""
    assert LLAMA_70B.parameters / 8 / 1e9 == pytest.approx(8.82, abs=0.005)
    rank = rank_weight_bytes(LLAMA_70B, recipe("fp8"), Parallelism(tensor=8))
    kept = 2 * LLAMA_70B.embedding_parameters / 8
    assert (rank - kept) / 1e9 == pytest.approx(8.82, abs=0.005)
    assert rank / 1e9 == pytest.approx(9.08, abs=0.005)


def test_llama_70b_in_int4_awq_takes_39_5_gb():
    assert weight_bytes(LLAMA_70B, recipe("int4_awq")) / 1e9 == pytest.approx(39.5, abs=0.1)


@pytest.mark.parametrize(("weights", "measured"), [("none", 1_049_856), ("fp8", 656_640)])
def test_the_demo_model_takes_what_modelopt_was_measured_to_make_of_it(weights: str, measured: int):
    assert weight_bytes(TINY, recipe(weights)) == measured


def test_excluded_modules_stay_at_16_bit():
    without_first = recipe("fp8", exclude=["*lm_head*", "model.layers.0.*"])
    layer = sum(size for name, size in LLAMA_8B.linears() if name.startswith("model.layers.0."))
    assert weight_bytes(LLAMA_8B, without_first) - weight_bytes(LLAMA_8B, recipe("fp8")) == layer


def test_the_head_is_quantized_where_the_recipe_does_not_exclude_it():
    saved = weight_bytes(LLAMA_8B, recipe("fp8")) - weight_bytes(LLAMA_8B, recipe("fp8", exclude=[]))
    assert saved == LLAMA_8B.embedding_parameters


@pytest.mark.parametrize(("shape", "each"), [(LLAMA_8B, 131_072), (LLAMA_70B, 327_680), (LLAMA_405B, 516_096)])
def test_kv_bytes_of_a_token_follow_the_kv_heads_not_the_attention_heads(shape: ModelShape, each: int):
    assert kv_bytes_per_token(shape) == each
    assert kv_bytes_per_token(shape, element_bytes=1) == each // 2


def test_kv_heads_are_split_over_ranks_and_copied_where_there_are_too_few():
    assert rank_kv_bytes_per_token(LLAMA_70B, Parallelism(tensor=8), 2) == 327_680 // 8
    assert rank_kv_bytes_per_token(LLAMA_70B, Parallelism(tensor=16), 2) == 327_680 // 8
    assert rank_kv_bytes_per_token(LLAMA_70B, Parallelism(pipeline=2), 2) == 327_680 // 2


def test_the_fullest_rank_of_a_pipeline_holds_the_embeddings_or_the_head_but_not_both():
    whole = rank_weight_bytes(LLAMA_8B, recipe("none"), Parallelism())
    half = rank_weight_bytes(LLAMA_8B, recipe("none"), Parallelism(pipeline=2))
    assert whole == weight_bytes(LLAMA_8B, recipe("none"))
    assert half == pytest.approx(whole / 2, rel=0.001)


def fit(shape: ModelShape, weights: str, sequences: int, capacity: int, **changes: Any):
    limits = EngineLimits(maximum_sequences=sequences, maximum_tokens_per_request=8192, maximum_batched_tokens=8192)
    engine = Engine(capacity=capacity, runtime=2 * 2**30)
    parallelism = changes.pop("parallelism", Parallelism())
    return fit_memory(shape, recipe(weights, **changes), engine, limits, parallelism)


H100 = find_gpu("H100-SXM5-80GB").usable_bytes


def test_the_largest_batch_fits_and_one_more_does_not():
    batch = fit(LLAMA_8B, "fp8", 1, H100).largest_batch
    assert batch > 50
    # The logits of more sequences take a little of the room themselves.
    assert fit(LLAMA_8B, "fp8", batch - 1, H100).fits
    assert not fit(LLAMA_8B, "fp8", batch + 1, H100).fits


def test_an_fp8_kv_cache_holds_twice_the_requests():
    plain, quantized = fit(LLAMA_8B, "fp8", 8, H100), fit(LLAMA_8B, "fp8", 8, H100, kv_cache="fp8")
    assert quantized.kv_per_token * 2 == plain.kv_per_token
    assert quantized.largest_batch in (2 * plain.largest_batch, 2 * plain.largest_batch + 1)


def test_70b_in_16_bit_does_not_fit_one_h100_but_four():
    alone = fit(LLAMA_70B, "none", 1, H100)
    assert (alone.fits, alone.kv_available, alone.largest_batch) == (False, 0, 0)
    assert fit(LLAMA_70B, "none", 8, H100, parallelism=Parallelism(tensor=4)).fits


def test_disk_counts_download_recipes_and_two_copies_a_target():
    need = disk_need(LLAMA_8B, [recipe("fp8"), recipe("int4_awq"), recipe("none")], targets=3)
    assert need.download / 1e9 == pytest.approx(16.06, abs=0.01)
    assert need.recipes / 1e9 == pytest.approx(9.08 + 5.70, abs=0.01)
    assert need.engines == 3 * 2 * need.download
    assert need.work == need.download
