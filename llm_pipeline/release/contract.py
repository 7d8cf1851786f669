"""The stage contract: what a stage is given, what it returns, and how it is declared.

A stage is a process, `python -m llm_pipeline.stages <name> --request R --result F`. The request and the
result are small JSON files; only references to artifacts cross them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, JsonValue, TypeAdapter

from llm_pipeline.base.errors import ErrorDocument, PipelineError, from_document
from llm_pipeline.base.records import ArtifactRef, Frozen, Metric
from llm_pipeline.base.verdict import Judgement, Verdict
from llm_pipeline.config.store import Store

if TYPE_CHECKING:
    from llm_pipeline.store.artifact_store import ArtifactStore

ConfigT = TypeVar("ConfigT", bound=BaseModel)
Inputs = Mapping[str, ArtifactRef]
"""Artifacts that a stage is given, by the names that it declares."""
EnvironmentName = str
"""`control`, `model`, or one that a target names."""


TASKS_DATASET = "tasks"
PROMPTS_DATASET = "prompts"
"""Names of data sets of a release."""


def calibration_dataset(recipe: str) -> str:
    """Name of a recipe's calibration set among the data sets of a release."""
    return f"calibration.{recipe}"


class TimeLimit(Frozen):
    """How long a stage may take, in seconds.

    Attributes:
        seconds: Until it ends, or says that it gets on; and from then on again.
        longest_seconds: Altogether.
        setting: Where they are changed, for people.
    """

    seconds: float = Field(default=24 * 3600.0, gt=0.0)
    longest_seconds: float = Field(default=24 * 3600.0, gt=0.0)
    setting: str = "longest_stage_hours of the policy"


class StageRequest(Frozen):
    """What a stage's process is asked to do.

    Attributes:
        release_id: The release it works for; not part of the stage key.
        stage: Name of the stage in the registry.
        subject: What it works on: a recipe's or a target's name; empty for one-off stages.
        config: The stage's own slice of the configuration, in the shape of its config model.
        inputs: Input artifacts by the names that the stage declares.
        store: The artifact store; its URI is enough.
        work_root: Directory for private work; survives a crash, so that a stage can resume.
        time_limit: When the stage is stopped, wherever it runs.
        gpu_indices: Those of its host that its process sees, where it computes on GPUs itself; None for all.
    """

    release_id: str
    stage: str
    subject: str = ""
    config: dict[str, JsonValue]
    inputs: dict[str, ArtifactRef] = Field(default={})
    store: Store
    work_root: str
    time_limit: TimeLimit = TimeLimit()
    gpu_indices: tuple[int, ...] | None = None


class Timings(Frozen):
    """When a stage ran, and for how long."""

    started_at: datetime
    total_seconds: float


class StageResult(Frozen):
    """What a stage's process produced.

    Attributes:
        key: The stage key: same key, same result.
        reused: The result was already in the store; nothing was computed.
        artifacts: Output artifacts by name.
        metrics: Small facts for the log, the UI and the report.
        judgement: The verdict of a gate; None for a stage that is not one.
        tools: Versions of the tools whose behaviour the result depends on.
    """

    outcome: Literal["result"] = "result"
    release_id: str
    stage: str
    subject: str
    key: str
    reused: bool = False
    artifacts: dict[str, ArtifactRef] = Field(default={})
    metrics: dict[str, Metric] = Field(default={})
    judgement: Judgement | None = None
    tools: dict[str, str] = Field(default={})
    timings: Timings


class StageFailure(Frozen):
    """The error that a stage's process ended with."""

    outcome: Literal["failure"] = "failure"
    release_id: str
    stage: str
    subject: str
    error: ErrorDocument

    @classmethod
    def of(cls, request: StageRequest, error: PipelineError) -> StageFailure:
        """The failure of a request."""
        return cls(
            release_id=request.release_id, stage=request.stage, subject=request.subject, error=error.to_document()
        )


