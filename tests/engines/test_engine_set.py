"""The templates of the classic set are what Triton parses; `serving/packaged` serves it."""

from __future__ import annotations

from string import Template

import pytest

pytest.importorskip("tritonclient")

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as messages

from llm_pipeline.adapters.tensorrt_llm.repositories import _TEMPLATES, template_values
from llm_pipeline.config.target import Target


def test_a_targets_options_are_in_the_configurations():
    runtime = {"kv_cache": {"free_memory_fraction": 0.5, "reuse_blocks": False}, "scheduler": "max_utilization"}
    options = {
        "runtime": runtime,
        "parallelism": {"tensor": 16},
        "accelerator_count": 16,
        "limits": {"maximum_sequences": 24},
    }
    target = Target.model_validate({"name": "h", "accelerator": "H", "engine": "tensorrt_llm_engine", **options})
    values = template_values(target, "bfloat16")
    configs = {
        path.stem: text_format.Parse(Template(path.read_text()).substitute(values), messages.ModelConfig())
        for path in _TEMPLATES.glob("*.pbtxt")
    }
    assert {config.max_batch_size for config in configs.values()} == {24}
    assert configs["tensorrt_llm_bls"].instance_group[0].count == 24
    engine = {key: value.string_value for key, value in configs["tensorrt_llm"].parameters.items()}
    wanted = {
        "kv_cache_free_gpu_mem_fraction": "0.5",
        "enable_kv_cache_reuse": "false",
        "enable_chunked_context": "true",
        "batch_scheduler_policy": "max_utilization",
        "num_nodes": "2",
    }
    assert wanted.items() <= engine.items()
