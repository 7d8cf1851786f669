"""A release on its way: its record, its results so far, and what each stage is given.

The Airflow DAG and `llm-pipeline run` both use it. It reads the release's record and the results of earlier stages from
the store; only names travel between tasks.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from itertools import takewhile
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from pydantic import JsonValue

from llm_pipeline.base.errors import ConfigError, IntegrityError, InternalError, Terminal
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.base.verdict import Judgement, Verdict
from llm_pipeline.config.deployment import Deployment, TargetPlace
from llm_pipeline.config.release import ResolvedRelease
from llm_pipeline.config.target import Target
from llm_pipeline.loadtest.outcome import TokenCost
from llm_pipeline.release.candidate import Candidate, target_of
from llm_pipeline.release.choice import CostTrial, recipes_in_words
from llm_pipeline.release.contract import StageFailure, StageRequest, StageResult
from llm_pipeline.release.execute import (
    failure_name,
    load_stage,
    publishes,
    read_stage_record,
    results_name,
    trusted_stage_record,
)
from llm_pipeline.release.flow import release_flow, step_named
from llm_pipeline.release.measured_cost import gpu_indices
from llm_pipeline.release.record import ReleaseRecord, trusted_record
from llm_pipeline.release.step import Environment, Scope
from llm_pipeline.release.time_limit import time_limit
from llm_pipeline.runners.runner import Placement
from llm_pipeline.store import ArtifactStore, open_store
from llm_pipeline.store.documents import DamagedDocument, understood
from llm_pipeline.store.signed_documents import refusal

if TYPE_CHECKING:
    from llm_pipeline.release.loading import LoadedRelease

_ANEW = "remove this document and run the release again: finished work is kept"


class MissingResult(Terminal):
    """A stage was requested before one that it depends on has run."""


def resolve_request(loaded: LoadedRelease, revision: str | None = None, *, by: str = "") -> StageRequest:
    """The request of a release's first stage.

    Args:
        loaded: The release config, with what the run has otherwise.
        revision: Branch, tag or commit to use instead of the config's.
        by: Who asked for what the run has otherwise.
    """
    overrides = loaded.overrides.model_dump(mode="json")
    changed: dict[str, JsonValue] = {"overrides": overrides, "overridden_by": by} if loaded.overrides else {}
    return StageRequest(
        release_id=loaded.config.name,
        stage="resolve",
        config={"config_path": str(loaded.path), "revision": revision, **changed},
        store=loaded.deployment.store,
        work_root=loaded.deployment.work_root,
        time_limit=time_limit(loaded.release, "resolve"),
    )


class ReleaseProgress:
    """One release on its way: what it has done, and what is asked of its next stages.

    Args:
        store: Where its results are.
        record: What was decided when it was resolved.
        trusts_signed_only: Refuse a result that is not signed as the store requires: so that the release goes on with
            what its own stages wrote. Otherwise whatever is there is shown.
    """

    def __init__(self, store: ArtifactStore, record: ReleaseRecord, *, trusts_signed_only: bool = False) -> None:
        self.store = store
        self.record = record
        self._trusts_signed_only = trusts_signed_only

    @classmethod
    def open(cls, deployment: Deployment, release_id: str) -> ReleaseProgress:
        """The flow of a release that was resolved before, to go on with it.

        Raises:
            ConfigError: There is no such release.
            IntegrityError: Its record cannot be understood, or is not signed as the store requires.
        """
        store = open_store(deployment.store)
        return cls(store, trusted_record(store, release_id), trusts_signed_only=True)

    def here(self, deployment: Deployment) -> ReleaseProgress:
        """The same with a deployment's directories as they are now, for what people ask for after the run.

        The record names those of the run: since then they may have been moved, and it may have been another user's.
        """
        roots = {name: getattr(deployment, name) for name in ("store", "work_root", "state_root")}
        record = self.record.model_copy(update={"deployment": self.deployment.model_copy(update=roots)})
        return ReleaseProgress(self.store, record, trusts_signed_only=self._trusts_signed_only)

    @property
    def release(self) -> ResolvedRelease:
        """The release config as resolved."""
        return self.record.release

    @property
    def deployment(self) -> Deployment:
        """Where the release runs."""
        return self.record.deployment

    @property
    def resolved_at(self) -> datetime:
        """When the release was last resolved: once a run."""
        return self.record.created_at

    @property
    def targets(self) -> tuple[str, ...]:
        """Names of the targets to build for."""
        return tuple(target.name for target in self.release.targets)

    def left_out(self, stage: str, subject: str) -> str | None:
        """Why this run has no such step though its config has one, in words; None if it has it."""
        step = step_named(stage)
        asked = {Scope.TARGET: self.targets, Scope.CANARY_STEP: self.targets, Scope.RECIPE: self.recipes}
        known = asked.get(step.scope) if step else None
        return None if known is None or target_of(subject) in known else f"this run leaves {subject} out"

    @property
    def recipes(self) -> tuple[str, ...]:
        """Names of the recipes that may be tried."""
        return tuple(recipe.name for recipe in self.release.recipes)

    def passed_over(self, recipe: str) -> str | None:
        """Why a recipe, or a candidate, can be skipped, in words; None if it must be tried.

        A run may leave recipes out. On a ladder that is climbed, a recipe is needed by each target where it is legal
        and no cheaper one has passed. A candidate is tried if its recipe has passed, and is legal on its target.
        """
        candidate = Candidate.of(recipe) if ":" in recipe else None
        if candidate is not None:
            recipe = candidate.recipe
        if recipe not in self.recipes:
            return f"this run leaves {recipe} out"
        if candidate is not None:
            if recipe not in self.record.ladders.get(candidate.target, ()):
                return f"{recipe} is not legal on {candidate.target}"
            return None if self._has_passed(recipe) else f"{recipe} has not passed its accuracy gate"
        if self.release.ladder.strategy == "every" or self.release.ladder.objective == "cost":
            return None
        ladders = {target: ladder for target, ladder in self.record.ladders.items() if recipe in ladder}
        if not ladders:
            return f"{recipe} is legal on no target"
        passed_before = {target: self._passed_before(recipe, ladder) for target, ladder in ladders.items()}
        cheaper = {target: name for target, name in passed_before.items() if name}
        return f"a cheaper recipe passed ({recipes_in_words(cheaper)})" if len(cheaper) == len(ladders) else None

    def _passed_before(self, recipe: str, ladder: Sequence[str]) -> str | None:
        cheaper = takewhile(lambda name: name != recipe, ladder)
        return next((name for name in cheaper if self._has_passed(name)), None)

    def _has_passed(self, recipe: str) -> bool:
        judgement = self.judgement_of(recipe)
        return judgement is not None and judgement.verdict is Verdict.GO

    def judgement_of(self, recipe: str) -> Judgement | None:
        """The accuracy gate's judgement of the recipe's latest checkpoint; None while there is none.

        A result of an earlier run may be of another checkpoint: the recipe was quantized anew since, with other tools.
        """
        gate, quantized = self.find("accuracy", recipe), self.find("quantize", recipe)
        read = trusted_stage_record if self._trusts_signed_only else read_stage_record
        record = read(self.store, gate.key) if gate else None
        if gate is None or quantized is None or record is None:
            return None
        same = record.content.inputs.get("checkpoint") == quantized.artifacts.get("checkpoint")
        return gate.judgement if same else None

    def failure_of(self, recipe: str) -> StageFailure | None:
        """The error that quantizing or judging a recipe ended with, if it ended with one."""
        return self._failure("quantize", recipe) or self._failure("accuracy", recipe)

    def _failure(self, stage: str, subject: str) -> StageFailure | None:
        return self.store.read_as(failure_name(self.record.release_id, stage, subject), StageFailure)[0]

    def trial(self, candidate: Candidate) -> CostTrial | None:
        """How a candidate fared; None when it was not tried, or not to its end."""
        if self.passed_over(candidate.subject):
            return None
        found, cost = CostTrial(recipe=candidate.recipe, variant=candidate.variant), None
        for step in release_flow():
            if step.scope is not Scope.CANDIDATE or not step.decides:
                continue
            stage = step.stage_name
            if (failure := self._failure(stage, candidate.subject)) is not None:
                return found.model_copy(update={"summary": f"{stage} failed: {failure.error.told}"})
            result = self.find(stage, candidate.subject)
            if result is None:
                return None
            if (judged := result.judgement) is not None and judged.verdict is not Verdict.GO:
                return found.model_copy(update={"verdict": judged.verdict, "summary": f"{stage}: {judged.summary}"})
            cost = TokenCost.of_metrics(result.metrics)  # the last of them has it
        return found.model_copy(update={"verdict": Verdict.GO, "cost": cost})

    def results(self) -> dict[tuple[str, str], StageResult]:
        """All results of the release so far, by stage and subject."""
        names = self.store.list_documents(f"releases/{self.record.release_id}/results")
        results = [result for name in names if (result := self._read_result(name)) is not None]
        return {(result.stage, result.subject): result for result in results}

    def readable_results(self) -> tuple[dict[str, StageResult], list[DamagedDocument]]:
        """All results so far that can be read, by the names of their documents, and the documents that cannot."""
        return self.store.readable_as(f"releases/{self.record.release_id}/results", StageResult, hint=_ANEW)

    def find(self, stage: str, subject: str = "") -> StageResult | None:
        """The result of one stage, or None.

        Raises:
            IntegrityError: The document is damaged, or is not signed as the store requires.
        """
        return self._read_result(results_name(self.record.release_id, stage, subject))

    def _read_result(self, name: str) -> StageResult | None:
        document = self.store.read_document(name)
        if document is not None and self._trusts_signed_only:
            problem = self.store.signatures.document_problem(name, document.value, document.signature)
            if problem and publishes(PurePosixPath(name).name.partition(".")[0]):  # asked last: it imports the stage
                raise refusal(self.store, name, problem)
        return understood(StageResult, document.value, name, hint=_ANEW) if document else None

    def result(self, stage: str, subject: str = "") -> StageResult:
        """The result of one stage.

        Raises:
            MissingResult: It has not run.
        """
        found = self.find(stage, subject)
        if found is None:
            raise MissingResult(
                f"release {self.record.release_id} has no result of {stage} {subject}".rstrip(),
                hint="run the stages before it first",
            )
        return found

    def request(self, stage: str, subject: str = "") -> StageRequest:
        """What a stage is given.

        Raises:
            MissingResult: A stage it depends on has not run.
        """
        build = load_stage(stage).request
        if build is None:
            raise InternalError(f"stage {stage} declares no request, so that a release cannot run it")
        config, inputs = build(self, subject)
        return StageRequest(
            release_id=self.record.release_id,
            stage=stage,
            subject=subject,
            config=config.model_dump(mode="json"),
            inputs=dict(inputs),
            store=self.deployment.store,
            work_root=self.deployment.work_root,
            time_limit=time_limit(self.release, stage),
            gpu_indices=gpu_indices(self.deployment, self.record, stage, subject),
        )

    def target(self, subject: str) -> Target:
        """A target as a candidate has it, or as what was chosen for it has it; itself before the choice."""
        if ":" in subject:
            return self.release.target(subject)
        return self.release.target(subject).varied(self.chosen_variant(subject))

    def chosen_variant(self, target: str) -> str:
        """The variant that `choose` picked for a target; empty for its own arguments, and before the choice."""
        chosen = self.find("choose", target)
        return str(chosen.metrics.get("variant") or "") if chosen else ""

    def chosen_recipe(self, target: str) -> str:
        """The recipe of a candidate, or the one that `choose` picked for a target.

        Raises:
            MissingResult: It has not run, or no recipe passed.
            IntegrityError: What is signed does not say that the recipe passed.
        """
        recipe = Candidate.of(target).recipe if ":" in target else self.result("choose", target).metrics["recipe"]
        if recipe is None:
            raise MissingResult(f"no recipe passed for {target}", hint="nothing can be built for it")
        if self._trusts_signed_only and self.store.signatures.required and not self._has_passed(str(recipe)):
            name = results_name(self.record.release_id, "choose", target)
            raise refusal(self.store, name, f"{recipe} has not passed its accuracy gate")
        return str(recipe)

    def artifact(self, stage: str, subject: str, name: str) -> ArtifactRef:
        """An artifact that a stage made.

        Raises:
            MissingResult: The stage has not run.
            IntegrityError: Its result names no such artifact: it is damaged.
        """
        made = self.result(stage, subject).artifacts
        if name not in made:
            document = results_name(self.record.release_id, stage, subject)
            raise IntegrityError(f"the result names no artifact {name!r}", where=document, hint=_ANEW)
        return made[name]

    def state_directory(self, target: str, server: str) -> str:
        """Directory of a server's state: `staging`, `comparison`, `blue`, `green` or `router`."""
        return str(Path(self.deployment.state_root) / self.record.place_of(target) / server)

    def place(self, target: str) -> TargetPlace:
        """The servers of a target's place.

        Raises:
            ConfigError: The release was made when the deployment had no such place, or for another deployment.
        """
        place, places = self.record.place_of(target), self.deployment.places
        if place not in places:
            known = f"deployment {self.deployment.name}, as {self.record.release_id} was made with it,"
            hint = "add it to the deployment file, then release again"
            raise ConfigError(f"{known} has no place {place!r}", hint=hint)
        return places[place]


def placement(request: StageRequest) -> Placement:
    """Where a stage is to run: in the environment that the flow states, or in the one of its target."""
    step = step_named(request.stage)
    if step is None:
        raise InternalError(f"no step of the flow has the stage {request.stage}")
    if step.environment is not Environment.OF_TARGET:
        return Placement(environment=step.environment.value)
    target = Target.model_validate(request.config["target"])
    return Placement(environment=target.environment, container=target.container)


def passed(result: StageResult) -> bool:
    """Whether the release may go on after a stage: it is no gate, or its verdict is GO."""
    return result.judgement is None or result.judgement.verdict is Verdict.GO
