"""The data sets that tasks read: which they are, which of their files, and how those are read without a network.

The `eval_data` stage fetches files at pinned commits into a directory; `trees_of` lays each repository out as it is on
the hub, with links to the files that are here and empty files in place of the others: the `datasets` library finds out
by itself, from the card (README.md) or from names, which files are a configuration's splits. It is then given that
directory instead of the name. Before anything is fetched, `files_read` asks it the same with empty files only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pydantic import Field, JsonValue, ValidationError

from llm_pipeline.accuracy.task_files import KINDS, data_files
from llm_pipeline.artifacts.pinned import HubFile, PinnedDataSet, Sha1
from llm_pipeline.base.errors import ConfigError
from llm_pipeline.base.json_document import load_record
from llm_pipeline.base.records import Frozen
from llm_pipeline.config.model import DataSetName

RECORD_FILE = "data_sets.json"
CARD = "README.md"
CARD_FILES = frozenset({CARD, ".huggingface.yaml", "dataset_infos.json"})
"""What the library reads of a repository beside the data themselves."""

_DATA = re.compile(r"\.(parquet|jsonl?|ndjson|csv|tsv|txt|arrow)(\.(gz|bz2|xz|zst|lz4))*$", re.IGNORECASE)
_HOW = frozenset({"cache_dir", "download_mode", "keep_in_memory", "num_proc", "streaming", "token"}) | {
    "trust_remote_code", "verification_mode"
}  # fmt: skip
"""Options that say how data are read, and not which."""
DATA_KEYS = ("dataset_path", "dataset_name", "dataset_kwargs")
"""What a task's file says of its data."""
_ADDRESS = re.compile(r"hf://datasets/(?P<name>[^/@]+/[^/@]+)(?:@(?P<revision>[^/]+))?/(?P<path>.+)")


class AskedDataSet(Frozen):
    """A data set as a task asks for it.

    Attributes:
        name: Its name on the hub.
        revision: What the task's own file pins; None where it does not say.
    """

    name: DataSetName
    revision: str | None = None

    def __str__(self) -> str:
        return f"{self.name}@{self.revision}" if self.revision else self.name


class DataCall(Frozen):
    """One call of `datasets.load_dataset`, as a task makes it.

    Attributes:
        data_set: The data set; None for files that lie beside the task's own.
        kind: The format of those: `json`, `csv`, `parquet` or `text`.
        config: Name of the data set's configuration; None for its only one, or its default.
        options: Further arguments that say which data are read.
    """

    data_set: AskedDataSet | None = None
    kind: str = ""
    config: str | None = None
    options: dict[str, JsonValue] = Field(default={})

    def __str__(self) -> str:
        name = str(self.data_set or f"the {self.kind} data beside its file")
        return f"{name} ({self.config})" if self.config else name

    def arguments(self, trees: Mapping[AskedDataSet, Path]) -> dict[str, Any]:
        """Arguments of `load_dataset` that read it from laid-out repositories."""
        if self.data_set is None:
            return {"path": self.kind, "name": self.config, **self.options}
        tree, part = trees[self.data_set], self.config or "default"
        if not (tree / CARD).is_file() and "data_dir" not in self.options and (tree / part).is_dir():
            # the hub's own conversion: a directory for each configuration
            return {"path": str(tree), "name": None, **self.options, "data_dir": part}
        return {"path": str(tree), "name": self.config, **self.options}


def call_of_task(configuration: Mapping[str, Any], file: Path, root: Path | None) -> DataCall | None:
    """What a task asks the library for; None for one whose Python brings its documents.

    Args:
        configuration: Its content, with what it includes and what groups above it say.
        file: The task's file.
        root: The task directory, resolved; None for a task of lm-eval's own.

    Raises:
        ConfigError: It reads what is no data set of the hub and no file of the task directory.
    """
    path, name, stated = (configuration.get(key) for key in DATA_KEYS)
    if not path or {"custom_dataset", "class"} & configuration.keys():
        return None
    config, stated = None if name is None else str(name), stated if isinstance(stated, Mapping) else {}
    options = {key: value for key, value in stated.items() if key not in _HOW and value is not None}
    revision = options.pop("revision", None)
    if path in KINDS and "hf://" in str(options.get("data_files")):
        path, revision, options["data_files"] = _of_addresses(options["data_files"], file)
    elif path in KINDS:
        if root is None:
            raise ConfigError("its data are neither on the hub nor beside its file", where=str(file))
        files = {split: [*map(str, own)] for split, own in data_files(root, file, configuration).items()}
        options = {key: value for key, value in options.items() if key != "data_dir"} | {"data_files": files}
        return DataCall(kind=path, config=config, options=options)
    try:
        return DataCall(data_set=AskedDataSet(name=path, revision=revision), config=config, options=options)
    except ValidationError as error:
        raise ConfigError(
            f"dataset_path {str(path)[:80]!r} is not the name of a data set on the hub",
            where=str(file),
            hint=f"for files of your own state dataset_path: json (or {', '.join(KINDS[1:])}) and "
            "dataset_kwargs.data_files",
        ) from error


