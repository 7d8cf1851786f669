"""Rules of models whose `model.yaml` holds the arguments of TensorRT-LLM's LLM API."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from llm_pipeline.serving.lint.engine_rules import device_set_rules
from llm_pipeline.serving.lint.finding import Finding
from llm_pipeline.serving.lint.leftovers import find_leftovers
from llm_pipeline.serving.lint.repository import ModelSource, Repository

ARGUMENTS_FILE = "model.yaml"
_RECORDED_VERSIONS = ("1.2.1", "1.4.0rc0")
_TRITON_KEYS = ("cancellation_check_period_ms", "decoupled", "max_batch_size")
_UPSTREAM_INPUT = "sampling_param_"


def llmapi_rules(model: ModelSource, _: Repository) -> Iterator[Finding]:
    """The arguments of every version, and what the configuration must leave to them."""
    files = [version / ARGUMENTS_FILE for version in model.versions if (version / ARGUMENTS_FILE).is_file()]
    for path in files:
        yield from _ArgumentsFile.read(model, path).findings()
    if files and any(tensor.name.startswith(_UPSTREAM_INPUT) for tensor in model.config.input):
        yield from _two_places(model)
    if files:
        yield from device_set_rules(model)


def _two_places(model: ModelSource) -> Iterator[Finding]:
    """NVIDIA's model.py sets both from `model.yaml`."""
    for name, is_set in (
        ("max_batch_size", model.field_line("max_batch_size") is not None),
        ("model_transaction_policy", model.config.HasField("model_transaction_policy")),
    ):
        if is_set:
            yield model.finding(
                "batching_twice" if name == "max_batch_size" else "decoupled_twice",
                f"{name} is set here and by triton_config of {ARGUMENTS_FILE}",
                f"take {name} out here",
                model.field_line(name),
            )


class _ArgumentsFile:
    """One `model.yaml`."""

    def __init__(self, model: ModelSource, path: Path, text: str, document: Any, problem: str) -> None:
        self._model, self._text, self._document, self._problem = model, text, document, problem
        self._file = f"{path.parent.name}/{path.name}"

    @classmethod
    def read(cls, model: ModelSource, path: Path) -> _ArgumentsFile:
        text = path.read_text(encoding="utf-8", errors="replace")
        try:
            return cls(model, path, text, yaml.safe_load(text), "")
        except yaml.YAMLError as error:
            return cls(model, path, text, None, " ".join(str(error).split()))

    def findings(self) -> Iterator[Finding]:
        for leftover in find_leftovers(self._text):
            yield self._finding(
                "leftover", f"{leftover.text} was never filled in", "write the value", line=leftover.line
            )
        if not isinstance(self._document, dict):
            yield self._finding("arguments", self._problem or "this is no mapping", "key: value lines")
            return
        yield from self._triton()
        yield from self._arguments({key: value for key, value in self._document.items() if key != "triton_config"})

    def _triton(self) -> Iterator[Finding]:
        settings = self._document.get("triton_config")
        if not isinstance(settings, Mapping):
            message = "triton_config is missing, and the model reads it"
            yield self._finding("missing_key", message, "triton_config: { max_batch_size: 0, decoupled: true }")
            return
        for key in sorted(set(map(str, settings)) - set(_TRITON_KEYS)):
            near = difflib.get_close_matches(key, _TRITON_KEYS, n=1)
            message = f"triton_config has no {key}"
            yield self._finding("unknown_key", message, f"one of: {', '.join(near or _TRITON_KEYS)}", key=key)
        for key, value in (("max_batch_size", "0"), ("decoupled", "true")):
            if key not in settings:
                message = f"triton_config.{key} is missing, and the model reads it"
                yield self._finding("missing_key", message, f"{key}: {value}", key="triton_config")
        if settings.get("max_batch_size", 0) != 0:
            message = (
                f"triton_config.max_batch_size is {settings['max_batch_size']}: the LLM batches in flight by itself"
            )
            yield self._finding("batching_twice", message, "max_batch_size: 0", key="max_batch_size")
        if not isinstance(settings.get("decoupled", True), bool):
            message = "triton_config.decoupled is neither true nor false"
            yield self._finding("arguments", message, "decoupled: true for streaming", key="decoupled")

    def _arguments(self, arguments: dict[str, Any]) -> Iterator[Finding]:
        from llm_pipeline.engines.llm_args.checking import check_llm_args  # jsonschema is not needed before

        if "model" not in arguments:
            yield self._finding("missing_key", "model is missing", "model: a directory, or a name on the hub")
            return
        checks = [check_llm_args(arguments, version) for version in _RECORDED_VERSIONS]
        closest = min(checks, key=lambda check: len(check.errors))
        for error in closest.errors:
            yield self._finding(
                "arguments",
                f"{error.path}: {error.problem}" if error.path else error.problem,
                error.hint or f"see the LLM arguments of TensorRT-LLM {closest.version}",
                key=error.path.rpartition(".")[2],
            )

    def _finding(self, rule: str, message: str, fix: str, *, key: str = "", line: int | None = None) -> Finding:
        found = re.search(rf"^\s*{re.escape(key)}\s*:", self._text, re.MULTILINE) if key else None
        if found and line is None:
            line = self._text.count("\n", 0, found.end()) + 1
        return Finding(self._model.name, rule, message, fix, self._file, line)
