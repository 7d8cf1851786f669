"""What a store holds of earlier releases: how long their steps took, and which of their results are used again.

    history = read_history(open_store(deployment.store), loaded)
    history.seconds("quantize", "fp8")  # (11.2, 10.9): of the releases in which it was computed

Each stage is given what the flow would give it, and its key is looked up, as the stage itself will do. What cannot be
known here is taken from the newest earlier release: the commit that the model's revision names, and the versions of
the tools. What a computed stage will make is not known either, so whatever is made of it counts as computed, too. Data
sets are named without being published, in the layout of `stages/resolve.py`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import JsonValue, ValidationError

from llm_pipeline.base.digest import digest_file
from llm_pipeline.base.errors import IntegrityError, InternalError, PipelineError
from llm_pipeline.base.records import ArtifactRef, Frozen
from llm_pipeline.config.deployment import Deployment
from llm_pipeline.config.quantization import NAMED_SET
from llm_pipeline.planning.background import BackgroundCall, side_by_side
from llm_pipeline.planning.host import ForeignServer, refuse_foreign_servers
from llm_pipeline.release import step as release_step
from llm_pipeline.release.contract import StageFailure, StageRequest, StageResult
from llm_pipeline.release.datasets import PROMPTS_DATASET, TASKS_DATASET, calibration_dataset
from llm_pipeline.release.execute import KeyContent, StageRecord, key_content, trusted_stage_record
from llm_pipeline.release.flow import release_flow, step_named
from llm_pipeline.release.loading import LoadedRelease
from llm_pipeline.release.newest import NotedRelease, newest_of_config, newest_of_model
from llm_pipeline.release.record import ReleaseRecord, readable_record
from llm_pipeline.release.registry import load_stage
from llm_pipeline.release.step import Scope
from llm_pipeline.release_progress import MissingResult, ReleaseProgress, passed
from llm_pipeline.store import ArtifactStore
from llm_pipeline.store.manifest import Manifest, ManifestFile
from llm_pipeline.store.place_state import PlaceState
from llm_pipeline.store.places import PlaceTaken, require_place

if TYPE_CHECKING:
    from llm_pipeline.release.loading import LoadedRelease


RELEASES_READ = 5
"""Newest releases whose results are read."""

_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class PastRelease:
    """One release and all results of its stages."""

    record: ReleaseRecord
    results: Mapping[tuple[str, str], StageResult]


@dataclass(frozen=True)
class History:
    """Earlier releases of a config, the newest first; of its model, where the config has none.

    Attributes:
        name: The config's name.
        releases: At most `RELEASES_READ`.
    """

    name: str
    releases: tuple[PastRelease, ...] = ()

    @property
    def newest(self) -> ReleaseRecord | None:
        """The newest release's record."""
        return self.releases[0].record if self.releases else None

    def last(self, stage: str, subject: str) -> StageResult | None:
        """The newest result of a stage."""
        found = (past.results.get((stage, subject)) for past in self.releases)
        return next((result for result in found if result), None)

    def tools(self, stage: str, names: Collection[str]) -> dict[str, str]:
        """Versions of these tools when a stage last ran with them, whatever it worked on."""
        results = (result for past in self.releases for result in past.results.values() if result.stage == stage)
        return next((result.tools for result in results if result.tools.keys() == set(names)), {})

    def at(self, revision: str) -> History:
        """The releases of what that revision named when they were resolved, or of that commit."""

        def is_of(record: ReleaseRecord) -> bool:
            named = record.overrides.revision or record.release.model.revision
            return record.model.commit == revision if _COMMIT.fullmatch(revision) else named == revision

        return replace(self, releases=tuple(past for past in self.releases if is_of(past.record)))

    def seconds(self, stage: str, subject: str) -> tuple[float, ...]:
        """How long a stage took in the releases of this very config that computed it."""
        ours = (past.results.get((stage, subject)) for past in self.releases if past.record.release.name == self.name)
        return tuple(result.timings.total_seconds for result in ours if result and not result.reused)


def read_history(store: ArtifactStore, loaded: LoadedRelease) -> History:
    """Read the releases that a new one of this config is compared with: those of the same source and revision.

    Raises:
        Transient: The store cannot be read now.
        ConfigError: There is no such store.
    """
    noted = newest_of_config(store, loaded.config.name)
    own = [record for record in _alike(store, loaded, noted) if record.release.name == loaded.config.name]
    if not own:
        own = _alike(store, loaded, newest_of_model(store, loaded.config.model.id))
    newest = sorted(own, key=lambda record: record.created_at, reverse=True)[:RELEASES_READ]
    return History(loaded.config.name, tuple(PastRelease(record, _results(store, record)) for record in newest))


