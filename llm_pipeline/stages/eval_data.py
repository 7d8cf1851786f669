"""Evaluation data: fetches the data sets that the tasks name, at pinned commits, every byte verified; loads each task.

Whoever scores has no network: what tasks read is what this stage publishes. Each task is loaded once as it will be when
it is asked, so that a missing split, a missing package or a wrong file ends the release here.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from tempfile import gettempdir
from typing import TYPE_CHECKING

from pydantic import Field

from llm_pipeline.accuracy.data_sets import (
    CARD_FILES,
    RECORD_FILE,
    AskedDataSet,
    DataCall,
    EvalDataRecord,
    HeldDataSet,
    data_paths,
    files_read,
    place_of,
)
from llm_pipeline.accuracy.tasks import select_tasks
from llm_pipeline.artifacts.pinned import DEFAULT_REVISION, PinnedDataSet
from llm_pipeline.base.confinement import confined
from llm_pipeline.base.digest import sha256_bytes
from llm_pipeline.base.durable import replace_durably
from llm_pipeline.base.errors import ConfigError
from llm_pipeline.base.logging import get_logger
from llm_pipeline.config.deployment import HubAccess
from llm_pipeline.config.model import ConfigModel, DataSetName, Revision
from llm_pipeline.config.release import CheckpointEvaluation, TaskOptions
from llm_pipeline.release.contract import Inputs, Produced, Stage, StageContext, StageOutput
from llm_pipeline.stages.baseline import task_data

if TYPE_CHECKING:
    from llm_pipeline.hub.sources import DataSets
    from llm_pipeline.release_progress import ReleaseProgress

log = get_logger(__name__)

EVAL_DATA = "eval_data"
_ASKED = {"tasks", "task_options", "allow_task_code", "allow_generated_code"}
"""What of an evaluation decides whether its tasks can be loaded."""


class EvalDataConfig(ConfigModel):
    """Whose data are fetched, and from where.

    Attributes:
        tasks: Tasks that are asked.
        task_options: What is stated of them.
        allow_task_code: Task files may run Python that lies beside them.
        allow_generated_code: Tasks may run code that the model writes.
        revisions: Branch, tag or commit by data set.
        release: The release for which those are resolved, once; empty where tasks bring their data.
        source: Where the data sets come from. A place, not part of the stage key.
        hub: How the hub is reached. A place, too.
    """

    tasks: tuple[str, ...] = Field(min_length=1)
    task_options: dict[str, TaskOptions] = Field(default={})
    allow_task_code: bool = False
    allow_generated_code: bool = False
    revisions: dict[DataSetName, Revision] = Field(default={})
    release: str = ""
    source: str = "hub"
    hub: HubAccess = HubAccess()


def run(context: StageContext[EvalDataConfig]) -> StageOutput:
    """Find out what is read, pin it, fetch it, and load every task with it.

    Raises:
        ConfigError: A task cannot be loaded, or a data set has no such configuration or split.
        SourceRefused: No such data set or revision, or no access to it.
        SourceUnavailable: The source cannot be reached.
        IntegrityError: A file's bytes are wrong twice.
    """
    config, tasks = context.config, context.inputs.get("tasks")
    evaluation = CheckpointEvaluation(**config.model_dump(include=_ASKED))
    selected = select_tasks(tasks, evaluation, evaluation.tasks)
    calls: dict[AskedDataSet, list[DataCall]] = {}
    for call in (task.call for task in selected.tasks.values()):
        if call and call.data_set and call not in (own := calls.setdefault(call.data_set, [])):
            own.append(call)
    names = {asked.name for asked in calls}
    if others := sorted(config.revisions.keys() - names):
        hint = f"the tasks read: {', '.join(sorted(names)) or 'their own files'}"
        raise ConfigError(f"evaluation.data_revisions names {', '.join(others)}, which no task reads", hint=hint)
    destination = context.workdir / EVAL_DATA
    shutil.rmtree(destination, ignore_errors=True)
    destination.mkdir(parents=True)
    held: list[HeldDataSet] = []
    if calls:
        # here: the hub's client loads slowly, and tasks that bring their data ask no hub
        from llm_pipeline.hub.sources import copy_files, open_data_sets

        source = open_data_sets(config.source, config.hub)
        copy = partial(copy_files, source, Path(context.request.work_root) / "datasets")
        pinned = {asked: _pin(source, asked, config, context.workdir) for asked in calls}
        held = [_fetched(asked, own, pinned[asked], copy, destination) for asked, own in calls.items()]
    else:
        log.info("the tasks bring their own data: nothing is fetched")
    record = EvalDataRecord(data_sets=tuple(held))
    (destination / RECORD_FILE).write_text(record.model_dump_json(indent=1) + "\n", encoding="utf-8")
    confined(partial(selected.load, destination), [Path("/")])  # can be read, without a network
    return StageOutput(
        artifacts={EVAL_DATA: Produced(EVAL_DATA, destination)},
        metrics={
            "data_sets": ", ".join(f"{one.repository}@{one.commit[:12]}" for one in held),
            "files": sum(len(one.files) for one in held),
            "bytes": sum(file.size for one in held for file in one.files),
        },
    )


def _pin(source: DataSets, asked: AskedDataSet, config: EvalDataConfig, workdir: Path) -> PinnedDataSet:
    """Resolve a revision once: an attempt that was killed has left what it resolved."""
    kept = workdir / "pinned" / f"{sha256_bytes(str(asked).encode())}.json"
    if kept.exists():
        return PinnedDataSet.model_validate_json(kept.read_text(encoding="utf-8"))
    pinned = source.pin(asked.name, config.revisions.get(asked.name) or asked.revision or DEFAULT_REVISION)
    kept.parent.mkdir(parents=True, exist_ok=True)
    replace_durably(kept, pinned.model_dump_json().encode())
    log.info("data set pinned", data_set=str(asked), repository=pinned.id, commit=pinned.commit)
    return pinned


def _fetched(
    asked: AskedDataSet, calls: Sequence[DataCall], pinned: PinnedDataSet, copy: Callable[..., None], destination: Path
) -> HeldDataSet:
    """Fetch the card, find out by it what is read, and fetch that."""
    place = place_of(destination, pinned.id, pinned.commit)
    cards = [file for file in pinned.files if file.path in CARD_FILES]
    copy(pinned, cards, place)
    readable = [place, Path(gettempdir())]
    paths = frozenset[str]().union(*(confined(partial(files_read, one, pinned, place), readable) for one in calls))
    read = [file for file in pinned.files if file.path in paths]
    copy(pinned, read, place)
    return HeldDataSet(
        asked=asked,
        repository=pinned.id,
        commit=pinned.commit,
        files=(*cards, *read),
        others=tuple(path for path in data_paths(pinned) if path not in paths),
    )


def request(flow: ReleaseProgress, _subject: str) -> tuple[EvalDataConfig, Inputs]:
    """What the stage is given."""
    evaluation, record = flow.release.evaluation, flow.record
    config = EvalDataConfig(
        **evaluation.model_dump(include=_ASKED),
        revisions=evaluation.data_revisions,
        release="" if record.brings_data else record.release_id,
        source=evaluation.data_source,
        hub=flow.deployment.hub,
    )
    return config, task_data(flow)


STAGE = Stage(
    name=EVAL_DATA,
    version=2,
    config=EvalDataConfig,
    request=request,
    run=run,
    tools=("lm_eval", "datasets", "huggingface_hub"),
    places=frozenset({"source", "hub"}),
)
