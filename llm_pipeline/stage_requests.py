"""What each stage is given: its own slice of the release config, and the artifacts of the stages before it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ValidationError

from llm_pipeline.accuracy.choice import RecipeAttempt
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.config.endpoint import Endpoint
from llm_pipeline.config.server_place import KubernetesServer, LocalServer
from llm_pipeline.config.serving_options import ServingOptions
from llm_pipeline.config.target import Target
from llm_pipeline.release.contract import StageResult
from llm_pipeline.release.record import PROMPTS_DATASET, TASKS_DATASET, calibration_dataset

if TYPE_CHECKING:
    from llm_pipeline.flow import Flow
    from llm_pipeline.serving.kubernetes_manifests import ServedRelease
    from llm_pipeline.stages.load_test import ComparisonPlace
    from llm_pipeline.store import ArtifactStore

_GOLDEN_MAXIMUM_TOKENS = 32

Inputs = Mapping[str, ArtifactRef]


def _download(flow: Flow, _subject: str) -> tuple[BaseModel, Inputs]:
    from llm_pipeline.stages.download import download_config

    record = flow.record
    return download_config(record.model, flow.release.model, flow.deployment.hub, record.facts), {}


def _eval_data(flow: Flow, _subject: str) -> tuple[BaseModel, Inputs]:
    from llm_pipeline.stages.eval_data import EvalDataConfig

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
    return config, _tasks(flow)


def _scored_data(flow: Flow) -> dict[str, ArtifactRef]:
    """What the tasks are and what they read."""
    return {**_tasks(flow), "eval_data": flow.artifact("eval_data", "", "eval_data")}


def _tasks(flow: Flow) -> dict[str, ArtifactRef]:
    tasks = flow.record.datasets.get(TASKS_DATASET)
    return {} if tasks is None else {"tasks": tasks}


def _baseline(flow: Flow, _subject: str) -> tuple[BaseModel, Inputs]:
    from llm_pipeline.stages.baseline import BaselineConfig

    config = BaselineConfig.of(flow.release.evaluation, flow.release.baseline.dtype)
    return config, {"checkpoint": flow.artifact("download", "", "checkpoint"), **_scored_data(flow)}


def _baseline_gate(flow: Flow, _subject: str) -> tuple[BaseModel, Inputs]:
    from llm_pipeline.stages.baseline_gate import BaselineGateConfig

    baseline = flow.artifact("baseline", "", "evaluation")
    inputs = {"baseline": baseline}
    if (before := _baseline_before(flow)) not in (None, baseline):
        inputs["production"] = before
    return BaselineGateConfig(expected=flow.release.baseline.expected), inputs


def _baseline_before(flow: Flow) -> ArtifactRef | None:
    """The baseline of the release in production, or of the one before it if that is this release; None for neither."""
    from llm_pipeline.store.pointers import read_pointers

    for target in flow.targets:
        pointers, _ = read_pointers(flow.store, flow.record.model.id, flow.record.place_of(target))
        for pointer in (pointers.production, pointers.previous):
            if pointer is None or pointer.release_id == flow.record.release_id:
                continue
            found = _baseline_of(flow.store, pointer.release_id)
            if found is not None and flow.store.exists(found):
                return found
    return None


def _baseline_of(store: ArtifactStore, release_id: str) -> ArtifactRef | None:
    """The baseline's evaluation of a release; None where this version finds none."""
    from llm_pipeline.release.execute import results_name

    document = store.read_document(results_name(release_id, "baseline", ""))
    try:
        return StageResult.model_validate(document.value).artifacts.get("evaluation") if document else None
    except ValidationError:
        return None


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
        evaluation=flow.release.evaluation.asked,
        policy=flow.release.policy.accuracy,
        dtype=flow.release.baseline.dtype,
        rungs=_sharing_rungs(flow),
    )
    inputs = {
        "checkpoint": flow.artifact("quantize", subject, "checkpoint"),
        "baseline": flow.artifact("baseline", "", "evaluation"),
        **_scored_data(flow),
    }
    return config, inputs


def _sharing_rungs(flow: Flow) -> int:
    """Recipes among which the error is divided: those of the longest ladder, if the policy says so."""
    if flow.release.policy.accuracy.error_budget != "ladder":
        return 1
    return max(map(len, flow.record.ladders.values()), default=1)


