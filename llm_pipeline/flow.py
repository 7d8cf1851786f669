"""The flow of a release: which stage comes after which, and what each is given.

Both ways to run a release use it, the Airflow DAG and `llm-pipeline run`, so they cannot differ. It reads
the release's record and the results of earlier stages from the store; nothing but names travels between tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from itertools import takewhile
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from llm_pipeline.accuracy.choice import RecipeAttempt, recipes_in_words
from llm_pipeline.config.deployment import Deployment
from llm_pipeline.config.loading import load_release
from llm_pipeline.config.release import ResolvedRelease
from llm_pipeline.config.serving_options import ServingOptions
from llm_pipeline.config.target import Target
from llm_pipeline.errors import Terminal
from llm_pipeline.planning.ladder import climbing_order
from llm_pipeline.release_record import (
    PROMPTS_DATASET,
    TASKS_DATASET,
    ReleaseRecord,
    calibration_dataset,
    read_record,
)
from llm_pipeline.runners.runner import Placement
from llm_pipeline.stages.contract import ArtifactRef, StageFailure, StageRequest, StageResult
from llm_pipeline.stages.execute import failure_name, read_stage_record, results_name
from llm_pipeline.stages.registry import load_stage
from llm_pipeline.store import ArtifactStore, open_store
from llm_pipeline.verdict import Judgement, Verdict

_GOLDEN_MAXIMUM_TOKENS = 32

Inputs = Mapping[str, ArtifactRef]


class MissingResult(Terminal):
    """A stage was asked for before one that it depends on."""


def resolve_request(path: Path, revision: str | None = None) -> StageRequest:
    """The request of a release's first stage.

    Raises:
        ConfigError: The release config, or anything it names, is wrong.
    """
    loaded = load_release(path)
    return StageRequest(
        release_id=loaded.config.name,
        stage="resolve",
        config={"config_path": str(loaded.path), "revision": revision},
        store=loaded.deployment.store,
        work_root=loaded.deployment.work_root,
    )


def canary_subject(target: str, percent: float) -> str:
    """Subject of one canary step, e.g. `cpu:25`."""
    return f"{target}:{percent:g}"


class Flow:
    """One release on its way."""

    def __init__(self, store: ArtifactStore, record: ReleaseRecord) -> None:
        self.store = store
        self.record = record

    @classmethod
    def open(cls, deployment: Deployment, release_id: str) -> Flow:
        """The flow of a release that was resolved before.

        Raises:
            ConfigError: There is no such release.
        """
        store = open_store(deployment.store)
        return cls(store, read_record(store, release_id))

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
    def recipes(self) -> tuple[str, ...]:
        """Names of the recipes, in the order in which they are tried."""
        return climbing_order(self.release)

    @property
    def targets(self) -> tuple[str, ...]:
        """Names of the targets to build for."""
        return tuple(target.name for target in self.release.targets)

    def passed_over(self, recipe: str) -> str | None:
        """Why a recipe need not be tried (any more), in words; None when it must be.

        On a ladder that is climbed, a recipe is needed by each target where it is legal and no cheaper one has passed.
        """
        if self.release.ladder.strategy == "every":
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
        """What the accuracy gate said of the checkpoint that a recipe made last; None while it said nothing of it.

        A result of an earlier run may be of another checkpoint: the recipe was quantized anew since, with other tools.
        """
        gate, quantized = self.find("accuracy", recipe), self.find("quantize", recipe)
        record = read_stage_record(self.store, gate.key) if gate else None
        if gate is None or quantized is None or record is None:
            return None
        same = record.content.inputs.get("checkpoint") == quantized.artifacts.get("checkpoint")
        return gate.judgement if same else None

    def failure_of(self, recipe: str) -> StageFailure | None:
        """The error that quantizing or judging a recipe ended with, if it ended with one."""
        for stage in ("quantize", "accuracy"):
            document = self.store.read_document(failure_name(self.record.release_id, stage, recipe))
            if document is not None:
                return StageFailure.model_validate(document.value)
        return None

    def canary_steps(self, target: str) -> tuple[str, ...]:
        """Subjects of the canary steps of a target, in order."""
        return tuple(canary_subject(target, percent) for percent in self.release.policy.canary.steps_percent)

    def results(self) -> dict[tuple[str, str], StageResult]:
        """All results of the release so far, by stage and subject."""
        names = self.store.list_documents(f"releases/{self.record.release_id}/results")
        documents = [self.store.read_document(name) for name in names]
        results = [StageResult.model_validate(document.value) for document in documents if document]
        return {(result.stage, result.subject): result for result in results}

    def find(self, stage: str, subject: str = "") -> StageResult | None:
        """The result of one stage, or None."""
        document = self.store.read_document(results_name(self.record.release_id, stage, subject))
        return StageResult.model_validate(document.value) if document else None

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
        config, inputs = _BUILDERS[stage](self, subject)
        return StageRequest(
            release_id=self.record.release_id,
            stage=stage,
            subject=subject,
            config=config.model_dump(mode="json"),
            inputs=dict(inputs),
            store=self.deployment.store,
            work_root=self.deployment.work_root,
        )

    def chosen_recipe(self, target: str) -> str:
        """The recipe that `choose` picked for a target.

        Raises:
            MissingResult: It has not run, or no recipe passed.
        """
        recipe = self.result("choose", target).metrics["recipe"]
        if recipe is None:
            raise MissingResult(f"no recipe passed for {target}", hint="nothing can be built for it")
        return str(recipe)

    def artifact(self, stage: str, subject: str, name: str) -> ArtifactRef:
        """An artifact that a stage made."""
        return self.result(stage, subject).artifacts[name]

    def state_directory(self, target: str, server: str) -> str:
        """Directory of a server's state: `staging`, `blue`, `green` or `router`."""
        return str(Path(self.deployment.state_root) / target / server)


