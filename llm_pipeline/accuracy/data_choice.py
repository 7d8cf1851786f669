"""Which files of a data set's repository tasks read, found before those files are fetched.

The `datasets` library decides it, by the repository's card and the names of its files: it is given the repository as it
is on the hub, with empty files, and asked which of them are a configuration's splits.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

from llm_pipeline.accuracy.dataset_calls import DatasetCall, RepositoryName
from llm_pipeline.accuracy.eval_data import CARD, arguments_of, data_failure, lay_out
from llm_pipeline.artifacts.pinned import HubFile, PinnedDataSet
from llm_pipeline.base.errors import ConfigError, Unsupported

CARD_FILES = frozenset({CARD, ".huggingface.yaml", "dataset_infos.json"})
"""What the library reads of a repository beside the data themselves."""

CONVERTED = "refs/convert/parquet"
"""The revision with the hub's own conversion of a data set, where it made one."""

_FORMATS = frozenset({".parquet", ".json", ".jsonl", ".ndjson", ".csv", ".tsv", ".txt", ".arrow"})
_COMPRESSED = frozenset({".gz", ".bz2", ".xz", ".zst", ".lz4"})

Paths = Mapping[RepositoryName, frozenset[str]]


def refuse_script(pinned: PinnedDataSet, asked: RepositoryName) -> None:
    """Refuse a data set that a Python file of its repository makes.

    Raises:
        Unsupported: It is one.
    """
    script = f"{pinned.id.rpartition('/')[2]}.py"
    if any(file.path == script for file in pinned.files):
        raise Unsupported(
            f"the data set is built by a Python script of its repository ({script}), which is not run here",
            where=f"{asked} at {pinned.commit[:12]}",
            hint=f"many have a converted copy: set evaluation.data_revisions: {{{asked.name}: {CONVERTED}}}; "
            "or leave its tasks out",
        )


def data_paths(pinned: PinnedDataSet) -> list[str]:
    """Paths of the files whose format is read here."""
    return [file.path for file in pinned.files if file.path not in CARD_FILES and _is_data(file.path)]


def card_files(pinned: PinnedDataSet) -> list[HubFile]:
    """The files that say what the repository holds."""
    return [file for file in pinned.files if file.path in CARD_FILES]


def files_read(
    call: DatasetCall, repositories: Mapping[RepositoryName, PinnedDataSet], cards: Mapping[RepositoryName, Path]
) -> Paths:
    """Paths of the files that a call reads, by data set.

    Args:
        call: What tasks ask for.
        repositories: The data sets that it names, pinned.
        cards: Directories with the files of `CARD_FILES` that each has.

    Raises:
        ConfigError: There is no such configuration, or it has no files in a format that is read here.
    """
    import datasets

    with TemporaryDirectory(prefix="eval-data-") as top, TemporaryDirectory() as cache:
        trees = {asked: Path(top).resolve() / str(number) / "data" for number, asked in enumerate(repositories)}
        for asked, tree in trees.items():
            here = {path.name: path for path in cards[asked].iterdir()} if cards[asked].is_dir() else {}
            tree.mkdir(parents=True)
            lay_out(tree, here, data_paths(repositories[asked]))
        try:
            builder = datasets.load_dataset_builder(**arguments_of(call, trees), cache_dir=cache)
        except Exception as error:
            raise data_failure(error, call, trees) from error
        named = builder.config.data_files or {}
        paths = [Path(path) for own in named.values() for path in own]
        return {asked: _below(tree, paths) for asked, tree in trees.items()}


def _below(tree: Path, paths: list[Path]) -> frozenset[str]:
    return frozenset(path.relative_to(tree).as_posix() for path in paths if path.is_relative_to(tree))


def require_files(call: DatasetCall, paths: Paths) -> None:
    """Refuse a call that reads no file.

    Raises:
        ConfigError: It is one.
    """
    if not any(paths.values()):
        formats = ", ".join(sorted(suffix.removeprefix(".") for suffix in _FORMATS))
        raise ConfigError("the data set has no files that are read here", where=str(call), hint=f"those are: {formats}")


def _is_data(path: str) -> bool:
    suffixes = PurePosixPath(path.lower()).suffixes
    while suffixes and suffixes[-1] in _COMPRESSED:
        suffixes.pop()
    return bool(suffixes) and suffixes[-1] in _FORMATS