StageOutcome = Annotated[StageResult | StageFailure, Field(discriminator="outcome")]
OUTCOME: TypeAdapter[StageResult | StageFailure] = TypeAdapter(StageOutcome, config=ConfigDict(defer_build=True))


def result_of(outcome: StageResult | StageFailure) -> StageResult:
    """The result of a stage that has ended.

    Raises:
        PipelineError: The error that it ended with, in its own family.
    """
    if isinstance(outcome, StageFailure):
        raise from_document(outcome.error)
    return outcome


@dataclass(frozen=True)
class StageContext(Generic[ConfigT]):
    """What a stage's `run` is given.

    Attributes:
        request: The request as received.
        config: The request's config, parsed into the stage's model.
        inputs: Verified local directories of the input artifacts, read-only.
        workdir: Private directory of this stage key; what an earlier, killed attempt left is still in it.
        store: The artifact store, for stages that read or write documents in it.
        key: The stage key.
    """

    request: StageRequest
    config: ConfigT
    inputs: Mapping[str, Path]
    workdir: Path
    store: ArtifactStore
    key: str


@dataclass(frozen=True)
class Produced:
    """A directory that becomes an artifact of `kind` when the stage ends well."""

    kind: str
    directory: Path


@dataclass(frozen=True)
class StageOutput:
    """What a stage's `run` returns; publishing is done for it.

    Attributes:
        artifacts: Directories to publish, by output name; one of the stage's inputs is passed on by its own name.
        metrics: Small facts for the log, the UI and the report.
        judgement: The verdict, when the stage is a gate.
        release_id: Set by the first stage only, which names the release.
    """

    artifacts: Mapping[str, Produced | ArtifactRef] = field(default_factory=dict)
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    judgement: Judgement | None = None
    release_id: str | None = None


_UNDECIDED = frozenset({Verdict.INCONCLUSIVE, Verdict.ANOMALOUS})


@dataclass(frozen=True)
class Stage(Generic[ConfigT]):
    """A stage's declaration: its module holds one as `STAGE`.

    Attributes:
        name: Its name in requests, logs, task ids and the report.
        version: Raised whenever the meaning of its output changes; part of the stage key.
        config: Model of the configuration it reads; all of it is part of the stage key.
        run: The work.
        tools: Distributions whose versions are part of the stage key, or what tells them from the config.
        places: Top-level config fields that say where, not what (addresses, ports): not part of the stage key.
        reusable: False for a stage that acts on the world (starts a server, shifts traffic); its step says which.
        publishes: False for a stage that publishes no artifact, so that it needs nothing to sign with.
        request: Makes the config and the inputs out of a release on its way (`ReleaseProgress`) and
            the subject; None for the first stage, which makes the release.
        reads: Further configuration, as data, that a stage of such a config reads; None for none. Only the
            environment variables that it names matter.
        changes_release: False for one that only shows what the others did: the release's summary stays as it is.
        measures: It measures a machine: what it could not decide may be decided the next time, so only GO and NO_GO are
            reused.
    """

    name: str
    version: int
    config: type[ConfigT]
    run: Callable[[StageContext[ConfigT]], StageOutput]
    tools: tuple[str, ...] | Callable[[ConfigT], tuple[str, ...]] = ()
    places: frozenset[str] = frozenset()
    reusable: bool = True
    publishes: bool = True
    changes_release: bool = True
    request: Callable[[Any, str], tuple[ConfigT, Inputs]] | None = None
    reads: Callable[[ConfigT], tuple[JsonValue, ...]] | None = None
    measures: bool = False

    def tool_names(self, config: ConfigT) -> tuple[str, ...]:
        """Distributions whose versions are part of the key of such a config."""
        return self.tools if isinstance(self.tools, tuple) else self.tools(config)

    def may_decide_again(self, judgement: Judgement | None) -> bool:
        """Whether a result with this judgement is no reason not to run the stage again."""
        return self.measures and judgement is not None and judgement.verdict in _UNDECIDED