def _download(flow: Flow, _subject: str) -> tuple[BaseModel, Inputs]:
    from llm_pipeline.stages.download import download_config

    return download_config(flow.record.model, flow.release.model, flow.deployment.hub), {}


def _tasks(flow: Flow) -> dict[str, ArtifactRef]:
    tasks = flow.record.datasets.get(TASKS_DATASET)
    return {} if tasks is None else {"tasks": tasks}


def _baseline(flow: Flow, _subject: str) -> tuple[BaseModel, Inputs]:
    from llm_pipeline.stages.baseline import BaselineConfig

    config = BaselineConfig.of(flow.release.evaluation, flow.release.baseline.dtype)
    return config, {"checkpoint": flow.artifact("download", "", "checkpoint"), **_tasks(flow)}


def _quantize(flow: Flow, subject: str) -> tuple[BaseModel, Inputs]:
    from llm_pipeline.stages.quantize import QuantizeConfig

    config = QuantizeConfig(recipe=flow.release.recipe(subject), dtype=flow.release.baseline.dtype)
    inputs = {"checkpoint": flow.artifact("download", "", "checkpoint")}
    if calibration := flow.record.datasets.get(calibration_dataset(subject)):
        inputs["calibration"] = calibration
    return config, inputs


def _accuracy(flow: Flow, subject: str) -> tuple[BaseModel, Inputs]:
    from llm_pipeline.stages.accuracy import AccuracyConfig

    config = AccuracyConfig(
        evaluation=flow.release.evaluation,
        policy=flow.release.policy.accuracy,
        dtype=flow.release.baseline.dtype,
    )
    inputs = {
        "checkpoint": flow.artifact("quantize", subject, "checkpoint"),
        "baseline": flow.artifact("baseline", "", "evaluation"),
        **_tasks(flow),
    }
    return config, inputs


def _choose(flow: Flow, subject: str) -> tuple[BaseModel, Inputs]:
    from llm_pipeline.stages.choose import ChooseConfig

    attempts = (_attempt(flow, recipe) for recipe in flow.record.ladders.get(subject, ()))
    return ChooseConfig(attempts=tuple(attempt for attempt in attempts if attempt)), {}


def _attempt(flow: Flow, recipe: str) -> RecipeAttempt | None:
    """How a recipe fared; None when it was not tried."""
    if judgement := flow.judgement_of(recipe):
        size = int(flow.result("quantize", recipe).metrics["bytes"] or 0)
        return RecipeAttempt(recipe=recipe, verdict=judgement.verdict, bytes=size, summary=judgement.summary)
    if failure := flow.failure_of(recipe):
        return RecipeAttempt(recipe=recipe, summary=f"{failure.stage} failed: {failure.error.message}")
    return None


def _build(flow: Flow, subject: str) -> tuple[BaseModel, Inputs]:
    from llm_pipeline.stages.build import BuildConfig

    target, recipe = flow.release.target(subject), flow.chosen_recipe(subject)
    quantized = flow.result("quantize", recipe).artifacts
    inputs = {"checkpoint": quantized["checkpoint"]}
    if target.accelerator != "cpu":
        inputs["evaluation"] = flow.artifact("accuracy", recipe, "evaluation")  # its answers are the golden ones
    if target.engine == "tensorrt_llm_engine" and (exported := quantized.get("tensorrt_llm_checkpoint")):
        inputs["tensorrt_llm_checkpoint"] = exported
    serving = ServingOptions(add_special_tokens=target.serving.add_special_tokens)  # no other option changes the engine
    target = target.model_copy(update={"description": "", "serving": serving})
    config = BuildConfig(target=target, dtype=flow.release.baseline.dtype, maximum_tokens=_GOLDEN_MAXIMUM_TOKENS)
    return config, inputs


