"""lm-eval's side of an evaluation: which tasks there are, and its results as scored items.

Used by every lane alike: a checkpoint evaluated in process, and the served endpoint:

    results = lm_eval.simple_evaluate(model, tasks=[...], task_manager=task_manager(directory), ...)
    items = scored_items(results, [...])
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from llm_pipeline.accuracy.items import ScoredItem
from llm_pipeline.digest import sha256_json
from llm_pipeline.errors import ConfigError, IntegrityError

if TYPE_CHECKING:
    from lm_eval.tasks import TaskManager

PREFERRED_METRICS = ("exact_match", "acc", "pass@1", "f1")
"""Which metric of an item is its score: the first of these that it has."""


def task_manager(directory: Path | None) -> TaskManager:
    """lm-eval's task manager over the task files of one directory, and nothing else.

    A task file names its data relative to its own directory (`dataset_path: json` with
    `dataset_kwargs.data_files`). The data are read here, so the directory works wherever it lies, need not
    be writable and leaves nothing in a dataset cache. Task files that run code (`!function`) are refused.

    Args:
        directory: Directory with `*.yaml` task files; None for the tasks that come with lm-eval.

    Raises:
        ConfigError: A task file is not plain YAML, or its data are missing, damaged or outside the directory.
    """
    from lm_eval.tasks import TaskManager

    if directory is None:
        return TaskManager()
    logging.getLogger("lm_eval.api.task").addFilter(_is_about_this_task)
    configurations = {configuration["task"]: configuration for configuration in _task_files(directory)}

    class DirectoryTasks(TaskManager):  # type: ignore[misc]  # lm_eval is untyped
        def load(self, task_list: Any) -> Any:
            names = [task_list] if isinstance(task_list, str) else list(task_list)
            if unknown := [name for name in names if name not in configurations]:
                raise ConfigError(f"no task {unknown}: there are {sorted(configurations)}", where=str(directory))
            return super().load([dict(configurations[name]) for name in names])

    return DirectoryTasks(include_defaults=False)


def _is_about_this_task(record: logging.LogRecord) -> bool:
    """False for the advice that lm-eval gives whenever a task's data come from a function."""
    return "Custom kwargs can be passed" not in record.getMessage()


def _task_files(directory: Path) -> Iterator[dict[str, Any]]:
    for path in sorted(directory.glob("*.yaml")):
        try:
            configuration = yaml.safe_load(path.read_text(encoding="utf-8"))
        except yaml.YAMLError as error:
            raise ConfigError(f"not plain YAML: {error}", where=str(path)) from error
        if not isinstance(configuration, dict) or not isinstance(configuration.get("task"), str):
            raise ConfigError("a task file needs `task: <name>`", where=str(path))
        yield _with_data(configuration, path)


def _with_data(configuration: dict[str, Any], path: Path) -> dict[str, Any]:
    if configuration.get("dataset_path") != "json":
        return configuration
    splits = configuration.get("dataset_kwargs", {}).get("data_files", {})
    rows = {split: _rows(path.parent, file) for split, file in splits.items()}

    def read_dataset(**_: Any) -> Any:
        from datasets import Dataset, DatasetDict

        return DatasetDict({split: Dataset.from_list(lines) for split, lines in rows.items()})

    kept = {key: value for key, value in configuration.items() if key not in ("dataset_path", "dataset_kwargs")}
    return {**kept, "custom_dataset": read_dataset}


def _rows(directory: Path, file: str) -> list[dict[str, Any]]:
    path = (directory / file).resolve()
    if not path.is_relative_to(directory.resolve()):
        raise ConfigError(f"the data file {file!r} is outside the task directory", where=str(directory))
    try:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError) as error:
        raise ConfigError(f"unreadable task data: {error}", where=str(path)) from error


def scored_items(results: Mapping[str, Any], tasks: Sequence[str]) -> list[ScoredItem]:
    """lm-eval's logged samples as scored items, ordered by task and document.

    Args:
        results: What `lm_eval.simple_evaluate(..., log_samples=True)` returned.
        tasks: The tasks asked for; a group stands for its subtasks.

    Raises:
        IntegrityError: A task has no samples, or two of one document.
    """
    samples = results.get("samples", {})
    items: list[ScoredItem] = []
    for task in _leaves(results, tasks):
        if not samples.get(task):
            raise IntegrityError("lm-eval returned no samples", where=task, hint="evaluate with log_samples=True")
        items.extend(_task_items(task, samples[task], results.get("configs", {}).get(task, {})))
    return items


def _leaves(results: Mapping[str, Any], tasks: Sequence[str]) -> list[str]:
    subtasks = results.get("group_subtasks", {})
    leaves: list[str] = []
    for task in tasks:
        leaves += _leaves(results, subtasks[task]) if subtasks.get(task) else [task]
    return leaves


def _task_items(task: str, samples: Sequence[Mapping[str, Any]], configuration: Mapping[str, Any]) -> list[ScoredItem]:
    first_filter = samples[0]["filter"]
    kept = sorted((sample for sample in samples if sample["filter"] == first_filter), key=lambda s: s["doc_id"])
    if len({sample["doc_id"] for sample in kept}) != len(kept):
        raise IntegrityError("lm-eval returned two samples of one document", where=task)
    generative = configuration.get("output_type", "generate_until") == "generate_until"
    return [_item(task, sample, generative) for sample in kept]


def _item(task: str, sample: Mapping[str, Any], generative: bool) -> ScoredItem:
    request, metrics = sample["arguments"][0], sample["metrics"]
    metric = next((name for name in PREFERRED_METRICS if name in metrics), None)
    score = sample.get(metric) if metric else None
    return ScoredItem(
        task=task,
        item_id=sample["doc_id"],
        fingerprint=sha256_json([sample["doc_hash"], sample["prompt_hash"], sample["target_hash"]]),
        score=None if score is None else float(score),
        generative=generative,
        prompt=str(request[0]) if generative else "",
        completion=str(sample["resps"][0][0]) if generative else "",
    )
