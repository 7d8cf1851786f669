"""Served accuracy: score the candidate once more through its server, against the baseline, item by item.

The engine compiler is a second quantizer, and tokenizers differ between runtimes: only this gate sees either.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from llm_pipeline.base.collector import sparing
from llm_pipeline.base.digest import sha256_json
from llm_pipeline.base.logging import Lines, get_logger
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.config.endpoint import Endpoint
from llm_pipeline.config.model import ConfigModel
from llm_pipeline.config.policy import AccuracyPolicy
from llm_pipeline.config.release import Evaluation
from llm_pipeline.release.contract import Produced, Stage, StageContext, StageOutput
from llm_pipeline.stages.request_parts import scored_data, staging_endpoint

if TYPE_CHECKING:
    from llm_pipeline.release_progress import ReleaseProgress

log = get_logger(__name__)


class ServedAccuracyConfig(ConfigModel):
    """What the served lane reads.

    Attributes:
        endpoint: The staged server; says where, not what.
        repository_digest: What it must serve.
        evaluation: Tasks and their limit; only `served_tasks` are scored.
        policy: When the served model is good enough.
    """

    endpoint: Endpoint
    repository_digest: str
    evaluation: Evaluation
    policy: AccuracyPolicy


def run(context: StageContext[ServedAccuracyConfig]) -> StageOutput:
    """Ask the served tasks through the endpoint, until the model can be judged.

    Raises:
        IntegrityError: The endpoint serves another repository, or the baseline was asked otherwise.
        Unsupported: A served task is not a generative one.
        Transient: The endpoint does not answer.
    """
    # imported here: a result that is reused needs no numpy, which loads slowly
    from llm_pipeline.accuracy.chat_template import ChatTemplate
    from llm_pipeline.accuracy.evaluation import (
        read_summary,
        refuse_other_harness,
        summarise,
        write_evaluation,
    )
    from llm_pipeline.accuracy.gate import compare_as_judged, portions
    from llm_pipeline.accuracy.item_runner import ItemRunner, SavedItems
    from llm_pipeline.accuracy.table import format_comparison
    from llm_pipeline.artifacts.items import read_items
    from llm_pipeline.base.progress import Progress
    from llm_pipeline.serving.endpoint_access import require_served

    config = context.config
    require_served(config.endpoint, config.repository_digest)
    started = time.monotonic()
    with sparing():  # importing the harness is the harness's time, and a fifth of it would be the collector's
        from llm_pipeline.accuracy.lm_eval_served import ServedModel, served_questions, served_versions

    chat = ChatTemplate.read(context.inputs["baseline"])
    inputs = context.inputs
    questions = served_questions(inputs.get("tasks"), config.evaluation, chat, inputs.get("eval_data"))
    model = ServedModel(config.endpoint)
    before = read_summary(context.inputs["baseline"])
    refuse_other_harness(before.harness, questions.identity)
    asked = portions(questions.clusters)
    order = [place for portion in asked for place in portion]
    tasks = sorted(questions.clusters)
    baseline = read_items(context.inputs["baseline"])
    model.progress = Progress("evaluating", len(questions.instances(order)), "requests")
    saved = SavedItems(context.workdir / "items", sha256_json([questions.identity, order]))
    built = time.monotonic()
    runner = ItemRunner(questions, model, order, saved, model.progress)
    judgement, look = runner.ask_until_decided(baseline, asked, config.policy, before.judged_as_one, tasks)
    scored = time.monotonic()
    require_served(config.endpoint, config.repository_digest)
    comparison = compare_as_judged(
        baseline, runner.items, config.policy, judgement, tasks=tasks, groups=before.judged_as_one
    )
    log.info(Lines(f"the server's answers, compared with the baseline:{format_comparison(comparison, config.policy)}"))
    summary = summarise(runner.items, {"scoring": round(scored - built, 3)}, served_versions()).model_copy(
        update={
            "planned": len(order),
            "look": look,
            "looks": len(asked),
            "harness": questions.identity,
            **questions.asked_for,
        }
    )
    directory = context.workdir / "evaluation"
    write_evaluation(directory, runner.items, summary)
    scores = [item.score for item in runner.items if item.score is not None]
    return StageOutput(
        artifacts={"evaluation": Produced("evaluation", directory)},
        metrics={
            "items": len(runner.items),
            "items_planned": len(order),
            "accuracy": sum(scores) / len(scores) if scores else None,
            "items_per_second": runner.asked / (scored - built),
        },
        judgement=judgement,
        tool_seconds=scored - started,
    )


def request(flow: ReleaseProgress, subject: str) -> tuple[ServedAccuracyConfig, Mapping[str, ArtifactRef]]:
    """What the stage is given."""
    config = ServedAccuracyConfig(
        endpoint=staging_endpoint(flow, subject),
        repository_digest=flow.artifact("package", subject, "repository").digest,
        evaluation=flow.release.evaluation.asked,
        policy=flow.release.policy.served_accuracy,
    )
    return config, {"baseline": flow.artifact("baseline", "", "evaluation"), **scored_data(flow)}


STAGE = Stage(
    name="served_accuracy",
    version=7,
    config=ServedAccuracyConfig,
    request=request,
    run=run,
    environment="model",
    tools=("lm-eval", "aiohttp"),
    places=frozenset({"endpoint"}),
)
