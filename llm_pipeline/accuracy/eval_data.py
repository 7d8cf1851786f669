"""The data sets that an evaluation reads: files at pinned commits, and the `datasets` library over them, offline.

The `eval_data` stage fills a directory; whoever scores reads it:

    with read_from(directory) as data:
        ...                       # lm-eval loads its tasks
    data.reads                    # what they read: repository, commit, files, documents

`datasets` finds out by itself which files of a repository are a configuration's splits: by the card (README.md), or by
names. So each repository is laid out once more as it is on the hub: links to the files that are here, and empty files
in place of the others, which no task reads. The library is then given that directory instead of the name.

Before the files are fetched (`files_read`), it is given the repository with empty files only, and asked which of them
it would read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any

from llm_pipeline.accuracy.dataset_calls import DatasetCall, RepositoryName, dataset_call, files_by_split, hub_file
from llm_pipeline.accuracy.evaluation import DataRead
from llm_pipeline.accuracy.task_data import KINDS
from llm_pipeline.artifacts.pinned import HubFile, PinnedDataSet, Sha1
from llm_pipeline.base.errors import ConfigError, PipelineError, Unsupported, unless_io
from llm_pipeline.base.json_document import load_record
from llm_pipeline.base.logging import get_logger
from llm_pipeline.base.records import Frozen

log = get_logger(__name__)

RECORD_FILE = "data_sets.json"
CARD = "README.md"
_FILES = "files"
_LONGEST_REASON = 400


class HeldDataSet(Frozen):
    """One data set of the hub, as it lies in a directory of evaluation data.

    Attributes:
        asked: As tasks name it.
        repository: The repository that it was taken from.
        commit: At which commit.
        files: The files that are here.
        others: Paths of the repository's other data files, which no task reads.
    """

    asked: RepositoryName
    repository: str
    commit: Sha1
    files: tuple[HubFile, ...]
    others: tuple[str, ...] = ()


class HeldCall(Frozen):
    """What tasks ask the `datasets` library for.

    Attributes:
        call: The call.
        files: How many data files it reads.
        documents: How many documents it has, by split.
    """

    call: DatasetCall
    files: int
    documents: dict[str, int]


class EvalDataRecord(Frozen):
    """What a directory of evaluation data holds (`data_sets.json`); empty where tasks bring their data themselves."""

    data_sets: tuple[HeldDataSet, ...] = ()
    calls: tuple[HeldCall, ...] = ()

    def read_by(self, held: HeldCall) -> DataRead:
        """The repository, commit and files behind a call, for the summary."""
        sets = {one.asked: one for one in self.data_sets}
        own = [sets[asked] for asked in held.call.repositories]
        return DataRead(
            name=str(held.call),
            repository=", ".join(dict.fromkeys(one.repository for one in own)),
            commit=", ".join(dict.fromkeys(one.commit for one in own)),
            files=held.files,
            documents=held.documents,
        )


def place_of(directory: Path, repository: str, commit: str, path: str) -> Path:
    """Where a file of a data set is in a directory of evaluation data."""
    return directory / _FILES / repository / commit / path


def read_eval_data_record(directory: Path) -> EvalDataRecord:
    """What a directory of evaluation data holds.

    Raises:
        IntegrityError: It does not say so.
    """
    path = directory / RECORD_FILE
    return load_record(EvalDataRecord, path, "no readable evaluation data")


def lay_out(tree: Path, here: Mapping[str, Path], others: Iterable[str]) -> None:
    """A repository as it is on the hub: links to the files that are here, empty files for the others."""
    for path in (*here, *others):
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
    for path, file in here.items():
        (tree / path).symlink_to(file.resolve())
    for path in others:
        (tree / path).touch()


def arguments_of(call: DatasetCall, trees: Mapping[RepositoryName, Path]) -> dict[str, Any]:
    """Arguments of `load_dataset` that read a call's data from laid-out repositories."""
    if call.names_files:
        by_split = files_by_split(call.options).items()
        found = {split: [_in_trees(place, trees) for place in own] for split, own in by_split}
        return {**call.options, "path": call.path, "name": call.config, "data_files": found}
    tree = trees[call.repositories[0]]
    part = call.config or "default"
    if not (tree / CARD).is_file() and "data_dir" not in call.options and (tree / part).is_dir():
        return {**call.options, "path": str(tree), "data_dir": part}  # the hub's own conversion: a directory for each
    return {**call.options, "path": str(tree), "name": call.config}