def _alike(store: ArtifactStore, loaded: LoadedRelease, noted: Sequence[NotedRelease]) -> list[ReleaseRecord]:
    """Those of the same model, source and revision: their commit may be pinned again."""
    asked, found = loaded.release.model, []
    for record in side_by_side(partial(readable_record, store), [one.release_id for one in noted]):
        if record is None or (record.release.model.id, record.release.model.source) != (asked.id, asked.source):
            continue
        named = record.model.commit if _COMMIT.fullmatch(asked.revision) else record.release.model.revision
        if named == asked.revision:
            found.append(record)
    return found


def _results(store: ArtifactStore, record: ReleaseRecord) -> dict[tuple[str, str], StageResult]:
    wanted = store.list_documents(f"releases/{record.release_id}/results")
    found = [result for result in side_by_side(partial(_result, store), wanted) if result]
    return {(result.stage, result.subject): result for result in found}


def _result(store: ArtifactStore, name: str) -> StageResult | None:
    document = store.read_document(name)
    try:
        return StageResult.model_validate(document.value) if document else None
    except ValidationError:
        return None


def expected_datasets(loaded: LoadedRelease, earlier: ReleaseRecord) -> dict[str, ArtifactRef]:
    """The data sets by name.

    Public sets are not fetched for this: a recipe that draws from one has the data set of the earlier release, if that
    drew from the same sources, and none here otherwise.
    """
    release, root = loaded.release, loaded.configs_root
    expected = {PROMPTS_DATASET: _ref([root / release.workload.prompts])}
    if release.evaluation.task_directory:
        expected[TASKS_DATASET] = _ref([root / release.evaluation.task_directory])
    before = {recipe.name: recipe.calibration for recipe in earlier.release.recipes}
    for recipe in release.recipes:
        name, asked, then = calibration_dataset(recipe.name), recipe.calibration, before.get(recipe.name)
        if asked is None:
            continue
        if not any(source.dataset.startswith(NAMED_SET) for source in asked.sources):
            expected[name] = _ref([loaded.data_file(source.dataset) for source in asked.sources])
        elif then and name in earlier.datasets and (asked.sources, asked.chat_template) == (
            then.sources, then.chat_template
        ):  # fmt: skip
            expected[name] = earlier.datasets[name]
    return expected


def _ref(paths: Sequence[Path]) -> ArtifactRef:
    """The artifact of these files, as resolving publishes them: a directory as it is, several files numbered."""
    first, *others = paths
    if first.is_dir():
        below = sorted(path.relative_to(first) for path in first.rglob("*") if path.is_file())
        hidden = [path for path in below if any(part.startswith(".") or part == "__pycache__" for part in path.parts)]
        files = {path.as_posix(): first / path for path in below if path not in hidden}
    elif others:
        files = {f"{number}-{path.name}": path for number, path in enumerate(paths)}
    else:
        files = {first.name: first}
    held = [ManifestFile(path=name, **digest_file(path)._asdict()) for name, path in sorted(files.items())]
    return Manifest(kind="dataset", files=tuple(held)).ref


Outcome = Literal["reused", "computed", "always", "not needed", "not reached"]
Step = tuple[str, str]
"""A stage, and the subject it works on."""


class StepReuse(Frozen):
    """What happens to one step.

    Attributes:
        outcome: `reused`: the store holds its result. `always`: it acts on the world, so that its result is never
            reused. `not needed`: a cheaper recipe has passed. `not reached`: a gate before it has said no.
        why: In words; empty where the outcome says all.
    """

    outcome: Outcome
    why: str = ""


_NEVER_RAN = StepReuse(outcome="computed", why="never ran")


class _Awaited(MissingResult):
    """A step needs the result of another step that is not computed yet.

    Attributes:
        step: The other one.
    """

    def __init__(self, step: Step) -> None:
        super().__init__(" ".join(filter(None, step)))
        self.step = step


class _PlannedProgress(ReleaseProgress):
    """The flow of a release that has not begun; of the steps that will be reused, the results are known."""

    def __init__(self, store: ArtifactStore, record: ReleaseRecord) -> None:
        super().__init__(store, record)
        self.known: dict[Step, StageResult | None] = {}

    def find(self, stage: str, subject: str = "") -> StageResult | None:
        if (stage, subject) not in self.known:
            raise _Awaited((stage, subject))
        return self.known[stage, subject]

    def failure_of(self, recipe: str) -> StageFailure | None:  # noqa: ARG002 - what failed is tried again
        return None


