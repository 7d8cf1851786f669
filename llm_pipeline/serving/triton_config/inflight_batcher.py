"""The models of the in-flight batcher set, for engines of TensorRT-LLM 1.0 to 1.2."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from llm_pipeline.artifacts.repository_layout import CONFIG_FILE
from llm_pipeline.base.errors import ConfigError, Unsupported
from llm_pipeline.config.serving_options import QueuePolicy, ServingOptions
from llm_pipeline.config.target import Target
from llm_pipeline.config.triton_names import TRITON_NAMES, ModelName, TritonName, parameters_of
from llm_pipeline.serving.triton_config.recorded import RecordedTensor, recorded_model

if TYPE_CHECKING:
    from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelQueuePolicy

Scalar = str | int | float | bool
_BYTES_PER_GIB = 2**30
_SET_BY_THE_WRITER = {
    "gpt_model_path": "the engine's place in the repository",
    "tokenizer_dir": "the tokenizer's place in the repository",
    "FORCE_CPU_ONLY_INPUT_TENSORS": "the template",
}
LogitsType = Literal["float16", "float32", "bfloat16"]
"""`logits_dtype` of the engine's `pretrained_config`: the tensors of the logits must have it."""

_TRITON_TYPES: dict[LogitsType, str] = {"float16": "TYPE_FP16", "float32": "TYPE_FP32", "bfloat16": "TYPE_BF16"}


def config_text(config: ModelConfig) -> str:
    """The text of `config.pbtxt`; the same for equal configurations."""
    from google.protobuf import text_format

    text: str = text_format.MessageToString(config)
    return text


def write_config(config: ModelConfig, directory: Path) -> Path:
    """Write a model's `config.pbtxt` into its directory, which may be new; returns the file's path."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / CONFIG_FILE
    path.write_text(config_text(config), encoding="utf-8")
    return path


def add_tensors(
    config: ModelConfig,
    inputs: Iterable[RecordedTensor],
    outputs: Iterable[RecordedTensor],
    types: Mapping[str, str],
) -> None:
    """Add recorded tensors to a configuration; `types` has those that depend on the engine, in Triton's words."""
    for tensor in inputs:
        added = config.input.add(
            name=tensor.name,
            data_type=_type_number(tensor, types),
            dims=tensor.dims,
            optional=tensor.optional,
            allow_ragged_batch=tensor.ragged,
        )
        if tensor.scalar:
            added.reshape.SetInParent()
    for tensor in outputs:
        config.output.add(name=tensor.name, data_type=_type_number(tensor, types), dims=tensor.dims)


def _type_number(tensor: RecordedTensor, types: Mapping[str, str]) -> int:
    from tritonclient.grpc import model_config_pb2 as messages

    number: int = messages.DataType.Value(types.get(tensor.data_type, tensor.data_type))
    return number


def apply_queue(config: ModelConfig, serving: ServingOptions, maximum_batch_size: int) -> None:
    """Set a configuration's largest batch and its dynamic batching.

    Args:
        config: Changed in place.
        serving: The queue's policy, priorities and wait.
        maximum_batch_size: Requests of a batch, at least 1: without batches there is no queue policy in Triton.

    Raises:
        ConfigError: A preferred batch is larger than the largest, which the server refuses.
    """
    refuse_large_batches(serving, maximum_batch_size)
    config.max_batch_size = maximum_batch_size
    batching = config.dynamic_batching
    batching.preferred_batch_size[:] = serving.preferred_batch_sizes or (maximum_batch_size,)
    batching.max_queue_delay_microseconds = serving.queue_delay_microseconds
    batching.priority_levels = serving.priority_levels
    batching.default_priority_level = serving.default_priority_level
    _set_policy(batching.default_queue_policy, serving.queue)
    for level, policy in serving.priority_queues.items():
        _set_policy(batching.priority_queue_policy[level], policy)


def refuse_large_batches(serving: ServingOptions, maximum_batch_size: int) -> None:
    """Refuse preferred batches that are larger than the largest.

    Raises:
        ConfigError: There are such.
    """
    if too_large := [size for size in serving.preferred_batch_sizes if size > maximum_batch_size]:
        raise ConfigError(
            f"preferred batches of {too_large} requests exceed the largest batch, {maximum_batch_size}",
            where="serving.preferred_batch_sizes",
            hint="lower serving.preferred_batch_sizes, or raise limits.maximum_sequences",
        )


