"""What a task's definition asks the `datasets` library for, and which repositories of the hub that reads.

A task names a data set (`dataset_path: openai/gsm8k`), or files of one (`dataset_path: json` with `data_files` that
begin with `hf://datasets/`). Nothing is imported or run here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pydantic import Field, JsonValue, ValidationError

from llm_pipeline.accuracy.task_data import KINDS
from llm_pipeline.base.errors import ConfigError
from llm_pipeline.base.records import Frozen
from llm_pipeline.config.model import DataSetName

SPLIT_FIELDS = ("test_split", "validation_split", "training_split", "fewshot_split")
_OF_THE_CALLER = frozenset(
    {"cache_dir", "download_config", "download_mode", "keep_in_memory", "num_proc", "revision", "streaming", "token"}
    | {"trust_remote_code", "verification_mode"}
)
"""Options that say how data are read, and not which."""
_ON_THE_HUB = re.compile(r"hf://datasets/(?P<name>[^/@]+/[^/@]+)(?:@(?P<revision>[^/]+))?/(?P<path>.+)")


class RepositoryName(Frozen):
    """A data set as a task asks for it.

    Attributes:
        name: Its name on the hub.
        revision: What the task's own file pins; None where it does not say.
    """

    name: DataSetName
    revision: str | None = None

    def __str__(self) -> str:
        return f"{self.name}@{self.revision}" if self.revision else self.name


class DatasetCall(Frozen):
    """One call of `datasets.load_dataset`, as a task makes it.

    Attributes:
        path: A data set, or a format of files.
        config: Name of the data set's configuration; None for its only one, or its default.
        options: Further arguments that say which data are read.
        revision: What the task's own file pins.
    """

    path: str
    config: str | None = None
    options: dict[str, JsonValue] = Field(default={})
    revision: str | None = None

    def __hash__(self) -> int:
        return hash(self.model_dump_json())

    @property
    def names_files(self) -> bool:
        """Whether it reads single files by their addresses, and not a data set as its repository describes it."""
        return self.path in KINDS

    @property
    def repositories(self) -> tuple[RepositoryName, ...]:
        """The data sets that it reads.

        Raises:
            ConfigError: It reads something that is on no hub, or that is no data set's name.
        """
        if not self.names_files:
            return (self._named(self.path, self.revision),)
        places = [place for places in files_by_split(self.options).values() for place in places]
        found = [_ON_THE_HUB.fullmatch(place) for place in places]
        if strange := [place for place, match in zip(places, found, strict=True) if match is None]:
            raise ConfigError(
                f"it reads {strange[0]!r}, which is not a file of a data set on the hub",
                hint="copy the task into a task directory of your own, with its data beside it",
            )
        return tuple(dict.fromkeys(self._named(match["name"], match["revision"]) for match in found if match))

    def _named(self, name: str, revision: str | None) -> RepositoryName:
        try:
            return RepositoryName(name=name, revision=revision)
        except ValidationError as error:
            raise ConfigError(f"dataset_path {name!r} is not the name of a data set on the hub") from error

    def __str__(self) -> str:
        return f"{self.path} ({self.config})" if self.config else self.path


def files_by_split(options: Mapping[str, Any]) -> dict[str, list[str]]:
    """`data_files` in their longest form."""
    stated = options.get("data_files") or {}
    by_split = stated if isinstance(stated, Mapping) else {"train": stated}
    return {str(split): [names] if isinstance(names, str) else list(names) for split, names in by_split.items()}


def hub_file(place: str) -> tuple[RepositoryName, str] | None:
    """The data set and the path of an `hf://datasets/` address; None for anything else."""
    match = _ON_THE_HUB.fullmatch(place)
    return (RepositoryName(name=match["name"], revision=match["revision"]), match["path"]) if match else None


def dataset_call(path: str, name: str | None, options: Mapping[str, Any]) -> DatasetCall:
    """The call with those arguments, without what only says how its data are read."""
    kept = {key: value for key, value in options.items() if key not in _OF_THE_CALLER and value is not None}
    return DatasetCall(path=path, config=name, options=kept, revision=options.get("revision"))


def call_of_task(configuration: Mapping[str, Any]) -> DatasetCall | None:
    """What a task with that content asks for; None for one that brings its documents itself."""
    path = configuration.get("dataset_path")
    if not isinstance(path, str) or "custom_dataset" in configuration:
        return None
    options = configuration.get("dataset_kwargs") or {}
    return dataset_call(path, configuration.get("dataset_name"), options if isinstance(options, dict) else {})


def splits_of_task(configuration: Mapping[str, Any]) -> tuple[str, ...]:
    """The splits that lm-eval reads of a task: the one that is asked, and the one that examples are taken from.

    It reads the latter for every task, whether or not it shows examples; other splits that a task names it never reads.
    """
    asked = configuration.get("test_split") or configuration.get("validation_split")
    options = configuration.get("fewshot_config")
    options = options if isinstance(options, Mapping) else {}
    examples = options.get("split") or configuration.get("fewshot_split")
    if not examples and "samples" not in options:
        examples = configuration.get("training_split") or configuration.get("validation_split")
    # a slice, `train[:10]`, is handed to the library, which knows the split by its name
    return tuple(dict.fromkeys(str(split).partition("[")[0] for split in (asked, examples) if split))