def _of_addresses(stated: Any, file: Path) -> tuple[str, str | None, dict[str, list[str]]]:
    """Data set, revision and paths behind `hf://datasets/` addresses."""
    by_split = stated if isinstance(stated, Mapping) else {"train": stated}
    found = {
        str(split): [_ADDRESS.fullmatch(str(one)) for one in (own if isinstance(own, list) else [own])]
        for split, own in by_split.items()
    }
    sets = {match and (match["name"], match["revision"]) for own in found.values() for match in own}
    if len(sets) != 1 or (data_set := sets.pop()) is None:
        hint = "state dataset_path: organisation/name, and data_files relative to it"
        raise ConfigError("its data_files are not all of one data set on the hub", where=str(file), hint=hint)
    return *data_set, {split: [match["path"] for match in own if match] for split, own in found.items()}


class HeldDataSet(Frozen):
    """One data set of the hub, as it lies in a directory of evaluation data.

    Attributes:
        asked: As tasks name it.
        repository: The repository that it was taken from.
        commit: At which commit.
        files: The files that are here.
        others: Paths of the repository's other data files, which no task reads.
    """

    asked: AskedDataSet
    repository: str
    commit: Sha1
    files: tuple[HubFile, ...]
    others: tuple[str, ...] = ()


class EvalDataRecord(Frozen):
    """What a directory of evaluation data holds (`data_sets.json`); empty where tasks bring their data themselves."""

    data_sets: tuple[HeldDataSet, ...] = ()


def held_data_sets(directory: Path) -> tuple[HeldDataSet, ...]:
    """What a directory of evaluation data holds.

    Raises:
        IntegrityError: It does not say so.
    """
    return load_record(EvalDataRecord, directory / RECORD_FILE, "no readable evaluation data").data_sets


def place_of(directory: Path, repository: str, commit: str) -> Path:
    """Where the files of a data set are in a directory of evaluation data."""
    return directory / "files" / repository / commit


def trees_of(directory: Path, held: Iterable[HeldDataSet], laid_out: Path) -> dict[AskedDataSet, Path]:
    """Lay out a directory of evaluation data, for the library to read it while `laid_out` is there."""
    trees = {}
    for number, one in enumerate(held):
        trees[one.asked] = laid_out.resolve() / str(number) / one.repository.rpartition("/")[2]
        place = place_of(directory, one.repository, one.commit)
        _lay_out(trees[one.asked], {file.path: place / file.path for file in one.files}, one.others)
    return trees


def _lay_out(tree: Path, here: Mapping[str, Path], others: Iterable[str]) -> None:
    tree.mkdir(parents=True)
    for path in (*here, *others):
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
    for path, file in here.items():
        (tree / path).symlink_to(file.resolve())
    for path in others:
        (tree / path).touch()


def data_paths(pinned: PinnedDataSet) -> list[str]:
    """Paths of the files whose format is read here."""
    return [file.path for file in pinned.files if file.path not in CARD_FILES and _DATA.search(file.path)]


def files_read(call: DataCall, pinned: PinnedDataSet, cards: Path) -> frozenset[str]:
    """Paths of the files of a data set that a call reads.

    Args:
        call: What tasks ask for.
        pinned: Its data set.
        cards: Directory with the files of `CARD_FILES` that it has.

    Raises:
        ConfigError: There is no such configuration, or it has no files in a format that is read here.
    """
    import datasets

    if call.data_set is None:
        return frozenset()
    hint = (
        "check dataset_name and dataset_kwargs of its tasks; of many data sets the hub has a converted copy: "
        f"set evaluation.data_revisions: {{{pinned.id}: refs/convert/parquet}}"
    )
    with TemporaryDirectory(prefix="eval-data-") as top, TemporaryDirectory() as cache:
        tree = Path(top).resolve() / pinned.id.rpartition("/")[2]
        here = {path.name: path for path in cards.iterdir()} if cards.is_dir() else {}
        # the library refuses a data set that a script makes, unless files of it are named
        scripts = [] if "data_files" in call.options else [f"{tree.name}.py"]
        others = [*data_paths(pinned), *(file.path for file in pinned.files if file.path in scripts)]
        _lay_out(tree, here, others)
        try:
            builder = datasets.load_dataset_builder(**call.arguments({call.data_set: tree}), cache_dir=cache)
        except Exception as error:
            reason = " ".join(str(error.__cause__ or error).split()).replace(str(tree), str(call.data_set))
            raise ConfigError(f"the data cannot be read: {reason[:400]}", where=str(call), hint=hint) from error
        paths = [Path(path) for own in (builder.config.data_files or {}).values() for path in own]
        found = frozenset(path.relative_to(tree).as_posix() for path in paths if path.is_relative_to(tree))
    if not found:
        problem = "the data set has no files that are read here (Parquet, JSON, CSV, text, Arrow)"
        raise ConfigError(problem, where=str(call), hint=hint)
    return found