def _set_policy(message: ModelQueuePolicy, policy: QueuePolicy) -> None:
    message.timeout_action = message.DELAY if policy.timeout_action == "delay" else message.REJECT
    message.default_timeout_microseconds = policy.timeout_microseconds
    message.allow_timeout_override = policy.allow_timeout_override
    message.max_queue_size = policy.maximum_queued
    message.SetInParent()


def target_parameters(target: Target, model: ModelName) -> dict[str, str]:
    """The parameters of a model that follow from the target; options that are not set are left out.

    Raises:
        Unsupported: The target asks for what the engine path's runtime does not have.
    """
    _check_decoding(target)
    values = {name.parameter: _value(target, name) for name in parameters_of(model)}
    return {key: _text(value) for key, value in values.items() if key and value is not None}


def extra_parameters(target: Target) -> dict[str, str]:
    """The target's further parameters of the model `tensorrt_llm`.

    Raises:
        ConfigError: One that no version reads, that is set by an option of its own, or that has no legal value.
    """
    values = {key: _text(value) for key, value in target.serving.extra_parameters.items()}
    for key, value in values.items():
        _check_extra(key, value, f"target {target.name}, serving.extra_parameters")
    return values


def _check_extra(key: str, value: str, where: str) -> None:
    owned = _SET_BY_THE_WRITER | {name.parameter: name.option for name in TRITON_NAMES if name.parameter}
    if key in owned:
        raise ConfigError(f"{key} is set by {owned[key]}", where=where, hint="set that instead")
    known = {
        recorded.key: recorded for recorded in recorded_model("tensorrt_llm").parameters if recorded.key not in owned
    }
    if key not in known:
        near = difflib.get_close_matches(key, known, n=3)
        raise ConfigError(
            f"the backend reads no parameter {key!r}", where=where, hint=f"one of: {', '.join(near or sorted(known))}"
        )
    if not known[key].accepts(value):
        raise ConfigError(f"{key} is {value!r}", where=where, hint=f"write {known[key].example}")


def _check_decoding(target: Target) -> None:
    runtime, where = target.runtime, f"target {target.name}"
    if runtime.speculative and runtime.speculative.method != "draft_model":
        raise Unsupported(
            f"speculative decoding by {runtime.speculative.method} needs the LLM API",
            where=where,
            hint="use engine tensorrt_llm_llmapi, or build the engine for lookahead, medusa or eagle, and set"
            " serving.decoding_mode",
        )
    if runtime.speculative and not target.serving.draft_model_name:
        raise ConfigError(
            "an engine takes drafts from another model of the server", where=where, hint="set serving.draft_model_name"
        )
    if runtime.guided_decoding not in (None, "xgrammar"):
        raise Unsupported(
            f"engines decode guided by xgrammar only, not {runtime.guided_decoding}",
            where=where,
            hint="set runtime.guided_decoding to xgrammar",
        )
    if runtime.guided_decoding and not target.serving.tokenizer_info_path:
        raise ConfigError(
            "guided decoding by an engine needs the tokenizer as xgrammar's JSON",
            where=where,
            hint="set serving.tokenizer_info_path",
        )


def _value(target: Target, name: TritonName) -> Scalar | None:
    """An option's value in the unit of its place; None if it is not set."""
    match name.parameter:
        case "kv_cache_host_memory_bytes":
            return round(target.runtime.kv_cache.host_gib * _BYTES_PER_GIB) or None
        case "decoding_mode":
            return _decoding_mode(target)
        case "medusa_choices" | "eagle_choices" as key:
            return _tree(target) if key == f"{_decoding_mode(target)}_choices" else None
        case "gpu_device_ids":
            return ";".join(",".join(map(str, devices)) for devices in target.serving.gpu_device_ids) or None
    value = _read(target, name.option)
    return ",".join(map(str, value)) if isinstance(value, tuple) else value


def _decoding_mode(target: Target) -> str | None:
    mode = target.serving.decoding_mode
    return None if mode == "auto" else mode


def _tree(target: Target) -> str | None:
    """As the backend reads it: `{0},{0,1}`."""
    return ",".join(f"{{{','.join(map(str, path))}}}" for path in target.serving.draft_tree) or None


def _read(target: Target, option: str) -> Any:
    value: Any = target
    for part in option.split("."):
        value = getattr(value, part) if value is not None else None
    return value


def _text(value: Scalar) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


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