def predict_reuse(
    store: ArtifactStore,
    history: History,
    loaded: LoadedRelease,
    steps: Sequence[Step],
    ladders: Mapping[str, tuple[str, ...]],
) -> dict[Step, StepReuse]:
    """What will become of each step, if the model's revision still names the commit of the newest earlier release.

    Args:
        store: Of the release's deployment.
        history: Its earlier releases.
        loaded: The release config.
        steps: In the order in which they run.
        ladders: Recipes that are legal on each target, cheapest first.

    Raises:
        Transient: The store cannot be read now.
    """
    newest = history.newest
    if newest is None:
        return {step: _NEVER_RAN if _stated(step).reusable else StepReuse(outcome="always") for step in steps}
    record = ReleaseRecord(
        release_id=newest.release_id,
        release=loaded.release,
        deployment=loaded.deployment,
        model=newest.model,
        checkpoints=newest.checkpoints,
        datasets=expected_datasets(loaded, newest),
        brings_data=newest.brings_data,
        ladders=dict(ladders),
        places=loaded.places,
        created_at=datetime.now(UTC),
    )
    flow = _PlannedProgress(store, record)
    return {step: _predict(flow, history, step) for step in steps}


def _predict(flow: _PlannedProgress, history: History, step: Step) -> StepReuse:
    (stage, subject), stated = step, _stated(step)
    if not stated.reusable:
        return StepReuse(outcome="always")
    for gate in release_flow():
        result = flow.known.get((gate.name, "")) if gate.ends is Scope.RELEASE else None
        if result and result.judgement and not passed(result):
            said = f"the {gate.title.lower()} said {result.judgement.verdict.value}"
            return StepReuse(outcome="not reached", why=said)
    if stated.scope is Scope.RECIPE:
        with contextlib.suppress(_Awaited):  # a cheaper recipe is judged first; until then this one counts as needed
            if reason := flow.passed_over(subject):
                flow.known[step] = None
                return StepReuse(outcome="not needed", why=reason)
    try:
        request = flow.request(stage, subject)
    except _Awaited as awaited:
        before = awaited.step[0] if awaited.step[1] == subject else awaited.message
        return StepReuse(outcome="computed", why=f"{before} is computed")
    except MissingResult as missing:
        return StepReuse(outcome="not reached", why=missing.message)
    return _look_up(flow, history, request)


def _stated(step: Step) -> release_step.Step:
    found = step_named(step[0])
    if found is None:
        raise InternalError(f"the flow has no step {step[0]}")
    return found


def _look_up(flow: _PlannedProgress, history: History, request: StageRequest) -> StepReuse:
    stage = load_stage(request.stage)
    config = stage.config.model_validate(request.config)
    content = key_content(dataclasses.replace(stage, tools=()), config, request.inputs, request.subject)
    # only the stage's own process can read versions of tools: here they are those of earlier releases
    content = content.model_copy(update={"tools": history.tools(stage.name, stage.tool_names(config))})
    record = _readable_record(flow.store, content.key)
    if record is None:
        return StepReuse(outcome="computed", why=_why_computed(flow, history, content))
    judgement = record.result.judgement
    made_by = f"{f'{judgement.verdict.value}, ' if judgement else ''}made by {record.result.release_id}"
    if stage.may_decide_again(judgement):
        return StepReuse(outcome="computed", why=f"undecided before: {made_by}")
    if not all(flow.store.exists(ref) for ref in record.result.artifacts.values()):
        return StepReuse(outcome="computed", why="its artifact is no longer in the store")
    flow.known[request.stage, request.subject] = record.result
    return StepReuse(outcome="reused", why=made_by)


def _readable_record(store: ArtifactStore, key: str) -> StageRecord | None:
    try:
        return trusted_stage_record(store, key)
    except IntegrityError:
        return None


def _why_computed(flow: _PlannedProgress, history: History, content: KeyContent) -> str:
    last = history.last(content.stage, content.subject)
    record = _readable_record(flow.store, last.key) if last else None
    if record is None:
        return "the record of its last result is gone" if last else _NEVER_RAN.why
    before, reasons = record.content, list[str]()
    if before.version != content.version:
        reasons.append(f"stage version {before.version} is {content.version} now")
    reasons += [f"config {name} changed" for name in _changed(before.config, content.config)]
    names = sorted(before.inputs.keys() | content.inputs.keys())
    reasons += [f"input {name} changed" for name in names if before.inputs.get(name) != content.inputs.get(name)]
    return ", ".join(reasons) or "its tools changed since"


