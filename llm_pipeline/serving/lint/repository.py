"""A model repository as the rules read it (files, and the readable part of configurations), and their findings."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from llm_pipeline.artifacts.repository_layout import CONFIG_FILE, MODEL_FILE
from llm_pipeline.base.errors import ConfigError
from llm_pipeline.serving.lint.parsing import Mistake, line_of, parse_config, without_comments, without_leftovers

if TYPE_CHECKING:
    from tritonclient.grpc.model_config_pb2 import ModelConfig

Severity = Literal["error", "warning"]
_COMPLETED_BACKENDS = ("onnxruntime", "openvino", "tensorrt")
_COMPLETED_PLATFORMS = ("onnxruntime_onnx", "tensorrt_plan")
_COMPLETED_FILES = ("model.onnx", "model.plan", "model.xml")
_COMPLETING_FUNCTION = b"def auto_complete_config"


@dataclass(frozen=True)
class Finding:
    """One broken rule, with the way to correct it.

    Attributes:
        model: The model's directory; empty for the repository itself.
        rule: The rule's name.
        message: What is wrong.
        fix: What to write instead.
        file: Path of the file inside the model's directory; empty for the directory itself.
        line: Of the file, from 1, where known.
        severity: `error` if the server refuses or misreads it, `warning` if it serves worse than it could.
    """

    model: str
    rule: str
    message: str
    fix: str
    file: str = "config.pbtxt"
    line: int | None = None
    severity: Severity = "error"

    @property
    def place(self) -> str:
        """`model/file:line`; parts that are not known are left out."""
        path = "/".join(part for part in (self.model, self.file) if part) or "."
        return path if self.line is None else f"{path}:{self.line}"

    def __str__(self) -> str:
        return f"{self.place} {self.severity} {self.rule}: {self.message} -> {self.fix}"


@dataclass(frozen=True)
class ModelSource:
    """One model's directory.

    Attributes:
        directory: Where it is.
        text: Its `config.pbtxt`; empty without one.
        config: The configuration; empty where it could not be read.
        is_readable: Whether `config` says what the file says.
        mistakes: What the parser cannot read.
    """

    directory: Path
    text: str
    config: ModelConfig
    is_readable: bool
    mistakes: tuple[Mistake, ...] = ()

    @cached_property
    def code(self) -> str:
        """Its `config.pbtxt` with spaces for comments."""
        return without_comments(self.text)

    @property
    def name(self) -> str:
        """The model's name, which is its directory's."""
        return self.directory.name

    @property
    def versions(self) -> tuple[Path, ...]:
        """Its version directories: positive whole numbers without leading zeros, as the server takes them."""
        found = [entry for entry in self.directory.iterdir() if entry.is_dir() and is_version(entry.name)]
        return tuple(sorted(found, key=lambda entry: int(entry.name)))

    @property
    def is_ensemble(self) -> bool:
        """Whether it is an ensemble, which only connects other models."""
        return bool(self.config.platform == "ensemble" or self.config.HasField("ensemble_scheduling"))

    @cached_property
    def is_completed_by_server(self) -> bool:
        """Whether the server takes tensors and backend from the model itself where the configuration leaves them out.

        It does so unless it is started with `--disable-auto-complete-config`, as servers of TensorRT-LLM are.
        """
        if self.config.backend in _COMPLETED_BACKENDS or self.config.platform in _COMPLETED_PLATFORMS:
            return True
        files = [path for version in self.versions for path in version.iterdir()]
        code = [path for path in files if path.name == MODEL_FILE]
        return any(path.name in _COMPLETED_FILES for path in files) or any(
            _COMPLETING_FUNCTION in path.read_bytes() for path in code
        )

    def parameter(self, key: str) -> str:
        """A parameter's value, or an empty string."""
        return str(self.config.parameters[key].string_value) if key in self.config.parameters else ""

    def line(self, pattern: str) -> int | None:
        """Line of the first match in the configuration; None if there is none."""
        match = re.search(pattern, self.code, re.MULTILINE)
        return line_of(self.code, match.start()) if match else None

    def field_line(self, name: str) -> int | None:
        """Line of the first field of this name; None if there is none."""
        return self.line(rf"\b{re.escape(name)}\b\s*[:{{\[]")

    def string_line(self, value: str) -> int | None:
        """Line of a quoted string: a tensor's, model's or parameter's name."""
        found = max(self.code.find(f'"{value}"'), self.code.find(f"'{value}'"))
        return line_of(self.code, found) if found >= 0 else None

    def finding(
        self,
        rule: str,
        message: str,
        fix: str,
        line: int | None = None,
        severity: Severity = "error",
        *,
        file: str = CONFIG_FILE,
    ) -> Finding:
        """A finding in its `config.pbtxt`, in another file, or in the directory if `file` is empty."""
        return Finding(self.name, rule, message, fix, file, line, severity)


@dataclass(frozen=True)
class Repository:
    """A directory of models.

    Attributes:
        directory: Where it is.
        models: By name.
    """

    directory: Path
    models: Mapping[str, ModelSource] = field(default_factory=dict)


def is_version(name: str) -> bool:
    """Whether the server takes a directory of this name for a version."""
    return name.isdecimal() and not name.startswith("0")


def read_repository(directory: Path) -> Repository:
    """Read a repository; mistakes in its models are kept with them.

    Raises:
        ConfigError: There is no repository there.
    """
    if not directory.is_dir():
        raise ConfigError("this is not a directory", where=str(directory))
    if (directory / CONFIG_FILE).is_file():
        raise ConfigError(
            "this is one model, not a repository", where=str(directory), hint=f"lint {directory.parent} instead"
        )
    models = {model.name: model for model in _read_models(directory)}
    if not models:
        raise ConfigError(
            "there is no model in this directory",
            where=str(directory),
            hint=f"a repository holds a directory for each model, with its {CONFIG_FILE}",
        )
    return Repository(directory, models)


def _read_models(directory: Path) -> Iterator[ModelSource]:
    for entry in sorted(directory.iterdir()):
        if entry.is_dir() and not entry.name.startswith("."):
            yield _read_model(entry)


def _read_model(directory: Path) -> ModelSource:
    from tritonclient.grpc import model_config_pb2 as messages

    path = directory / CONFIG_FILE
    if not path.is_file():
        return ModelSource(directory, "", messages.ModelConfig(), is_readable=False)
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        mistake = Mistake("parse_error", f"the file is not UTF-8 text: {error.reason}", "write it as text", 1)
        return ModelSource(directory, "", messages.ModelConfig(), is_readable=False, mistakes=(mistake,))
    parsed = parse_config(without_leftovers(text))
    config = parsed.config if parsed.config is not None else messages.ModelConfig()
    return ModelSource(directory, text, config, parsed.config is not None, parsed.mistakes)
