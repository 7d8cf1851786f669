from __future__ import annotations

import pytest

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.catalog.modelopt_recipes import known_modelopt_recipe, modelopt_recipes


def test_a_known_recipe_says_what_it_makes_of_a_model():
    fp8 = known_modelopt_recipe("general/ptq/fp8_default-kv_fp8")
    assert (fp8.formats, fp8.bits, fp8.kv_cache) == (("fp8",), 8, "fp8")
    assert fp8.calibrated
    assert fp8.whole_model
    assert not fp8.needs_cuda
    naive = known_modelopt_recipe("general/ptq/int4_blockwise_weight_only")
    assert (naive.formats, naive.kv_cache, naive.calibrated) == (("int4_blockwise",), "none", False)
    mixed = known_modelopt_recipe("models/mistralai/Mistral-Medium-3.5-128B/ptq/nvfp4-max-calib")
    assert (mixed.formats, mixed.bits, mixed.needs_cuda) == (("nvfp4", "fp8"), 4, True)
    assert mixed.made_for == "mistralai/Mistral-Medium-3.5-128B"
    assert not mixed.whole_model


@pytest.mark.parametrize(
    ("name", "fragments"),
    [
        ("general/ptq/fp8_defalt-kv_fp8", ("has no recipe", "nearest are general/ptq/fp8_default-kv_fp8")),
        ("general/ptq/fp8_default-kv_fp8.yaml", ("has no recipe", "general/ptq/fp8_default-kv_fp8")),
        ("../general/ptq/fp8_default-kv_fp8", ("has no recipe", "not a path")),
        ("/general/ptq/fp8_default-kv_fp8", ("has no recipe", "not a path")),
        ("configs/ptq/presets/diffusers/fp8", ("has no recipe", "parts that recipes are made of")),
        ("general/auto_quantize/nvfp4_fp8_at_5p4bits", ("cannot be used", "a search", "weights: auto")),
        ("general/speculative_decoding/eagle3", ("cannot be used", "trains a draft model")),
        ("general/qad/nvfp4_lsq-mse_init-fp8_kv", ("cannot be used", "training")),
        ("general/distillation/dmd2_qwen_image", ("cannot be used", "training")),
        ("huggingface/vit/ptq/fp8", ("cannot be used", "vision")),
        ("huggingface/diffusion_gemma/ptq/nvfp4_experts_only", ("cannot be used", "diffusion")),
    ],
)
def test_what_cannot_be_used_is_refused_with_the_reason(name, fragments):
    with pytest.raises(ConfigError) as error:
        known_modelopt_recipe(name)
    for fragment in fragments:
        assert fragment in str(error.value)


def test_the_name_of_every_recipe_that_can_be_used_can_be_written_in_a_config(recipe):
    asked = {"sources": ["c.jsonl"], "samples": 1, "maximum_tokens": 8}
    content = recipe("none").model_dump() | {"weights": "modelopt", "calibration": asked}
    for name, known in modelopt_recipes().items():
        if not known.refused:
            type(recipe("none")).model_validate(content | {"modelopt_recipe": name})
