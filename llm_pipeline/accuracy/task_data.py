"""The documents of tasks whose data lie in the task directory: JSON, CSV, Parquet or text.

JSON is read here; the others by the `datasets` library, from files that were found here, into memory. A file is looked
for beside the task file first, then from the top of the directory.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from llm_pipeline.base.errors import ConfigError, unless_io
from llm_pipeline.base.plain_files import DATA_FILE_BYTES, problem_of_plain_file

KINDS = ("json", "csv", "parquet", "text")
_PLACE_OPTIONS = ("data_files", "data_dir", "trust_remote_code")
_DEFAULT_SPLIT = "train"
_GLOB = frozenset("*?[")
_LONGEST_NAME = 255


def data_files(root: Path, path: Path, configuration: Mapping[str, Any]) -> dict[str, tuple[Path, ...]] | None:
    """The data files of a task by split; None for a task whose data are not in the directory.

    `root` is the task directory, resolved, and `path` the task's file.

    Raises:
        ConfigError: A file is missing, outside of the directory, or cannot be read; or none is named.
    """
    kind = configuration.get("dataset_path")
    options = configuration.get("dataset_kwargs") or {}
    if kind not in KINDS:
        if isinstance(kind, str) and (kind.startswith((".", "/")) or _is_there(root, kind)):
            raise ConfigError(
                f"dataset_path {kind!r} is a path",
                where=str(path),
                hint=f"state dataset_path: json (or {', '.join(KINDS[1:])}) and dataset_kwargs.data_files",
            )
        return None
    stated = options.get("data_files") if isinstance(options, dict) else None
    if not stated:
        raise ConfigError(f"dataset_path {kind} needs dataset_kwargs.data_files", where=str(path))
    by_split = stated if isinstance(stated, dict) else {_DEFAULT_SPLIT: stated}
    bases = [base / str(options.get("data_dir") or "") for base in (path.parent, root)]
    found = {}
    for split, names in by_split.items():
        own = [
            file for name in named(names, "dataset_kwargs.data_files", path) for file in _found(root, bases, name, path)
        ]
        found[str(split)] = tuple(dict.fromkeys(own))
    return found


def named(value: Any, key: str, where: Path) -> list[str]:
    """What a key of a task file names: one text or several.

    Raises:
        ConfigError: It is something else.
    """
    names = value if isinstance(value, list) else [] if value is None else [value]
    if strange := [name for name in names if not isinstance(name, str) or _is_too_long(name)]:
        raise ConfigError(
            f"{key} is {str(strange[0])[:40]!r}, not a name or a list of names", where=str(where), hint="write a text"
        )
    return names


def _is_there(root: Path, name: str) -> bool:
    return not _is_too_long(name) and (root / name).exists()


def _is_too_long(path: str) -> bool:
    """Whether no file can be called so: the system would answer with an error of its own."""
    return any(len(part.encode()) > _LONGEST_NAME for part in path.split("/"))


def count_documents(configuration: Mapping[str, Any], files: Sequence[Path]) -> int | None:
    """How many documents some files hold; None for Parquet, which is not read here.

    Raises:
        ConfigError: A file is damaged.
    """
    kind = str(configuration["dataset_path"])
    if kind == "parquet":
        return None
    if kind == "json":
        return len(_json_rows(configuration, files))
    counts: list[int] = []
    for file in files:
        try:
            with file.open(encoding="utf-8", newline="") as stream:
                lines: Iterable[Any] = csv.reader(stream) if kind == "csv" else stream
                counts.append(sum(1 for line in lines if line) - (kind == "csv"))
        except (OSError, ValueError, csv.Error) as error:
            raise unless_io(error, ConfigError(f"unreadable task data: {error}", where=str(file))) from error
    return sum(counts)


def read_documents(configuration: Mapping[str, Any], files: Mapping[str, Sequence[Path]]) -> Any:
    """A task's documents as the `datasets` library holds them, by split.

    Raises:
        ConfigError: A file is damaged or empty.
    """
    from datasets import Dataset, DatasetDict

    if configuration["dataset_path"] != "json":
        return DatasetDict({split: _library_rows(configuration, own) for split, own in files.items()})
    splits = {}
    for split, own in files.items():
        rows = _json_rows(configuration, own)
        # a key that only some documents have is None in the others
        keys = dict.fromkeys(key for row in rows for key in row)
        try:
            splits[split] = Dataset.from_dict({key: [row.get(key) for row in rows] for key in keys})
        except (ValueError, TypeError, OverflowError) as error:  # Arrow's errors are ValueErrors and TypeErrors
            raise ConfigError(f"documents of one field in different forms: {error}", where=str(own[0])) from error
    return DatasetDict(splits)


def _library_rows(configuration: Mapping[str, Any], files: Sequence[Path]) -> Any:
    from datasets import load_dataset

    options = {key: value for key, value in configuration["dataset_kwargs"].items() if key not in _PLACE_OPTIONS}
    with TemporaryDirectory() as cache:
        try:
            return load_dataset(
                configuration["dataset_path"],
                data_files={_DEFAULT_SPLIT: [str(file) for file in files]},
                split=_DEFAULT_SPLIT,
                cache_dir=cache,
                keep_in_memory=True,
                **options,
            )
        except Exception as error:
            reason = next(iter(str(error.__cause__ or error).splitlines()), type(error).__name__)
            problem = ConfigError(f"unreadable task data: {reason}", where=str(files[0]))
            raise unless_io(error, problem) from error


def _json_rows(configuration: Mapping[str, Any], files: Sequence[Path]) -> list[dict[str, Any]]:
    field = configuration["dataset_kwargs"].get("field")
    rows: list[dict[str, Any]] = []
    for file in files:
        try:
            own = list(_json_values(file, field))
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise unless_io(error, ConfigError(f"unreadable task data: {error}", where=str(file))) from error
        if strange := next((value for value in own if not isinstance(value, dict)), None):
            raise ConfigError(f"unreadable task data: {str(strange)[:40]!r} is not a JSON object", where=str(file))
        rows += own
    if not rows:
        raise ConfigError("the task data hold no document", where=str(files[0]))
    return rows


def _json_values(file: Path, field: str | None) -> Iterator[Any]:
    """One value a line; or those of a single array, or of one field of a single object."""
    with file.open(encoding="utf-8-sig") as lines:  # `splitlines` would split at the U+2028 of a text, too
        if field is not None:
            yield from json.load(lines)[field]
            return
        begin = lines.read(1)
        while begin.isspace():
            begin = lines.read(1)
        lines.seek(0)
        if begin == "[":
            yield from json.load(lines)
        else:
            yield from (json.loads(line) for line in lines if line.strip())


def _found(root: Path, bases: Sequence[Path], name: str, where: Path) -> list[Path]:
    if "://" in name:
        raise ConfigError(f"the data file {name!r} is not in the task directory", where=str(where))
    for base in bases:
        files = sorted(base.glob(name)) if _is_pattern(name) else [base / name]
        if files := [
            found for file in files if (found := inside(root, file, f"the data file {name!r}", where)).exists()
        ]:
            for file in files:
                _refuse_unreadable(file)
            return files
    raise ConfigError(f"unreadable task data: the file {name!r} does not exist", where=str(where))


def _is_pattern(name: str) -> bool:
    return not Path(name).is_absolute() and not name.startswith("..") and bool(_GLOB.intersection(name))


def inside(root: Path, path: Path, what: str, where: Path) -> Path:
    """A path with its links resolved.

    Raises:
        ConfigError: It is outside of `root`.
    """
    resolved = path.resolve()
    if not resolved.is_relative_to(root):
        raise ConfigError(f"{what} is outside the task directory", where=str(where))
    return resolved


def _refuse_unreadable(file: Path) -> None:
    try:
        problem = problem_of_plain_file(file, DATA_FILE_BYTES)
    except OSError as error:
        raise unless_io(error, ConfigError(f"unreadable task data: {error}", where=str(file))) from error
    if problem:
        raise ConfigError(f"unreadable task data: the file {problem}", where=str(file))
