"""Evaluation data: fetches the data sets that the tasks' definitions name, at pinned commits, every byte verified.

Whoever scores has no network: what tasks read is what this stage publishes. It runs nothing of a task and nothing of a
data set; tasks that bring their data beside their files need nothing of it.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import gettempdir
from typing import TYPE_CHECKING, Any

from pydantic import Field

from llm_pipeline.accuracy.dataset_calls import DatasetCall, RepositoryName
from llm_pipeline.accuracy.eval_data import (
    RECORD_FILE,
    EvalData,
    EvalDataRecord,
    HeldCall,
    HeldDataSet,
    card_files,
    data_paths,
    files_read,
    load_offline,
    place_of,
    refuse_script,
    require_files,
)
from llm_pipeline.accuracy.task_definitions import TaskDefinition, own_definitions, package_definitions
from llm_pipeline.accuracy.task_files import read_task_directory
from llm_pipeline.artifacts.pinned import DEFAULT_REVISION, PinnedDataSet, Sha1
from llm_pipeline.base.confinement import confined
from llm_pipeline.base.digest import sha256_bytes
from llm_pipeline.base.durable import replace_durably
from llm_pipeline.base.errors import ConfigError
from llm_pipeline.base.logging import get_logger
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.config.deployment import HubAccess
from llm_pipeline.config.model import ConfigModel, DataSetName, Revision
from llm_pipeline.release.contract import Produced, Stage, StageContext, StageOutput
from llm_pipeline.stages.request_parts import task_data

if TYPE_CHECKING:
    from llm_pipeline.hub.data_set_files import DataSetFiles
    from llm_pipeline.hub.sources import DataSets
    from llm_pipeline.release_progress import ReleaseProgress

log = get_logger(__name__)

EVAL_DATA = "eval_data"


class EvalDataConfig(ConfigModel):
    """Whose data are fetched, and from where.

    Attributes:
        tasks: Tasks that are asked.
        allow_task_code: Task files may name Python that lies beside them; it is not run here.
        commits: Commits of the data sets that the release pinned when it was resolved.
        revisions: Branch, tag or commit of the others: those of tasks that only lm-eval knows.
        release: The release for which those are resolved, once; empty where there are none.
        source: Where the data sets come from. A place, not part of the stage key.
        hub: How the hub is reached. A place, too.
    """

    tasks: tuple[str, ...] = Field(min_length=1)
    allow_task_code: bool = False
    commits: dict[str, Sha1] = Field(default={})
    revisions: dict[DataSetName, Revision] = Field(default={})
    release: str = ""
    source: str = "hub"
    hub: HubAccess = HubAccess()


@dataclass(frozen=True)
class _Asked:
    """What tasks ask for: the splits of each call that they name, and which tasks do."""

    splits: Mapping[DatasetCall, Mapping[str, str]]

    @classmethod
    def by(cls, definitions: Iterable[TaskDefinition]) -> _Asked:
        splits: dict[DatasetCall, dict[str, str]] = {}
        for definition in definitions:
            if definition.loads_by_code:
                log.warning("its data come from Python of its own, and are not fetched here", task=definition.name)
            if definition.call is not None:
                splits.setdefault(definition.call, {}).update(dict.fromkeys(definition.splits, definition.name))
        return cls(splits)

    @property
    def repositories(self) -> dict[RepositoryName, bool]:
        """The data sets, and whether one is read as its repository describes it."""
        found: dict[RepositoryName, bool] = {}
        for call in self.splits:
            found |= {one: found.get(one, False) or not call.names_files for one in call.repositories}
        return found


def run(context: StageContext[EvalDataConfig]) -> StageOutput:
    """Find out what is read, pin it, fetch it, and read it once.

    Raises:
        ConfigError: A task or a split is unknown, or a data set has no such configuration.
        Unsupported: A data set is made by Python of its repository.
        SourceRefused: No such data set or revision, or no access to it.
        SourceUnavailable: The source cannot be reached.
        IntegrityError: A file's bytes are wrong twice.
    """
    started, config = time.monotonic(), context.config
    asked = _Asked.by(_definitions(config, context.inputs.get("tasks")))
    _refuse_other_revisions(config, asked)
    destination = context.workdir / EVAL_DATA
    shutil.rmtree(destination, ignore_errors=True)
    destination.mkdir(parents=True)
    if not asked.splits:
        log.info("the tasks bring their own data: nothing is fetched")
        return _written(destination, EvalDataRecord(), started)
    # here: the hub's client loads slowly, and tasks that bring their data ask no hub
    from llm_pipeline.hub.data_set_files import DataSetFiles
    from llm_pipeline.hub.sources import open_data_sets

    source = open_data_sets(config.source, config.hub)
    pinned = {one: _pin(source, one, config, context.workdir) for one in asked.repositories}
    for one, as_described in asked.repositories.items():
        if as_described:
            refuse_script(pinned[one], one)
    kept = Path(context.request.work_root) / "datasets"
    record = _fetched(asked, pinned, DataSetFiles(source, kept), destination)
    return _written(destination, _counted(asked, record, destination), started)


def _definitions(config: EvalDataConfig, tasks: Path | None) -> list[TaskDefinition]:
    own: list[TaskDefinition] = []
    unknown: Sequence[str] = config.tasks
    if tasks is not None:
        own, unknown = own_definitions(read_task_directory(tasks, allow_code=config.allow_task_code), config.tasks)
    return [*own, *(package_definitions(unknown) if unknown else ())]


def _refuse_other_revisions(config: EvalDataConfig, asked: _Asked) -> None:
    names = {one.name for one in asked.repositories}
    if others := sorted(config.revisions.keys() - names):
        raise ConfigError(
            f"evaluation.data_revisions names {', '.join(others)}, which no task reads",
            hint=f"the tasks read: {', '.join(sorted(names)) or 'their own files'}",
        )


def _pin(source: DataSets, asked: RepositoryName, config: EvalDataConfig, workdir: Path) -> PinnedDataSet:
    """Resolve a revision once: an attempt that was killed has left what it resolved."""
    kept = workdir / "pinned" / f"{sha256_bytes(str(asked).encode())}.json"
    if kept.exists():
        return PinnedDataSet.model_validate_json(kept.read_text(encoding="utf-8"))
    revision = config.revisions.get(asked.name) or asked.revision or DEFAULT_REVISION
    pinned = source.pin(asked.name, config.commits.get(str(asked), revision))
    kept.parent.mkdir(parents=True, exist_ok=True)
    replace_durably(kept, pinned.model_dump_json().encode())
    log.info("data set pinned", data_set=str(asked), repository=pinned.id, commit=pinned.commit)
    return pinned


def _fetched(
    asked: _Asked, pinned: Mapping[RepositoryName, PinnedDataSet], files: DataSetFiles, destination: Path
) -> EvalDataRecord:
    """Fetch the cards, find out by them what is read, and fetch that."""
    places = {one: place_of(destination, own.id, own.commit, "") for one, own in pinned.items()}
    for one, own in pinned.items():
        files.fetch(own, card_files(own), places[one])
    read = {call: _read_by(call, pinned, places) for call in asked.splits}
    sets = []
    for one, own in pinned.items():
        paths = {path for by_set in read.values() for path in by_set.get(one, ())}
        wanted = [file for file in own.files if file.path in paths]
        files.fetch(own, wanted, places[one])
        others = tuple(path for path in data_paths(own) if path not in paths)
        held = (*card_files(own), *wanted)
        sets.append(HeldDataSet(asked=one, repository=own.id, commit=own.commit, files=held, others=others))
    calls = (HeldCall(call=call, files=sum(map(len, by_set.values())), documents={}) for call, by_set in read.items())
    return EvalDataRecord(data_sets=tuple(sets), calls=tuple(calls))


def _read_by(
    call: DatasetCall, pinned: Mapping[RepositoryName, PinnedDataSet], places: Mapping[RepositoryName, Path]
) -> Mapping[RepositoryName, frozenset[str]]:
    own = {one: pinned[one] for one in call.repositories}
    cards = {one: places[one] for one in own}
    readable = [*cards.values(), Path(gettempdir())]
    paths = confined(partial(files_read, call, own, cards), readable)
    require_files(call, paths)
    return paths


def _counted(asked: _Asked, record: EvalDataRecord, destination: Path) -> EvalDataRecord:
    """Read everything once as those who score will, and count its documents.

    Raises:
        ConfigError: It cannot be read, or a split that a task names is missing or empty.
    """
    (destination / RECORD_FILE).write_text(record.model_dump_json(), encoding="utf-8")
    data, calls = EvalData(destination), list[HeldCall]()
    for held in record.calls:
        documents = confined(partial(_documents, held.call, data), [destination, Path(gettempdir())])
        for split, task in asked.splits[held.call].items():
            if not documents.get(split):
                raise ConfigError(
                    f"task {task} reads split {split!r} of {held.call}, which is empty or not there",
                    hint=f"the data set has: {', '.join(f'{name} ({size})' for name, size in documents.items())}",
                )
        calls.append(held.model_copy(update={"documents": documents}))
    return record.model_copy(update={"calls": tuple(calls)})


def _documents(call: DatasetCall, data: EvalData) -> dict[str, int]:
    loaded: Any = load_offline(call, data.trees)
    splits = loaded if isinstance(loaded, dict) else {str(loaded.split): loaded}
    return {str(split): len(rows) for split, rows in splits.items()}


def _written(destination: Path, record: EvalDataRecord, started: float) -> StageOutput:
    (destination / RECORD_FILE).write_text(record.model_dump_json(indent=1) + "\n", encoding="utf-8")
    for held in record.calls:
        read = record.read_by(held)
        counts = ", ".join(f"{split} {count}" for split, count in held.documents.items())
        log.info("data set", data=read.name, commit=read.commit, files=read.files, documents=counts)
    files = [file for one in record.data_sets for file in one.files]
    return StageOutput(
        artifacts={EVAL_DATA: Produced(EVAL_DATA, destination)},
        metrics={
            "data_sets": ", ".join(f"{one.repository}@{one.commit[:12]}" for one in record.data_sets),
            "files": len(files),
            "bytes": sum(file.size for file in files),
            "documents": sum(sum(held.documents.values()) for held in record.calls),
        },
        tool_seconds=time.monotonic() - started,
    )


def request(flow: ReleaseProgress, _subject: str) -> tuple[EvalDataConfig, Mapping[str, ArtifactRef]]:
    """What the stage is given."""
    evaluation, record = flow.release.evaluation, flow.record
    config = EvalDataConfig(
        tasks=evaluation.tasks,
        allow_task_code=evaluation.allow_task_code,
        commits=record.data_commits,
        revisions=evaluation.data_revisions if record.tasks_of_unknown_data else {},
        release=record.release_id if record.tasks_of_unknown_data else "",
        source=evaluation.data_source,
        hub=flow.deployment.hub,
    )
    return config, task_data(flow)


STAGE = Stage(
    name=EVAL_DATA,
    version=1,
    config=EvalDataConfig,
    request=request,
    run=run,
    environment="model",
    tools=("lm_eval", "datasets", "huggingface_hub"),
    places=frozenset({"source", "hub"}),
)