def _in_trees(place: str, trees: Mapping[RepositoryName, Path]) -> str:
    found = hub_file(place)
    return str(trees[found[0]] / found[1]) if found else place


def load_offline(call: DatasetCall, trees: Mapping[RepositoryName, Path]) -> Any:
    """The documents that a call asks for, from laid-out repositories, without a network.

    Raises:
        ConfigError: The data set has no such configuration, or its files cannot be read.
    """
    import datasets

    datasets.disable_progress_bars()  # a task log has lines, not bars
    try:
        with TemporaryDirectory() as cache:
            # not `datasets.load_dataset`, which `read_from` replaces
            return datasets.load.load_dataset(**arguments_of(call, trees), cache_dir=cache, keep_in_memory=True)
    except Exception as error:
        raise data_failure(error, call, trees) from error


def data_failure(error: Exception, call: DatasetCall, trees: Mapping[RepositoryName, Path]) -> PipelineError:
    """An error of the `datasets` library as one that says which data set it is about."""
    if isinstance(error, PipelineError):
        return error
    reason = " ".join(str(error.__cause__ or error).split()) or type(error).__name__
    for asked, tree in trees.items():
        reason = reason.replace(str(tree), str(asked))
    problem = ConfigError(
        f"the data set cannot be read: {reason[:_LONGEST_REASON]}",
        where=str(call),
        hint="check dataset_name and data_files of the tasks that read it, and its revision",
    )
    return unless_io(error, problem) if isinstance(error, OSError) and error.errno is not None else problem


class EvalData:
    """A directory of evaluation data, laid out for the `datasets` library; `reads` says what was read so far."""

    def __init__(self, directory: Path) -> None:
        self._record = read_eval_data_record(directory)
        self._held = {held.call: held for held in self._record.calls}
        self._laid_out = TemporaryDirectory(prefix="eval-data-")
        self.trees: dict[RepositoryName, Path] = {}
        self.reads: dict[DatasetCall, DataRead] = {}
        for number, one in enumerate(self._record.data_sets):
            tree = Path(self._laid_out.name) / str(number) / one.repository.rpartition("/")[2]
            here = {file.path: place_of(directory, one.repository, one.commit, file.path) for file in one.files}
            tree.mkdir(parents=True)
            lay_out(tree, here, one.others)
            self.trees[one.asked] = tree

    def load(self, call: DatasetCall) -> Any:
        """The documents that a call asks for.

        Raises:
            ConfigError: Nobody fetched them, or they cannot be read.
        """
        held = self._held.get(call)
        if held is None:
            raise ConfigError(
                f"the data of {call} were not fetched",
                where="eval_data",
                hint="the stage fetches what tasks' files name; data that Python asks for by itself it cannot know: "
                "copy the task into a task directory of your own, with its data beside it",
            )
        documents = load_offline(call, self.trees)
        read = self._record.read_by(held)
        if call not in self.reads:
            counts = ", ".join(f"{split} {count}" for split, count in read.documents.items())
            log.info("data read", data=read.name, commit=read.commit, files=read.files, documents=counts)
        self.reads[call] = read
        return documents


@contextmanager
def read_from(directory: Path | None) -> Iterator[EvalData | None]:
    """While this lasts, `datasets.load_dataset` reads data sets of the hub from a directory, and nothing from the hub.

    Args:
        directory: What the `eval_data` stage made; None changes nothing.
    """
    if directory is None:
        yield None
        return
    import datasets

    data, original = EvalData(directory), datasets.load_dataset

    def load_dataset(
        path: str, name: str | None = None, data_dir: Any = None, data_files: Any = None, **options: Any
    ) -> Any:
        call = dataset_call(path, name, {"data_dir": data_dir, "data_files": data_files, **options})
        if path in KINDS and "hf://" not in str(data_files):
            return original(path, name, data_dir=data_dir, data_files=data_files, **options)
        return data.load(call)

    datasets.load_dataset = load_dataset
    try:
        yield data
    finally:
        datasets.load_dataset = original


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
