from __future__ import annotations

from pathlib import Path

from judging import recipe

from llm_pipeline.config.quantization import QuantizationRecipe
from llm_pipeline.config.release import ResolvedRelease
from llm_pipeline.planning.memory import climbing_order
from llm_pipeline.release.loading import load_release

CONFIGS = Path(__file__).parents[2] / "configs"
LLAMA = load_release(CONFIGS / "releases" / "llama-3.1-8b-instruct.yaml").release


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
