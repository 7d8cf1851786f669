"""Rules of models whose `model.yaml` holds the arguments of TensorRT-LLM's LLM API."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.base.yaml_document import parse_yaml
from llm_pipeline.serving.lint.engine_rules import device_set_rules
from llm_pipeline.serving.lint.parsing import find_leftovers, line_of
from llm_pipeline.serving.lint.repository import Finding, ModelSource, Repository, Severity

ARGUMENTS_FILE = "model.yaml"
_RECORDED_VERSIONS = ("1.2.1", "1.3.0rc26")
_SEE = f"see the LLM arguments of TensorRT-LLM {' and '.join(_RECORDED_VERSIONS)}"
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


@dataclass(frozen=True)
class _ArgumentsFile:
    """The text and content of one `model.yaml`."""

    model: ModelSource
    file: str
    text: str
    document: Any
    problem: str = ""

    @classmethod
    def read(cls, model: ModelSource, path: Path) -> _ArgumentsFile:
        file, text = f"{path.parent.name}/{path.name}", path.read_text(encoding="utf-8", errors="replace")
        try:
            return cls(model, file, text, parse_yaml(text, where=file).value)
        except ConfigError as error:
            return cls(model, file, text, None, str(error))

    def findings(self) -> Iterator[Finding]:
        for leftover in find_leftovers(self.text):
            yield self._finding(
                "leftover", f"{leftover.text} was never filled in", "write the value", line=leftover.line
            )
        if not isinstance(self.document, dict):
            yield self._finding("arguments", self.problem or "this is no mapping", "key: value lines")
            return
        yield from self._triton()
        yield from self._arguments({key: value for key, value in self.document.items() if key != "triton_config"})

    def _triton(self) -> Iterator[Finding]:
        settings = self.document.get("triton_config")
        if not isinstance(settings, Mapping):
            message = "triton_config is missing, and the model reads it"
            yield self._finding("missing_key", message, "triton_config: { max_batch_size: 0, decoupled: true }")
            return
        for key in sorted(set(map(str, settings)) - set(_TRITON_KEYS)):
            near = difflib.get_close_matches(key, _TRITON_KEYS, n=1)
            message = f"triton_config has no {key}"
            yield self._finding(
                "unknown_key", message, f"one of: {', '.join(near or _TRITON_KEYS)}", key=f"triton_config.{key}"
            )
        for key, value in (("max_batch_size", "0"), ("decoupled", "true")):
            if key not in settings:
                message = f"triton_config.{key} is missing, and the model reads it"
                yield self._finding("missing_key", message, f"{key}: {value}", key="triton_config")
        if settings.get("max_batch_size", 0) != 0:
            message = (
                f"triton_config.max_batch_size is {settings['max_batch_size']}: the LLM batches in flight by itself"
            )
            yield self._finding("batching_twice", message, "max_batch_size: 0", key="triton_config.max_batch_size")
        if not isinstance(settings.get("decoupled", True), bool):
            message = "triton_config.decoupled is neither true nor false"
            yield self._finding("arguments", message, "decoupled: true for streaming", key="triton_config.decoupled")

    def _arguments(self, arguments: dict[str, Any]) -> Iterator[Finding]:
        from llm_pipeline.engines.llm_args.checking import check_llm_args  # jsonschema is not needed before

        if "model" not in arguments:
            yield self._finding("missing_key", "model is missing", "model: a directory, or a name on the hub")
            return
        checks = [check_llm_args(arguments, version) for version in _RECORDED_VERSIONS]
        closest = min(checks, key=lambda check: len(check.errors))
        for error in closest.errors:
            message = f"{error.path}: {error.problem}" if error.path else error.problem
            if error.sure:
                yield self._finding("arguments", message, error.hint or _SEE, key=error.path)
            else:
                message += f" in TensorRT-LLM {' and '.join(_RECORDED_VERSIONS)}; a later version may have it"
                yield self._finding(
                    "arguments_unknown", message, error.hint or _SEE, key=error.path, severity="warning"
                )

    def _finding(
        self, rule: str, message: str, fix: str, *, key: str = "", line: int | None = None, severity: Severity = "error"
    ) -> Finding:
        return self.model.finding(rule, message, fix, line or self._line(key), severity, file=self.file)

    def _line(self, key: str) -> int | None:
        """Line of a dotted key, or of the nearest above it that is there."""
        place = 0
        for part in filter(None, key.split(".")):
            if found := re.compile(rf"(?<![\w-]){re.escape(part)}[\"']?\s*:").search(self.text, place):
                place = found.end()
        return line_of(self.text, place) if place else None
