"""Parameters of the in-flight batcher set's models, from a target's options, in the words that the models read."""

from __future__ import annotations

import difflib
from typing import Any

from llm_pipeline.base.errors import ConfigError, Unsupported
from llm_pipeline.config.target import Target
from llm_pipeline.config.triton_names import TRITON_NAMES, ModelName, TritonName, parameters_of
from llm_pipeline.serving.triton_config.recorded import recorded_model

Scalar = str | int | float | bool

_BYTES_PER_GIB = 2**30
_SET_BY_THE_WRITER = {
    "gpt_model_path": "the engine's place in the repository",
    "tokenizer_dir": "the tokenizer's place in the repository",
    "FORCE_CPU_ONLY_INPUT_TENSORS": "the template",
}


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
