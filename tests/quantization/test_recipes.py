from __future__ import annotations

from pathlib import Path

import pytest

from llm_pipeline.base.errors import Unsupported
from llm_pipeline.config.quantization import KvCacheFormat, WeightFormat
from llm_pipeline.quantization.modelopt_configs import refuse_unsupported

EVERY = sorted(path.stem for path in (Path(__file__).parents[2] / "configs" / "quantization").glob("*.yaml"))


@pytest.mark.parametrize("name", EVERY)
def test_every_committed_recipe_is_valid_and_described(recipe, name):
    assert recipe(name).description.endswith(".")


def test_every_format_has_a_committed_recipe(recipe):
    recipes = [recipe(name) for name in EVERY]
    assert {one.weights for one in recipes} == set(WeightFormat.__args__)
    assert {one.kv_cache for one in recipes} == set(KvCacheFormat.__args__)


@pytest.mark.parametrize("name", ["nvfp4", "nvfp4_awq", "mxfp4"])
def test_a_gpu_only_format_is_refused_on_a_cpu_before_any_work(recipe, name):
    with pytest.raises(Unsupported, match="NVIDIA GPU only"):
        refuse_unsupported(recipe(name), "cpu")
    refuse_unsupported(recipe(name), "cuda")


def test_a_gpu_only_format_in_a_search_is_refused_on_a_cpu(recipe):
    search = recipe("int4_fp8_search")
    formats = search.search.model_copy(update={"formats": ("nvfp4", "fp8")})
    with pytest.raises(Unsupported, match="nvfp4 can be quantized on an NVIDIA GPU only"):
        refuse_unsupported(search.model_copy(update={"search": formats}), "cpu")
    refuse_unsupported(search, "cpu")