def _choose(flow: Flow, subject: str) -> tuple[BaseModel, Inputs]:
    from llm_pipeline.stages.choose import ChooseConfig

    attempts = (_attempt(flow, recipe) for recipe in flow.record.ladders.get(subject, ()))
    tried = tuple(attempt for attempt in attempts if attempt)
    judged = sum(attempt.verdict is not None for attempt in tried)
    return ChooseConfig(attempts=tried, error=_ladder_error(flow, judged)), {}


def _ladder_error(flow: Flow, judged: int) -> float:
    from llm_pipeline.accuracy.error_budget import policy_at, share_of_error

    policy = flow.release.policy.accuracy
    own = policy_at(policy, share_of_error(policy, 1, _sharing_rungs(flow)))
    return round(1.0 - own.confidence**judged, 6)


def _attempt(flow: Flow, recipe: str) -> RecipeAttempt | None:
    """How a recipe fared; None when it was not tried."""
    if judgement := flow.judgement_of(recipe):
        size = int(flow.result("quantize", recipe).metrics["bytes"] or 0)
        return RecipeAttempt(
            recipe=recipe,
            verdict=judgement.verdict,
            bytes=size,
            summary=judgement.summary,
            quantized=all(given.weights != "none" for given in flow.release.recipes if given.name == recipe),
        )
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

    repository = flow.artifact("package", subject, "repository")
    config = StagingConfig(
        **_server_slot(flow, subject),
        policy=flow.release.policy.staging,
        release=_served_release(flow, subject, repository) if _serves_in_pods(flow, subject) else None,
    )
    return config, {"repository": repository}


def _staging_down(flow: Flow, subject: str) -> tuple[BaseModel, Inputs]:
    from llm_pipeline.stages.staging_down import StagingDownConfig

    comparison = flow.state_directory(subject, "comparison")
    return StagingDownConfig(**_server_slot(flow, subject), comparison_state=comparison), {}


def _server_slot(flow: Flow, target: str) -> dict[str, Any]:
    """Fields of `ServerSlotConfig`."""
    place = flow.place(target).staging
    here: dict[str, str] = {}
    if isinstance(place, LocalServer):
        here = _server_software(flow, target)
    return {
        "place": place,
        "state": flow.state_directory(target, "staging"),
        "release_name": flow.release.name,
        "served": flow.release.target(target),
        **here,
    }


def _serves_in_pods(flow: Flow, target: str) -> bool:
    return isinstance(flow.place(target).staging, KubernetesServer)


def _served_release(flow: Flow, target: str, repository: ArtifactRef) -> ServedRelease:
    from llm_pipeline.serving.kubernetes_manifests import ServedRelease

    return ServedRelease(
        name=flow.release.name,
        release_id=flow.record.release_id,
        model_id=flow.record.model.id,
        target=flow.release.target(target),
        repository=repository,
        engine=flow.artifact("build", target, "engine"),
        checkpoint=flow.artifact("quantize", flow.chosen_recipe(target), "checkpoint"),
    )


def _endpoint(flow: Flow, target: str) -> Endpoint:
    """Where the staged candidate answers."""
    from llm_pipeline.serving.control import endpoint_of

    place = flow.place(target).staging
    return endpoint_of(place, release_name=flow.release.name, target_name=target)


def _served_accuracy(flow: Flow, subject: str) -> tuple[BaseModel, Inputs]:
    from llm_pipeline.stages.served_accuracy import ServedAccuracyConfig

    config = ServedAccuracyConfig(
        endpoint=_endpoint(flow, subject),
        repository_digest=flow.artifact("package", subject, "repository").digest,
        evaluation=flow.release.evaluation.asked,
        policy=flow.release.policy.served_accuracy,
    )
    return config, {"baseline": flow.artifact("baseline", "", "evaluation"), **_scored_data(flow)}


