"""The data sets that a release's tasks read, and whether they can be fetched.

For tasks in a directory, their files say so; for well-known tasks of lm-eval, a table does. The `eval_data` stage asks
lm-eval itself. If the source answers, each data set is pinned and checked: it exists and may be read, it is data and
not a program, and its card has the configuration and the splits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from llm_pipeline.accuracy.dataset_calls import DatasetCall, RepositoryName
from llm_pipeline.accuracy.eval_data import data_paths, refuse_script
from llm_pipeline.accuracy.task_definitions import TaskDefinition, own_definitions
from llm_pipeline.accuracy.task_files import read_task_directory
from llm_pipeline.artifacts.pinned import DEFAULT_REVISION
from llm_pipeline.base.errors import ConfigError, IntegrityError, PipelineError, Transient, Unsupported
from llm_pipeline.base.records import Frozen
from llm_pipeline.config.release import Evaluation
from llm_pipeline.hub.source import SourceRefused, SourceUnavailable, require_listening
from llm_pipeline.planning.background import BackgroundCall, side_by_side
from llm_pipeline.planning.task_pool import known_facts

if TYPE_CHECKING:
    from llm_pipeline.hub.model_card import DataSetCard
    from llm_pipeline.release.loading import LoadedRelease

_SECONDS = 20.0
"""How long a hub may take at a terminal."""
_SHOWN = 4


class PlannedData(Frozen):
    """A data set that tasks read.

    Attributes:
        name: As the tasks name it, with the revision if their files pin one.
        revision: What is read of it: a branch, a tag or a commit.
        tasks: Who reads it.
        commit: What the revision is now; None where nobody was asked.
        bytes: Of all its data files, as which of them are read is not known before its card is fetched; None where
            nobody was asked.
    """

    name: str
    revision: str
    tasks: tuple[str, ...]
    commit: str | None = None
    bytes: int | None = None


class EvaluationData(NamedTuple):
    """What the tasks of a release read.

    Attributes:
        data_sets: The data sets of the hub that are known here.
        unknown_tasks: Tasks of which it is not known here what they read.
        warnings: What could not be judged.
    """

    data_sets: tuple[PlannedData, ...] = ()
    unknown_tasks: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def evaluation_data(loaded: LoadedRelease, seconds: float | None = None, *, required: bool = False) -> EvaluationData:
    """Find out what a release's tasks read, and whether it can be had.

    Args:
        loaded: The release.
        seconds: How long the source may take; 0 asks it nothing.
        required: A source that does not answer is an error.

    Raises:
        ConfigError: A revision is stated of a data set that no task reads, or a data set has no such configuration or
            split.
        SourceRefused: A data set is missing, or may not be read.
        SourceUnavailable: The source does not answer, and must.
        Unsupported: A data set is made by Python of its repository.
    """
    evaluation = loaded.release.evaluation
    definitions, unknown = _definitions(loaded)
    by_name: dict[RepositoryName, list[TaskDefinition]] = {}
    for definition in definitions:
        for asked in definition.call.repositories if definition.call else ():
            by_name.setdefault(asked, []).append(definition)
    _refuse_other_revisions(evaluation, by_name, unknown)
    warnings = (
        *(
            f"{one.name} loads its data with Python: what that downloads is missing when it is scored without a network"
            for one in definitions
            if one.loads_by_code
        ),
        *(
            f"which data sets {task} reads is not known here: the eval_data stage asks lm-eval, and fetches them"
            for task in unknown
        ),
    )
    planned = tuple(_planned(asked, readers, evaluation) for asked, readers in by_name.items())
    if not planned:
        return EvaluationData((), unknown, warnings)
    names = ", ".join(one.name for one in planned)
    unseen = f"whether {names} can be fetched for the evaluation is not known"
    if seconds == 0:
        return EvaluationData(planned, unknown, (*warnings, f"{unseen}: not looked up"))
    try:
        look = partial(_look, loaded, by_name, planned)
        pinned = tuple(BackgroundCall(look, seconds or _SECONDS).answer())
    except (SourceUnavailable, Transient) as error:
        if required:
            raise
        return EvaluationData(planned, unknown, (*warnings, f"{unseen}: {error.message}"))
    return EvaluationData(pinned, unknown, warnings)


def _definitions(loaded: LoadedRelease) -> tuple[list[TaskDefinition], tuple[str, ...]]:
    evaluation = loaded.release.evaluation
    own: list[TaskDefinition] = []
    others: Sequence[str] = evaluation.tasks
    if evaluation.task_directory is not None:
        directory = loaded.configs_root / evaluation.task_directory
        own, others = own_definitions(
            read_task_directory(directory, allow_code=evaluation.allow_task_code), evaluation.tasks
        )
    table = {row["name"]: row["data"] for row in known_facts()["tasks"]}
    known = [one for name in others if name in table for one in _of_the_table(name, table[name])]
    return [*own, *known], tuple(name for name in others if name not in table)


def _of_the_table(name: str, row: Mapping[str, Any]) -> list[TaskDefinition]:
    splits = dict(zip(("test_split", "fewshot_split"), row["splits"], strict=False))
    calls = [DatasetCall(path=row["path"], config=config) for config in row["configs"]]
    return [TaskDefinition(name, splits, call) for call in calls]


def _planned(asked: RepositoryName, readers: Sequence[TaskDefinition], evaluation: Evaluation) -> PlannedData:
    revision = evaluation.data_revisions.get(asked.name) or asked.revision or DEFAULT_REVISION
    return PlannedData(
        name=str(asked), revision=revision, tasks=tuple(dict.fromkeys(reader.name for reader in readers))
    )


def _refuse_other_revisions(
    evaluation: Evaluation, known: Mapping[RepositoryName, object], unknown: tuple[str, ...]
) -> None:
    names = {asked.name for asked in known}
    others = sorted(evaluation.data_revisions.keys() - names)
    if others and not unknown:
        raise ConfigError(
            f"evaluation.data_revisions names {', '.join(others)}, which no task reads",
            hint=f"the tasks read: {', '.join(sorted(names)) or 'their own files'}",
        )


def _look(
    loaded: LoadedRelease, by_name: Mapping[RepositoryName, Sequence[TaskDefinition]], planned: Sequence[PlannedData]
) -> list[PlannedData]:
    evaluation, hub = loaded.release.evaluation, loaded.deployment.hub
    if evaluation.data_source == "hub":
        require_listening(hub.endpoint)
    from llm_pipeline.hub.model_card import read_card  # the hub's client is slow to import
    from llm_pipeline.hub.sources import open_data_sets

    source = open_data_sets(evaluation.data_source, hub)

    def pinned(item: tuple[RepositoryName, PlannedData]) -> PlannedData:
        asked, plan = item
        try:
            found = source.pin(asked.name, plan.revision)
            if any(reader.call and not reader.call.names_files for reader in by_name[asked]):
                refuse_script(found, asked)
            card = read_card(source, found)
            for reader in by_name[asked]:
                _refuse_by_card(card, reader)
        except SourceUnavailable:
            raise
        except PipelineError as error:
            raise _of_tasks(error, plan) from error
        held = set(data_paths(found))
        size = sum(file.size for file in found.files if file.path in held)
        return plan.model_copy(update={"commit": found.commit, "bytes": size})

    return side_by_side(pinned, list(zip(by_name, planned, strict=True)))


def _refuse_by_card(card: DataSetCard, reader: TaskDefinition) -> None:
    call = reader.call
    if call is not None and not {"data_files", "data_dir"} & call.options.keys():
        card.refuse(call.config, reader.splits, str(call))


def _of_tasks(error: PipelineError, plan: PlannedData) -> PipelineError:
    """The source's own error, with the tasks that read the data."""
    shown = ", ".join(plan.tasks[:_SHOWN]) + (", .." if len(plan.tasks) > _SHOWN else "")
    kind = type(error) if isinstance(error, SourceRefused | ConfigError | Unsupported | IntegrityError) else ConfigError
    hint = error.hint or "correct the task's file, or leave the task out"
    return kind(f"data of {shown}: {error.message}", where=error.where or plan.name, hint=hint)
