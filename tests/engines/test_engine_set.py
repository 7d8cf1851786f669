"""The templates of the classic set: they are what Triton parses, and the ensemble's wiring fits its models."""

from __future__ import annotations

from string import Template

import pytest

pytest.importorskip("tritonclient")

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as messages

from llm_pipeline.adapters.tensorrt_llm.repositories import _TEMPLATES, template_values
from llm_pipeline.config.target import Target


def filled(logits_type="float32", **options):
    target = Target.model_validate(
        {"name": "h100", "accelerator": "H100-SXM5-80GB", "engine": "tensorrt_llm_engine", **options}
    )
    values = template_values(target, logits_type)
    return {
        path.stem: text_format.Parse(Template(path.read_text()).substitute(values), messages.ModelConfig())
        for path in _TEMPLATES.glob("*.pbtxt")
    }


def test_a_targets_options_are_in_the_configurations():
    runtime = {"kv_cache": {"free_memory_fraction": 0.5, "reuse_blocks": False}, "scheduler": "max_utilization"}
    two_hosts = {"parallelism": {"tensor": 16}, "accelerator_count": 16}
    configs = filled(limits={"maximum_sequences": 24}, runtime=runtime, **two_hosts)
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


@pytest.mark.parametrize("logits_type", ["float16", "bfloat16"])
def test_the_ensembles_tensors_are_those_of_its_models(logits_type):
    configs = filled(logits_type)
    ensemble = configs["ensemble"]
    types = {tensor.name: tensor.data_type for tensor in ensemble.input}
    outputs = {tensor.name: tensor.data_type for tensor in ensemble.output}
    for step in ensemble.ensemble_scheduling.step:
        model = configs[step.model_name]
        inputs = {tensor.name: tensor for tensor in model.input}
        assert {name for name, tensor in inputs.items() if not tensor.optional} <= set(step.input_map)
        for name, source in step.input_map.items():
            assert inputs[name].data_type == types[source], (step.model_name, name)
        made = {tensor.name: tensor.data_type for tensor in model.output}
        for name, target in step.output_map.items():
            assert made[name] == outputs.get(target, made[name]), (step.model_name, name)
            types[target] = made[name]
    assert set(outputs) <= set(types)
