"""What the linter says that the server refuses, the server refuses: each mistake is put to a real tritonserver."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tritonclient")

import tritonclient.grpc as grpc_client
from google.protobuf import json_format
from tritonclient.utils import InferenceServerException

from llm_pipeline.config.target import Target
from llm_pipeline.serving.lint import lint_repository_directory
from llm_pipeline.serving.triton_config.inflight_batcher import (
    engine_model_config,
    ensemble_config,
    postprocessing_config,
    preprocessing_config,
    write_config,
)

TARGET = Target(name="h100", accelerator="H100-SXM5-80GB", engine="tensorrt_llm_engine")
DELAY = 1


def steps(config: Any) -> Any:
    return config.ensemble_scheduling.step


def change(message: Any, **fields: Any) -> Any:
    for name, value in fields.items():
        setattr(message, name, value)
    return message


def delayed(config: Any) -> None:
    batching = change(config.dynamic_batching, preserve_ordering=True)
    change(batching.default_queue_policy, timeout_action=DELAY, default_timeout_microseconds=1)


def cached(config: Any) -> None:
    config.response_cache.enable = True
    config.model_transaction_policy.decoupled = True


def start_control(config: Any, *, values: tuple[int, ...]) -> None:
    config.ClearField("dynamic_batching")
    tensor = config.sequence_batching.control_input.add(name="START")
    tensor.control.add(kind=0, int32_false_true=values)


def batch_input(config: Any, *sources: str) -> None:
    config.batch_input.add(kind=0, target_name=["COUNT"], data_type=8, source_input=sources)


ENSEMBLE_MISTAKES: dict[str, Callable[[Any], Any]] = {
    "ensemble_field": lambda config: config.instance_group.add(count=1),
    "backend_of_ensemble": lambda config: change(config, backend="python"),
    "input_not_used": lambda config: config.input.add(name="image", data_type=13, dims=[1]),
    "output_not_written": lambda config: config.output.add(name="image", data_type=13, dims=[1]),
    "tensor_not_made": lambda config: steps(config)[1].input_map.update({"draft_input_ids": "drafts"}),
    "tensor_not_used": lambda config: steps(config)[0].output_map.update({"PIXEL_VALUES": "pixels"}),
    "tensor_written_twice": lambda config: steps(config)[1].output_map.update({"output_ids": "_INPUT_ID"}),
    "unknown_model": lambda config: change(steps(config)[0], model_name="tokenize"),
    "unknown_step_tensor": lambda config: steps(config)[0].input_map.update({"TEXT": "text_input"}),
    "input_not_mapped": lambda config: steps(config)[2].input_map.pop("SEQUENCE_LENGTH"),
    "ensemble_batch": lambda config: change(config, max_batch_size=64),
    "tensor_type": lambda config: change(config.input[0], data_type=8),
    "tensor_dims": lambda config: config.input[2].dims.append(1),
    "ensemble_platform": lambda config: change(config, platform="", backend="python"),
    "ensemble_circle": lambda config: change(steps(config)[0], model_name="ensemble"),
    "tensor_circle": lambda config: steps(config)[0].input_map.update({"QUERY": "_INPUT_ID"}),
    "step_field": lambda config: steps(config)[0].ClearField("output_map"),
    "missing_version": lambda config: change(steps(config)[0], model_version=2),
    "ensemble_without_steps": lambda config: config.ensemble_scheduling.ClearField("step"),
}
MODEL_MISTAKES: dict[str, Callable[[Any], Any]] = {
    "platform_for_backend": lambda config: change(config, backend="", platform="tensorrtllm"),
    "negative_batch": lambda config: change(config, max_batch_size=-1),
    "tensor_name": lambda config: config.output.add(data_type=8, dims=[1]),
    "data_type": lambda config: config.output.add(name="more", dims=[1]),
    "tensor_dims": lambda config: config.output.add(name="more", data_type=8, dims=[0]),
    "tensor_reshape": lambda config: config.input[0].reshape.shape.append(2),
    "tensor_format": lambda config: change(config.input[0], is_shape_tensor=True),
    "batch_input": lambda config: batch_input(config, "QUERY", "NOTHING"),
    "batch_output": lambda config: config.batch_output.add(target_name=["NOTHING"], source_input=["QUERY"]),
    "sequence_control": lambda config: start_control(config, values=(1,)),
    "slot_utilization": lambda config: (
        config.ClearField("dynamic_batching"),
        change(config.sequence_batching.direct, minimum_slot_utilization=2.0),
    ),
    "instance_gpus": lambda config: config.instance_group[0].gpus.append(0),
    "instance_profile": lambda config: config.instance_group[0].profile.append("1"),
    "preferred_batch_size": lambda config: config.dynamic_batching.preferred_batch_size.append(64),
    "default_priority_level": lambda config: change(config.dynamic_batching, priority_levels=2),
    "priority_queue_policy": lambda config: (
        change(config.dynamic_batching, priority_levels=1, default_priority_level=1)
        .priority_queue_policy[2]
        .SetInParent()
    ),
    "preserve_ordering": delayed,
    "response_cache": cached,
}
TAKEN: dict[str, Callable[[Any], Any]] = {
    "missing_backend": lambda config: config.ClearField("backend"),
    "tensor_twice": lambda config: config.input.add().CopyFrom(config.input[0]),
    "batching_without_batches": lambda config: [
        config.ClearField("max_batch_size"),
        config.dynamic_batching.ClearField("preferred_batch_size"),
    ],
}
"""What the server takes in silence, and the linter only warns of."""


def sound_models() -> dict[str, Any]:
    """The set's models; the engine's with the backend that the server of this host has."""
    engine = engine_model_config(TARGET, engine_directory="/engine", tokenizer_directory="/tokenizer")
    engine.backend = "python"
    return {
        "tensorrt_llm": engine,
        "preprocessing": preprocessing_config(TARGET, tokenizer_directory="/tokenizer"),
        "postprocessing": postprocessing_config(TARGET, tokenizer_directory="/tokenizer"),
        "ensemble": ensemble_config(TARGET),
    }


def write(configs: dict[str, Any], directory: Path) -> None:
    for name, config in configs.items():
        write_config(config, directory / name)
        (directory / name / "1").mkdir()
        code = "about.txt" if name == "ensemble" else "model.py"
        (directory / name / "1" / code).write_text("class TritonPythonModel:\n    pass\n")


def is_loaded(client: Any, name: str, config: Any) -> bool:
    """Whether the server takes another configuration for a model that it has."""
    try:
        client.load_model(name, config=json_format.MessageToJson(config, preserving_proto_field_name=True))
    except InferenceServerException:
        return False
    return True


def severity(directory: Path, model: str, rule: str, break_it: Callable[[Any], Any]) -> str:
    """How grave the linter finds a mistake."""
    configs = sound_models()
    break_it(configs[model])
    write(configs, directory)
    return next(found.severity for found in lint_repository_directory(directory) if found.rule == rule)


def test_the_server_refuses_what_the_linter_calls_an_error_and_takes_what_it_warns_of(slot, tmp_path):
    sound = sound_models()
    write(sound, slot.repository)
    assert lint_repository_directory(slot.repository) == ()
    slot.start()
    client = grpc_client.InferenceServerClient(f"127.0.0.1:{slot.ports.grpc}")
    assert all(client.is_model_ready(name) for name in sound)
    assert is_loaded(client, "ensemble", sound["ensemble"])
    for model, mistakes in (
        ("ensemble", ENSEMBLE_MISTAKES),
        ("preprocessing", MODEL_MISTAKES),
        ("preprocessing", TAKEN),
    ):
        for rule, break_it in mistakes.items():
            config = sound_models()[model]
            break_it(config)
            taken = is_loaded(client, model, config)
            told = severity(tmp_path / f"{model}_{rule}", model, rule, break_it)
            assert (rule, told) == (rule, "warning" if taken else "error")