def _load_test(flow: Flow, subject: str) -> tuple[BaseModel, Inputs]:
    from llm_pipeline.planning.physical_limits import physical_limits
    from llm_pipeline.stages.load_test import LoadTestConfig

    repository, target = flow.artifact("package", subject, "repository"), flow.release.target(subject)
    recipe, workload = flow.release.recipe(flow.chosen_recipe(subject)), flow.release.workload
    price = flow.deployment.gpu_hour_prices.get(target.accelerator)
    staging = flow.place(subject).staging
    config = LoadTestConfig(
        endpoint=_endpoint(flow, subject),
        server_state=flow.state_directory(subject, "staging") if isinstance(staging, LocalServer) else None,
        comparison=_comparison(flow, subject),
        repository_digest=repository.digest,
        users=target.limits.maximum_sequences,
        workload=workload,
        policy=flow.release.policy.load_test,
        staging=flow.release.policy.staging,
        physics=physical_limits(flow.record.facts, target, recipe, workload),
        hour_price=None if price is None else price * target.accelerator_count,
        currency=flow.deployment.currency,
    )
    inputs = {"prompts": flow.record.datasets[PROMPTS_DATASET], "repository": repository}
    if flow.release.policy.load_test.regression and (production := _production(flow, subject, repository)):
        inputs["production"] = production
    return config, inputs


def _server_software(flow: Flow, target: str) -> dict[str, Any]:
    """What servers of this host run."""
    deployment = flow.deployment
    python = deployment.serving_interpreter(flow.record.place_of(target))
    return {"triton_home": deployment.triton_home, "python": python}


def _comparison(flow: Flow, target: str) -> ComparisonPlace | None:
    """Where production is served once more; None where the deployment has no ports for it."""
    from llm_pipeline.stages.load_test import ComparisonPlace

    ports = flow.place(target).comparison
    if ports is None:
        return None
    return ComparisonPlace(
        ports=ports,
        **_server_software(flow, target),
        state=flow.state_directory(target, "comparison"),
    )


def _production(flow: Flow, target: str, candidate: ArtifactRef) -> ArtifactRef | None:
    """What serves now, or served before it if that is the candidate; None before the first release."""
    from llm_pipeline.release.trusted_pointers import require_served
    from llm_pipeline.store.pointers import read_pointers

    model_id, place = flow.record.model.id, flow.record.place_of(target)
    pointers, _ = read_pointers(flow.store, model_id, place)
    for pointer in (pointers.production, pointers.previous):
        if pointer is not None and pointer.repository != candidate:
            require_served(flow.store, model_id, place, pointer)
            return pointer.repository
    return None


def _canary(flow: Flow, subject: str) -> tuple[BaseModel, Inputs]:
    from llm_pipeline.stages.canary import CanaryConfig

    target, _, percent = subject.partition(":")
    config = CanaryConfig(
        run=flow.resolved_at.isoformat(),
        model_id=flow.record.model.id,
        target=flow.record.place_of(target),
        step_percent=float(percent),
        policy=flow.release.policy.canary,
        place=flow.place(target),
        **_server_software(flow, target),
        state_root=flow.deployment.state_root,
        drill=flow.release.drill,
        workload=flow.release.workload,
    )
    inputs = {"repository": flow.artifact("package", target, "repository")}
    policy = flow.release.policy.canary
    if policy.shadow is not None or policy.replay_requests_per_second > 0:
        inputs["prompts"] = flow.record.datasets[PROMPTS_DATASET]
    return config, inputs


def _rollback(flow: Flow, subject: str) -> tuple[BaseModel, Inputs]:
    from llm_pipeline.stages.rollback import RollbackConfig

    config = RollbackConfig(
        model_id=flow.record.model.id,
        target=flow.record.place_of(subject),
        place=flow.place(subject),
        state_root=flow.deployment.state_root,
        **_server_software(flow, subject),
    )
    return config, {}


def _settle(flow: Flow, subject: str) -> tuple[BaseModel, Inputs]:
    from llm_pipeline.stages.settle import SettleConfig

    config = SettleConfig(
        model_id=flow.record.model.id,
        target=flow.record.place_of(subject),
        recipe=flow.chosen_recipe(subject),
        place=flow.place(subject),
        state_root=flow.deployment.state_root,
    )
    return config, {"repository": flow.artifact("package", subject, "repository")}


def _report(_flow: Flow, _subject: str) -> tuple[BaseModel, Inputs]:
    from llm_pipeline.stages.report import ReportConfig

    return ReportConfig(), {}


REQUESTS: Mapping[str, Callable[[Flow, str], tuple[Any, Inputs]]] = {
    "eval_data": _eval_data,
    "download": _download,
    "baseline": _baseline,
    "baseline_gate": _baseline_gate,
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