def _changed(before: Mapping[str, JsonValue], now: Mapping[str, JsonValue], *, inside: bool = False) -> Iterator[str]:
    """Keys whose values differ; one level deeper where both are sections, as people write them."""
    for name in sorted(before.keys() | now.keys()):
        old, new = before.get(name), now.get(name)
        if old == new:
            continue
        if isinstance(old, dict) and isinstance(new, dict) and not inside:
            yield from (f"{name}.{key}" for key in _changed(old, new, inside=True))
        else:
            yield name


class Comparison(Frozen):
    """The earlier release that a plan is compared with: its commit counts until the hub has a newer one."""

    release_id: str
    commit: str
    resolved_at: datetime


@dataclass(frozen=True)
class StoreLookup:
    """What the store says of the steps.

    Attributes:
        history: Earlier releases; None where the store was not asked, or did not answer.
        newest: The one whose commit was taken; None where there is none of this revision.
        reuse: What will become of each step; None in the same case.
        warnings: Why they are not known.
    """

    history: History | None = None
    newest: ReleaseRecord | None = None
    reuse: Mapping[Step, StepReuse] | None = None
    warnings: tuple[str, ...] = ()

    @property
    def compared_with(self) -> Comparison | None:
        """The earlier release whose commit was taken."""
        newest = self.newest
        if newest is None:
            return None
        return Comparison(release_id=newest.release_id, commit=newest.model.commit, resolved_at=newest.created_at)


def ask_store(
    loaded: LoadedRelease,
    opened: Callable[[], ArtifactStore],
    steps: Sequence[Step],
    ladders: Mapping[str, tuple[str, ...]],
) -> StoreLookup:
    """Read the store.

    Raises:
        Transient: It cannot be read now.
        ConfigError: There is no such store, or nobody may read it.
    """
    store = opened()
    history = read_history(store, loaded)
    alike = history.at(loaded.overrides.revision or loaded.release.model.revision)
    return StoreLookup(history, alike.newest, predict_reuse(store, alike, loaded, steps, ladders))


def looked_up(asked: BackgroundCall[StoreLookup] | None, deployment: Deployment) -> StoreLookup:
    """The store's answer; a warning instead if it has not answered in time."""
    if asked is None:
        return StoreLookup()
    try:
        return asked.answer()
    except (PipelineError, OSError) as error:
        uri = deployment.store.uri
        reason = error.message if isinstance(error, PipelineError) else str(error)
        return StoreLookup(warnings=(f"reuse and measured times are not known: {uri} cannot be read now: {reason}",))


def ask_holders(
    loaded: LoadedRelease, opened: Callable[[], ArtifactStore], seconds: float
) -> BackgroundCall[dict[str, PlaceState]] | None:
    """Ask the store, in the background, who has the release's places; not if no time is allowed."""
    return BackgroundCall(partial(_ask_places, loaded, opened), seconds) if seconds else None


def place_warnings(
    asked: BackgroundCall[dict[str, PlaceState]] | None, loaded: LoadedRelease, *, replace: bool
) -> tuple[str, ...]:
    """The warnings from the answer to `ask_holders`.

    Args:
        asked: The question.
        loaded: The release config.
        replace: The release is meant to take its places over from whoever holds them.

    Raises:
        PlaceTaken: Another model holds one of them, and it is not handed over.
        ForeignServer: Another deployment serves there.
    """
    if asked is None:
        return ()
    model_id = loaded.config.model.id
    try:
        holders = asked.answer()
    except PlaceTaken as error:
        if not replace:
            raise
        return (f"{error.message}: it is handed over to {model_id}",)
    except ForeignServer:
        raise
    except (PipelineError, OSError) as error:
        reason = error.message if isinstance(error, PipelineError) else str(error)
        return (
            f"which models hold the places is not known: {loaded.deployment.store.uri} cannot be read now: {reason}",
        )
    return tuple(
        f"place {place} is handed over by {holder.model_id}: its users get {model_id} once this release is promoted"
        for place, holder in holders.items()
        if holder.model_id not in ("", model_id)
    )


def _ask_places(loaded: LoadedRelease, opened: Callable[[], ArtifactStore]) -> dict[str, PlaceState]:
    store = opened()
    for place in loaded.places.values():
        refuse_foreign_servers(store, loaded.deployment, place)
    return {place: require_place(store, place, loaded.config.model.id) for place in loaded.places.values()}
