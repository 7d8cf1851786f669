"""Options that a target sets and its engine does not read. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from llm_pipeline.config.model import ConfigModel
from llm_pipeline.config.target import EngineBuilderName, Target

_READ_BY_THE_LLM_API = {
    "build": {"time_limit_minutes"},
    "serving": {"gpu_device_ids", "cancellation_check_milliseconds", "add_special_tokens", "skip_special_tokens"},
}
_READ_BY_ENGINES = {
    "runtime": {
        "kv_cache",
        "chunked_context",
        "scheduler",
        "beam_width",
        "guided_decoding",
        "speculative",
    },
}
_READ_BY_TRANSFORMERS: Mapping[str, set[str]] = {
    "runtime": {"cuda_graphs", "kv_cache"},
    "build": set(),
    "serving": {"cancellation_check_milliseconds", "add_special_tokens", "skip_special_tokens"},
}
_READ_BY_VLLM: Mapping[str, set[str]] = {
    "runtime": {"cuda_graphs", "kv_cache", "chunked_context"},
    "build": set(),
    "serving": {"cancellation_check_milliseconds", "add_special_tokens", "skip_special_tokens"},
}
_READERS: Mapping[EngineBuilderName, tuple[str, Mapping[str, set[str]]]] = {
    "tensorrt_llm_llmapi": ("the LLM API", _READ_BY_THE_LLM_API),
    "tensorrt_llm_engine": ("a compiled engine", _READ_BY_ENGINES),
    "transformers_torch": ("Transformers", _READ_BY_TRANSFORMERS),
    "vllm": ("vLLM", _READ_BY_VLLM),
}
"""Each engine in words, and what it reads of the sections that it does not read whole."""


def unread_warnings(target: Target) -> tuple[str, ...]:
    """One line that names them; none where there are none."""
    if target.engine not in _READERS:
        return ()
    reader, sections = _READERS[target.engine]
    unread = [
        f"{section}.{name}"
        for section, read in sections.items()
        for name in _changed(getattr(target, section))
        if name not in read
    ]
    return (f"{reader} does not read {', '.join(unread)}",) if unread else ()


def _changed(options: ConfigModel) -> Iterator[str]:
    """Names of the options that are not at their defaults."""
    defaults = type(options)()
    return (name for name in type(options).model_fields if getattr(options, name) != getattr(defaults, name))
