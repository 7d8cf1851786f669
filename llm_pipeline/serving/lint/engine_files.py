"""Rules of the engine that a model names: a directory with `config.json` and one `rank*.engine` a rank."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from llm_pipeline.base.errors import IntegrityError
from llm_pipeline.base.json_document import parse
from llm_pipeline.serving.lint.finding import Finding
from llm_pipeline.serving.lint.repository import ModelSource

_CONFIG = "config.json"


def engine_file_rules(model: ModelSource) -> Iterator[Finding]:
    """The engine's files, where they are on this host, and its limits against the configuration's."""
    named = model.parameter("gpt_model_path")
    if named.endswith((".engine", ".plan")):
        yield model.finding(
            "engine_directory",
            f"gpt_model_path is the file {Path(named).name}",
            f"the directory with {_CONFIG} and rank*.engine",
            model.string_line("gpt_model_path"),
        )
    for version in model.versions:
        yield from _lone_files(model, version)
    for directory in _engine_directories(model, named):
        yield from _engine(model, directory)


def _engine_directories(model: ModelSource, named: str) -> list[Path]:
    """Those of the model's versions, and the named one if it is here: a server may run in its repository."""
    found = [version for version in model.versions if any(version.glob("rank*.engine"))]
    path = model.directory.parent / named
    if named and path.is_dir() and path.resolve() not in [version.resolve() for version in found]:
        found.append(path)
    return found


def _lone_files(model: ModelSource, version: Path) -> Iterator[Finding]:
    lone = [path for path in sorted(version.iterdir()) if path.suffix in (".engine", ".plan")]
    for path in lone:
        if not path.name.startswith("rank"):
            yield model.file_finding(
                f"{version.name}/{path.name}",
                "engine_directory",
                "TensorRT-LLM reads no single engine file",
                f"the directory that trtllm-build wrote, with {_CONFIG} and rank0.engine, named by gpt_model_path",
            )


def _engine(model: ModelSource, directory: Path) -> Iterator[Finding]:
    place = _place(model, directory)
    try:
        config = parse((directory / _CONFIG).read_bytes(), where=_CONFIG, finite=False)
        build, mapping = config["build_config"], config["pretrained_config"].get("mapping", {})
    except FileNotFoundError:
        message = f"engine files without {_CONFIG}"
        yield model.file_finding(place, "engine_directory", message, "copy the whole directory that trtllm-build wrote")
        return
    except (IntegrityError, KeyError, TypeError, AttributeError) as error:
        message = f"{_CONFIG} is not the engine's: {type(error).__name__} {error}"
        yield model.file_finding(place, "engine_directory", message, "build the engine again")
        return
    ranks = int(mapping.get("world_size", 1))
    if missing := [rank for rank in range(ranks) if not (directory / f"rank{rank}.engine").is_file()]:
        message = f"the engine has {ranks} ranks; rank{missing[0]}.engine is missing"
        yield model.file_finding(place, "engine_directory", message, "copy all ranks")
    yield from _limits(model, build)
    yield from _device_counts(model, ranks)


def _limits(model: ModelSource, build: dict[str, Any]) -> Iterator[Finding]:
    batch = build.get("max_batch_size")
    if batch is not None and model.config.max_batch_size > batch:
        yield model.finding(
            "engine_batch",
            f"max_batch_size {model.config.max_batch_size} is above the engine's own, {batch}",
            f"max_batch_size: {batch}, or build with --max_batch_size {model.config.max_batch_size}",
            model.field_line("max_batch_size"),
        )
    beams, built_beams = model.parameter("max_beam_width"), build.get("max_beam_width")
    if built_beams is not None and beams.isdecimal() and int(beams) > built_beams:
        yield model.finding(
            "engine_beams",
            f"max_beam_width {beams} is above the engine's own, {built_beams}",
            f"{built_beams}, or build with --max_beam_width {beams}",
            model.string_line("max_beam_width"),
        )


def _device_counts(model: ModelSource, ranks: int) -> Iterator[Finding]:
    for devices in filter(None, model.parameter("gpu_device_ids").split(";")):
        if len(devices.split(",")) != ranks:
            yield model.finding(
                "device_sets",
                f"gpu_device_ids has the set {devices}; an instance of this engine takes {ranks} GPUs",
                f"{ranks} GPUs in each set",
                model.string_line("gpu_device_ids"),
            )


def _place(model: ModelSource, directory: Path) -> str:
    inside = directory.is_relative_to(model.directory)
    return str(directory.relative_to(model.directory)) if inside else str(directory)
