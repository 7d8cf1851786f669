"""Served accuracy: score the candidate once more through its server, against the baseline, item by item.

The engine compiler is a second quantizer, and tokenizers differ between runtimes: only this gate sees either.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from llm_pipeline.config.endpoint import Endpoint
from llm_pipeline.config.model import ConfigModel
from llm_pipeline.config.policy import AccuracyPolicy
from llm_pipeline.config.release import Evaluation
from llm_pipeline.release.contract import Inputs, Stage, StageContext, StageOutput
from llm_pipeline.stages.baseline import evaluation_output, scored_data
from llm_pipeline.stages.request_parts import staging_endpoint

if TYPE_CHECKING:
    from llm_pipeline.release_progress import ReleaseProgress


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
        Unsupported: A served task compares likelihoods, and the server tells none.
        Transient: The endpoint does not answer.
    """
    # here: a result that is reused needs no numpy, which loads slowly
    from llm_pipeline.accuracy.evaluate import evaluate_served
    from llm_pipeline.serving.endpoint_access import require_served

    config = context.config
    require_served(config.endpoint, config.repository_digest)
    evaluated, judgement = evaluate_served(
        context.inputs, config.evaluation, config.policy, config.endpoint, context.workdir
    )
    require_served(config.endpoint, config.repository_digest)
    return evaluation_output(evaluated, judgement)


def request(flow: ReleaseProgress, subject: str) -> tuple[ServedAccuracyConfig, Inputs]:
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
    version=11,
    config=ServedAccuracyConfig,
    request=request,
    run=run,
    tools=("lm-eval", "aiohttp"),
    places=frozenset({"endpoint"}),
)
