"""Served accuracy: score the candidate once more through its server, against the baseline, item by item.

The engine compiler is a second quantizer, and tokenizers differ between runtimes: only this gate sees either.
"""

from __future__ import annotations

import asyncio
import time

from llm_pipeline.accuracy.evaluation import write_evaluation
from llm_pipeline.accuracy.items import read_items
from llm_pipeline.config.model import ConfigModel
from llm_pipeline.config.policy import AccuracyPolicy
from llm_pipeline.config.release import Evaluation
from llm_pipeline.logging import get_logger
from llm_pipeline.serving.identity import require_served
from llm_pipeline.stages.contract import Produced, Stage, StageContext, StageOutput

log = get_logger(__name__)


class ServedAccuracyConfig(ConfigModel):
    """What the served lane reads.

    Attributes:
        endpoint: The staged server; says where, not what.
        repository_digest: What it must serve.
        evaluation: Tasks and their limit; only `served_tasks` are scored.
        policy: When the served model is good enough.
    """

    endpoint: str
    repository_digest: str
    evaluation: Evaluation
    policy: AccuracyPolicy


def run(context: StageContext[ServedAccuracyConfig]) -> StageOutput:
    """Score the served tasks through the endpoint and judge them.

    Raises:
        IntegrityError: The endpoint serves another repository, or the baseline answered other questions.
        Transient: The endpoint does not answer.
    """
    from llm_pipeline.accuracy.gate import comparison_table, judge_accuracy

    config = context.config
    asyncio.run(require_served(config.endpoint, config.repository_digest))
    started = time.monotonic()
    from llm_pipeline.accuracy.lm_eval_served import evaluate_served  # importing the harness is the harness's time

    imported = time.monotonic()
    evaluated = evaluate_served(config.endpoint, config.evaluation, context.inputs.get("tasks"))
    candidate = evaluated.items
    scored = time.monotonic()
    asyncio.run(require_served(config.endpoint, config.repository_digest))
    baseline = read_items(context.inputs["baseline"])
    # A served group stands for its tasks; a served task that returned nothing is missing, not forgotten.
    asked = set(config.evaluation.served_tasks) & {item.task for item in baseline}
    tasks = sorted(asked | {item.task for item in candidate})
    judgement = judge_accuracy(baseline, candidate, config.policy, tasks)
    log.info(comparison_table(baseline, candidate, config.policy, tasks))
    directory = context.workdir / "evaluation"
    write_evaluation(directory, candidate, evaluated.summary)
    scores = [item.score for item in candidate if item.score is not None]
    return StageOutput(
        artifacts={"evaluation": Produced("evaluation", directory)},
        metrics={
            "items": len(candidate),
            "accuracy": sum(scores) / len(scores) if scores else None,
            "items_per_second": len(candidate) / (scored - imported),
        },
        judgement=judgement,
        tool_seconds=scored - started,
    )


STAGE = Stage(
    name="served_accuracy",
    version=1,
    config=ServedAccuracyConfig,
    run=run,
    environment="model",
    tools=("lm-eval", "aiohttp"),
    places=frozenset({"endpoint"}),
)
