from __future__ import annotations

from pathlib import Path

from llm_pipeline.config.quantization import CALIBRATED, QuantizationRecipe
from llm_pipeline.config.release import ResolvedRelease
from llm_pipeline.planning.memory import climbing_order
from llm_pipeline.release.loading import load_release

CONFIGS = Path(__file__).parents[2] / "configs"
LLAMA = load_release(CONFIGS / "releases" / "llama-3.1-8b-instruct.yaml").release
CALIBRATION = {"sources": ["c.jsonl"], "samples": 1, "maximum_tokens": 8}


def recipe(name: str, weights: str = "", **changes: object) -> QuantizationRecipe:
    weights = weights or name
    fields: dict[str, object] = {"name": name, "weights": weights} | changes
    if weights in CALIBRATED:
        fields["calibration"] = CALIBRATION
    return QuantizationRecipe.model_validate(fields)


def release(*recipes: QuantizationRecipe, model: str = "", **changes: object) -> ResolvedRelease:
    source = LLAMA.model.model_copy(update={"id": model or LLAMA.model.id})
    return LLAMA.model_copy(update={"recipes": recipes, "model": source, **changes})


def test_the_smallest_checkpoint_comes_first_scales_and_exclusions_counted():
    with_head = recipe("fp8_with_head", "fp8", exclude=())
    given = release(recipe("fp8"), recipe("none"), with_head, recipe("nvfp4"), recipe("int4_awq"))
    assert climbing_order(given) == ("int4_awq", "nvfp4", "fp8_with_head", "fp8", "none")


def test_bits_decide_where_the_shape_is_not_known_and_the_config_where_those_are_equal():
    given = release(recipe("none"), recipe("int8_smoothquant"), recipe("nvfp4"), recipe("fp8"), model="other/model")
    assert climbing_order(given) == ("nvfp4", "int8_smoothquant", "fp8", "none")


def test_rungs_of_a_search_stand_by_their_bits():
    search = {"formats": ["int4_awq", "fp8"], "effective_bits": [5.5, 7.0]}
    rungs = recipe("auto", search=search).rungs()
    given = release(recipe("none"), recipe("fp8"), *reversed(rungs), recipe("int4_awq"))
    assert climbing_order(given) == ("int4_awq", "auto-5.5", "auto-7", "fp8", "none")
