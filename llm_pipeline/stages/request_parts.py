"""What several stages are given, and return: tasks' data, known answers, evaluations, and a place's servers."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llm_pipeline.base.digest import sha256_json
from llm_pipeline.base.logging import Lines, get_logger
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.base.verdict import Judgement
from llm_pipeline.config.endpoint import Endpoint
from llm_pipeline.config.release import CheckpointEvaluation
from llm_pipeline.release.contract import Produced, Stage, StageContext, StageOutput
from llm_pipeline.release.datasets import TASKS_DATASET

if TYPE_CHECKING:
    from llm_pipeline.accuracy.evaluate import Evaluated
    from llm_pipeline.release_progress import ReleaseProgress
    from llm_pipeline.serving.kubernetes_manifests import ServedRelease

log = get_logger(__name__)

GOLDEN_MAXIMUM_TOKENS = 32
"""Output limit of the golden answers."""

_KEPT_SECONDS = 30 * 86_400.0


def kept_answers(context: StageContext[Any], stage: Stage[Any], evaluation: CheckpointEvaluation) -> Path:
    """File of a checkpoint's answers, which outlives the work directory: another margin, or recipe none, asks nothing.

    What nobody wrote to for a month goes.
    """
    from llm_pipeline.release.execute import tool_versions

    folder = Path(context.request.work_root) / "answers"
    for path in folder.glob("*.jsonl"):
        if time.time() - path.stat().st_mtime > _KEPT_SECONDS:
            path.unlink(missing_ok=True)
    inputs = {name: ref.digest for name, ref in context.request.inputs.items() if name != "baseline"}
    asked = evaluation.model_dump(mode="json", include=set(CheckpointEvaluation.model_fields))
    key = [inputs, asked, context.config.dtype, tool_versions(stage, context.config)]
    return folder / f"{sha256_json(key)}.jsonl"


def evaluation_output(evaluated: Evaluated, judgement: Judgement | None = None) -> StageOutput:
    """What a stage returns that scored a model; its scores are in the log."""
    from llm_pipeline.accuracy.evaluation import format_evaluation

    log.info(Lines(f"scores:{format_evaluation(evaluated.summary)}"))
    return StageOutput(
        artifacts={"evaluation": Produced("evaluation", evaluated.directory)},
        metrics=evaluated.metrics(),
        judgement=judgement,
    )


def scored_data(flow: ReleaseProgress) -> dict[str, ArtifactRef]:
    """What the tasks are and what they read."""
    return {**task_data(flow), "eval_data": flow.artifact("eval_data", "", "eval_data")}


def task_data(flow: ReleaseProgress) -> dict[str, ArtifactRef]:
    """The tasks of one's own, where the release has any."""
    tasks = flow.record.datasets.get(TASKS_DATASET)
    return {} if tasks is None else {"tasks": tasks}


def server_slot(flow: ReleaseProgress, target: str) -> dict[str, Any]:
    """Fields of `ServerSlotConfig`."""
    from llm_pipeline.serving.control import StagingSlot

    place, state = flow.place(target).staging, Path(flow.state_directory(target, "staging"))
    slot = StagingSlot(state, flow.release.name, flow.target(target))
    if place.is_process_here:
        software = server_software(flow, target)
        slot = replace(slot, triton_home=Path(software["triton_home"]), python=Path(software["python"]))
    return {"place": place, "slot": slot}


def server_software(flow: ReleaseProgress, target: str) -> dict[str, Any]:
    """What servers of this host run."""
    deployment = flow.deployment
    python = deployment.interpreter(deployment.places[flow.record.place_of(target)].environment)
    return {"triton_home": deployment.triton_home, "python": python}


def served_release(flow: ReleaseProgress, target: str) -> ServedRelease:
    """What pods serve of a packaged release: its artifacts by name."""
    from llm_pipeline.serving.kubernetes_manifests import ServedRelease

    return ServedRelease(
        name=flow.release.name,
        release_id=flow.record.release_id,
        model_id=flow.record.model.id,
        target=flow.target(target),
        repository=flow.artifact("package", target, "repository"),
        engine=flow.artifact("build", target, "engine"),
        checkpoint=flow.artifact("quantize", flow.chosen_recipe(target), "checkpoint"),
    )


def staging_endpoint(flow: ReleaseProgress, target: str) -> Endpoint:
    """Where the staged candidate answers."""
    from llm_pipeline.engines.builder import own_server_of
    from llm_pipeline.serving.control import endpoint_of

    place, served = flow.place(target).staging, flow.target(target)
    own = own_server_of(served)
    metrics = own.metrics_path if own is not None else ""
    return endpoint_of(place, release_name=flow.release.name, target_name=served.name, own_metrics=metrics)
