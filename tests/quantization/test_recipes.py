from __future__ import annotations

import pytest

from llm_pipeline.errors import Unsupported
from llm_pipeline.quantization.modelopt_configs import refuse_unsupported

EVERY = ("none", "int4_naive", "int4_awq", "fp8", "int8_smoothquant", "w4a8_awq", "fp8_kv_fp8", "int8_weight_only")


@pytest.mark.parametrize("name", [*EVERY, "nvfp4"])
def test_every_committed_recipe_is_valid_and_described(recipe, name):
    assert recipe(name).description


def test_a_gpu_only_format_is_refused_on_a_cpu_before_any_work(recipe):
    with pytest.raises(Unsupported, match="NVIDIA GPU only"):
        refuse_unsupported(recipe("nvfp4"), "cpu")
    refuse_unsupported(recipe("nvfp4"), "cuda")
