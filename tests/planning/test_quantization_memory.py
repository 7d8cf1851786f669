"""Peak memory of quantization, against what was measured and what must hold."""

from __future__ import annotations

import pytest
from published import known_facts

from llm_pipeline.catalog.tables import find_gpu
from llm_pipeline.config.quantization import CALIBRATED, QuantizationRecipe
from llm_pipeline.model_facts.facts import ModelFacts
from llm_pipeline.planning.quantization_plan import devices_needed, fitting_batch, predict_peak

CALIBRATION = {"sources": ["c.jsonl"], "samples": 512, "maximum_tokens": 512}
H200 = find_gpu("H200-SXM-141GB").usable_bytes
H100 = find_gpu("H100-SXM5-80GB").usable_bytes


def shape_of(size: str) -> ModelFacts:
    shape = known_facts(f"meta-llama/Llama-3.1-{size}-Instruct")
    assert shape is not None
    return shape


def recipe(weights: str, **changes: object) -> QuantizationRecipe:
    fields: dict[str, object] = {"name": "r", "weights": weights} | changes
    if weights in CALIBRATED:
        fields["calibration"] = CALIBRATION
    return QuantizationRecipe.model_validate(fields)


def search() -> QuantizationRecipe:
    return recipe("auto", search={"formats": ["int4_awq", "fp8"], "effective_bits": [6.0]})


def test_weights_are_those_of_the_unquantized_checkpoint():
    assert predict_peak(shape_of("8B"), recipe("none"), 0, 512) / 1e9 == pytest.approx(16.06, abs=0.01)


def test_the_peak_that_was_measured_on_an_h200_is_predicted():
    """Llama-3-8B shapes in FP8, 64 texts of 512 tokens a pass: the allocator says 19,987,149,824 bytes."""
    peak = predict_peak(shape_of("8B"), recipe("fp8"), 64, 512)
    assert peak == pytest.approx(19_987_149_824, rel=0.05)


def test_awq_and_smoothquant_take_more_than_fp8_and_a_search_by_gradients_the_most():
    by_method = [recipe("fp8"), recipe("int8_smoothquant"), recipe("int4_awq"), search()]
    totals = [predict_peak(shape_of("8B"), one, 32, 512) for one in by_method]
    assert totals == sorted({*totals})


def test_logits_are_only_there_where_the_head_runs():
    shape = shape_of("8B")
    with_head = predict_peak(shape, recipe("fp8", exclude=[]), 8, 512)
    assert with_head - predict_peak(shape, recipe("fp8"), 8, 512) == 8 * 512 * shape.vocabulary_size * 2


def test_what_fits_is_the_largest_batch_that_leaves_room():
    shape, gpu = shape_of("70B"), H200
    for one in (recipe("fp8"), recipe("int4_awq"), search()):
        batch = fitting_batch(shape, one, 512, gpu)
        assert batch >= 1
        assert predict_peak(shape, one, batch, 512) < gpu


def test_a_model_that_is_too_large_for_one_gpu_is_spread_over_as_many_as_it_needs():
    shape = shape_of("70B")
    assert fitting_batch(shape, recipe("fp8"), 512, H100) == 0
    needed = devices_needed(shape, recipe("fp8"), 512, H100)
    assert needed == 2
    assert fitting_batch(shape, recipe("fp8"), 512, H100, devices=needed) > 1
    assert devices_needed(shape_of("405B"), recipe("fp8"), 512, 10 * 2**30) is None
