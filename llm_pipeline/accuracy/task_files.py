"""lm-eval task files of a directory, read without lm-eval: what the tasks are, and how many documents they have.

A task file names its data relative to its own directory (`dataset_path: json` with `dataset_kwargs.data_files`), so
that the directory works wherever it lies. Task files that run code (`!function`) are refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llm_pipeline.config.plain_files import DATA_FILE_BYTES, problem_of_plain_file, read_plain_file
from llm_pipeline.errors import ConfigError, unless_io
from llm_pipeline.yaml_document import CONFIG_BOUNDS, parse_yaml

_DEFAULT_OUTPUT_TYPE = "generate_until"
"""What lm-eval takes a task for that does not say."""


def task_output_types(directory: Path) -> dict[str, str]:
    """`generate_until`, `multiple_choice`, `loglikelihood` or `loglikelihood_rolling`, by task.

    Raises:
        ConfigError: A task file is not plain YAML, or names no task.
    """
    types = {
        name: task.get("output_type", _DEFAULT_OUTPUT_TYPE) for name, task in task_configurations(directory).items()
    }
    return {name: str(kind) for name, kind in types.items()}


def task_document_counts(directory: Path) -> dict[str, int]:
    """How many documents each task has, for the tasks whose data are in the directory.

    Raises:
        ConfigError: As `task_output_types`, or data are missing, damaged or outside the directory.
    """
    counts = {}
    for name, task in task_configurations(directory).items():
        splits = task_data(directory, task)
        split = task.get("test_split") or task.get("validation_split")
        if split in splits:
            counts[name] = len(splits[split])
    return counts


def task_configurations(directory: Path) -> dict[str, dict[str, Any]]:
    """The content of each task file, by task.

    Raises:
        ConfigError: A file is not plain YAML, names no task, or names one that another file has.
    """
    configurations: dict[str, dict[str, Any]] = {}
    for path in sorted(directory.glob("*.yaml")):
        configuration = parse_yaml(read_plain_file(path, CONFIG_BOUNDS.bytes + 1), where=str(path)).value
        if not isinstance(configuration, dict) or not isinstance(configuration.get("task"), str):
            raise ConfigError("a task file needs `task: <name>`", where=str(path))
        if configuration["task"] in configurations:
            raise ConfigError(f"another file has task {configuration['task']} already", where=str(path))
        configurations[configuration["task"]] = configuration
    return configurations


def task_data(directory: Path, configuration: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """A task's documents by split; empty for a task whose data are not in the directory.

    Raises:
        ConfigError: The data are missing, damaged or outside the directory.
    """
    if configuration.get("dataset_path") != "json":
        return {}
    splits = configuration.get("dataset_kwargs", {}).get("data_files", {})
    return {split: _rows(directory, file) for split, file in splits.items()}


def _rows(directory: Path, file: str) -> list[dict[str, Any]]:
    path = (directory / file).resolve()
    if not path.is_relative_to(directory.resolve()):
        raise ConfigError(f"the data file {file!r} is outside the task directory", where=str(directory))
    try:
        if problem := problem_of_plain_file(path, DATA_FILE_BYTES):
            raise ConfigError(f"unreadable task data: the file {problem}", where=str(path))
        with path.open(encoding="utf-8") as lines:  # `splitlines` would split at the U+2028 of a text, too
            return [json.loads(line) for line in lines]
    except (OSError, ValueError, RecursionError) as error:
        raise unless_io(error, ConfigError(f"unreadable task data: {error}", where=str(path))) from error