def _package(flow: Flow, subject: str) -> tuple[BaseModel, Inputs]:
    from llm_pipeline.stages.package import PackageConfig

    target: Target = flow.release.target(subject)
    config = PackageConfig(target=target, maximum_tokens=_GOLDEN_MAXIMUM_TOKENS)
    inputs = {
        "engine": flow.artifact("build", subject, "engine"),
        "evaluation": flow.artifact("accuracy", flow.chosen_recipe(subject), "evaluation"),
    }
    return config, inputs


def _staging(flow: Flow, subject: str) -> tuple[BaseModel, Inputs]:
    from llm_pipeline.stages.staging import StagingConfig

    config = StagingConfig(
        ports=flow.deployment.places[subject].staging,
        policy=flow.release.policy.staging,
        triton_home=flow.deployment.triton_home,
        python=flow.deployment.interpreter("model"),
        state=flow.state_directory(subject, "staging"),
    )
    return config, {"repository": flow.artifact("package", subject, "repository")}


def _staging_down(flow: Flow, subject: str) -> tuple[BaseModel, Inputs]:
    from llm_pipeline.stages.staging_down import StagingDownConfig

    return StagingDownConfig(state=flow.state_directory(subject, "staging")), {}


def _endpoint(flow: Flow, target: str) -> str:
    return f"http://127.0.0.1:{flow.deployment.places[target].staging.http}"


def _served_accuracy(flow: Flow, subject: str) -> tuple[BaseModel, Inputs]:
    from llm_pipeline.stages.served_accuracy import ServedAccuracyConfig

    config = ServedAccuracyConfig(
        endpoint=_endpoint(flow, subject),
        repository_digest=flow.artifact("package", subject, "repository").digest,
        evaluation=flow.release.evaluation,
        policy=flow.release.policy.served_accuracy,
    )
    return config, {"baseline": flow.artifact("baseline", "", "evaluation"), **_tasks(flow)}


def _load_test(flow: Flow, subject: str) -> tuple[BaseModel, Inputs]:
    from llm_pipeline.stages.load_test import LoadTestConfig

    repository = flow.artifact("package", subject, "repository")
    config = LoadTestConfig(
        endpoint=_endpoint(flow, subject),
        repository_digest=repository.digest,
        workload=flow.release.workload,
        policy=flow.release.policy.load_test,
    )
    return config, {"prompts": flow.record.datasets[PROMPTS_DATASET], "repository": repository}


def _canary(flow: Flow, subject: str) -> tuple[BaseModel, Inputs]:
    from llm_pipeline.stages.canary import CanaryConfig

    target, _, percent = subject.partition(":")
    config = CanaryConfig(
        run=flow.resolved_at.isoformat(),
        model_id=flow.record.model.id,
        target=target,
        step_percent=float(percent),
        policy=flow.release.policy.canary,
        place=flow.deployment.places[target],
        triton_home=flow.deployment.triton_home,
        python=flow.deployment.interpreter("model"),
        state_root=flow.deployment.state_root,
        drill=flow.release.drill,
    )
    return config, {"repository": flow.artifact("package", target, "repository")}


def _rollback(flow: Flow, subject: str) -> tuple[BaseModel, Inputs]:
    from llm_pipeline.stages.rollback import RollbackConfig

    config = RollbackConfig(
        model_id=flow.record.model.id,
        target=subject,
        place=flow.deployment.places[subject],
        state_root=flow.deployment.state_root,
    )
    return config, {}


def _settle(flow: Flow, subject: str) -> tuple[BaseModel, Inputs]:
    from llm_pipeline.stages.settle import SettleConfig

    config = SettleConfig(
        model_id=flow.record.model.id,
        target=subject,
        recipe=flow.chosen_recipe(subject),
    )
    return config, {"repository": flow.artifact("package", subject, "repository")}


def _report(_flow: Flow, _subject: str) -> tuple[BaseModel, Inputs]:
    from llm_pipeline.stages.report import ReportConfig

    return ReportConfig(), {}


_BUILDERS: Mapping[str, Callable[[Flow, str], tuple[Any, Inputs]]] = {
    "download": _download,
    "baseline": _baseline,
    "quantize": _quantize,
    "accuracy": _accuracy,
    "choose": _choose,
    "build": _build,
    "package": _package,
    "staging": _staging,
    "staging_down": _staging_down,
    "served_accuracy": _served_accuracy,
    "load_test": _load_test,
    "canary": _canary,
    "rollback": _rollback,
    "settle": _settle,
    "report": _report,
}


def placement(request: StageRequest) -> Placement:
    """Where a stage is to run: the build where its target says, every other stage in the environment it declares."""
    if request.stage != "build":
        return Placement(environment=load_stage(request.stage).environment)
    target = Target.model_validate(request.config["target"])
    return Placement(environment=target.environment, container=target.container)


def passed(result: StageResult) -> bool:
    """Whether the release may go on after a stage: it is no gate, or its verdict is GO."""
    return result.judgement is None or result.judgement.verdict is Verdict.GO
