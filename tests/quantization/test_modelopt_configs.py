from __future__ import annotations

import pytest

pytest.importorskip("modelopt")

from llm_pipeline.errors import ConfigError, Unsupported
from llm_pipeline.quantization.modelopt_configs import is_excluded, modelopt_config
from llm_pipeline.quantization.modelopt_quantizer import quantize_checkpoint


def test_the_quantizer_refuses_a_gpu_only_format_before_it_reads_anything(recipe, tmp_path):
    with pytest.raises(Unsupported):
        quantize_checkpoint(tmp_path / "absent", tmp_path / "out", recipe("nvfp4"), None, dtype=None)
    assert not (tmp_path / "out").exists()


def test_a_calibrated_recipe_without_data_is_refused(source, recipe, tmp_path):
    with pytest.raises(ConfigError, match="no calibration data"):
        quantize_checkpoint(source, tmp_path / "out", recipe("fp8"), None, dtype=None)


def test_a_kv_cache_format_is_added_to_the_weights_format(recipe):
    alone, both = modelopt_config(recipe("fp8")), modelopt_config(recipe("fp8_kv_fp8"))
    assert [entry for entry in both["quant_cfg"] if entry not in alone["quant_cfg"]] == [
        {"quantizer_name": "*[kv]_bmm_quantizer", "cfg": {"num_bits": (4, 3), "axis": None}}
    ]


def test_excluded_layers_are_the_recipes_and_modelopts_own(recipe):
    fewer = recipe("fp8").model_copy(update={"exclude": ("*lm_head*", "model.layers.0.mlp.down_proj")})
    config = modelopt_config(fewer)
    assert is_excluded(config, "lm_head")
    assert is_excluded(config, "model.layers.0.mlp.down_proj")
    assert not is_excluded(config, "model.layers.1.mlp.down_proj")
    assert is_excluded(config, "model.layers.3.block_sparse_moe.gate")
