"""Configurations as files: written and read by protobuf's own text format, never by templates."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from llm_pipeline.artifacts.repository_layout import CONFIG_FILE

if TYPE_CHECKING:
    from tritonclient.grpc.model_config_pb2 import ModelConfig


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
