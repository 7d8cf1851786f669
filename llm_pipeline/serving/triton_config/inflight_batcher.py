"""The models of the in-flight batcher set, for engines of TensorRT-LLM 1.0 to 1.2."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from llm_pipeline.config.target import Target
from llm_pipeline.config.triton_names import ModelName
from llm_pipeline.serving.triton_config.parameters import extra_parameters, target_parameters
from llm_pipeline.serving.triton_config.queueing import apply_queue
from llm_pipeline.serving.triton_config.recorded import recorded_model
from llm_pipeline.serving.triton_config.tensors import add_tensors

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tritonclient.grpc.model_config_pb2 import ModelConfig

LogitsType = Literal["float16", "float32", "bfloat16"]
"""`logits_dtype` of the engine's `pretrained_config`: the tensors of the logits must have it."""

_TRITON_TYPES: dict[LogitsType, str] = {"float16": "TYPE_FP16", "float32": "TYPE_FP32", "bfloat16": "TYPE_BF16"}


def engine_model_config(
    target: Target,
    *,
    engine_directory: str,
    tokenizer_directory: str,
    logits_type: LogitsType = "float32",
) -> ModelConfig:
    """The model `tensorrt_llm`, which runs the engine and batches in flight.

    One instance of kind CPU for each set of GPUs: instance groups do not place an engine, `gpu_device_ids` does.

    Args:
        target: Its limits, runtime and serving options.
        engine_directory: `config.json` and `rank*.engine`, as the server sees it.
        tokenizer_directory: The tokenizer, as the server sees it.
        logits_type: `logits_dtype` of the engine.

    Raises:
        ConfigError: Options that do not fit together, or a parameter that the backend does not read.
        Unsupported: The target asks for what only the LLM API has.
    """
    config = _new(target, "tensorrt_llm", logits_type)
    apply_queue(config, target.serving, target.limits.maximum_sequences)
    config.model_transaction_policy.decoupled = target.serving.streaming
    _add_instances(config, max(1, len(target.serving.gpu_device_ids)))
    _set_parameters(
        config,
        {
            "gpt_model_path": engine_directory,
            "tokenizer_dir": tokenizer_directory,
            "FORCE_CPU_ONLY_INPUT_TENSORS": "no",
            **target_parameters(target, "tensorrt_llm"),
            **extra_parameters(target),
        },
    )
    return config


def preprocessing_config(target: Target, *, tokenizer_directory: str) -> ModelConfig:
    """The python model that tokenizes: text to token ids, stop and bad words to ids."""
    config = _new(target, "preprocessing")
    apply_queue(config, target.serving, target.limits.maximum_sequences)
    _add_instances(config, target.serving.preprocessing_instances)
    _set_parameters(config, {"tokenizer_dir": tokenizer_directory, **target_parameters(target, "preprocessing")})
    return config


def postprocessing_config(target: Target, *, tokenizer_directory: str) -> ModelConfig:
    """The python model that turns token ids into text."""
    config = _new(target, "postprocessing")
    config.dynamic_batching.SetInParent()
    _add_instances(config, target.serving.postprocessing_instances)
    _set_parameters(config, {"tokenizer_dir": tokenizer_directory, **target_parameters(target, "postprocessing")})
    return config


def ensemble_config(target: Target, *, logits_type: LogitsType = "float32") -> ModelConfig:
    """The three models as one, wired inside the server. A cancelled request goes on: prefer the BLS model."""
    config = _new(target, "ensemble", logits_type)
    for step in recorded_model("ensemble").steps:
        added = config.ensemble_scheduling.step.add(model_name=step.model, model_version=-1)
        added.input_map.update(step.inputs)
        added.output_map.update(step.outputs)
    return config


def bls_config(target: Target, *, logits_type: LogitsType = "float32") -> ModelConfig:
    """The python model that calls the three others, request by request."""
    config = _new(target, "tensorrt_llm_bls", logits_type)
    config.model_transaction_policy.decoupled = target.serving.streaming
    _add_instances(config, target.serving.bls_instances)
    _set_parameters(
        config, {"tensorrt_llm_model_name": "tensorrt_llm", **target_parameters(target, "tensorrt_llm_bls")}
    )
    return config


def _new(target: Target, name: ModelName, logits_type: LogitsType = "float32") -> ModelConfig:
    from tritonclient.grpc import model_config_pb2 as messages

    recorded = recorded_model(name)
    config = messages.ModelConfig(
        name=name,
        backend=recorded.backend,
        platform=recorded.platform,
        max_batch_size=target.limits.maximum_sequences,
    )
    types = {
        "logits": _TRITON_TYPES[logits_type],
        "prompt_embedding_table": "TYPE_FP16",  # what upstream's ensemble fixes it to; the models must agree
        "encoder_input_features": "TYPE_FP16",  # BF16 for one vision model only, mllama
    }
    add_tensors(config, recorded.inputs, recorded.outputs, types)
    return config


def _add_instances(config: ModelConfig, count: int) -> None:
    group = config.instance_group.add(count=count)
    group.kind = group.KIND_CPU


def _set_parameters(config: ModelConfig, parameters: Mapping[str, str]) -> None:
    for key, value in parameters.items():
        config.parameters[key].string_value = value
